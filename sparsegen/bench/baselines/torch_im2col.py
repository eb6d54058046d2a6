"""The report's way in PyTorch: what the taps of live blocks read is laid out as a matrix, multiplied, and scattered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsegen.backends.executor import Executor
from sparsegen.bench.baselines._torch import import_torch
from sparsegen.bench.baselines._torch_blocks import Blocks, TorchBlocks, taps
from sparsegen.bench.baselines._torch_conv import Given
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.clock import Call
from sparsegen.operators import MaskedConv2dProblem, Problem


class TorchIm2col(TorchBlocks):
    """Shah and Nair, Block Sparse Convolution (CS6023 report): im2col over active blocks, a product, col2im."""

    name, kind = "torch-im2col", Kind.SPARSE
    detail = "im2col of live blocks, matmul, scatter; list of blocks and padding for nothing"

    def why_not(self, problem: Problem, features: Features) -> str | None:
        reason = super().why_not(problem, features)
        if reason is None and isinstance(problem, MaskedConv2dProblem) and problem.groups.count > 1:
            return "it has one product, of one group"
        return reason

    def open(self, executor: Executor) -> Mapping[str, str]:
        versions = super().open(executor)
        import_torch().backends.cuda.matmul.allow_tf32 = False
        return versions

    def convolution(self, given: Given) -> Call:
        blocks = Blocks(given)
        weights = given.filters.permute(0, 2, 3, 1).reshape(given.problem.filters, -1).t()

        def run() -> Any:
            found = taps(blocks, given) @ weights
            return blocks.stored(found if given.bias is None else found + given.bias)

        return run


BASELINE = TorchIm2col()
