"""Several sparse layers that read one tensor, such as Q, K and V of attention: their products as one launch.

The layers stay what they are: each has its own values, pattern, gradient and place in the state dict. Where neither a
gradient nor a trace is asked for, the first one to be called multiplies by the weights of all, below each other, and
the others return their part of that result. In what `torch.compile` traces each has a call of its own, and a pass over
the graph joins these (`compiled_layers`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.autocast import autocast_dtype, is_any_autocast
from sparsegen.integrations.torch.calls.direct import Asked, asked
from sparsegen.integrations.torch.calls.handles import Handles
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.weight_state import WeightState, unchanged, weight_state
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.pattern.products import linear_at_once
from sparsegen.matrix.csr import below_each_other
from sparsegen.plan.arrays import current_stream_of
from sparsegen.plan.lasting_tensors import lasting_zeros


class Layer(Protocol):
    """A `SparseLinear`, as it is seen from here."""

    pattern: SparsePattern
    values: Any
    bias: Any
    in_features: int
    out_features: int
    activation: Activation
    _activation: Activation  # without a property's function
    _parameters: Any


class Part(Protocol):
    """Function in a layer's place: called with what the layer is called with, it gives the layer's result."""

    @property
    def layers(self) -> tuple[Any, ...]:
        """All layers of its launch, in the order of their calls."""

    def __call__(self, x: Tensor) -> Tensor | None:
        """The result; None where the layer is to compute its own."""


@dataclass(slots=True)
class _Result:
    """The product of all layers, as long as some of them have not been asked.

    Attributes:
        x, version: the multiplied tensor, and the count of its changes; None if PyTorch counts none.
        state: state of the thread at that time.
        weights: the states of the values and bias of each layer.
        turn: the layer that is to ask next.
    """

    x: Callable[[], Any]  # a weak reference
    version: int | None
    state: tuple[Any, ...]
    weights: list[WeightState]
    y: Tensor
    turn: int


class SharedInput:
    """Layers that are called one after another, in this order, with the same tensor.

    Calls in another order, or with another tensor, are none of its business: each layer then computes its own.

    Attributes:
        layers: all of them, in the order of their calls.
        handle: names it to the custom operators in this process, as long as it lives.
    """

    handle: int

    def __new__(cls, *_: object) -> SharedInput:
        """An object with a handle of its own, before its parts are there: of a copy too."""
        made = super().__new__(cls)
        made.handle = shared_input_of.name(made)
        return made

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
        self._stacked: tuple[list[WeightState] | None, Tensor | None, Tensor | None] = None, None, None
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
        if found is not None:
            for layer, known in zip(self.layers, self._patterns, strict=True):
                if layer.pattern is not known:
                    found = None
        if found is None:
            self._patterns = patterns = tuple(layer.pattern for layer in self.layers)
            matrix = below_each_other([pattern.matrix for pattern in patterns])
            found = SparsePattern(matrix, run_dense=patterns[0].run_dense, db=patterns[0].db)
            self._pattern = found
        found.run_dense = self._patterns[0].run_dense  # may change, as a trial in a model does for its time
        return found

    def part(self, number: int, x: Tensor) -> Tensor | None:
        """The result of one of the layers for ... × in features, a view; None where it is to compute its own."""
        local = self._local
        if number == 0:
            local.result = None
            weights = self._weights()
            if not weights or asked(x, *weights) is not Asked.NOTHING:
                return None
            dtype = autocast_dtype(x) if is_any_autocast() else None
            cast = x if dtype is None else x.to(dtype)
            y, states = self.product(cast, weights, self.layers[0]._activation, casts=dtype is not None)
            version = None if x.is_inference() else x._version
            local.result = _Result(weakref.ref(x), version, _state(x), states, y, 1)
            return y.narrow(-1, 0, self._bounds[1])
        found: _Result | None = getattr(local, "result", None)
        if found is None:
            return None
        own = self.layers[number]._parameters
        if not (
            found.turn == number
            and found.x() is x
            and (found.version is None or found.version == x._version)
            and unchanged((own.get("values"), own.get("bias")), found.weights[2 * number : 2 * number + 2])
            and found.state == _state(x)
        ):
            local.result = None
            return None
        found.turn += 1
        if found.turn == len(self.layers):
            local.result = None
        first = self._bounds[number]
        return found.y.narrow(-1, first, self._bounds[number + 1] - first)

    def product(
        self, x: Tensor, weights: Sequence[Tensor | None], activation: Activation, *, casts: bool
    ) -> tuple[Tensor, list[WeightState]]:
        """The results of all layers beside each other, and the states of the weights that they were made with.

        Args:
            x: ... × in features.
            weights: the values and the bias of each layer in turn.
            casts: see `products.linear_at_once`.
        """
        with self._lock:
            pattern = self.pattern
            known, values, bias = self._stacked
            if known is None or values is None or not unchanged(weights, known, frozen=True):
                known, values, bias = self._stack(weights)
            # Still in turn: another thread's weights would come to the same places.
            return linear_at_once(x, values, bias, pattern, activation, casts=casts), known

    def stacked(self) -> tuple[Tensor, Tensor | None]:
        """The values and biases of all layers below each other, as they are now."""
        with self._lock:
            return self._stack(self._weights())[1:]

    def _weights(self) -> list[Tensor | None]:
        """Values and bias of each layer in turn; none where something else stands in the place of a layer's values."""
        found: list[Tensor | None] = []
        for layer in self.layers:
            own = layer._parameters  # PyTorch's way to an attribute takes longer
            values = own.get("values")
            if values is None:
                return []
            found.append(values)
            found.append(own.get("bias"))
        return found

    def _stack(self, weights: Sequence[Tensor | None]) -> tuple[list[WeightState], Tensor, Tensor | None]:
        """The state of the weights, and the values and biases of all layers below each other."""
        states = [weight_state(tensor) for tensor in weights]
        given = [tensor for tensor in weights if tensor is not None]
        values = [tensor.detach() for tensor in weights[::2] if tensor is not None]
        biases: list[Tensor] = []
        with torch.inference_mode(False), torch.no_grad():  # tensors with version counters
            if len(given) > len(values):
                biases = [
                    values[0].new_zeros(layer.out_features) if bias is None else bias.detach()
                    for layer, bias in zip(self.layers, weights[1::2], strict=True)
                ]
            # What trains is never found unchanged, and a graph being captured writes nothing before it is replayed.
            if is_capturing(given[0]) or any(t.requires_grad or t.is_inference() for t in given):
                return states, torch.cat(values), torch.cat(biases) if biases else None
            _, old_values, old_bias = self._stacked
            stacked, bias = _lasting(values, old_values), _lasting(biases, old_bias) if biases else None
        self._stacked = states, stacked, bias
        return states, stacked, bias


