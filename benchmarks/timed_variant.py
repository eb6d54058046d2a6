"""Time one variant through whichever sparsegen is on the path; `benchmarks.versions` starts it, for each version.

It imports only what every version has: `sparsegen.prepare`, operands drawn by a problem, PyTorch and SciPy.
Standard input is a `Variant` as JSON, standard output its median time in microseconds.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch

import sparsegen

CALLS, SAMPLES = 20, 40  # in one CUDA graph; replays of it


@dataclass(frozen=True)
class Variant:
    """One family and config on a random matrix; ``options`` are those of `sparsegen.prepare`."""

    family: str
    shape: tuple[int, int]
    density: float
    options: dict[str, Any]
    config: dict[str, Any]

    def matrix(self) -> scipy.sparse.csr_array:
        m, k = self.shape
        if self.family.startswith("uspmm"):
            return _equal_rows(m, k, round(k * self.density))
        return scipy.sparse.random_array((m, k), density=self.density, format="csr", dtype=np.float32, rng=1)


def _equal_rows(m: int, k: int, nonzeros: int) -> scipy.sparse.csr_array:
    rng = np.random.default_rng(1)
    columns = np.sort(rng.random((m, k)).argpartition(nonzeros)[:, :nonzeros])
    values = rng.standard_normal(columns.size, np.float32)
    return scipy.sparse.csr_array((values, columns.ravel(), np.arange(m + 1) * nonzeros), shape=(m, k))


def microseconds(variant: Variant) -> float:
    """The median over replays of a graph of calls, for one call; operands stay where L2 has them."""
    matrix = variant.matrix()
    operator = sparsegen.prepare(
        matrix, **variant.options, family=variant.family, config=variant.config, device="cuda"
    )
    drawn = operator.problem.random_operands(np.random.default_rng(0), matrix.nnz)
    operands = [torch.from_numpy(operand).cuda() for name, operand in drawn.items() if name != "scale"]
    operator(*operands)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            operator(*operands)
    times = []
    for _ in range(SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(times)


if __name__ == "__main__":
    print(microseconds(Variant(**json.load(sys.stdin))))
