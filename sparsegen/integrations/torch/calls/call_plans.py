"""A product called again with tensors as before: what cannot change between such calls is found once.

A loop over one call finds all of its code and objects in the processor's caches; a model's layers do not, for other
code ran in between. There a call costs what it touches: functions, dictionaries, objects. So a call that is like one
before it goes to the launch through a plan, and every other one the long way, which checks, prepares and explains.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.prepared import (
    MISALIGNED,
    Follower,
    Prepared,
    is_capturing,
)
from sparsegen.plan.arrays import current_stream_of, empty_tensors
from sparsegen.plan.lasting_tensors import lasting_zeros
from sparsegen.plan.own_launch import OwnBinding
from sparsegen.plan.transposes import bind_transposes
from sparsegen.plan.variant_launcher import VariantLauncher
from sparsegen.system.bounded import Bounded

MOST_PLANS = 64  # plans of a pattern: one for each shape of tensors


class Plan(Protocol):
    """The product of a pattern with tensors of one shape and dtype, and with a bias or none."""

    was_used: bool  # since the last question

    @property
    def prepared(self) -> Any:
        """The prepared operator that it calls. The pattern may drop it, and then the plan with it."""

    def run(self, x: Tensor, values: Tensor, bias: Tensor | None, /) -> Tensor | None:
        """The result; None, and nothing done, where the tensors are not as they were when the plan was made."""


@runtime_checkable
class TrainingPlan(Plan, Protocol):
    """A `Plan` that can go past the checks of `run`, with values that train."""

    def trained(
        self, x: Tensor, values: Tensor, bias: Tensor | None, empty: Callable[[], Tensor], stream: int, /
    ) -> Tensor:
        """The result of tensors at which all was looked that calls may differ in.

        Args:
            bias: of X's dtype.
            empty: makes a tensor for the result, which may have more dimensions than a matrix, as X.
        """


class LaunchPlan:
    """A `Plan` that launches a kernel."""

    __slots__ = (
        "_bias",
        "_bias_dtype",
        "_bias_follower",
        "_bias_shape",
        "_bound",
        "_dtype",
        "_empty",
        "_follower",
        "_gathers",
        "_index",
        "_launching",
        "_stream",
        "_turn",
        "prepared",
        "was_used",
    )

    def __init__(
        self,
        prepared: Prepared,
        launcher: VariantLauncher,
        out_shape: torch.Size,
        like: Tensor,
        bias: Tensor | None = None,
    ) -> None:
        """A plan of calls that give a result of this shape.

        Args:
            like: an operand as calls bring it.
            bias: likewise; one of another dtype is cast, and that of a frozen one is kept.
        """
        self.prepared, self.was_used = prepared, True
        self._follower: Follower = prepared.follower
        self._turn = prepared.turn
        variant = launcher.prepared
        self._bound, self._launching = variant.bound, variant.launching
        self._gathers = variant.gather_launch
        self._dtype, self._index = like.dtype, like.get_device()
        self._follower.gathers(
            variant.gather_from, self._dtype, torch.Size((variant.packed.nnz,)), self._index
        )
        self._empty = empty_tensors(torch, out_shape, like.dtype, like.device)
        self._bias_shape = None if bias is None else bias.shape
        self._bias_dtype = None if bias is None else bias.dtype
        self._bias: Tensor | None = None
        self._bias_follower = Follower(self._cast)
        if bias is not None and bias.dtype is not like.dtype:
            self._bias_follower.follow(bias)  # now: a later call may be captured
        self._stream: Callable[[int], int] = current_stream_of(torch)

    def run(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor | None:
        """See `Plan.run`."""
        index = self._index
        if x.get_device() != index or not x.is_contiguous():
            return None
        address = x.data_ptr()
        if address & MISALIGNED:
            return None
        if bias is not None and not (
            bias.dtype is self._bias_dtype
            and bias.get_device() == index
            and bias.shape == self._bias_shape
            and bias.is_contiguous()
        ):
            return None
        stream, known = self._stream(index), self._follower
        with self._turn:
            if not (
                known.version is not None
                and known.values() is values
                and known.version == values._version
                and known.address == values.data_ptr()
                and not values.requires_grad
            ) and not known.bring(values, stream):
                return None
            if bias is not None and self._bias_dtype is not self._dtype:
                self._bias_follower.follow(bias)
                bias = self._bias
                assert bias is not None
            if stream and not self.prepared.was_captured:  # the default stream cannot be captured
                self.prepared.was_captured = is_capturing(x)
            self.was_used = True
            out = self._empty()
            launch = self._bound()
            with self._launching:
                if bias is None:
                    launch(stream, address, out.data_ptr())
                else:
                    launch(stream, address, bias.data_ptr(), out.data_ptr())
        return out

    def trained(
        self, x: Tensor, values: Tensor, bias: Tensor | None, empty: Callable[[], Tensor], stream: int
    ) -> Tensor:
        """See `TrainingPlan`."""
        prepared = self.prepared
        with self._turn:
            if stream and not prepared.was_captured:
                prepared.was_captured = is_capturing(x)
            self.was_used = True
            self._follower.version = None  # whatever it followed is overwritten
            out = empty()
            gather, launch = self._gathers(), self._bound()
            with self._launching:
                gather(stream, values.data_ptr())
                if bias is None:
                    launch(stream, x.data_ptr(), out.data_ptr())
                else:
                    launch(stream, x.data_ptr(), bias.data_ptr(), out.data_ptr())
        return out

    def _cast(self, bias: Tensor) -> None:
        with torch.inference_mode(False), torch.no_grad():
            if self._bias is None:
                self._bias = lasting_zeros(torch, bias.shape, self._dtype, bias.device)
            self._bias.copy_(bias)


class SampledPlan:
    """A `Plan` of two operands and no values, whose kernel takes both transposed: two launches."""

    __slots__ = (
        "_behind",
        "_bound",
        "_empty",
        "_index",
        "_launching",
        "_room",
        "_stream",
        "_transposes",
        "_turn",
        "prepared",
        "was_used",
    )

    def __init__(
        self, prepared: Prepared, launcher: VariantLauncher, out_shape: torch.Size, y: Tensor, x: Tensor
    ) -> None:
        """A plan of calls with operands like Y and X, which have equally many rows."""
        self.prepared, self.was_used, self._turn = prepared, True, prepared.turn
        variant = launcher.prepared
        self._bound, self._launching = variant.bound, variant.launching
        columns, size = (y.shape[1], x.shape[1]), x.element_size()
        self._transposes = OwnBinding(variant.executor, bind_transposes, x.shape[0], columns, size)
        behind = (y.numel() * size + MISALIGNED) & ~MISALIGNED  # bytes from Yᵀ to Xᵀ
        self._behind, self._index = behind, x.get_device()
        self._room = empty_tensors(torch, (behind + x.numel() * size,), torch.uint8, x.device)
        self._empty = empty_tensors(torch, out_shape, x.dtype, x.device)
        self._stream: Callable[[int], int] = current_stream_of(torch)

    def run(self, y: Tensor, x: Tensor, bias: Tensor | None, /) -> Tensor | None:
        """See `Plan.run`; of any strides."""
        index = self._index
        if x.get_device() != index or y.get_device() != index or x.dtype is not y.dtype:
            return None
        return self.launched(y.contiguous(), x.contiguous(), self._stream(index))

    def launched(self, y: Tensor, x: Tensor, stream: int) -> Tensor:
        """The result of contiguous operands, at which all was looked that calls may differ in."""
        prepared = self.prepared
        with self._turn:
            if stream and not prepared.was_captured:
                prepared.was_captured = is_capturing(x)
            self.was_used = True
            room, out = self._room(), self._empty()
            turned = room.data_ptr()
            behind = turned + self._behind
            self._transposes.bound()(stream, y.data_ptr(), x.data_ptr(), turned, behind)
            launch = self._bound()
            with self._launching:
                launch(stream, turned, behind, out.data_ptr())
        return out


class Plans:
    """The plans of a pattern, by whatever tells calls apart."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, Plan] = Bounded(MOST_PLANS)
        self.find = self._plans.get  # the one step of a call

    def add(self, key: Hashable, plan: Plan | None) -> None:
        """Keep a plan, if there is one, in the place of all others where they become too many."""
        if plan is not None:
            self._plans[key] = plan

    def drop(self, prepared: object) -> None:
        """Forget the plans that call it."""
        for key in [key for key, plan in self._plans.items() if plan.prepared is prepared]:
            del self._plans[key]

    def clear(self) -> None:
        """Forget all."""
        self._plans.clear()

    def were_used(self) -> set[int]:
        """The identities of what plans have called since this was asked before."""
        found = {id(plan.prepared) for plan in self._plans.values() if plan.was_used}
        for plan in self._plans.values():
            plan.was_used = False
        return found
