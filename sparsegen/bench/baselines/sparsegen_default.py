"""Ours as users of PyTorch call it: dense where that is faster, as ``dense="auto"`` has it.

As with every baseline the GPU waits while the host queues the call: what the host takes is not in the time.
"""

from __future__ import annotations

from collections.abc import Callable

from sparsegen.bench.baselines._as_called import AsCalled, Called
from sparsegen.bench.baselines._torch import TensorResult
from sparsegen.bench.results.results import DEFAULT


class SparsegenDefault(AsCalled):
    name = DEFAULT

    def run(self, called: Called, result: TensorResult) -> Callable[[], object]:
        def run() -> None:
            result.tensor = called.call(result.tensor)

        return run


BASELINE = SparsegenDefault()
