"""PyTorch's products of float32 in TF32, as the tensor cores of our kernels take their factors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from sparsegen.kernels.base import Device
from sparsegen.operators import DType


def cut_as_kernels_do(
    multiply: Callable[..., Any], dtype: DType, device: Device | None
) -> Callable[..., Any]:
    """Returns a function of PyTorch's products; on GPUs float32 is multiplied in TF32.

    The switch is the process's: a product that another thread begins in these few microseconds may be in TF32 too.

    Args:
        device: where our kernels run for the tensors; None without one.
    """
    if dtype is not DType.FLOAT32 or device is None or device.backend != "cuda":
        return multiply
    read, write, on = _switch()

    def multiplied(*given: Any) -> Any:
        before = read()
        if before == on:
            return multiply(*given)
        write(on)
        try:
            return multiply(*given)
        finally:
            write(before)

    return multiplied


def _switch() -> tuple[Callable[[], object], Callable[[object], None], object]:
    """The switch of ``torch.backends.cuda.matmul`` as calls of C, which read and write it, and its value for TF32."""
    c = sys.modules["torch"]._C  # imported by whoever multiplies
    if not hasattr(c, "_get_fp32_precision_getter"):  # before 2.9
        return c._get_cublas_allow_tf32, c._set_cublas_allow_tf32, True
    what = "cuda", "matmul"
    return partial(c._get_fp32_precision_getter, *what), partial(c._set_fp32_precision_setter, *what), "tf32"
