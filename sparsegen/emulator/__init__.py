"""Runs the generated CUDA source, unchanged, on the CPU."""
