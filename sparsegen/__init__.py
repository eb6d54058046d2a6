"""sparsegen: an autotuning code-generation compiler for sparse GPU kernels."""

__version__ = "0.1.0"
