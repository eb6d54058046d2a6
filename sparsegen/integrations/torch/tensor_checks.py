"""Tensors as an operator takes them, or a typed error in words."""

from __future__ import annotations

from torch import Tensor

from sparsegen.errors import OperandError


def check_tensor(
    tensor: Tensor, name: str, shape: tuple[int | None, ...], like: Tensor, *, free: str = "any"
) -> None:
    """Hold a tensor against a shape, and against another tensor's dtype and device.

    Args:
        shape: None stands for any number, which errors call ``free``.

    Raises:
        OperandError: it differs.
    """
    fits = tensor.dim() == len(shape) and all(
        s is None or s == t for s, t in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = " × ".join(free if size is None else str(size) for size in shape)
        raise OperandError(f"{name}: expected shape {wanted}, got {tuple(tensor.shape)}")
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise OperandError(
            f"{name}: expected {like.dtype} on {like.device}, got {tensor.dtype} on {tensor.device}"
        )
