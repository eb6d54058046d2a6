"""Shared parts of the baselines that run Triton's kernels over a mask's live blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TorchBaseline
from sparsegen.bench.baselines._torch_masks import (
    Made,
    MaskedResult,
    MaskedTensors,
    those_that_run,
    why_no_blocks,
)
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedProblem, Problem


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
