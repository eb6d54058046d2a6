"""1 × 1 convolutions with pruned filters: a sparse product of filters and pixels."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

from torch import Tensor, nn

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.layer_weights import (
    current_weight,
    keep_hooks,
    own_parameter,
    trains,
)
from sparsegen.integrations.torch.calls.reach import reach_of
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern

Convertible: TypeAlias = nn.Linear | nn.Conv2d


def is_convertible(module: nn.Module) -> TypeGuard[Convertible]:
    """True if a module is a plain linear layer or 1 × 1 convolution."""
    return type(module) is nn.Linear or is_pointwise(module)


def is_pointwise(module: nn.Module) -> bool:
    """True if a module is a plain 1 × 1 `torch.nn.Conv2d` of one group, of whatever stride, without padding."""
    return (
        type(module) is nn.Conv2d
        and module.kernel_size == (1, 1)
        and module.groups == 1
        and module.padding in ((0, 0), "valid", "same")
    )


class PointwiseConv2d(SparseLinear):
    """A 1 × 1 `torch.nn.Conv2d` with pruned filters: `SparseLinear` over the channels of each pixel.

    `convert` makes it. Images in `torch.channels_last` are read where they lie; others are copied, and so is the
    result. What is inherited of `SparseLinear` sees pixels as rows: ``weight``, ``to_dense`` and ``prepared``.

    Attributes:
        stride: rows and columns from a pixel that is read to the next.
    """

    stride: tuple[int, int] = (1, 1)

    @classmethod
    def on_convolution(
        cls, conv: nn.Conv2d, pattern: SparsePattern, values: Tensor | None = None
    ) -> PointwiseConv2d:
        """The layer with a convolution's weights at the places of a pattern, filters × channels.

        Args:
            values: these weights, in CSR order, as of `SparseLinear.on_pattern`.

        Raises:
            OperandError: not a convolution as `is_pointwise` has it.
            MatrixError: a pattern that does not fit the filters.
        """
        if not is_pointwise(conv):
            raise OperandError(f"expected a 1 × 1 convolution of one group without padding, got {conv}")
        rows = nn.Linear(conv.in_channels, conv.out_channels, conv.bias is not None, device="meta")
        rows.weight = nn.Parameter(current_weight(conv).flatten(1), requires_grad=trains(conv, "weight"))
        rows.register_parameter("bias", own_parameter(conv, "bias"))
        layer = cls.on_pattern(rows.train(conv.training), pattern, values)
        assert isinstance(layer, cls)
        layer.stride = (int(conv.stride[0]), int(conv.stride[1]))
        keep_hooks(conv, layer)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Returns images × filters × height × width, in x's memory format; without the first if x has none.

        Raises:
            OperandError: images of other channels, or of a dtype or device that does not fit.
        """
        require_tensors(x=x)
        if x.dim() not in (3, 4) or x.shape[-3] != self.in_features:
            raise OperandError(
                f"x: expected images × {self.in_features} channels × height × width, got {tuple(x.shape)}"
            )
        pixels = x[..., :: self.stride[0], :: self.stride[1]].movedim(-3, -1)
        found = super().forward(pixels).movedim(-1, -3)
        return found.contiguous() if x.is_contiguous() else found

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, stride={self.stride}"


def rows_seen(layer: nn.Module, x: Any) -> int:
    """Number of rows that the product of a linear layer has for an input; of a convolution's, its output pixels."""
    if isinstance(layer, nn.Conv2d):
        rows, columns = reach_of(layer).output_size((int(x.shape[-2]), int(x.shape[-1])))
        return x.numel() // (int(x.shape[-3] * x.shape[-2] * x.shape[-1]) or 1) * rows * columns
    return x.numel() // x.shape[-1] if x.numel() else 0
