"""Sparse attention out of several operators: in steps, or fused, and which of the two."""
