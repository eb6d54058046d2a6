"""Dense cuBLASLt for products with masks: the best of the first algorithms that its heuristics offer, float32 in TF32.

Of a masked operand it gets the zeros, of a masked result the mask comes when it is read, as `cublas` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Baseline, Implementation, Stopwatch
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._live_blocks import WholeProduct
from sparsegen.bench.baselines._vendor import require_library
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cublaslt
from sparsegen.measure.baselines.cublas import Compute
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, FactorType, MaskedProblem, Problem

OFFERED = 8


class CublasLt(Baseline):
    name, kind = "cublaslt", Kind.DENSE
    operators = (MaskedProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, MaskedProblem):
            return "it stands beside products with masks"
        if problem.factor_type is not FactorType.SAME:
            return "torch-scaled-mm calls it for 8-bit factors"
        return None

    def arithmetic(self, problem: Problem) -> Arithmetic:
        return Arithmetic.TF32 if problem.dtype is DType.FLOAT32 else super().arithmetic(problem)

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cublasLt")
        return {"cublaslt": cublaslt.version(cublaslt.open_handle())}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem = bench.problem
        assert isinstance(problem, MaskedProblem)
        whole = WholeProduct.of(bench, problem)
        watch = Stopwatch()
        found = product_of(bench, problem, whole).offered(OFFERED)
        elapsed = watch.lap()
        for one in found:
            yield Implementation(
                f"{whole.detail}, {one.detail}",
                one.run,
                whole.result.clear,
                whole.read,
                elapsed,
                one.workspace,
            )


def product_of(bench: Workbench, problem: MaskedProblem, whole: WholeProduct) -> cublaslt.Product:
    """The product as cuBLASLt sees it, float32 in TF32."""
    compute = Compute.TF32 if problem.dtype is DType.FLOAT32 else Compute.FLOAT32
    return cublaslt.Product(
        bench.executor, cublaslt.open_handle(), problem.dtype, whole.factors, compute, whole.scale
    )


BASELINE = CublasLt()
