"""Dropout that goes on in evaluation, so that several calls sample a network's uncertainty."""

from __future__ import annotations

from typing import Self

from torch import nn

from sparsegen import arguments
from sparsegen.errors import OperandError


class MonteCarloDropout(nn.Module):
    """A layer that drops while it trains, and where it is asked to in evaluation too."""

    drops_in_evaluation = False

    def mc_dropout(self, enabled: bool = True) -> Self:
        """Drop in evaluation too, with new masks at every call, or no more; returns the layer.

        The mean over calls is a prediction and their variance a measure of its uncertainty (Gal and Ghahramani, Dropout
        as a Bayesian Approximation, ICML 2016).

        Raises:
            OperandError: ``enabled`` is neither true nor false.
        """
        self.drops_in_evaluation = arguments.flag(enabled, "enabled", OperandError)
        return self

    @property
    def drops(self) -> bool:
        """True if the next call drops, if its probability is above zero."""
        return self.training or self.drops_in_evaluation


def checked_probability(p: object) -> float:
    """A probability to drop.

    Raises:
        OperandError: it is outside [0, 1).
    """
    found = arguments.number(p, "p", OperandError)
    if not 0 <= found < 1:
        raise OperandError(f"p = {found} is outside [0, 1)")
    return found
