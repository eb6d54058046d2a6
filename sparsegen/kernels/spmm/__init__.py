"""Sparse matrix times dense matrix: the families, and what only they use."""

OPERATORS = ("spmm",)