class SharedPart:
    """One of the layers of a shared input; called with what the layer is called with.

    Attributes:
        shared: all of them.
        number: which one it is, in the order of their calls.
        members: the number of all.
        handle: that of `shared`.
    """

    def __init__(self, shared: SharedInput, number: int) -> None:
        self.__setstate__((shared, number, len(shared.layers)))

    def __getstate__(self) -> tuple[SharedInput, int, int]:
        return self.shared, self.number, self.members

    def __setstate__(self, state: tuple[SharedInput, int, int]) -> None:
        self.shared, self.number, self.members = state
        self.handle = self.shared.handle

    @property
    def layers(self) -> tuple[Any, ...]:
        """All of them, in the order of their calls."""
        return self.shared.layers

    def __call__(self, x: Tensor) -> Tensor | None:
        """See `SharedInput.part`."""
        if is_dynamo_compiling():
            return None
        return self.shared.part(self.number, x)


def _lasting(tensors: Sequence[Tensor], old: Tensor | None) -> Tensor:
    """Vectors below each other, in the place of the old ones if they fit: captured graphs read there."""
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    shape, place = (sum(map(len, tensors)),), tensors[0].device
    if old is None or (old.shape, old.dtype, old.device) != (shape, dtype, place):
        old = lasting_zeros(torch, shape, dtype, place)
    assert old is not None
    return torch.cat(list(tensors), out=old)


def _state(x: Tensor) -> tuple[Any, ...]:
    """Returns the state besides x that all layers must share: autocast, and the stream of launches."""
    dtype = autocast_dtype(x) if is_any_autocast() else None
    if not x.is_cuda:
        return torch.is_grad_enabled(), dtype
    stream = _stream(x.get_device())
    return (
        torch.is_grad_enabled(),
        dtype,
        stream,
        stream != 0 and is_capturing(x),  # the default stream cannot be captured
    )


_stream = current_stream_of(torch)
shared_input_of: Handles[SharedInput] = Handles(
    "there are no layers {} that share an input: compile the model again"
)
