"""A call's operator object, and how it takes the call's tensors and gives its results: all that a program needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A kernel for calls of a custom operator with tensors of one kind.

    Attributes:
        operator: operator object, as `sparsegen.prepare` gives it.
        operands: function of the call's inputs: tensors of the problem's elements in its order, by operands' names.
        results: function of what the launch wrote, by name and in the problem's shapes, and of the inputs: the call's
            results.
    """

    operator: Any
    operands: Callable[[Sequence[Tensor]], Mapping[str, Tensor]]
    results: Callable[[Mapping[str, Tensor], Sequence[Tensor]], object]
