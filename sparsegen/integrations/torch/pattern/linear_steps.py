"""Training steps of a linear layer on a pattern: their launches are found once.

A step starts five small kernels, and the Python code between them costs the host more than they do: above all in the
thread that runs backward, which finds none of its objects in the processor's caches. One function of C tells for each
pass that a step is like one before; every other one goes the long way, which checks, prepares and explains.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

from sparsegen.integrations.torch.calls.call_plans import SampledPlan, TrainingPlan
from sparsegen.integrations.torch.calls.column_sums import sums_like
from sparsegen.integrations.torch.calls.direct import is_watched
from sparsegen.integrations.torch.calls.launches import Gradients
from sparsegen.integrations.torch.calls.like_before import guards_of
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.integrations.torch.calls.prepared import MISALIGNED
from sparsegen.plan.arrays import empty_tensors

_Gradients = tuple[TensorGuards, TensorGuards, TrainingPlan | None, SampledPlan, Callable[[Tensor], Tensor]]


class LinearStep:
    """The launches of a step for tensors of one kind, with values that train."""

    __slots__ = ("_backward", "_empty_x", "_empty_y", "_forward", "_guards", "_stream")

    def __init__(
        self, forward: TrainingPlan, out_features: int, x: Tensor, values: Tensor, bias: Tensor | None
    ) -> None:
        """A step of tensors like these, which are contiguous and of one dtype.

        Args:
            forward: the plan of the product.
        """
        shape = *x.shape[:-1], out_features
        self._empty_x = empty_tensors(torch, x.shape, x.dtype, x.device)
        self._empty_y = empty_tensors(torch, shape, x.dtype, x.device)
        self._forward = forward
        self._guards = guards_of(*((x, values) if bias is None else (x, values, bias)))
        self._stream = current_stream(x)
        self._backward: _Gradients | None = None

    def is_for(self, x: Tensor, values: Tensor, bias: Tensor | None) -> bool:
        """True for tensors of its kind, if X lies where kernels read vectors."""
        given = (x, values) if bias is None else (x, values, bias)
        return self._guards.check(*given) and not x.data_ptr() & MISALIGNED

    def forward(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """The product of tensors of its kind."""
        return self._forward.trained(x, values, bias, self._empty_y, self._stream())

    def backward(self, dy: Tensor, x: Tensor, values: Tensor, needs: tuple[bool, ...]) -> Gradients | None:
        """The gradients that are needed; None, and nothing done, where none like them were learned.

        Args:
            dy: the gradient by the product.
            needs: by X, by the values and by the bias.
        """
        found = self._backward
        if found is None or is_watched() or torch.is_grad_enabled():
            return None
        like_dy, like_saved, by_x, by_values, by_bias = found
        if (needs[0] and by_x is None) or not (like_dy.check(dy) and like_saved.check(x, values)):
            return None
        if dy.data_ptr() & MISALIGNED:
            return None
        stream = self._stream()
        return (
            by_x.trained(dy, values, None, self._empty_x, stream) if needs[0] and by_x is not None else None,
            by_values.launched(dy, x, stream) if needs[1] else None,
            by_bias(dy) if needs[2] else None,
        )

    @property
    def is_open(self) -> bool:
        """True until gradients were learned; of another kind than those all others go the long way."""
        return self._backward is None

    def learn(
        self, dy: Tensor, x: Tensor, values: Tensor, by_x: TrainingPlan | None, by_values: SampledPlan
    ) -> None:
        """Have gradients like these go by plans from now on.

        Args:
            dy: contiguous, as is X.
            by_x: multiplies by the values, if that gradient is needed.
        """
        sums = sums_like(dy.view(-1, dy.shape[-1]))
        # Apart, for dY may be X, and guards take no tensor twice. Hooks may change what was saved.
        self._backward = guards_of(dy), guards_of(x, values), by_x, by_values, sums
