"""The products by PyTorch alone: for the CPU, for float64, and as what the kernels are compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.wide import WIDE, widened
from sparsegen.integrations.torch.pattern.pattern import SparsePattern

CHUNK = 1 << 24  # elements of an intermediate


def product(pattern: SparsePattern, x: Tensor, values: Tensor, *, transposed: bool = False) -> Tensor:
    """X · Wᵀ, or X · W if transposed; 16-bit numbers are multiplied and summed as float32."""
    rows, columns, numbers = pattern.places(x.device, transposed=transposed)
    wide = x.dtype if x.dtype in WIDE else torch.float32
    shape = pattern.shape[::-1] if transposed else pattern.shape
    weight = torch.sparse_coo_tensor(
        torch.stack((rows, columns)),
        values.detach()[numbers].to(wide),
        shape,
        is_coalesced=True,
        check_invariants=False,
    )
    result = torch.sparse.mm(weight, x.detach().to(wide).t())
    return result.t().to(x.dtype).contiguous()


def sampled(pattern: SparsePattern, y: Tensor, x: Tensor) -> Tensor:
    """(Yᵀ · X) at the pattern, in CSR order."""
    rows, columns, _ = pattern.places(x.device)
    left, right = (widened(t).t().contiguous() for t in (y, x))
    step = max(1, CHUNK // max(1, x.shape[0]))
    parts = [
        (left[rows[i : i + step]] * right[columns[i : i + step]]).sum(1) for i in range(0, pattern.nnz, step)
    ]
    return torch.cat(parts).to(x.dtype) if parts else x.new_zeros(0)


def softmax(pattern: SparsePattern, values: Tensor, scale: float) -> Tensor:
    """The softmax of scale · values over each row of the pattern.

    The scale meets differences from the largest value alone, so that shifted values give the same result.
    """
    rows, _, _ = pattern.places(values.device)
    wide = widened(values) * math.copysign(1, scale) if scale else widened(values) * 0
    largest = wide.new_full((pattern.shape[0],), -torch.inf).scatter_reduce(0, rows, wide, "amax")
    powers = ((wide - largest[rows]) * abs(scale)).exp()
    sums = wide.new_zeros(pattern.shape[0]).index_add(0, rows, powers)
    return (powers / sums[rows]).to(values.dtype)


def softmax_backward(pattern: SparsePattern, y: Tensor, dy: Tensor, scale: float) -> Tensor:
    """The gradient of `softmax` with respect to the values, where it gave y."""
    rows, _, _ = pattern.places(y.device)
    wide, gradient = widened(y), widened(dy)
    sums = wide.new_zeros(pattern.shape[0]).index_add(0, rows, wide * gradient)
    return (scale * wide * (gradient - sums[rows])).to(y.dtype)
