"""A convolution behind dropped blocks of pixels, which are not read.

The regions are those of DropBlock (Ghiasi, Lin, Le, NeurIPS 2018), on a grid: what Lo (Efficient Sparse Training with
Structured Dropout, section 5.3) leaves for later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import ConfigError, OperandError
from sparsegen.integrations.torch.calls.autocast import cast_like_dense
from sparsegen.integrations.torch.calls.layer_weights import conv_options, keep_hooks, own_parameters
from sparsegen.integrations.torch.calls.monte_carlo import MonteCarloDropout, checked_probability
from sparsegen.integrations.torch.calls.reach import padding_in_numbers
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.convolution.masked_conv import masked_conv2d
from sparsegen.operators import MaskBlock, MaskOf
from sparsegen.system.integers import ceil_div


class DropBlockConv2d(MonteCarloDropout, nn.Conv2d):
    """Dropped blocks of pixels and a convolution in one, in place of ``Sequential(DropBlock(p, block), Conv2d(...))``.

    While it trains, blocks of the input's pixels are dropped over all channels, each with probability p and
    independently, and what stays is divided by 1 - p. The convolution reads live blocks alone, and computes nothing
    where all that a pixel reads is dropped; so do gradients by the weights. With p = 0 or in evaluation it is the dense
    layer, unless `mc_dropout` has it drop there too. Masks come from PyTorch's generator of the input's device.

    Attributes:
        in_channels, out_channels, weight, bias and the like: as of ``torch.nn.Conv2d``; so is its state dict.
        p: probability to drop a block.
        block: its rows and columns of pixels, on a grid from the upper left corner.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        p: float = 0.1,
        block: Any = 8,
        *,
        dense: Dense | str = Dense.AUTO,
        **options: Any,
    ) -> None:
        """Make a layer.

        Args:
            dense: as of `masked_conv2d`.
            options: of ``torch.nn.Conv2d``.

        Raises:
            OperandError: p out of range.
            ConfigError: a block that is none, or padding by other than zeros.
        """
        self.p, self.block = checked_probability(p), MaskBlock.named(block, "block")
        self.dense = Dense.parse(dense)
        super().__init__(in_channels, out_channels, kernel_size, **options)
        if self.padding_mode != "zeros":
            raise ConfigError(
                f"padding_mode = {self.padding_mode}: a convolution of dropped blocks is padded by zeros"
            )
        self.padding: Any = padding_in_numbers(self.padding, self.kernel_size, self.dilation)

    @classmethod
    def from_conv2d(
        cls, conv: nn.Conv2d, p: float = 0.1, block: object = 8, *, dense: Dense | str = Dense.AUTO
    ) -> DropBlockConv2d:
        """The layer with a convolution's parameters, which both then share.

        Raises:
            OperandError, ConfigError: as of a new one.
        """
        arguments.instance(conv, nn.Conv2d, "conv", OperandError)
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            p,
            block,
            dense=dense,
            **conv_options(conv),
            device="meta",
        )
        layer.weight, layer.bias = own_parameters(conv)
        keep_hooks(conv, layer)
        return layer.train(conv.training)

    def forward(self, x: Tensor) -> Tensor:
        """Returns images × filters × height × width.

        Args:
            x: images × channels × height × width.

        Raises:
            OperandError: x has other channels, or another dtype or device than the weight.
        """
        require_tensors(x=x)
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            raise OperandError(
                f"x: expected images × {self.in_channels} channels × height × width, got {tuple(x.shape)}"
            )
        if not self.drops or self.p == 0 or not x.numel():
            return super().forward(x)
        device = x.device
        return masked_conv2d(
            cast_like_dense(x, device),
            cast_like_dense(self.weight / (1 - self.p), device),
            self.drawn(x),
            cast_like_dense(self.bias, device),
            block=self.block,
            mask_of=MaskOf.ANY_INPUT,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            density=1 - self.p,
            dense=self.dense,
        )

    def drawn(self, x: Tensor) -> Tensor:
        """A new mask of the live blocks of x: bools, images × rows × columns of blocks."""
        rows, columns = ceil_div(x.shape[2], self.block.rows), ceil_div(x.shape[3], self.block.columns)
        return torch.rand(x.shape[0], rows, columns, device=x.device) >= self.p

    def extra_repr(self) -> str:
        return f"{nn.Conv2d.extra_repr(self)}, p={self.p}, block={self.block}"
