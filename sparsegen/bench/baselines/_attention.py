"""Shared parts of PyTorch's attentions: operands as heads × tokens × columns, the mask, and a check on some queries."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from sparsegen.bench.baseline.baseline import Implementation, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import (
    TensorResult,
    TorchBaseline,
    import_torch,
    memory_beside,
    place,
    to_tensor,
)
from sparsegen.operators import DType, Problem, SparseAttentionProblem

CHECKED_QUERIES = 24
TOLERANCES = {DType.FLOAT32: 1e-4, DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}  # of the largest result


class TorchAttention(TorchBaseline):
    """One of PyTorch's attentions, of the operator that `operators` names."""

    operators: tuple[type[Problem], ...] = (SparseAttentionProblem,)
    takes_variations = True  # heads, items


def attention_implementation(
    detail: str, result: TensorResult, attend: Callable[[], Any], own_error: Callable[[Any], float] | None
) -> Implementation:
    """An attention as an implementation; whatever PyTorch raises on its first call means that there is none such.

    Args:
        attend: gives what the result holds, in its shape.
        own_error: error function of that, if it is not the problem's.

    Raises:
        UnsupportedError: PyTorch's reason, in its first line.
    """

    def run() -> None:
        result.tensor = attend()

    try:
        with import_torch().no_grad():
            memory = memory_beside(run)
    except Exception as error:  # PyTorch raises many kinds
        lines = str(error).strip().splitlines()
        raise UnsupportedError(f"{detail}: {lines[0][:200] if lines else type(error).__name__}") from error
    check = None if own_error is None else lambda: own_error(result.tensor)
    return Implementation(detail, run, result.clear, result.read, 0.0, memory, own_error=check)


def over_tolerance(found: Any, exact: Any, dtype: DType) -> float:
    """The largest error over the largest element and the dtype's tolerance; infinite where anything is NaN."""
    worst = float((found - exact).abs().max() / exact.abs().max())
    return worst / TOLERANCES[dtype] if worst == worst else float("inf")


class Heads:
    """A row's Q, K and V on PyTorch's device, each 1 × heads × tokens × columns."""

    def __init__(self, bench: Workbench) -> None:
        self._bench, self.problem = bench, bench.problem_as(SparseAttentionProblem)
        p = self.problem
        self.q, self.k, self.v = (
            to_tensor(bench.operand(name), p.dtype).reshape(1, p.batch, -1, p.k) for name in "qkv"
        )
        self.scale = float(bench.operand("scale")[0])

    @cached_property
    def mask(self) -> Any:
        """Queries × keys of bool, where attention is paid."""
        torch, matrix = import_torch(), self._bench.matrix
        seen = torch.zeros(matrix.shape, dtype=torch.bool)
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.row_offsets))
        seen[torch.from_numpy(rows), torch.from_numpy(np.array(matrix.column_indices))] = True
        return seen.to(place())

    def implementation(
        self, detail: str, attend: Callable[[], Any], own_error: Callable[[Any], float] | None = None
    ) -> Implementation:
        """See `attention_implementation`; ``attend`` gives 1 × heads × queries × columns."""
        shape = self.problem.result(self._bench.features.nnz).shape
        result = TensorResult(self._bench, shape)
        return attention_implementation(detail, result, lambda: attend().reshape(shape), own_error)

    def causal_error(self, result: Any) -> float:
        """The largest error of dense causal attention over its tolerance, against float64 on some queries."""
        torch, p = import_torch(), self.problem
        inner = torch.randperm(p.m, generator=torch.Generator().manual_seed(3))[: CHECKED_QUERIES - 2]
        rows = torch.cat((torch.tensor([0, p.m - 1]), inner)).to(place())
        scores = self.q[0][:, rows].double() @ self.k[0].double().mT * self.scale
        future = torch.arange(p.n, device=rows.device) > rows[:, None]
        exact = torch.softmax(scores.masked_fill(future, -torch.inf), dim=2) @ self.v[0].double()
        found = result.reshape(p.batch, p.m, p.k)[:, rows].double()
        return over_tolerance(found, exact, p.dtype)
