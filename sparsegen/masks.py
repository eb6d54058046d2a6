"""Masks of sparse attention, for users: what `sparsegen.matrix.masks` makes."""

from sparsegen.matrix.masks import band, blocks, sliding_window, strided

__all__ = ["band", "blocks", "sliding_window", "strided"]
