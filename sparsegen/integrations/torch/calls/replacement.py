"""Layers that may take dense ones' places in a model, as `convert` sees them."""

from __future__ import annotations

from typing import Any

from torch import nn

from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.measure.decision import ModelLayer
from sparsegen.operators import Quantization


class Replacement(nn.Module):
    """A layer that may take a dense one's place in a model. The defaults are those of one without a pattern.

    Attributes:
        activation: part of the layer.
        run_dense: permission of PyTorch's own computation in the place of a kernel.
        rounding, rounding_error: rounding of its values, and the error of their norm; None of values as they were.
    """

    activation: Activation
    run_dense: Dense
    rounding: Quantization | None = None
    rounding_error: float | None = None

    @property
    def one_launch_with(self) -> tuple[Replacement, ...]:
        """All layers of the launch that this one shares with others, itself among them; empty where it has its own."""
        return ()

    def size(self) -> tuple[tuple[int, int], int]:
        """Rows and columns of the weight, and how many of its elements are there."""
        raise NotImplementedError

    def likeness(self) -> tuple[object, ...]:
        """Traits that layers have in common which are decided together."""
        raise NotImplementedError

    def takes(self, activation: Activation) -> bool:
        """True if an activation may be part of the layer."""
        return True

    def looked_up(self, tokens: int) -> ModelLayer | None:
        """The layer's own product, with which times are recorded; None where it has none, or no kernel of ours runs."""
        return None

    def shares(self, part: Any) -> None:
        """Be one launch with other layers that read the same tensor; of None, with none again."""

    def forget(self) -> None:
        """Drop what only trials ran."""
