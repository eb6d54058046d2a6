"""Trace of tensors through one call of a model: which linear layers read one tensor, and which results go straight into
an activation and nowhere else.

Hooks see what enters and leaves modules, a mode of PyTorch every function that is called with a tensor in between. A
tensor that is still alive when the call is over is referenced elsewhere, and counts as read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparsegen.integrations.torch.calls.activations import Activation, recognized
from sparsegen.integrations.torch.pattern.pointwise import Convertible, rows_seen

Run = Callable[[], Any]
LOOKS_ONLY = frozenset(  # at what an activation leaves as it is
    {Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_contiguous, Tensor.is_floating_point}
)
SEEN = frozenset({"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout"})
TOLERANCES = {torch.float16: 3e-2, torch.bfloat16: 2e-1}  # relative to the largest magnitude
TOLERANCE = 1e-3  # for all other types


def looks_only(function: Any) -> bool:
    """True of a function that reads no number of a tensor."""
    return function in LOOKS_ONLY or getattr(getattr(function, "__self__", None), "__name__", "") in SEEN


@dataclass(frozen=True, slots=True)
class ActivationSite:
    """A module that does nothing but an activation, to the results of linear layers alone.

    Attributes:
        names: names of the module in the model: it may have several.
        layers: those whose results it gets, all of them and no other; their results go nowhere else.
    """

    activation: Activation
    names: tuple[str, ...]
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Facts about some linear layers, from one call of their model.

    Attributes:
        tokens: for each layer that was reached its numbers of tokens, in order.
        shared: layers that always read one tensor, in the order in which they are called, one right after another as
            far as these layers go; two at least.
        sites: activations behind layers.
    """

    tokens: Mapping[str, tuple[int, ...]]
    shared: tuple[tuple[str, ...], ...]
    sites: tuple[ActivationSite, ...]


def trace(model: nn.Module, layers: Mapping[str, Convertible], run: Run) -> Trace:
    """Call a model once, and see what becomes of the inputs and results of these layers of it.

    What the model raises is passed on.
    """
    watch = _Watch()
    with ExitStack() as hooks:
        for name, layer in layers.items():
            for handle in watch.hooked(name, layer):
                hooks.callback(handle.remove)
        own = set(map(id, layers.values()))
        names: dict[int, list[str]] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            names.setdefault(id(module), []).append(name)
        for module in model.modules():
            if id(module) not in own and _may_go(module) and module is not model:
                for handle in watch.wrapped(tuple(names[id(module)]), module):
                    hooks.callback(handle.remove)
        with watch:
            kept = run()
    found = Trace(watch.tokens(), tuple(watch.shared()), tuple(watch.sites()))
    del kept  # alive until here: what it holds is not free to change
    return found


