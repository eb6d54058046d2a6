"""Batch norms that become part of the convolutions before them, for inference."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.example_inputs import arguments_of
from sparsegen.integrations.torch.calls.layer_weights import has_own_hooks, is_made_of_others
from sparsegen.integrations.torch.models.model_trace import Run, agree, looks_only, tensors_in


def fold_batch_norms(model: nn.Module, example_inputs: object = None) -> tuple[str, ...]:
    """Fold batch norms into the convolutions before them, in place; the model computes the same, but for rounding.

    A ``torch.nn.BatchNorm2d`` in evaluation with running statistics scales the filters and moves their bias;
    ``torch.nn.Identity`` takes its place. Zeros of pruned filters stay zeros. Without example inputs it is one right
    behind a ``torch.nn.Conv2d`` in a ``torch.nn.Sequential``; with them, one that alone gets the results of a
    convolution in a call of the model, wherever both stand. Others stay as they are: shared ones, and those with hooks
    or a weight made of others. `convert` sees ReLU modules right behind the convolutions then.

    Args:
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones, to call the model with
            before and after.

    Returns:
        The names of the norms that were folded: none where the results of both calls differ, and the model is as it
        was.

    Raises:
        OperandError: no module, or one that trains, as batch statistics cannot be folded; or inputs that are none of
            these. What the model raises is passed on.
    """
    return tuple(fold.norm_name for fold in folded(model, example_inputs))


def folded(model: nn.Module, example_inputs: object) -> list[Fold]:
    """Folds as `fold_batch_norms` does, and returns what can be undone."""
    arguments.instance(model, nn.Module, "model", OperandError)
    if model.training:
        raise OperandError(
            "the model trains, and its batch norms take the batch's statistics: call model.eval() first"
        )
    if example_inputs is None:
        folds = list(_in_sequences(model))
        for fold in folds:
            fold.make(model)
        return folds
    positional, named = arguments_of(example_inputs)

    def run() -> object:
        return model(*positional, **named)

    with torch.no_grad():
        folds, before = _in_calls(model, run)
        for fold in folds:
            fold.make(model)
        if not folds or agree(run(), before):
            return folds
        for fold in folds:
            fold.undo(model)
    return []


class Fold:
    """A norm and the convolution before it."""

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, norm_name: str) -> None:
        self._conv, self._norm, self.norm_name = conv, norm, norm_name
        self._before = conv.weight, conv.bias

    @torch.no_grad()
    def make(self, model: nn.Module) -> None:
        conv, norm = self._conv, self._norm
        trains = conv.weight.requires_grad
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None and variance is not None
        weight, bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, mean, variance, norm.eps, norm.weight, norm.bias
        )
        conv.weight = nn.Parameter(weight, requires_grad=trains)
        conv.bias = nn.Parameter(bias, requires_grad=trains)
        model.set_submodule(self.norm_name, nn.Identity())

    def undo(self, model: nn.Module) -> None:
        self._conv.weight, self._conv.bias = self._before
        model.set_submodule(self.norm_name, self._norm)


def _owners(model: nn.Module) -> Counter[int]:
    """Counts the names of each module, by its identity."""
    return Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))


def _in_sequences(model: nn.Module) -> Iterator[Fold]:
    """Norms right behind convolutions."""
    owners = _owners(model)
    for name, sequence in model.named_modules():
        if type(sequence) is not nn.Sequential:
            continue
        for (_, conv), (at, norm) in pairwise(list(sequence.named_children())):
            if _is_foldable(conv, norm) and owners[id(conv)] == owners[id(norm)] == 1:
                assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
                yield Fold(conv, norm, f"{name}.{at}" if name else at)


def _is_foldable(conv: nn.Module, norm: nn.Module) -> bool:
    return (
        type(conv) is nn.Conv2d
        and type(norm) is nn.BatchNorm2d
        and not norm.training
        and norm.running_mean is not None
        and not has_own_hooks(conv)
        and not has_own_hooks(norm)
        and is_made_of_others(conv) is None
    )


def _in_calls(model: nn.Module, run: Run) -> tuple[list[Fold], object]:
    """Norms that alone get what convolutions gave in a call, and the call's result."""
    owners = _owners(model)
    once = {name: module for name, module in model.named_modules() if name and owners[id(module)] == 1}
    watch = _Watch()
    with ExitStack() as hooks:
        for name, module in once.items():
            if type(module) is nn.Conv2d and not has_own_hooks(module):
                hooks.callback(module.register_forward_hook(watch.left(name)).remove)
            elif type(module) is nn.BatchNorm2d and not has_own_hooks(module):
                hooks.callback(module.register_forward_pre_hook(watch.entered(name)).remove)
        with watch:
            before = run()
    found = []
    for conv_name, norm_name in watch.pairs():
        conv, norm = once[conv_name], once[norm_name]
        if _is_foldable(conv, norm):
            assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
            found.append(Fold(conv, norm, norm_name))
    return found, before


@dataclass(slots=True)
class _Result:
    """Result of a call of a convolution, and the norm that got it."""

    conv: str
    ref: weakref.ref[Tensor]
    norm: str = ""
    uses: int = 0


class _Watch(TorchFunctionMode):
    """Counts the functions that get results of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[_Result] = []
        self._live: dict[int, _Result] = {}
        self._given: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in () if looks_only(func) else tensors_in((args, kwargs)):
            if (result := self._of(tensor)) is not None:
                result.uses += 1
        return func(*args, **kwargs)

    def _of(self, tensor: object) -> _Result | None:
        result = self._live.get(id(tensor))
        return result if result is not None and result.ref() is tensor else None

    def left(self, conv: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, args: object, y: Tensor) -> None:
            result = self._live[id(y)] = _Result(conv, weakref.ref(y))
            self._results.append(result)

        return hook

    def entered(self, norm: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
        def hook(module: nn.Module, args: tuple[object, ...]) -> None:
            self._given[norm] += 1
            if args and (result := self._of(args[0])) is not None:
                result.norm = norm

        return hook

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Convolutions and norms that belong to each other in all their calls."""
        by_conv: dict[str, list[_Result]] = {}
        for result in self._results:
            by_conv.setdefault(result.conv, []).append(result)
        for conv, results in by_conv.items():
            norms = {one.norm if one.uses == 1 and one.ref() is None else "" for one in results}
            norm = norms.pop()
            if norm and not norms and self._given[norm] == len(results):
                yield conv, norm
