"""Dense cuBLAS on float32 data with products in TF32: faster, and right to about three digits."""

from __future__ import annotations

from sparsegen.bench.baselines.cublas import Cublas
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cublas
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, Problem


class CublasTf32(Cublas):
    name = "cublas-tf32"
    compute = cublas.Compute.TF32

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if problem.dtype is not DType.FLOAT32:
            return "TF32 is for float32 data"
        return super().why_not(problem, features)

    def arithmetic(self, problem: Problem) -> Arithmetic:
        return Arithmetic.TF32


BASELINE = CublasTf32()
