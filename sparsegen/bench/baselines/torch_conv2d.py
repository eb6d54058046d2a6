"""PyTorch's dense convolution by cuDNN (benchmark mode, channels last), whatever the mask says."""

from __future__ import annotations

from sparsegen.bench.baselines._torch import import_torch
from sparsegen.bench.baselines._torch_conv import Given, TorchConvolution
from sparsegen.bench.results.results import Kind
from sparsegen.measure.clock import Call


class TorchConv2d(TorchConvolution):
    """Dense convolution by cuDNN. With a mask of the output, it computes the rest too."""

    name, kind = "torch-conv2d", Kind.DENSE
    detail = "cuDNN's fastest, dense"

    def convolution(self, given: Given) -> Call:
        convolve, groups = import_torch().nn.functional.conv2d, given.problem.groups.count
        return lambda: convolve(given.images, given.filters, given.bias, groups=groups, **given.sides)


BASELINE = TorchConv2d()
