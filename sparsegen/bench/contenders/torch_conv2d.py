"""PyTorch's dense convolution by cuDNN (benchmark mode, channels last), whatever the mask says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.bench.contender import Contender, Way
from sparsegen.bench.contenders._torch import TensorResult, import_torch, open_torch, to_tensor
from sparsegen.bench.results import Kind
from sparsegen.bench.workbench import Workbench
from sparsegen.kernels.base import Array
from sparsegen.matrix.features import Features
from sparsegen.operators import ConvEpilogue, MaskedConv2dProblem, MaskOf, Problem, Rest


class TorchConv2d(Contender):
    """Where the mask is of the output, it computes the rest too; what lies there is not compared."""

    name, kind = "torch-conv2d", Kind.DENSE
    operators = (MaskedConv2dProblem,)
    takes_variations = True

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, MaskedConv2dProblem):
            return "it computes masked_conv2d"
        if problem.epilogue not in (ConvEpilogue.NONE, ConvEpilogue.BIAS):
            return "a call of it adds a bias at the most"
        return None

    def open(self, executor: Executor) -> Mapping[str, str]:
        versions = open_torch(executor)
        torch = import_torch()
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = False
        return {**versions, "cudnn": str(torch.backends.cudnn.version())}

    def ways(self, bench: Workbench) -> Iterator[Way]:
        torch, problem = import_torch(), bench.problem_as(MaskedConv2dProblem)
        p = problem
        x = to_tensor(bench.operand("x"), p.dtype).reshape(p.batch, p.height, p.width, p.channels)
        filters, pixels = (t.permute(0, 3, 1, 2) for t in (to_tensor(bench.operand("w"), p.dtype), x))
        bias = to_tensor(bench.operand("bias"), p.dtype) if p.epilogue.has_bias else None
        sides = {
            name: (of.rows, of.columns)
            for name, of in (("stride", p.stride), ("padding", p.padding), ("dilation", p.dilation))
        }
        result = TensorResult(bench, p.result(0).shape)

        def run() -> None:
            found = torch.nn.functional.conv2d(pixels, filters, bias, groups=p.groups.count, **sides)
            result.tensor = found.permute(0, 2, 3, 1).reshape(p.result(0).shape)

        def read() -> Array:
            """What the mask asks for; elsewhere what the problem has there."""
            found = result.read().reshape(p.batch, p.out_height, p.out_width, p.filters)
            elsewhere = p.dtype.to_storage(np.full(1, p.rest.left, np.float32))[0]
            if p.mask_of is MaskOf.OUTPUT or p.rest is Rest.KEPT:
                masks = bench.operand("mask").reshape(p.batch, -1)
                for image, words in zip(found, masks, strict=True):
                    image[~p.is_computed(words)] = elsewhere
            return found.reshape(p.result(0).shape)

        run()
        yield Way("cuDNN's fastest, dense", run, result.clear, read, 0.0, 0)


CONTENDER = TorchConv2d()
