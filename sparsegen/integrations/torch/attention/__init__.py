"""Attention over the nonzeros of a mask."""