def _may_go(module: nn.Module) -> bool:
    """True if a module has nothing that would be missed, and takes hooks."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return next(module.parameters(), None) is None and next(module.buffers(), None) is None


@dataclass(slots=True)
class _Result:
    """Result of a call of a linear layer.

    Attributes:
        ref: weak reference to it; dead if it is no longer held.
        went: the module that computed the only activation of it, its names.
    """

    layer: str
    ref: weakref.ref[Tensor]
    uses: int = 0
    activation: Activation = Activation.NONE
    went: tuple[str, ...] = ()
    in_place: bool = False


@dataclass(slots=True)
class _Call:
    """A call of a module under way: the functions that it called."""

    names: tuple[str, ...]
    given: Tensor | None
    functions: int = 0
    found: tuple[_Result, Activation, bool] | None = None


@dataclass(slots=True)
class _Reader:
    """The inputs of a layer: for each call a number for the tensor, how often that had been changed, and the call's
    number among all.
    """

    inputs: list[tuple[int, int | None]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class _Watch(TorchFunctionMode):
    """The mode and the hooks of `trace`."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[_Result] = []
        self._live: dict[int, _Result] = {}
        self._numbers: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._readers: dict[str, _Reader] = {}
        self._layers: dict[str, Convertible] = {}
        self._calls: list[_Call] = []
        self._ends: dict[tuple[str, ...], list[_Result | None]] = {}
        self._order, self._next = 0, 0

    # --- what is seen ---

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not looks_only(func):
            self._used(func, args, kwargs)
        return func(*args, **kwargs)

    def _used(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        activation, in_place = recognized(func, args, kwargs)
        for call in self._calls:
            call.functions += 1
        for tensor in tensors_in((args, kwargs)):
            result = self._live.get(id(tensor))
            if result is None or result.ref() is not tensor:
                continue
            result.uses += 1
            inner = self._calls[-1] if self._calls else None
            if activation is not Activation.NONE and inner is not None and inner.given is tensor:
                inner.found = result, activation, in_place
            if in_place and result.uses == 1:
                del self._live[id(tensor)]  # whoever reads it from now on reads the activation

    def hooked(self, name: str, layer: Convertible) -> Iterator[Any]:
        self._layers[name] = layer

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x: Tensor = args[0] if args else kwargs["input"]
            reader = self._readers.setdefault(name, _Reader())
            reader.tokens.append(rows_seen(layer, x))
            reader.inputs.append((self._number(x), None if x.is_inference() else x._version))
            reader.places.append(self._order)
            self._order += 1

        def leave(module: nn.Module, args: object, y: Any) -> None:
            result = _Result(name, weakref.ref(y))
            self._results.append(result)
            self._live[id(y)] = result

        yield layer.register_forward_pre_hook(enter, with_kwargs=True)
        yield layer.register_forward_hook(leave)

    def wrapped(self, names: tuple[str, ...], module: nn.Module) -> Iterator[Any]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            alone = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
            self._calls.append(_Call(names, args[0] if alone else None))

        def leave(module: nn.Module, args: object, y: object) -> None:
            call = self._calls.pop()
            end = None
            if call.found is not None and call.functions == 1 and isinstance(y, Tensor):
                end, activation, in_place = call.found
                first = end.uses == 1 and not end.went
                if first and (y is call.given) == in_place:
                    end.activation, end.went, end.in_place = activation, names, in_place
                else:
                    end = None
            self._ends.setdefault(names, []).append(end)

        yield module.register_forward_pre_hook(enter, with_kwargs=True)
        yield module.register_forward_hook(leave)

    def _number(self, x: Tensor) -> int:
        known = self._numbers.get(id(x))
        if known is None or known[0]() is not x:
            self._next += 1
            known = self._numbers[id(x)] = weakref.ref(x), self._next
        return known[1]

    # --- what it comes to ---

    def tokens(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(reader.tokens) for name, reader in self._readers.items()}

    def shared(self) -> Iterator[tuple[str, ...]]:
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name, reader in self._readers.items():
            weight = self._layers[name].weight
            key = (tuple(reader.inputs), weight.shape[1], weight.dtype, weight.device)
            groups.setdefault(key, []).append(name)
        for names in groups.values():
            rounds = zip(*(self._readers[name].places for name in names), strict=True)
            places = [place for one in rounds for place in one]
            if len(names) > 1 and places == sorted(places):
                yield tuple(names)

    def sites(self) -> Iterator[ActivationSite]:
        by_layer: dict[str, set[tuple[Activation, tuple[str, ...]]]] = {}
        for result in self._results:
            alone = result.uses == 1 and (result.in_place or result.ref() is None)
            where = (result.activation, result.went) if alone else (Activation.NONE, ())
            by_layer.setdefault(result.layer, set()).add(where)
        for names, ends in self._ends.items():
            layers = tuple(dict.fromkeys(end.layer for end in ends if end is not None))
            kinds = {kind for layer in layers for kind in by_layer[layer]}
            if None not in ends and len(kinds) == 1:
                ((activation, went),) = kinds
                if went == names and activation is not Activation.NONE:
                    yield ActivationSite(activation, names, layers)


def agree(one: object, other: object) -> bool:
    """True if two results hold the same tensors, with numbers that differ by no more than a whole model's rounding.

    False if there is no tensor to compare: tensors are looked for in sequences, mappings and their nestings.
    """
    ours, theirs = list(tensors_in(one)), list(tensors_in(other))
    return (
        bool(ours)
        and len(ours) == len(theirs)
        and all(_close(a, b) for a, b in zip(ours, theirs, strict=True))
    )


def tensors_in(nested: object) -> Iterator[Tensor]:
    """The tensors in sequences and mappings, in order."""
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (list, tuple)):
        for one in nested:
            yield from tensors_in(one)
    elif isinstance(nested, Mapping):
        for one in nested.values():
            yield from tensors_in(one)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    a, b = one.double(), other.double()
    largest = b[b.isfinite()].abs().amax().item() if bool(b.isfinite().any()) else 0.0
    tolerance = TOLERANCES.get(one.dtype, TOLERANCE) * largest
    return torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
