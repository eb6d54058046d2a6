"""Checks that weights are as they were when something was made of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

WeightState = tuple[Tensor | None, int | None, int]  # itself, the count of its changes, its address
_NO_WEIGHT: WeightState = None, None, 0


def weight_state(tensor: Tensor | None) -> WeightState:
    """A state that changes with a weight, as far as PyTorch counts changes.

    It holds the tensor, so that no other one gets its address.
    """
    if tensor is None:
        return _NO_WEIGHT
    return tensor, None if tensor.is_inference() else tensor._version, tensor.data_ptr()


def unchanged(
    weights: Sequence[Tensor | None], known: Sequence[WeightState], *, frozen: bool = False
) -> bool:
    """True if weights are as they were; with ``frozen``, weights that train count as changed."""
    for tensor, (before, version, address) in zip(weights, known, strict=True):
        if tensor is not before:
            return False
        if tensor is None:
            continue
        if tensor.data_ptr() != address or (version is not None and tensor._version != version):
            return False
        if frozen and (version is None or tensor.requires_grad):
            return False
    return True
