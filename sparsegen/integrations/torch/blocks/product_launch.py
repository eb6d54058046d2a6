"""The launch of a product with a mask of blocks for tensors like these: our kernel, or PyTorch's own product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.blocks.padded_products import (
    PaddedPlainProduct,
    PaddedProduct,
    padded,
    padded_for_dense,
)
from sparsegen.integrations.torch.blocks.plain_products import PlainProduct, drawn_words
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.either import chosen
from sparsegen.integrations.torch.calls.launches import Result, launch_of
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.kernels.base import Device
from sparsegen.measure.decision import Entrants, decide, digest_of
from sparsegen.operators import MaskedProblem
from sparsegen.tuning_db.records import Task

CALLS = 4  # behind each other in a race, as of a model's layers


@dataclass(frozen=True)
class Product:
    """A product of tensors like these.

    Attributes:
        places: for each operand its place among the tensors, as `launch_of` takes it.
        shape: of the result.
    """

    problem: MaskedProblem
    scale: float
    tensors: tuple[Tensor | None, ...]
    places: dict[str, Any]
    shape: tuple[int, int]

    def launch(self, dense: Dense | str) -> Callable[..., Tensor]:
        """Returns the function that computes it: our kernel, or PyTorch's own product where that takes less time, or
        without a device of ours.
        """
        policy, first = Dense.parse(dense), self.tensors[0]
        assert first is not None
        device = kernel_device(first)
        can_copy = device is not None and not is_capturing(first)  # a capture may load nothing
        own = self._dense(device, can_copy=can_copy)
        if device is None or policy is Dense.ALWAYS:
            return own
        wider = padded(self.problem, device) if can_copy else None
        launched, context = (self.problem, "") if wider is None else (wider, digest_of(self.problem))
        operator = partial(operators.get, launched, device, scale=self.scale)

        def ours() -> Callable[..., Tensor]:
            if wider is None:
                return self.by(operator())
            return PaddedProduct(wider, operator(), self.tensors, self.places, self.shape)

        def enter() -> Entrants:
            drawn = *self.tensors[:-1], drawn_words(self.problem, first.device)
            pair = partial(ours(), *drawn), partial(own, *drawn)
            return Entrants(operator().launcher.variant, lambda _: pair, CALLS)

        decided = partial(decide, Task.PRODUCT, launched, device, enter, policy, context=context)
        return chosen(decided, ours, own)

    def _dense(self, device: Device | None, *, can_copy: bool) -> Callable[..., Tensor]:
        wider = padded_for_dense(self.problem, device) if device is not None and can_copy else None
        if device is None or wider is None:
            return PlainProduct(self.problem, self.scale, device)
        return PaddedPlainProduct(wider, self.scale, device, self.shape)

    def by(self, operator: Any) -> Callable[..., Tensor]:
        """Returns the launch of an operator that was prepared for the problem."""
        return launch_of(operator, self.problem, self.tensors, self.places, Result(self.shape))
