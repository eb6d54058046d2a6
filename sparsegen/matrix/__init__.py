"""Sparse matrices and masks: containers, readers, features, generators."""
