"""PyTorch's gradient of a dense convolution by its weights, by cuDNN in benchmark mode, whatever the mask says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Baseline, Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, import_torch, to_tensor
from sparsegen.bench.baselines._torch_conv import open_cudnn
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.operators import MaskedConv2dWeightsProblem, Problem


class TorchConv2dWeights(Baseline):
    """The gradient of the result is zero outside of the mask beforehand."""

    name, kind = "torch-conv2d-weights", Kind.DENSE
    operators = (MaskedConv2dWeightsProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, MaskedConv2dWeightsProblem):
            return "it computes masked_conv2d_weights"
        return "it computes one batch element" if problem.batch > 1 else None

    def open(self, executor: Executor) -> Mapping[str, str]:
        return open_cudnn(executor)

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        torch, p = import_torch(), bench.problem_as(MaskedConv2dWeightsProblem)
        forward = p.forward
        masks = bench.operand("mask").reshape(p.images, -1)
        live = np.stack([forward.live(words) for words in masks])[..., None]
        gradient = bench.operand("dy")
        zeroed = np.where(live, gradient, np.zeros(1, gradient.dtype))
        x, dy = (to_tensor(a, p.dtype).permute(0, 3, 1, 2) for a in (bench.operand("x"), zeroed))
        shape = p.result(0).shape
        weight = x.new_empty(shape).permute(0, 3, 1, 2)
        sides = [[side.rows, side.columns] for side in (p.stride, p.padding, p.dilation)]
        result = TensorResult(bench, shape)

        def run() -> None:
            _, found, _ = torch.ops.aten.convolution_backward(
                *(dy, x, weight, None, *sides, False, [0, 0], p.groups.count, [False, True, False])
            )
            result.tensor = found.permute(0, 2, 3, 1).reshape(shape)

        run()
        yield Implementation("cuDNN's fastest, dense", run, result.clear, result.read, 0.0, 0)


BASELINES = (TorchConv2dWeights(),)
