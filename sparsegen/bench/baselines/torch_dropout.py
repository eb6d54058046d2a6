"""PyTorch's dense products behind dropout: a pass over the masked matrix beside the product.

The pass is what `torch.nn.functional.dropout` runs backward. Its mask, by elements, is there beforehand: forward draws
it too. Gradients of weights read what the forward pass kept, and are no slower than `cublas`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TorchBaseline, import_torch, memory_beside
from sparsegen.bench.baselines._torch_masks import MaskedResult, MaskedTensors, why_no_masks
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DsdTransposedProblem, DType, MaskedProblem, Problem


class TorchDropout(TorchBaseline):
    name, kind = "torch-dropout", Kind.DENSE
    operators = (MaskedProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if isinstance(problem, DsdTransposedProblem):
            return "the gradient by the weights reads what dropout has left: cublas"
        return why_no_masks(problem, tuple(DType))

    def arithmetic(self, problem: Problem) -> Arithmetic:
        return Arithmetic.TF32 if problem.dtype is DType.FLOAT32 else super().arithmetic(problem)

    def open(self, executor: Executor) -> Mapping[str, str]:
        versions = super().open(executor)
        import_torch().backends.cuda.matmul.allow_tf32 = True
        return versions

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem, torch = bench.problem, import_torch()
        assert isinstance(problem, MaskedProblem)
        given = MaskedTensors.of(bench, problem)
        result = MaskedResult(bench, problem, given)
        apply, samples = torch.ops.aten.native_dropout_backward, given.side.samples
        live = given.live_elements(problem.matrix_shape)

        def run() -> None:
            if samples:
                result.tensor = apply(torch.mm(given.a, given.b), live, given.scale)
            else:
                torch.mm(apply(given.a, live, given.scale), given.b, out=result.tensor)

        detail = "the product, then the mask" if samples else "the mask, then the product"
        yield Implementation(detail, run, result.clear, result.read_live, 0.0, memory_beside(run))


BASELINES = (TorchDropout(),)
