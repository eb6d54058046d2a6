"""Training steps of a linear layer behind structured dropout: their launches are found once.

A step that is like one before is told by one function of C for each pass; every other one goes the long way, which
checks, chooses and explains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.nn.functional import linear

from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor
from sparsegen.integrations.torch.blocks.concurrent_gradients import GradientLaunches
from sparsegen.integrations.torch.blocks.factors_ahead import FactorsAhead
from sparsegen.integrations.torch.blocks.mask_launches import (
    independent,
    launch_draw,
    launch_drop,
    launch_factors,
)
from sparsegen.integrations.torch.blocks.mask_states import generator_of, names_like, states_like
from sparsegen.integrations.torch.blocks.masked_products import (
    dsd_gradients,
    gradient_launches,
    product_launch,
)
from sparsegen.integrations.torch.blocks.plain_products import PlainProduct
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.direct import Context, applied, is_watched
from sparsegen.integrations.torch.calls.launches import Gradients
from sparsegen.integrations.torch.calls.like_before import guards_of
from sparsegen.integrations.torch.calls.prepared import MISALIGNED
from sparsegen.plan.arrays import empty_tensors
from sparsegen.system.bounded import Bounded

MOST_STEPS = 64  # of a layer: one for each kind of tensors

Settings = tuple[float, tuple[int, int], Activation, bool, Dense]  # p, block, activation, own_seed, dense
Given = tuple[Tensor, Tensor, Tensor | None]  # X, contiguous and on 16 bytes, the weight and the bias


class Steps(Bounded[Hashable, "DropoutStep"]):
    """The steps of a layer by `kind_of_step`, and the latest; copies and pickles have none."""

    def __init__(self) -> None:
        super().__init__(MOST_STEPS)

    def __reduce__(self) -> tuple[Any, ...]:
        return Steps, ()


def kind_of_step(x: Tensor) -> Hashable:
    """The kind of a call, by facts that differ between calls that take turns."""
    return x.shape, x.get_device(), x.requires_grad


class DropoutStep(ABC):
    """Launches of a step for tensors of one kind.

    Attributes:
        new_state: names a mask by PyTorch's generator, for calls of this kind.
        is_masked: true if masked products run, and not dense ones.
        activates: true if the product computes the layer's activation.
        takes_all: false if it takes no tensors of this kind after all.
    """

    new_state: Callable[[], Any]
    is_masked: bool
    activates = False
    takes_all = True

    def __init__(self, settings: Settings, pays: Callable[[], bool] | None, given: Given) -> None:
        """
        Args:
            settings: the layer's.
            pays: tells whether masked products run in the next call of this kind; None where the settings do.
        """
        self._settings, self._pays = settings, pays
        self._guards = guards_of(*(one for one in given if one is not None))
        self._captures = torch.cuda.is_current_stream_capturing if given[0].is_cuda else bool

    def is_for(self, settings: Settings, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """True for a call with equal settings and tensors of its kind, by the products that run.

        A CUDA graph captures other launches than those of dense products.
        """
        given = (x, weight) if bias is None else (x, weight, bias)
        return (
            settings == self._settings
            and self._guards.check(*given)
            and not x.data_ptr() & MISALIGNED
            and (self._pays is None or self._pays() is self.is_masked)
            and (self.is_masked or not self._captures())
        )

    @abstractmethod
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Any) -> Tensor:
        """The layer's result, before an activation that no kernel computes, by the mask that a state names."""


class DenseStep(DropoutStep):
    """A step by dense products, with PyTorch's own gradients; see `dropped`."""

    is_masked = False

    def __init__(
        self, settings: Settings, pays: Callable[[], bool] | None, given: Given, state: Tensor
    ) -> None:
        """See `DropoutStep`."""
        super().__init__(settings, pays, given)
        x = given[0].detach()
        rows, self._shape = x.view(-1, x.shape[-1]), None if x.dim() == 2 else x.shape
        self._multiplies, device = given[0].requires_grad, kernel_device(x)
        self._ahead: FactorsAhead | None = None
        if self._multiplies and device is not None and not settings[3] and generator_of(x.device) is not None:
            self._ahead = FactorsAhead(x, device, *settings[:2])
        make = launch_factors if self._multiplies else launch_drop  # the former look at no element
        self._launch = make(rows, state, settings[0], *settings[1])
        self.new_state = names_like(x)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Any) -> Tensor:
        """See `DropoutStep`; numbers may stand for the state."""
        if self._ahead is not None:
            return linear(x * self._ahead(state), weight, bias)
        if self._shape is None:
            made = self._launch(x, state)
        elif self._multiplies:
            made = self._launch(x, state).view(self._shape)
        else:
            made = self._launch(x.view(-1, self._shape[-1]), state).view(self._shape)
        return linear(x * made if self._multiplies else made, weight, bias)


