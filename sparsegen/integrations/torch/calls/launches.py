"""Calls of operators on tensors: looked at once, made a problem of, and launched by what was prepared for it.

A call is known by all of its tensors that checks and the choice of a kernel look at, and by its other arguments. The
first one of a kind makes the problem, which checks them, and prepares; calls like it go straight to its launch. That a
call is like the latest one is told by one function of C, the guard of compiled programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.direct import PLAIN, Asked, asked
from sparsegen.integrations.torch.calls.like_before import guards_of
from sparsegen.integrations.torch.calls.prepared import MISALIGNED, aligned, array_of, is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.operators import Problem, TensorSpec, WordType
from sparsegen.plan.arrays import current_stream_of, empty_tensors
from sparsegen.plan.variant_launcher import VariantLauncher
from sparsegen.system.bounded import Bounded

WORDS = torch.uint64, torch.int64  # types of the masks' words
MOST_KNOWN = 1024  # kinds of calls
_IS_GIVEN = partial(is_not, None)  # of C, as each function of Python takes longer
ADDED = frozenset({"bias", "scale"})  # operands that operators take by name

Launch = Callable[..., Any]  # takes the tensors of a call by position, and gives its result, or several
# By x, by the weight or its values, and by the bias.
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
View = Callable[[Tensor], Tensor]  # returns a tensor's view that lies in memory as the operator takes it
Place = int | tuple[int, View | None]  # among the tensors of a call


class Latest(NamedTuple):
    """The latest call of a kind.

    Attributes:
        guards: tell calls with tensors like its own, which also hook, trace and transform nothing that it did not.
        target: see `Calls.target`.
        asked: requests of such calls besides a result where gradients are recorded.
    """

    guards: TensorGuards
    target: Any
    asked: Asked


class Calls:
    """Targets of calls by what tells calls apart. There are at most `MOST_KNOWN`; one more takes the place of all.

    Attributes:
        known: targets of calls of each kind; and by less, the `Latest` of its kind.
    """

    def __init__(self) -> None:
        self.known: dict[Hashable, Any] = Bounded(MOST_KNOWN)

    def latest(self, what: Hashable, tensors: tuple[Tensor | None, ...]) -> Latest | None:
        """The latest call of a kind, if one with these tensors is like it; see `target`.

        It saves the question what is asked of the call, unless something watches it (`direct.is_watched`).
        """
        first = tensors[0]
        if first is None or type(first) not in PLAIN:  # sizes of others may be symbols, which have no hash
            return None
        found: Latest | None = self.known.get(
            (what, first.shape, first.is_cuda or _host_backend(first), *map(type, tensors))
        )
        return found if found is not None and found.guards.check(*filter(_IS_GIVEN, tensors)) else None

    def target(
        self,
        what: Hashable,
        tensors: tuple[Tensor | None, ...],
        make: Callable[..., Any],
        inputs: tuple[Any, ...],
    ) -> Any:
        """The target of a call with these tensors.

        Args:
            what: tells the call's other arguments apart.
            tensors: the very first one may not be left out.
            make: makes the target of the first call of a kind, of these inputs.
        """
        latest = self.latest(what, tensors)
        if latest is not None:
            return latest.target
        first, known, kind = tensors[0], self.known, (what, kind_of(tensors))
        assert first is not None
        found = known.get(kind)
        if found is None:
            found = known[kind] = make(*inputs)
        given = [tensor for tensor in tensors if tensor is not None]
        if all(tensor.layout is torch.strided for tensor in given):  # guards know of no other tensors
            with torch.enable_grad():
                requests = asked(*given)
            key = what, first.shape, first.is_cuda or _host_backend(first), *map(type, tensors)
            known[key] = Latest(guards_of(*given), found, requests)
        return found

    def launch(self, tensors: int, make: Callable[..., Launch], inputs: tuple[Any, ...]) -> Launch:
        """The launch of a custom operator for its arguments by position; see `of`."""
        found: Launch = self.target((make, inputs[tensors:]), inputs[:tensors], make, inputs)
        return found

    def of(self, tensors: int, make: Callable[..., Launch]) -> Callable[..., Any]:
        """A function of a custom operator: the result for its arguments by position.

        Args:
            tensors: number of arguments that are tensors, the first ones; the very first one may not be left out.
            make: takes all arguments, checks them, and gives what computes the result for tensors like these.
        """

        def call(*inputs: Any) -> Any:
            given = inputs[:tensors]
            launch = self.target((make, inputs[tensors:]), given, make, inputs)
            return launch(*given)

        return call


calls = Calls()


def kind_of(tensors: tuple[Tensor | None, ...]) -> Hashable:
    """All of tensors that checks and the choice of a kernel look at; the first one says where kernels run."""
    found: list[Any] = []
    for tensor in tensors:
        if tensor is None:
            found.append(None)
        elif tensor.layout is torch.strided:
            found += tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        else:
            found += tensor.shape, tensor.layout, tensor.dtype, tensor.device
    first = tensors[0]
    if first is not None and not first.is_cuda:
        found.append(_host_backend(first))
    return tuple(found)


def _host_backend(first: Tensor) -> str | None:
    """Backend of kernels for tensors on the host: the environment says whether there is an emulator."""
    device = kernel_device(first)
    return None if device is None else device.backend


@dataclass(frozen=True, slots=True)
class Result:
    """A new tensor that a call gives.

    Attributes:
        shape: shape of the tensor.
        order: order of its elements in memory, in which the operator writes them.
        dtype: None for the first tensor's.
    """

    shape: tuple[int, ...]
    order: torch.memory_format = torch.contiguous_format
    dtype: torch.dtype | None = None

    def viewed(self, written: Tensor) -> Tensor:
        """Returns the operator's output, in its own shape, as the result; no view to autograd."""
        if self.order is torch.channels_last:
            images, channels, rows, columns = self.shape
            return written.reshape(images, rows, columns, channels).permute(0, 3, 1, 2).detach()
        return written.reshape(self.shape).detach()


