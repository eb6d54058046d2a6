"""The same call as ``sparsegen-default``, captured in a CUDA graph by PyTorch and replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsegen.bench.baseline.baseline import UnsupportedError
from sparsegen.bench.baselines._as_called import AsCalled, Called
from sparsegen.bench.baselines._torch import TensorResult, import_torch
from sparsegen.bench.results.results import IN_GRAPH


@dataclass(frozen=True, slots=True)
class Replay:
    """A captured call with what its graph reads: tensors, and the arrays of our operator."""

    graph: Any
    called: Called

    def __call__(self) -> None:
        self.graph.replay()


class SparsegenGraph(AsCalled):
    name = IN_GRAPH

    def run(self, called: Called, result: TensorResult) -> Callable[[], object]:
        """Captures the call and returns the graph's replay.

        Raises:
            UnsupportedError: there is no GPU.
        """
        torch = import_torch()
        if not torch.cuda.is_available():
            raise UnsupportedError("a graph is captured on a GPU")
        with torch.cuda.stream(torch.cuda.Stream()):  # PyTorch requires a side stream before a capture
            called.call(result.tensor)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result.tensor = called.call(result.tensor)
        return Replay(graph, called)


BASELINE = SparsegenGraph()
