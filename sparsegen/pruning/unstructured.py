"""Unstructured magnitude pruning: the smallest weights go, wherever they are."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.pruning.groups import Groups
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True)
class Unstructured:
    """Every weight is a group of its own, scored by its magnitude (Han et al., NeurIPS 2015, section 3)."""

    elementwise = True
    rule = "met exactly"

    def describe(self) -> str:
        return "unstructured"

    def groups(self, magnitudes: Array) -> Groups:
        return Groups(magnitudes.reshape(-1), 1)

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        return kept.reshape(magnitudes.shape)