def launch_of(
    operator: Any,
    problem: Problem,
    tensors: tuple[Tensor | None, ...],
    places: Mapping[str, Place],
    result: Result,
) -> Launch:
    """Returns the function that computes a problem for tensors like these.

    Args:
        operator: prepared for the problem; operands without a place are kept in it.
        places: for each operand its place among the tensors, with a view of it if needed.

    Raises:
        OperandError: a tensor has another number of elements than the problem's operand.
    """
    taken = [
        _Taken.of(spec, places[spec.name], tensors) for spec in problem.operands(0) if spec.name in places
    ]
    launcher = operator.launcher
    if isinstance(launcher, VariantLauncher) and operator.device.backend == "cuda":
        first = tensors[0]
        assert first is not None
        return TensorLaunch(operator, launcher, taken, result, first)
    return OperatorCall(operator, taken, result)


@dataclass(frozen=True, slots=True)
class _Taken:
    """An operand of a problem among the tensors of a call.

    Attributes:
        at: its place.
        view: function that views it; None to take it as it is.
        lies_so: true if it lies in memory as it is taken.
    """

    spec: TensorSpec
    at: int
    view: View | None
    lies_so: bool

    @classmethod
    def of(cls, spec: TensorSpec, place: Place, tensors: tuple[Tensor | None, ...]) -> _Taken:
        at, view = place if isinstance(place, tuple) else (place, None)
        tensor, first = tensors[at], tensors[0]
        assert tensor is not None and first is not None
        if tensor.numel() != math.prod(spec.shape):
            raise OperandError(f"{spec.name}: expected shape {spec.shape}, got {tuple(tensor.shape)}")
        kinds = WORDS if isinstance(spec.dtype, WordType) else (getattr(torch, str(spec.dtype)),)
        if tensor.dtype not in kinds or tensor.device != first.device:
            raise OperandError(
                f"{spec.name}: expected {kinds[0]} on {first.device}, got {tensor.dtype} on {tensor.device}"
            )
        seen = tensor if view is None else view(tensor)
        return cls(spec, at, view, seen.is_contiguous() and seen.data_ptr() == tensor.data_ptr())

    @property
    def address_view(self) -> View | None:
        """The function that brings it into that order; None if it lies so."""
        return None if self.lies_so else (self.view or Tensor.contiguous)

    def stored(self, tensors: tuple[Tensor | None, ...]) -> Tensor:
        """The operand in the memory order and the shape of the problem."""
        tensor = tensors[self.at]
        assert tensor is not None
        return aligned(tensor if self.view is None else self.view(tensor))


