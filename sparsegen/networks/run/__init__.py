"""Inference: inputs in chunks, weights and results in turns, on one or several devices."""
