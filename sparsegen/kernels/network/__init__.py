"""Whole sparse networks: several layers in one launch."""

OPERATORS = ("sparse_network",)
