"""Dense cuBLAS on float32 data with products in TF32: faster, and right to about three digits."""

from __future__ import annotations

from sparsegen.bench.contenders.cublas import Cublas
from sparsegen.bench.task import Task
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cublas
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType


class CublasTf32(Cublas):
    name = "cublas-tf32"
    compute = cublas.Compute.TF32

    def why_not(self, task: Task, features: Features) -> str | None:
        if task.dtype is not DType.FLOAT32:
            return "TF32 is for float32 data"
        return super().why_not(task, features)

    def arithmetic(self, task: Task) -> Arithmetic:
        return Arithmetic.TF32


CONTENDER = CublasTf32()
