"""Convolutions whose block masks change with every call, and the gradient by their weights."""

OPERATORS = ("masked_conv2d", "masked_conv2d_weights")
