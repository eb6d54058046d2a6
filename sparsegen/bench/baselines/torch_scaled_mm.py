"""PyTorch's dense product of 8-bit factors (cuBLASLt): the better of fast sums and of those that go on in float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._live_blocks import live_alone
from sparsegen.bench.baselines._torch import (
    TensorResult,
    TorchBaseline,
    import_torch,
    memory_beside,
    place,
    to_tensor,
)
from sparsegen.bench.results.results import Kind
from sparsegen.kernels.masked.side import Side
from sparsegen.matrix.features import Features
from sparsegen.operators import FactorType, MaskedProblem, Problem, SddProblem

WHOLE = 16  # elements that divide sizes


class TorchScaledMm(TorchBaseline):
    """8-bit products by PyTorch. A masked operand is passed with its zeros; a masked result is computed whole."""

    name, kind = "torch-scaled-mm", Kind.DENSE
    operators = (MaskedProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, MaskedProblem) or problem.factor_type is FactorType.SAME:
            return "it computes products with masks of 8-bit factors"
        if problem.factor_type is FactorType.E5M2:
            return "cuBLASLt multiplies no two e5m2 factors"
        side = Side.of(problem)
        if not (side.a_by_inner and side.b_by_inner) or side.by_columns:
            return "cuBLASLt takes 8-bit factors along the contraction"
        if problem.k % WHOLE or problem.n % WHOLE:
            return f"it takes sizes of whole {WHOLE} elements"
        return "a call of it computes one batch element" if problem.batch > 1 else None

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        torch, problem = import_torch(), bench.problem
        assert isinstance(problem, MaskedProblem)
        live = problem.mask_of({"mask": bench.operand("mask")}).expand()
        first, second = (bench.operand(spec.name) for spec in problem.dense_operands())
        samples = isinstance(problem, SddProblem)
        if not samples:
            first = np.where(live, first, np.uint8(0))
        a, b = (
            to_tensor(stored).view(getattr(torch, kind.value))
            for stored, kind in zip((first, second), problem.factor_types, strict=True)
        )
        scale = to_tensor(bench.operand("scale")).reshape(())
        one = torch.ones((), device=place())
        found = TensorResult(bench, problem.result(0).shape)
        read = live_alone(found.read, live, problem) if isinstance(problem, SddProblem) else found.read
        dtype = getattr(torch, str(problem.dtype))
        for is_fast in (True, False):

            def run(is_fast: bool = is_fast) -> None:
                found.tensor = torch._scaled_mm(a, b.t(), scale, one, out_dtype=dtype, use_fast_accum=is_fast)

            try:
                memory = memory_beside(run)
            except RuntimeError as error:  # a pair of types, or of results, that this release does not have
                if "CUDA error" in str(error):
                    raise
                continue
            detail = f"{'fast' if is_fast else 'float32'} sums, {'the whole product' if samples else 'zeros'}"
            yield Implementation(detail, run, found.clear, read, 0.0, memory)


BASELINES = (TorchScaledMm(),)
