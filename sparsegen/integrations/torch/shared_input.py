"""Several sparse layers that read one tensor, such as Q, K and V of attention: their products as one launch.

The layers stay what they are: each has its own values, pattern, gradient and place in the state dict. Where neither a
gradient nor a trace is asked for, the first one to be called multiplies by the weights of all, below each other, and
the others return their part of that result.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.activations import Activation
from sparsegen.integrations.torch.direct import may_run_at_once
from sparsegen.integrations.torch.pattern import SparsePattern
from sparsegen.integrations.torch.prepared import is_capturing
from sparsegen.integrations.torch.products import linear_at_once
from sparsegen.matrix.csr import below_each_other
from sparsegen.plan.arrays import current_stream_of


class Layer(Protocol):
    """A `SparseLinear`, as it is seen from here."""

    pattern: SparsePattern
    values: Any
    bias: Any
    in_features: int
    out_features: int
    activation: Activation
    _parameters: Any


@dataclass(slots=True)
class _Result:
    """The product of all layers, as long as some of them have not been asked.

    Attributes:
        x: what was multiplied.
        state: of x and of the thread when that was done.
        weights: the states of the values and bias of each layer.
        turn: the layer that is to ask next.
    """

    x: weakref.ref[Tensor]
    state: tuple[Any, ...]
    weights: list[tuple[Any, ...] | None]
    y: Tensor
    turn: int


class SharedInput:
    """Layers that are called one after another, in this order, with the same tensor.

    Calls in another order, or with another tensor, are none of its business: each layer then computes its own.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        """
        Raises:
            OperandError: fewer than two layers, or of different inputs or activations.
        """
        if len(layers) < 2 or len({(layer.in_features, layer.activation) for layer in layers}) > 1:
            raise OperandError(
                "expected two or more layers with equal numbers of inputs and equal activations"
            )
        self.layers = tuple(layers)
        self._bounds = [0]
        for layer in layers:
            self._bounds.append(self._bounds[-1] + layer.out_features)
        self._forget()

    def _forget(self) -> None:
        self._patterns: tuple[SparsePattern, ...] = ()
        self._pattern: SparsePattern | None = None
        self._stacked: tuple[list[tuple[Any, ...] | None] | None, Tensor | None, Tensor | None] = (
            None,
            None,
            None,
        )
        self._lock = threading.Lock()
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"layers": self.layers, "_bounds": self._bounds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def pattern(self) -> SparsePattern:
        """The patterns of all layers below each other; a new one after a layer has taken another."""
        found = self._pattern
        if found is None or any(
            layer.pattern is not known for layer, known in zip(self.layers, self._patterns, strict=False)
        ):
            self._patterns = patterns = tuple(layer.pattern for layer in self.layers)
            matrix = below_each_other([pattern.matrix for pattern in patterns])
            found = SparsePattern(matrix, run_dense=patterns[0].run_dense, db=patterns[0].db)
            self._pattern = found
        return found

    def part(self, number: int, x: Tensor) -> Tensor | None:
        """The result of one of the layers for ... × in features, a view; None where it is to compute its own."""
        local = self._local
        if number == 0:
            local.result = None
            weights = self._weights()
            if not may_run_at_once(x, *weights):
                return None
            states = [_weight_state(tensor) for tensor in weights]
            y = self._multiplied(x, weights, states)
            local.result = _Result(weakref.ref(x), _state(x), states, y, 1)
            return y.narrow(-1, 0, self._bounds[1])
        found: _Result | None = getattr(local, "result", None)
        if found is None:
            return None
        fits = found.turn == number and found.x() is x and found.state == _state(x)
        if not fits or not self._is_unchanged(number, found.weights):
            local.result = None
            return None
        found.turn += 1
        if found.turn == len(self.layers):
            local.result = None
        first = self._bounds[number]
        return found.y.narrow(-1, first, self._bounds[number + 1] - first)

    def _weights(self) -> list[Tensor | None]:
        """Values and bias of each layer in turn."""
        found: list[Tensor | None] = []
        for layer in self.layers:
            own = layer._parameters  # PyTorch's way to an attribute takes longer
            found.append(own["values"])
            found.append(own["bias"])
        return found

    def _is_unchanged(self, number: int, states: Sequence[tuple[Any, ...] | None]) -> bool:
        """Whether a layer has the weights that were multiplied by."""
        own = self.layers[number]._parameters
        return (
            _weight_state(own["values"]) == states[2 * number]
            and _weight_state(own["bias"]) == states[2 * number + 1]
        )

    def _multiplied(
        self, x: Tensor, weights: Sequence[Tensor | None], states: list[tuple[Any, ...] | None]
    ) -> Tensor:
        with self._lock:
            pattern = self.pattern
            values, bias = self._below_each_other(weights, states)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, values = x.to(dtype), values.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        activation = self.layers[0].activation
        if x.dim() == 2:
            return linear_at_once(x, values, bias, pattern, activation)
        y = linear_at_once(x.reshape(-1, x.shape[-1]), values, bias, pattern, activation)
        return y.view(*x.shape[:-1], self._bounds[-1])

    def _below_each_other(
        self, weights: Sequence[Tensor | None], states: list[tuple[Any, ...] | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Values and bias of all layers; those that train are read at every call."""
        known, values, bias = self._stacked
        trains = any(w is not None and (w.requires_grad or w.is_inference()) for w in weights)
        if values is None or trains or known != states:
            with torch.inference_mode(False), torch.no_grad():  # to be followed by their counts of changes
                values = torch.cat([layer.values.detach() for layer in self.layers])
                bias = None
                if any(layer.bias is not None for layer in self.layers):
                    bias = torch.cat([_bias(layer) for layer in self.layers])
            self._stacked = (states, values, bias)
        return values, bias


class SharedPart:
    """One of the layers of a shared input; called with what the layer is called with."""

    def __init__(self, shared: SharedInput, number: int) -> None:
        self._shared, self._number = shared, number

    @property
    def layers(self) -> tuple[Any, ...]:
        """All of them, in the order of their calls."""
        return self._shared.layers

    def __call__(self, x: Tensor) -> Tensor | None:
        """See `SharedInput.part`."""
        if torch.compiler.is_compiling():
            return None
        return self._shared.part(self._number, x)


def _bias(layer: Layer) -> Tensor:
    found: Tensor = layer.values.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
    return found


def _weight_state(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """What changes with a weight, as far as PyTorch counts that."""
    if tensor is None:
        return None
    return None if tensor.is_inference() else tensor._version, tensor.data_ptr()


def _state(x: Tensor) -> tuple[Any, ...]:
    """What has to be the same for all layers: x as it is, how it is cast, and where launches go."""
    kind = x.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    version = None if x.is_inference() else x._version
    known = version, cast, torch.is_grad_enabled()
    if not x.is_cuda:
        return known
    return *known, current_stream_of(torch)(x.get_device()), is_capturing(x)
