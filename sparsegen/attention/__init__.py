"""Attention with a fixed mask out of several operators: in steps, fused, or by blocks, and which of them."""
