"""Decision between our kernels and another way: one type for products, layers, attention and whole models."""

from __future__ import annotations

from typing import NamedTuple

from sparsegen.dispatch.options import Dense
from sparsegen.system.cuda_graphs import is_capturing
from sparsegen.tuning_db.records import Called


class Decision(NamedTuple):
    """Decision between our kernels and another way: a dense one, or for attention the three steps.

    Attributes:
        from_host, on_device: true if ours run when calls come from Python, and when the device's time alone counts.
        why: the reason in words.
    """

    from_host: bool
    on_device: bool
    why: str

    @classmethod
    def always(cls, ours: bool, why: str) -> Decision:
        """Makes a decision that holds for each way of being called."""
        return cls(ours, ours, why)

    @classmethod
    def by_policy(cls, dense: Dense) -> Decision | None:
        """Returns what a caller has decided; None for ``"auto"``, which leaves it open."""
        return None if dense is Dense.AUTO else cls.always(dense is Dense.NEVER, f"dense={dense}")

    @classmethod
    def by_name(cls, ours: bool) -> Decision:
        """Returns the decision of a caller who names the way."""
        return cls.always(ours, "named by the caller")

    @property
    def is_settled(self) -> bool:
        """True if the way of being called changes nothing."""
        return self.from_host == self.on_device

    def ours_runs(self, called: Called | None = None) -> bool:
        """True if ours run, for a way of being called.

        Args:
            called: by default that of a call that comes now: captured by a CUDA graph, or from Python.
        """
        if self.from_host == self.on_device:
            return self.from_host
        if called is None:
            called = Called.DEVICE if is_capturing() else Called.HOST
        return self.from_host if called is Called.HOST else self.on_device
