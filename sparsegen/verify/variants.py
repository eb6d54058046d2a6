"""Runs a prepared variant on fresh random inputs and holds its result against the reference."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels.packed import empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.binding import BoundVariant
from sparsegen.verify.verifier import verifier


def worst_error(
    variant: BoundVariant, problem: Problem, matrix: CsrMatrix, rng: np.random.Generator
) -> float:
    """The largest error over its bound: right is at most 1; infinite when an output was not written.

    The output is filled with NaN first. Where the items of a batch have values of their own, the variant gets new ones.

    Raises:
        LaunchError, KernelFault: the kernel could not run, or was caught at a fault.
        SparsegenError: the device's reference differs from the host's, so that nothing can be verified.
    """
    operands = problem.random_operands(rng, matrix.nnz)
    executor = variant.executor
    with executor.entered():
        buffers = [executor.upload(operands[spec.name]) for spec in variant.operands]
        if problem.value_sets > 1:
            variant.gather_values(executor.upload(empty_as_one(operands["values"])), 0)
            executor.synchronize()
        result = executor.allocate(variant.result.nbytes)
        executor.fill(result, 0xFF)
        executor.synchronize()
        variant.bound()(0, *(buffer.address for buffer in buffers), result.address)
        executor.synchronize()
        return verifier(problem, matrix, operands, executor).worst_error(result)
