"""Shared parts of dense baselines for products with masks: the whole product, and the part of it that is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsegen.bench.baseline.workbench import ResultBuffer, Workbench
from sparsegen.kernels.masked.side import Side
from sparsegen.measure.baselines.cublas import ByColumns
from sparsegen.operators import MaskedProblem, SddProblem
from sparsegen.system.numpy_types import Array


def live_alone(read: Callable[[], Array], live: Array, problem: SddProblem) -> Callable[[], Array]:
    """Reads a whole product, with what the problem has there in the place of dead elements.

    Args:
        read: the whole product, in storage form.
        live: bool for each element.
    """
    dead = problem.dtype.to_storage(np.full(1, problem.rest.left, np.float32))[0]

    def read_live() -> Array:
        found: Array = np.where(live, read(), dead).astype(problem.dtype.storage)
        return found

    return read_live


@dataclass(frozen=True, slots=True)
class WholeProduct:
    """A row's product with a mask as a dense one, in device memory.

    Of a masked operand it has the zeros, of a masked result the mask comes when it is read.

    Attributes:
        factors: the factors as cuBLAS takes them.
        scale: factor on the product.
        detail: description of the one of the two.
    """

    factors: ByColumns
    scale: float
    result: ResultBuffer
    read: Callable[[], Array]
    detail: str

    @classmethod
    def of(cls, bench: Workbench, problem: MaskedProblem) -> WholeProduct:
        """Uploads the operands now, so that the time counts for no baseline."""
        live = problem.mask_of({"mask": bench.operand("mask")}).expand()
        first, second = (spec.name for spec in problem.dense_operands())
        samples = isinstance(problem, SddProblem)
        a = bench.upload(first) if samples else bench.executor.upload(np.where(live, bench.operand(first), 0))
        result = bench.result()
        factors = ByColumns.of(Side.of(problem), a, bench.upload(second), result.buffer)
        read = live_alone(result.read, live, problem) if isinstance(problem, SddProblem) else result.read
        detail = "the whole product" if samples else "masked elements are zeros"
        return cls(factors, float(bench.operand("scale")[0]), result, read, detail)
