"""PyTorch's products of float32 in TF32, as the tensor cores of our kernels take their factors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

from sparsegen.kernels.base import Device
from sparsegen.operators import DType


class _Switch(NamedTuple):
    """The switch of ``torch.backends.cuda.matmul``, as calls of C.

    Attributes:
        on: its value where products may be in TF32.
    """

    read: Any
    write: Any
    on: object


@cache
def _switch() -> _Switch:
    c = sys.modules["torch"]._C  # imported by whoever multiplies
    if not hasattr(c, "_get_fp32_precision_getter"):  # before 2.9
        return _Switch(c._get_cublas_allow_tf32, c._set_cublas_allow_tf32, True)
    what = "cuda", "matmul"
    return _Switch(
        partial(c._get_fp32_precision_getter, *what), partial(c._set_fp32_precision_setter, *what), "tf32"
    )


class _InTf32:
    """A context in which products are in TF32."""

    __slots__ = ("_before",)

    def __init__(self, before: object) -> None:
        self._before = before

    def __enter__(self) -> None:
        _, write, on = _switch()
        write(on)

    def __exit__(self, *_: object) -> None:
        _switch().write(self._before)


def precision_of(dtype: DType, device: Device | None) -> Callable[[], AbstractContextManager[object]]:
    """Returns what makes the contexts of products of a type: on GPUs float32 is in TF32, which all else ignores.

    The switch is the process's: a product that another thread begins in these few microseconds may be in TF32 too.
    """
    is_cut = dtype is DType.FLOAT32 and device is not None and device.backend == "cuda"
    return _in_tf32 if is_cut else nullcontext


def _in_tf32() -> AbstractContextManager[object]:
    read, _, on = _switch()
    before = read()
    return nullcontext() if before == on else _InTf32(before)
