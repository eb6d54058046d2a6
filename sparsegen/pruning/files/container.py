"""Interface of every container of weights."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import BinaryIO, Protocol

from sparsegen.pruning.weights import Weights
from sparsegen.system.numpy_types import Array

Masks = Callable[[str], Array]  # the m × k booleans of a tensor; called once for each that is pruned


class WeightFile(Weights, Protocol):
    """Weights of a file; ``source`` is its path."""

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        """Write the whole container again, all but the pruned tensors as they were.

        Args:
            target: an empty file that can be written, read and sought.
            pruned: names of the tensors that get zeros where their mask is false.
        """