class TensorLaunch:
    """A launch on a GPU's tensors of one kind, past all checks.

    Attributes:
        operator: the operator whose variant it launches.
        was_captured: true if a CUDA graph launches it, so that it must live on.
    """

    __slots__ = (
        "_bound",
        "_empty",
        "_index",
        "_launching",
        "_stream",
        "_taken",
        "operator",
        "was_captured",
    )

    def __init__(
        self, operator: Any, launcher: VariantLauncher, taken: list[_Taken], result: Result, like: Tensor
    ) -> None:
        variant = launcher.prepared
        by_name = {one.spec.name: (one.at, one.address_view, 0) for one in taken}
        # In call order: a tensor's place and view, or the address of an operand that is kept.
        self._taken = tuple(
            by_name.get(spec.name) or (-1, None, launcher.kept_address(spec.name))
            for spec in variant.operands
        )
        self.operator, self.was_captured = operator, False
        self._bound, self._launching = variant.bound, variant.launching
        self._index, self._stream = like.get_device(), current_stream_of(torch)
        dtype = getattr(torch, str(variant.result.dtype))
        self._empty = empty_tensors(torch, result.shape, dtype, like.device, result.order)

    def __call__(self, *tensors: Any, out: Tensor | None = None) -> Tensor:
        """The result, in ``out`` if it is given: contiguous, on 16 bytes, of any shape with its elements."""
        stream = self._stream(self._index)
        if stream and not self.was_captured and is_capturing(tensors[0]):  # the default stream cannot be
            self.was_captured = True
            operators.keep(self)
        addresses, held = [], []
        for at, view, address in self._taken:
            if at >= 0:
                tensor = tensors[at]
                if view is not None:
                    tensor = view(tensor).contiguous()
                    held.append(tensor)  # until the launch is queued: what comes next takes its memory
                address = tensor.data_ptr()
                if address & MISALIGNED:
                    tensor = tensor.clone(memory_format=torch.preserve_format)
                    held.append(tensor)
                    address = tensor.data_ptr()
            addresses.append(address)
        if out is None:
            out = self._empty()
        launch = self._bound()
        with self._launching:
            launch(stream, *addresses, out.data_ptr())
        return out

    def bind(self) -> None:
        """Allocate what the calling thread's launches need beside their operands, unless it is there."""
        self._bound()


class OperatorCall:
    """A call of an operator object by arrays, as the emulator takes them; NumPy has no bfloat16."""

    __slots__ = ("_operator", "_result", "_taken")

    def __init__(self, operator: Any, taken: list[_Taken], result: Result) -> None:
        self._operator, self._result = operator, result
        self._taken = taken

    def __call__(self, *tensors: Any, out: Tensor | None = None) -> Tensor:
        """The result, in ``out`` if it is given: contiguous, of any shape with its elements."""
        given: list[Any] = []
        added: dict[str, Any] = {}
        dtype = self._result.dtype or tensors[0].dtype
        for one in self._taken:
            tensor = one.stored(tensors)
            if isinstance(one.spec.dtype, WordType):
                given.append(tensor.view(torch.uint64).reshape(one.spec.shape).numpy())
            elif one.spec.name in ADDED:
                added[one.spec.name] = array_of(tensor)
            else:
                given.append(array_of(tensor.reshape(one.spec.shape)))
        into = None if out is None else array_of(out.view(self._result.shape))
        found = self._operator(*given, out=into, **added)
        written = torch.from_numpy(found).to(dtype)
        return self._result.viewed(written) if out is None else out.copy_(written.view(out.shape))
