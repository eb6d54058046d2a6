"""A result's memory between guards: bytes that no kernel may write, so that writes outside the result are found."""

from __future__ import annotations

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.system.device_memory import Address

GUARD_BYTES = 1 << 16  # before and behind, a multiple of what any access must be aligned to
PATTERN = 0x5A


class GuardedBuffer:
    """Device memory of ``nbytes`` bytes with a guard on both sides.

    Attributes:
        address, nbytes: place and size of the memory between the guards.
    """

    def __init__(self, executor: Executor, nbytes: int) -> None:
        """Raises LaunchError where there is not enough memory."""
        self._executor = executor
        self._whole = executor.allocate(nbytes + 2 * GUARD_BYTES)
        self.address, self.nbytes = self._whole.address + GUARD_BYTES, nbytes
        self._guards = {
            "before": Address(self._whole.address, GUARD_BYTES),
            "behind": Address(self.address + nbytes, GUARD_BYTES),
        }
        self.watch()

    def watch(self) -> None:
        """Have the guards as they must stay."""
        for guard in self._guards.values():
            self._executor.fill(guard, PATTERN)

    def trespass(self) -> str:
        """Describes what was written outside; empty if nothing was. The kernels must have ended."""
        for side, guard in self._guards.items():
            found = np.empty(guard.nbytes, np.uint8)
            self._executor.download(guard, found)
            written = np.flatnonzero(found != PATTERN)
            if written.size:
                nearest = GUARD_BYTES - int(written[-1]) if side == "before" else int(written[0]) + 1
                return f"{written.size} bytes {side} the result were written, the nearest {nearest} bytes outside of it"
        return ""
