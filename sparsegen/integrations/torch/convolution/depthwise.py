"""Depthwise convolutions of a model, by a kernel with bias and ReLU in it."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import ConfigError, OperandError
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.autocast import is_any_autocast
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.calls.layer_weights import conv_options, keep_hooks, own_parameters
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.reach import padding_in_numbers, reach_of
from sparsegen.integrations.torch.calls.replacement import Replacement
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.convolution.masked_conv import masked_conv2d
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import Dilation, FilterSize, Padding, Stride
from sparsegen.system.integers import ceil_div

BLOCK = 256  # pixels of a side of a mask's block, as many as it may have
_masks: dict[tuple[int, int, int, torch.device], PackedMask] = {}  # by images, blocks and device


def is_depthwise(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """True if a module is a plain convolution of one filter for each channel, which `DepthwiseConv2d` takes."""
    if type(module) is not nn.Conv2d or not module.groups == module.in_channels == module.out_channels > 1:
        return False
    try:
        reach = reach_of(module)
    except ConfigError:
        return False
    kinds = FilterSize, Stride, Padding, Dilation
    pairs = reach.kernel, reach.stride, reach.padding, reach.dilation
    fits = all(side in kind.allowed for pair, kind in zip(pairs, kinds, strict=True) for side in pair)
    return fits and module.padding_mode == "zeros" and module.weight.dtype in DTYPES


class DepthwiseConv2d(nn.Conv2d, Replacement):
    """A depthwise `torch.nn.Conv2d` for inference: one launch, with its bias and a ReLU; see `masked_conv2d`.

    `convert` makes it. Where gradients are wanted, under autocast and of no images PyTorch's own convolution runs.

    Attributes:
        activation: part of the layer: none, or ReLU, which needs a bias.
        run_dense: permission of PyTorch's convolution; see ``dense`` of `masked_conv2d`.
    """

    activation: Activation = Activation.NONE
    run_dense: Dense = Dense.AUTO

    @classmethod
    def from_dense(cls, layer: nn.Conv2d, *, run_dense: Dense | str = Dense.AUTO) -> DepthwiseConv2d:
        """The layer with another's weight and bias, which both have from then on.

        Raises:
            OperandError: none that `is_depthwise` allows.
            ConfigError: a word for ``run_dense`` that is none.
        """
        arguments.instance(layer, nn.Conv2d, "layer", OperandError)
        if not is_depthwise(layer):
            raise OperandError(f"expected a plain convolution of one filter for each channel, got {layer}")
        options = conv_options(layer)
        size: Any = layer.kernel_size
        options["padding"] = padding_in_numbers(layer.padding, size, layer.dilation)
        made = cls(
            layer.in_channels,
            layer.out_channels,
            size,
            **options,
            device="meta",
            dtype=layer.weight.dtype,
        )
        made.weight, made.bias = own_parameters(layer)
        made.run_dense = Dense.parse(run_dense, "run_dense")
        keep_hooks(layer, made)
        return made.train(layer.training)

    def size(self) -> tuple[tuple[int, int], int]:
        """Channels and taps, and their product."""
        taps = self.kernel_size[0] * self.kernel_size[1]
        return (self.out_channels, taps), self.weight.numel()

    def likeness(self) -> tuple[object, ...]:
        """See `Replacement`."""
        return self.size(), self.stride, self.dilation, self.bias is None, self.weight.dtype

    def takes(self, activation: Activation) -> bool:
        """True of none, and of a ReLU behind a bias."""
        return activation is Activation.NONE or (activation is Activation.RELU and self.bias is not None)

    def forward(self, x: Tensor) -> Tensor:
        """Returns images × channels × height × width, in x's memory format.

        Raises:
            OperandError: images that do not fit.
        """
        require_tensors(x=x)
        trains = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        if trains or x.dim() != 4 or not x.numel() or is_any_autocast():
            return self.activation.of(super().forward(x))
        rows, columns = reach_of(self).output_size((int(x.shape[2]), int(x.shape[3])))
        options: Any = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return masked_conv2d(
            *(x, self.weight, _all_live(x, rows, columns), self.bias),
            block=BLOCK,
            **options,
            groups=self.groups,
            density=1.0,
            relu=self.activation is Activation.RELU,
            dense=self.run_dense,
        )

    def extra_repr(self) -> str:
        own = nn.Conv2d.extra_repr(self)
        return own if self.activation is Activation.NONE else f"{own}, activation={self.activation}"


def _all_live(x: Tensor, rows: int, columns: int) -> PackedMask:
    """Returns a mask with all blocks live, of images with these rows and columns of outputs; one for all layers, but
    for what a compiler or a graph makes for itself.
    """
    shape = x.shape[0], ceil_div(rows, BLOCK), ceil_div(columns, BLOCK)
    found = None if is_compiling() else _masks.get((*shape, x.device))
    if found is None:
        live = torch.ones(shape, dtype=torch.bool, device=x.device)
        found = PackedMask(live, words_of(live), is_whole=True)
        if not is_compiling() and not is_capturing(x):
            _masks[(*shape, x.device)] = found
    return found
