"""Shared parts of the baselines for products with masks through PyTorch: the matrices, and the mask by blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.bench.baseline.baseline import Implementation, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._live_blocks import live_alone
from sparsegen.bench.baselines._torch import TensorResult, TorchBaseline, to_tensor, wait
from sparsegen.bench.results.results import Kind
from sparsegen.kernels.masked.side import Side
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, FactorType, MaskedProblem, Problem, SddProblem
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True)
class MaskedTensors:
    """A row's product A · B, with a mask over A or over the result.

    Attributes:
        side: storage of the matrices; the tensors are views of them.
        a, b: rows × inner, dropped elements included, and inner × columns.
        blocks: bools, blocks along the rows × those along the contraction, or along the columns of a sampled result.
        scale: factor on the product.
    """

    side: Side
    a: Any
    b: Any
    blocks: Any
    scale: float

    @classmethod
    def of(cls, bench: Workbench, problem: MaskedProblem) -> MaskedTensors:
        """Upload a row's operands and mask."""
        side = Side.of(problem)
        first, second = (to_tensor(bench.operand(s.name), problem.dtype) for s in problem.dense_operands())
        blocks = problem.mask_of({"mask": bench.operand("mask")}).blocks()
        return cls(
            side,
            first if side.a_by_inner else first.t(),
            second.t() if side.b_by_inner else second,
            to_tensor(np.ascontiguousarray(blocks.T if side.transposes else blocks)),
            float(bench.operand("scale")[0]),
        )

    @property
    def block(self) -> tuple[int, int]:
        """The sides of a block, along the rows and along the contraction or the columns."""
        return self.side.row_block, self.side.inner_block

    def live_elements(self, shape: tuple[int, int]) -> Any:
        """The mask by elements."""
        rows, columns = self.block
        wide = self.blocks.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return wide[: shape[0], : shape[1]].contiguous()

    def in_order(self, found: Any) -> Any:
        """A product, rows × columns, as the problem stores it."""
        return found.t() if self.side.by_columns else found


class MaskedResult(TensorResult):
    """A product's result as the problem stores it; ``view`` is rows × columns."""

    def __init__(self, bench: Workbench, problem: MaskedProblem, tensors: MaskedTensors) -> None:
        super().__init__(bench, problem.result(0).shape)
        self.view = tensors.in_order(self.tensor)
        live = problem.mask_of({"mask": bench.operand("mask")}).expand()
        self.read_live: Callable[[], Array] = (
            live_alone(self.read, live, problem) if isinstance(problem, SddProblem) else self.read
        )


Made = Iterator[
    tuple[str, Callable[[], None], int]
]  # implementations in words, what they run, bytes that they keep


def those_that_run(made: Made, result: MaskedResult) -> Iterator[Implementation]:
    """Yields Triton's kernels that compile and find room, each run once.

    Raises:
        UnsupportedError: none does; with each one's reason.
    """
    reasons, count = [], 0
    for detail, run, memory in made:
        try:
            run()
            wait()
        except Exception as error:  # Triton has no class of errors that stands for all
            if "CUDA error" in str(error):
                raise
            reasons.append(f"{detail}: {error}")
            continue
        count += 1
        yield Implementation(detail, run, result.clear, result.read_live, 0.0, memory)
    if not count:
        raise UnsupportedError("; ".join(reasons) or "no tile divides its sizes")


def why_no_masks(problem: Problem, types: tuple[DType, ...]) -> str | None:
    """Explains why such a baseline does not compute a problem."""
    if not isinstance(problem, MaskedProblem):
        return "it stands beside products with masks"
    if problem.factor_type is not FactorType.SAME:
        return "torch-scaled-mm stands beside 8-bit factors"
    if problem.dtype not in types:
        return f"it takes {' and '.join(types)}"
    return "a call of it computes one batch element" if problem.batch > 1 else None


def why_no_blocks(problem: Problem, types: tuple[DType, ...]) -> str | None:
    """The same of one that takes whole blocks alone."""
    reason = why_no_masks(problem, types)
    if reason is not None:
        return reason
    assert isinstance(problem, MaskedProblem)
    rows, columns = problem.block.rows, problem.block.columns
    return None if problem.m % rows == problem.k % columns == 0 else "it takes sizes of whole blocks"


class MaskedBlocks(TorchBaseline):
    """Takes masks of whole blocks, in 16 bits."""

    kind = Kind.SPARSE
    packages = ("triton",)
    operators = (MaskedProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        return why_no_blocks(problem, (DType.FLOAT16, DType.BFLOAT16))

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem = bench.problem
        assert isinstance(problem, MaskedProblem)
        given = MaskedTensors.of(bench, problem)
        result = MaskedResult(bench, problem, given)
        make = self.sampled if given.side.samples else self.products
        yield from those_that_run(make(given, result), result)

    @staticmethod
    @abstractmethod
    def products(given: MaskedTensors, result: MaskedResult) -> Made:
        """A in blocks times B."""

    @staticmethod
    @abstractmethod
    def sampled(given: MaskedTensors, result: MaskedResult) -> Made:
        """The blocks that the mask wants of A · B, and zeros elsewhere."""
