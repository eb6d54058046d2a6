"""Attention, dense with block masks, over pages, or on a pattern of nonzeros, and what its operators share."""
