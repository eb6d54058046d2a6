"""Activations of layers, and the equivalent epilogues of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.operators import Epilogue


class Activation(StrEnum):
    """A layer's operation on its result."""

    NONE = "none"
    RELU = "relu"
    GELU = "gelu"

    __hash__ = str.__hash__  # consistent with comparison; an enumeration's own hash is a function of Python's

    @classmethod
    def parse(cls, value: Activation | str) -> Activation:
        """Raises OperandError for a word that is none of these."""
        return arguments.word(cls, value, "activation", OperandError)

    def of(self, y: Tensor) -> Tensor:
        """The activation of a tensor, by PyTorch; GELU is the exact one."""
        match self:
            case Activation.RELU:
                return torch.relu(y)
            case Activation.GELU:
                return functional.gelu(y)
            case Activation.NONE:
                return y


_WITH_BIAS = {
    Activation.NONE: Epilogue.BIAS,
    Activation.RELU: Epilogue.BIAS_RELU,
    Activation.GELU: Epilogue.BIAS_GELU,
}


def epilogue_of(activation: Activation, *, has_bias: bool) -> Epilogue:
    """Returns the epilogue for a bias and an activation; without a bias, the kernel does neither."""
    return _WITH_BIAS[activation] if has_bias else Epilogue.NONE


_Function = Callable[..., Any]
_RELU: tuple[_Function, ...] = (functional.relu, torch.relu, Tensor.relu)
_RELU_IN_PLACE: tuple[_Function, ...] = (functional.relu_, torch.relu_, Tensor.relu_)


def recognized(
    function: _Function, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[Activation, bool]:
    """The activation that a call of a function of PyTorch computes just as kernels do, and whether in place.

    `Activation.NONE` stands for every other call: GELU by tanh is another function.
    """
    given = args[1] if len(args) > 1 else None
    if function in _RELU_IN_PLACE:
        return Activation.RELU, True
    if function in _RELU:
        return Activation.RELU, bool(kwargs.get("inplace", given))
    if function is functional.gelu and kwargs.get("approximate", given or "none") == "none":
        return Activation.GELU, False
    return Activation.NONE, False
