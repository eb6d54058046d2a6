"""A copy within the device's memory of as many bytes as a softmax has to move, by PyTorch or by a kernel of ours.

It computes nothing: half of the bytes are read, half written. The share of its bandwidth is its time over ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TorchBaseline, import_torch, place
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.timing_kernels import COPY_BYTES_PER_STEP, Copier
from sparsegen.operators import Problem, SoftmaxBackwardProblem, SoftmaxProblem


class Copy(TorchBaseline):
    name, kind = "copy", Kind.OTHER
    operators = (SoftmaxProblem, SoftmaxBackwardProblem)
    takes_variations = True

    def why_not(self, problem: Problem, features: Features) -> str | None:
        return None if isinstance(problem, self.operators) else "it stands beside softmaxes"

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        torch = import_torch()
        nbytes = bench.problem.cost(bench.features.nnz).bytes // 2
        source, target = (torch.zeros(nbytes, dtype=torch.uint8, device=place()) for _ in range(2))
        source.random_(0, 256)

        def error() -> float:
            return 0.0 if torch.equal(source, target) else float("inf")

        yield Implementation(
            "the driver's copy", lambda: target.copy_(source), target.zero_, target.cpu().numpy, 0.0, 0,
            own_error=error,
        )  # fmt: skip
        if bench.device.backend == "cuda":
            copier = Copier(bench.executor, nbytes // COPY_BYTES_PER_STEP * COPY_BYTES_PER_STEP)
            yield Implementation(
                "a copying kernel", copier, lambda: None, target.cpu().numpy, 0.0, 0, own_error=lambda: 0.0
            )


BASELINES = (Copy(),)
