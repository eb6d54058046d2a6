"""Calls of sparse layers in a model: noted while it runs, and stood in for while it is exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.autocast import autocast_dtype
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.shared_input import Part, SharedInput, SharedPart


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A call of a sparse layer; calls that are equal run one launch.

    Attributes:
        together: the launch that the layer shares with others, if it took part in one.
        tokens: over all leading dimensions.
        dtype: that of the operands, which autocast may have asked for.
    """

    layer: SparseLinear
    together: SharedInput | None
    tokens: int
    dtype: torch.dtype


Compute = Callable[[Tensor], Tensor]  # the product of a call, and the activation


def noted_calls(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[LayerCall]:
    """The calls of sparse layers while a model runs, without gradients.

    What the model raises is passed on.

    Raises:
        OperandError: an input without tokens.
    """
    calls: dict[LayerCall, None] = {}
    layers = sparse_layers(model)
    before = [layer.part for layer in layers]
    for layer, part in zip(layers, before, strict=True):
        layer.shares(_Noting(layer, part, calls))
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for layer, part in zip(layers, before, strict=True):
            layer.shares(part)
    return list(calls)


@contextmanager
def stood_in(computed: Mapping[LayerCall, Compute]) -> Iterator[None]:
    """Functions compute some calls inside the block, whose layers then have neither weights nor patterns."""
    layers = list({call.layer: None for call in computed})
    groups: dict[SharedInput, _Group] = {}
    kept = [(layer.part, layer._parameters, layer._buffers) for layer in layers]
    for layer in layers:
        own: dict[tuple[int, torch.dtype], Compute] = {}
        for call, compute in computed.items():
            if call.layer is not layer:
                continue
            key = call.tokens, call.dtype
            if call.together is None:
                own[key] = compute
            else:
                group = groups.setdefault(call.together, _Group(call.together))
                own.setdefault(key, group.part_of(layer, compute))
        layer.shares(_StandingIn(layer, own))
        layer._parameters = dict.fromkeys(layer._parameters)
        layer._buffers = dict.fromkeys(layer._buffers)
    try:
        yield
    finally:
        for layer, (part, parameters, buffers) in zip(layers, kept, strict=True):
            layer.shares(part)
            layer._parameters, layer._buffers = parameters, buffers


def sparse_layers(model: nn.Module) -> list[SparseLinear]:
    """The sparse linear layers and 1 × 1 convolutions of a model."""
    return [module for module in model.modules() if isinstance(module, SparseLinear)]


def _kind(layer: SparseLinear, x: Tensor) -> tuple[int, torch.dtype]:
    """Tokens and dtype of a call."""
    dtype = autocast_dtype(x)
    return x.numel() // layer.in_features, x.dtype if dtype is None else dtype


class _Noting:
    """A part that notes the calls of a layer, and leaves them to what computes them."""

    def __init__(self, layer: SparseLinear, part: Part | None, calls: dict[LayerCall, None]) -> None:
        self._layer, self._part, self._calls = layer, part, calls

    @property
    def layers(self) -> tuple[Any, ...]:
        return () if self._part is None else self._part.layers

    def __call__(self, x: Tensor) -> Tensor | None:
        found = None if self._part is None else self._part(x)
        tokens, dtype = _kind(self._layer, x)
        if tokens == 0:
            raise OperandError(
                f"{self._layer}: the example inputs give it no tokens; ship with inputs that do"
            )
        together = self._part.shared if found is not None and isinstance(self._part, SharedPart) else None
        self._calls[LayerCall(self._layer, together, tokens, dtype)] = None
        return found


class _StandingIn:
    """A part that computes all calls of a layer."""

    def __init__(self, layer: SparseLinear, own: Mapping[tuple[int, torch.dtype], Compute]) -> None:
        self._layer, self._own = layer, own
        self.layers = (layer,)

    def __call__(self, x: Tensor) -> Tensor:
        kind = _kind(self._layer, x)
        if kind not in self._own:
            raise OperandError(
                f"{self._layer}: traced with {kind[0]} tokens of {kind[1]}, which it did not see when the model ran: "
                "the model depends on more than its inputs' shapes, and no program of it can be shipped"
            )
        return self._own[kind](x)


class _Group:
    """The launch of layers that read one tensor: computed for the first that asks, kept for the others."""

    def __init__(self, shared: SharedInput) -> None:
        self._layers = shared.layers
        self._x: Tensor | None = None
        self._results: tuple[Tensor, ...] = ()

    def part_of(self, layer: SparseLinear, compute: Compute) -> Compute:
        """The function that computes the result of one of the layers."""
        number = next(i for i, one in enumerate(self._layers) if one is layer)

        def part(x: Tensor) -> Tensor:
            if self._x is not x:
                widths = [one.out_features for one in self._layers]
                self._x, self._results = x, compute(x).split(widths, -1)
            return self._results[number]

        return part
