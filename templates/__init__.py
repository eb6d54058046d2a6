"""The CUDA templates, installed as ``sparsegen.templates``."""
