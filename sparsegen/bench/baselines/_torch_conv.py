"""Shared parts of the convolutions by PyTorch: operands as tensors, and the outputs that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Baseline, Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, import_torch, open_torch, to_tensor
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.operators import ConvEpilogue, MaskedConv2dProblem, MaskOf, Problem, Rest
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True)
class Given:
    """A problem's operands.

    Attributes:
        images: images × channels × rows × columns, in memory as the problem stores them.
        filters: filters × channels of a group × rows × columns.
        bias: a value for each filter, or None.
        live: bool, images × rows × columns of blocks.
        executor: executor of their device.
    """

    problem: MaskedConv2dProblem
    images: Any
    filters: Any
    bias: Any
    live: Any
    executor: Executor

    @property
    def sides(self) -> dict[str, tuple[int, int]]:
        """Stride, padding and dilation, by the names of `torch.nn.functional.conv2d`."""
        p = self.problem
        named = (("stride", p.stride), ("padding", p.padding), ("dilation", p.dilation))
        return {name: (of.rows, of.columns) for name, of in named}


def open_cudnn(executor: Executor) -> dict[str, str]:
    """PyTorch with cuDNN in benchmark mode and without TF32; the versions."""
    versions = open_torch(executor)
    torch = import_torch()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return {**versions, "cudnn": str(torch.backends.cudnn.version())}


def filters_of(bench: Workbench) -> Any:
    """Filters × channels of a group × rows × columns, in memory as users of the images' order have them: others bring
    PyTorch to copy images and result.
    """
    p = bench.problem_as(MaskedConv2dProblem)
    filters = to_tensor(bench.operand("w"), p.dtype).permute(0, 3, 1, 2)
    return filters.clone(memory_format=import_torch().contiguous_format) if p.layout.has_planes else filters


def anything(problem: MaskedConv2dProblem) -> None:
    """Refuses no problem."""


@dataclass(frozen=True)
class TorchConvolution(Baseline):
    """A convolution by PyTorch. With a mask of the output, the rest of the output is not compared.

    Attributes:
        convolution: gives a call that makes images × filters × rows × columns.
        refuses: why it does not compute a problem; None if it does.
    """

    name: str
    kind: Kind
    detail: str
    convolution: Callable[[Given], Callable[[], Any]]
    refuses: Callable[[MaskedConv2dProblem], str | None] = anything
    operators = (MaskedConv2dProblem,)
    takes_variations = True

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, MaskedConv2dProblem):
            return "it computes masked_conv2d"
        if problem.epilogue not in (ConvEpilogue.NONE, ConvEpilogue.BIAS):
            return "a call of it adds a bias at the most"
        return self.refuses(problem)

    def open(self, executor: Executor) -> Mapping[str, str]:
        return open_cudnn(executor)

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        p = bench.problem_as(MaskedConv2dProblem)
        masks = bench.operand("mask").reshape(p.batch, -1)
        images = bench.operand("x").reshape(p.batch, *p.layout.shape(p.height, p.width, p.channels))
        if p.mask_of is MaskOf.ANY_INPUT:
            by_pixels = zip(p.layout.by_pixels(images), masks, strict=True)
            images = np.stack([p.layout.stored(p.counted(image, words)) for image, words in by_pixels])
        stored = to_tensor(images, p.dtype)
        block = p.mask_block
        live = np.stack([p.live(words)[:: block.rows, :: block.columns] for words in masks])
        given = Given(
            p,
            stored if p.layout.has_planes else stored.permute(0, 3, 1, 2),
            filters_of(bench),
            to_tensor(bench.operand("bias"), p.dtype) if p.epilogue.has_bias else None,
            to_tensor(live),
            bench.executor,
        )
        result, convolution = TensorResult(bench, p.result(0).shape), self.convolution(given)

        def run() -> None:
            found = convolution()
            found = found if p.layout.has_planes else found.permute(0, 2, 3, 1)
            result.tensor = found.reshape(p.result(0).shape)

        def read() -> Array:
            """Reads the outputs that the mask asks for; elsewhere stands the problem's own value."""
            found = result.read()
            images = found.reshape(p.batch, *p.layout.shape(p.out_height, p.out_width, p.filters))
            elsewhere = p.dtype.to_storage(np.full(1, p.rest.left, np.float32))[0]
            if p.mask_of is MaskOf.OUTPUT or p.rest is Rest.KEPT:
                for image, words in zip(p.layout.by_pixels(images), masks, strict=True):
                    image[~p.is_computed(words)] = elsewhere
            return found

        run()
        yield Implementation(self.detail, run, result.clear, read, 0.0, 0)