class MaskedStep(DropoutStep):
    """A step by masked products: one node of autograd."""

    is_masked = True

    def __init__(
        self,
        settings: Settings,
        pays: Callable[[], bool] | None,
        given: Given,
        state: Tensor,
        mask: BlockMaskTensor,
        *,
        early: bool,
        relu: bool,
    ) -> None:
        """See `DropoutStep`.

        Args:
            mask: one like those of the step.
            early: see `mask_of`.
            relu: the product has a ReLU.
        """
        super().__init__(settings, pays, given)
        (x, weight, bias), self.activates = given, relu
        rows, shape = x.detach().view(-1, x.shape[-1]), x.shape
        rest = 1 / mask.density, *mask.shape, *mask.block, mask.density
        self.new_state = states_like(x)
        self._draw = launch_draw(state, mask.layout, independent(settings[0]), early=early)
        self._product = product_launch(rows, weight, bias, mask.words, *rest, relu, str(Dense.NEVER))
        # PyTorch's own products take matrices alone.
        self.takes_all = len(shape) == 2 or not isinstance(self._product, PlainProduct)
        self._mask = *rest, str(Dense.NEVER)
        self._empty_x = self._empty_y = _nothing
        if len(shape) != 2:
            self._empty_x = empty_tensors(torch, shape, x.dtype, x.device)
            self._empty_y = empty_tensors(torch, (*shape[:-1], weight.shape[0]), x.dtype, x.device)
        self._gradients: dict[tuple[bool, ...], _Learned] = {}  # by those that are needed

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor) -> Tensor:
        """See `DropoutStep`; one is added to the state's step."""
        y: Tensor = _masked(x, weight, bias, self._draw(state), self)
        torch.autograd.graph.increment_version(state)
        return y

    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The product, and what else than its operands the gradients need."""
        y = self._product(x, weight, bias, words, out=self._empty_y())
        return y, y if self.activates else None

    def backward(
        self, dy: Tensor, saved: tuple[Tensor, Tensor, Tensor, Any], needs: tuple[bool, ...]
    ) -> Gradients:
        """The gradients by x, the weight and the bias, those that are needed."""
        x, weight, words, y = saved
        needs = needs[:3]
        known = self._gradients.get(needs)
        if (
            known is None
            or is_watched()
            or torch.is_grad_enabled()
            or not (known.like_dy.check(dy) and known.like_saved.check(x, weight, words))
            or dy.data_ptr() & MISALIGNED
        ):
            return self._looked_at(dy, saved, needs)
        if y is not None:
            dy = torch.where(y > 0, dy, 0)
        return known.launches(dy, x, weight, words, out=self._empty_x() if needs[0] else None)

    def _looked_at(
        self, dy: Tensor, saved: tuple[Tensor, Tensor, Tensor, Any], needs: tuple[bool, ...]
    ) -> Gradients:
        """The same of gradients that may be like none before, or that are asked for more; the next are like them."""
        (x, weight, words, y), shape = saved, saved[0].shape
        flat, x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, shape[-1])
        y = None if y is None else y.reshape(flat.shape)
        dx, dw, db = dsd_gradients(flat, x, weight, words, y, self._mask, needs)
        if needs not in self._gradients and dy.is_contiguous() and not dy.requires_grad:
            launches = gradient_launches(flat, x, weight, words, self._mask, needs)
            like_saved = guards_of(saved[0], weight, words)
            self._gradients[needs] = _Learned(guards_of(dy), like_saved, launches)
        return None if dx is None else dx.view(shape), dw, db


@dataclass(frozen=True, slots=True)
class _Learned:
    """Gradients of one kind: guards of dY, and of what was saved, which hooks may change, and launches."""

    like_dy: TensorGuards
    like_saved: TensorGuards
    launches: GradientLaunches


def _forward(
    ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, step: MaskedStep
) -> Tensor:
    y, kept = step.forward(x, weight, bias, words)
    ctx.save_for_backward(x, weight, words, kept)
    ctx.step = step
    return y


def _backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    return (*ctx.step.backward(dy, ctx.saved_tensors, ctx.needs_input_grad), None, None)


_masked = applied("dsd", _forward, _backward)


def _nothing() -> None:
    """No tensor: launches make matrices themselves."""
