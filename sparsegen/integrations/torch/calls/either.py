"""Our launch or PyTorch's own for calls of one kind, as is decided for the way in which each call comes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sparsegen.dispatch.decision import Decision
from sparsegen.system.cuda_graphs import is_capturing

Compute = Callable[..., Tensor]


class Either:
    """Both of them, for calls that no decision settles: it differs by the way of being called, or is open yet."""

    __slots__ = ("_decide", "_decision", "_made", "_ours", "_own")

    def __init__(
        self,
        decide: Callable[[], Decision | None],
        decision: Decision | None,
        ours: Callable[[], Compute],
        own: Compute,
    ) -> None:
        self._decision, self._own = decision, own
        # Made now where it may run: a capture, which can load nothing, may be the first to need it.
        self._made: Compute | None = None if decision is None or is_capturing() else ours()
        # What makes it holds the tensors of a call, and is let go.
        is_made = self._made is not None
        self._decide, self._ours = None if is_made else decide, None if is_made else ours

    def __call__(self, *tensors: Tensor | None, **into: Tensor | None) -> Tensor:
        if self._decision is None and self._decide is not None:
            self._decision = self._decide()
        if self._decision is not None and not self._decision.ours_runs():
            return self._own(*tensors, **into)
        if self._made is None:
            assert self._ours is not None
            self._made = self._ours()
        return self._made(*tensors, **into)


def chosen(decide: Callable[[], Decision | None], ours: Callable[[], Compute], own: Compute) -> Compute:
    """Returns what computes calls of one kind.

    Args:
        decide: see `sparsegen.measure.decision.decide`; ours run while it has no answer.
        ours: prepares our launch.
        own: computes the same by PyTorch.
    """
    decision = decide()
    if decision is None or not decision.is_settled:
        return Either(decide, decision, ours, own)
    return ours() if decision.on_device else own
