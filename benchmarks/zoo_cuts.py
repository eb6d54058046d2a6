"""Prunings of the zoo's models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from sparsegen.errors import PruningError
from sparsegen.pruning.pruner import prune


@dataclass(frozen=True, slots=True)
class Cut:
    """A pruning."""

    pattern: str
    sparsity: float
    block: tuple[int, int] | None = None


CUTS = (
    Cut("unstructured", 0.9),
    Cut("block", 0.8, (32, 32)),
    Cut("unstructured", 0.8),
    Cut("nm", 0.5),
    Cut("unstructured", 0.95),
    Cut("unstructured", 0.5),
)


def pruned(model: nn.Module, cut: Cut) -> nn.Module:
    """The model with zeros in the weights of those linear layers and 1 × 1 convolutions that can have them."""
    for layer in model.modules():
        is_pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
        if not is_pointwise and not isinstance(layer, nn.Linear):
            continue
        weight = layer.weight.detach()
        try:
            found = prune(weight.flatten(1), pattern=cut.pattern, sparsity=cut.sparsity, block=cut.block)
        except PruningError:  # sizes that blocks do not divide
            continue
        with torch.no_grad():
            layer.weight.copy_(torch.as_tensor(found.weights).reshape(weight.shape))
    return model
