"""Submanifold convolutions as users of plain PyTorch write them: gather, multiply and add up, tap by tap."""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, TorchBaseline, import_torch, place, to_tensor
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.operators import (
    ConvEpilogue,
    DType,
    PointsProblem,
    Problem,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)
from sparsegen.operators.convolution.submanifold_conv3d import MAP, live_pairs


class TorchGather(TorchBaseline):
    """The lists of each tap's live pairs are free: they are made before, as spconv and TorchSparse do.

    Sums over the taps are float32; of 16-bit elements the products of a tap are rounded, as PyTorch's matmul does.
    """

    name, kind = "torch-gather", Kind.SPARSE
    operators = (SubmanifoldConv3dProblem, SubmanifoldConv3dWeightsProblem)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, PointsProblem):
            return "it convolves points"
        if isinstance(problem, SubmanifoldConv3dProblem) and problem.epilogue is not ConvEpilogue.NONE:
            return "it has no epilogue"
        return "it computes one batch element" if problem.batch > 1 else None

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        torch, problem = import_torch(), bench.problem
        assert isinstance(problem, PointsProblem)
        x = to_tensor(bench.operand("x"), problem.dtype)
        pairs = [
            (tap, torch.from_numpy(outputs).long().to(place()), torch.from_numpy(inputs).long().to(place()))
            for tap, outputs, inputs in live_pairs(bench.operand(MAP))
        ]
        result = TensorResult(bench, problem.result(0).shape)
        dtype = getattr(torch, DType(problem.dtype).value)

        if isinstance(problem, SubmanifoldConv3dProblem):
            filters = to_tensor(bench.operand("w"), problem.dtype).reshape(
                problem.filters, -1, problem.channels
            )
            by_tap = filters.permute(1, 2, 0).contiguous()

            def run() -> None:
                sums = torch.zeros(problem.points, problem.filters, device=place())
                for tap, outputs, inputs in pairs:
                    sums.index_add_(0, outputs, (x[inputs] @ by_tap[tap]).float())
                result.tensor = sums.to(dtype)

        else:
            dy = to_tensor(bench.operand("dy"), problem.dtype)

            def run() -> None:
                found = [dy[outputs].t() @ x[inputs] for _, outputs, inputs in pairs]
                result.tensor = torch.stack(found, 1).reshape(problem.result(0).shape)

        run()
        yield Implementation("gather, matmul, index_add", run, result.clear, result.read, 0.0, 0)


BASELINES = (TorchGather(),)
