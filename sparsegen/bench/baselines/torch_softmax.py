"""PyTorch's dense softmax over rows padded to the longest one with minus infinity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparsegen.bench.baseline.baseline import Implementation, Stopwatch
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, TorchBaseline, import_torch, nbytes, to_tensor
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem, SoftmaxProblem
from sparsegen.system.numpy_types import Array

MOST_BYTES = 8 << 30  # bytes of the padded rows


class TorchSoftmax(TorchBaseline):
    """Compares the padded result where the nonzeros are. The scale is multiplied in ahead of the timed call."""

    name, kind = "torch-softmax", Kind.DENSE
    operators = (SoftmaxProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, SoftmaxProblem):
            return "it computes sparse_softmax"
        size = features.m * features.row_max * problem.dtype.itemsize
        return f"the padded rows would take {size / 2**30:.0f} GiB" if size > MOST_BYTES else None

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        torch, problem = import_torch(), bench.problem_as(SoftmaxProblem)
        name = problem.operands(bench.features.nnz)[0].name
        values = to_tensor(bench.operand(name), problem.dtype)
        watch = Stopwatch()
        lengths = np.diff(bench.matrix.row_offsets)
        shape = lengths.size, max(1, int(lengths.max(initial=0)))
        rows = np.repeat(np.arange(lengths.size), lengths)
        places = rows * shape[1] + np.arange(rows.size) - np.repeat(bench.matrix.row_offsets[:-1], lengths)
        where = to_tensor(places)
        padded = torch.full((shape[0] * shape[1],), -torch.inf, dtype=values.dtype, device=values.device)
        padded[where] = (values.float() * float(bench.operand("scale")[0])).to(values.dtype)
        padded = padded.view(shape)
        result = TensorResult(bench, shape)
        elapsed = watch.lap()
        host = TensorResult(bench, (rows.size,))

        def run() -> None:
            torch.softmax(padded, dim=1, out=result.tensor)

        def read() -> Array:
            host.tensor = result.tensor.view(-1)[where]
            return host.read()

        yield Implementation("rows padded to the longest", run, result.clear, read, elapsed, nbytes(padded))


BASELINES = (TorchSoftmax(),)
