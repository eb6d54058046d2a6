"""Exact results computed on a CUDA device, for the operators that have plain kernels for it.

The kernels (`sparsegen.backends.plain`) share no code with what is measured, and sum in float64. A sample of what
they give is computed again on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import (
    Problem,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)
from sparsegen.verify.device_references import products, rows
from sparsegen.verify.device_references.common import DeviceReference, Operands

__all__ = [
    "DeviceReference",
    "device_reference",
    "has_device_reference",
]

# Each fills one item's part, given its operands as float32.
_REFERENCES: dict[type[Problem], Callable[[Any, CsrMatrix, Operands, Executor, DeviceReference], None]] = {
    SpmmProblem: products.spmm,
    SddmmProblem: products.sddmm,
    SoftmaxProblem: rows.softmax,
    SoftmaxBackwardProblem: rows.softmax_backward,
    SparseAttentionProblem: rows.attention,
}


def has_device_reference(problem: Problem) -> bool:
    """Whether `device_reference` computes the problem's operator."""
    return type(problem) in _REFERENCES


def device_reference(
    problem: Problem, matrix: CsrMatrix, operands: Operands, executor: Executor
) -> DeviceReference:
    """The reference of a problem on given operands (in storage form).

    Raises:
        SparsegenError: the device's product differs from the host's, so that nothing can be judged.
    """
    written = problem.result(matrix.nnz)
    count = written.nbytes // written.dtype.itemsize
    reference = DeviceReference(executor.allocate(max(8, count * 8)), executor.allocate(max(4, count * 4)))
    each, kinds = count // problem.batch, {spec.name: spec.dtype for spec in problem.operands(matrix.nnz)}
    for i, (own, given) in enumerate(problem.items(matrix, operands) if count else ()):
        real = {name: kinds[name].from_storage(a).astype(np.float32) for name, a in given.items()}
        part = reference.part(i * each, each)
        _REFERENCES[type(problem)](problem.item, own, real, executor, part)
    return reference
