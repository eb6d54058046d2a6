"""Exact categories: which inputs are alive, decided by float64 where rounding could matter."""
