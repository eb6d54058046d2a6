"""PyTorch's dense products with bias and activation: cuBLAS and then the rest, cuBLASLt fused, cuDNN's 1 × 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import (
    TensorResult,
    TorchBaseline,
    import_torch,
    memory_beside,
    to_tensor,
)
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.clock import Call
from sparsegen.operators import Epilogue, Layout, Problem, SpmmProblem


class TorchLinear(TorchBaseline):
    """The weight is dense, with the row's zeros. TF32 is off, in cuDNN too."""

    name, kind = "torch-linear", Kind.DENSE
    operators = (SpmmProblem,)
    takes_variations = True

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, SpmmProblem):
            return "it computes spmm"
        if problem.epilogue not in (Epilogue.BIAS, Epilogue.BIAS_RELU):
            return "it stands beside products with a bias, or a bias and ReLU"
        return "a call of it computes one batch element" if problem.batch > 1 else None

    def open(self, executor: Executor) -> Mapping[str, str]:
        versions = super().open(executor)
        torch = import_torch()
        torch.backends.cudnn.allow_tf32 = False  # it is on by default for convolutions alone
        torch.backends.cudnn.benchmark = True
        return {**versions, "cudnn": str(torch.backends.cudnn.version())}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem = bench.problem_as(SpmmProblem)
        weight = to_tensor(problem.dtype.to_storage(bench.matrix.to_scipy().toarray()), problem.dtype)
        b, bias = (to_tensor(bench.operand(name), problem.dtype) for name in ("b", "bias"))
        for detail, call in _calls(problem, weight, b, bias).items():
            yield _implementation(bench, detail, call)


def _implementation(bench: Workbench, detail: str, call: Call) -> Implementation:
    result = TensorResult(bench, bench.problem.result(bench.features.nnz).shape)

    def run() -> None:
        result.tensor = call()

    return Implementation(detail, run, result.clear, result.read, 0.0, memory_beside(run))


def _calls(problem: SpmmProblem, weight: Any, b: Any, bias: Any) -> dict[str, Call]:
    """Each gives C as the problem stores it."""
    torch = import_torch()
    has_relu = problem.epilogue is Epilogue.BIAS_RELU

    def done(c: Any) -> Any:
        return c.relu_() if has_relu else c

    if problem.layout is Layout.COLUMN:  # tokens × features
        calls = {"cuBLAS": lambda: done(torch.nn.functional.linear(b, weight, bias))}
        if has_relu:
            calls["cuBLASLt, fused"] = lambda: torch._addmm_activation(bias, b, weight.t())
        return calls
    column, kernel = bias[:, None], weight[:, :, None, None]
    height = isqrt(problem.n) if isqrt(problem.n) ** 2 == problem.n else 1
    image = b.view(1, problem.k, height, problem.n // height)
    calls = {
        "cuBLAS": lambda: done(torch.addmm(column, weight, b)),
        "cuDNN": lambda: done(torch.nn.functional.conv2d(image, kernel, bias)).view(problem.m, problem.n),
    }
    if has_relu:
        calls["cuBLASLt, fused"] = lambda: torch._addmm_activation(bias, b.t(), weight.t()).t()
    return calls


BASELINES = (TorchLinear(),)
