"""Softmax over the nonzeros of each row, and its gradient."""

OPERATORS = ("sparse_softmax", "sparse_softmax_backward")
