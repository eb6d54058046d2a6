"""Comparison of a model's results, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

TOLERANCES = {torch.float16: 3e-2, torch.bfloat16: 2e-1}  # relative to the largest magnitude
TOLERANCE = 1e-3  # for all other types


def agree(one: object, other: object) -> bool:
    """True if two results hold the same tensors, with numbers that differ by no more than a whole model's rounding.

    False if there is no tensor to compare: tensors are looked for in sequences, mappings and their nestings.
    """
    ours, theirs = list(tensors_in(one)), list(tensors_in(other))
    return (
        bool(ours)
        and len(ours) == len(theirs)
        and all(_close(a, b) for a, b in zip(ours, theirs, strict=True))
    )


def tensors_in(nested: object) -> Iterator[Tensor]:
    """The tensors in sequences and mappings, in order."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (list, tuple)):
        for one in nested:
            yield from tensors_in(one)
    elif isinstance(nested, Mapping):
        for one in nested.values():
            yield from tensors_in(one)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    a, b = one.double(), other.double()
    largest = b[b.isfinite()].abs().amax().item() if bool(b.isfinite().any()) else 0.0
    tolerance = TOLERANCES.get(one.dtype, TOLERANCE) * largest
    return torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
