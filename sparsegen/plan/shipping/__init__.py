"""Launches that run without sparsegen: a shared library of kernels, as an operator of plain PyTorch."""
