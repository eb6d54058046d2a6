"""The operator of layers that choose their product themselves, in graphs of `torch.compile` without gradients."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sparsegen.integrations.torch.calls.direct import without_gradient
from sparsegen.integrations.torch.calls.handles import Handles


class Layer(Protocol):
    """A layer without a gradient."""

    def product(self, x: Tensor) -> Tensor:
        """Returns the result of a call that asks for nothing else."""
        ...


layer_of: Handles[Layer] = Handles("there is no layer with the handle {} in this process")


def _product_of(x: Tensor, weights: list[Tensor | None], layer: int, out_features: int) -> Tensor:
    return layer_of(layer).product(x)


layer_product = without_gradient(
    "layer_product",
    "(Tensor x, Tensor?[] weights, int layer, int out_features) -> Tensor",
    _product_of,
    lambda x, weights, layer, out_features: x.new_empty((*x.shape[:-1], out_features)),
)
