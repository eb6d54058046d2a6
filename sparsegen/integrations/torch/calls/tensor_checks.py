"""Tensors as an operator takes them, or a typed error in words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen.errors import OperandError


def require_tensors(*, bias: object = None, **given: object) -> None:
    """Hold arguments against PyTorch's type, before its dispatcher does so in its own words.

    Args:
        bias: may be None.
        given: arguments by name.

    Raises:
        OperandError: one of them is no dense tensor, or a nested one; the message says how to make one.
    """
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise no_tensor(value, name)
        if value.is_nested:
            raise OperandError(
                f"{name}: a nested tensor has no one shape: pass its rows, {name}.values() of a jagged one"
            )
        if value.layout is not torch.strided:
            raise OperandError(f"{name}: expected a dense tensor, got {value.layout}; use {name}.to_dense()")
    if bias is not None and not isinstance(bias, Tensor):
        raise no_tensor(bias, "bias")


def no_tensor(value: object, name: str) -> OperandError:
    """The error for an argument that is no tensor."""
    kind = type(value)
    called = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    advice = "" if value is None else f"; make it one with torch.as_tensor({name})"
    return OperandError(f"{name}: expected a torch.Tensor, got {called}{advice}")


def checked_device(device: Any) -> torch.device:
    """A device of PyTorch by what names it; for None the default one.

    Raises:
        OperandError: it is none, or this PyTorch cannot use it.
    """
    try:
        return torch.empty(0, device=None if device is None else torch.device(device)).device
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OperandError(f"device = {device!r} is no device that PyTorch can use: {reason}") from error


def require_dtype(dtype: object) -> None:
    """Raises OperandError for what is no dtype of PyTorch."""
    if not isinstance(dtype, torch.dtype):
        raise OperandError(f"dtype = {dtype!r} is no torch.dtype, such as torch.float16")


def require_parameter_dtype(dtype: Any) -> None:
    """Raises OperandError for what is no dtype of PyTorch, or one that parameters with gradients cannot have."""
    require_dtype(dtype)
    if not dtype.is_floating_point:
        raise OperandError(f"dtype = {dtype} has no gradients; parameters are floating-point numbers")


def require_real(tensor: Tensor, name: str) -> None:
    """Raises OperandError unless a tensor holds all of its elements, as floating-point numbers."""
    if tensor.layout is not torch.strided:
        raise OperandError(f"{name}: expected a dense tensor, got {tensor.layout}; use {name}.to_dense()")
    if not tensor.is_floating_point():
        raise OperandError(f"{name}: expected floating-point numbers, got {tensor.dtype}; use {name}.float()")


def check_tensor(
    tensor: Tensor, name: str, shape: tuple[int | None, ...], like: Tensor, *, free: str = "any"
) -> None:
    """Hold a tensor against a shape, and against another tensor's dtype and device.

    Args:
        shape: None stands for any number, which errors call ``free``.

    Raises:
        OperandError: it differs, or holds no floating-point numbers.
    """
    require_real(tensor, name)
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
