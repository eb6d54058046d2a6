"""Submanifold convolutions over points, and the gradient by their weights."""

OPERATORS = ("submanifold_conv3d", "submanifold_conv3d_weights")
