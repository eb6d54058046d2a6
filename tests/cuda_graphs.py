"""CUDA graphs of steps of PyTorch, for tests on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Results = TypeVar("Results")


def captured(step: Callable[[], Results], stream: Any = None) -> tuple[Any, Results]:
    """Returns a graph of a step that ran three times before, and the step's results in it.

    Args:
        stream: a side stream for all of it; a new one by default.
    """
    import torch

    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = step()
    return graph, results
