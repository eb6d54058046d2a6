"""Packed matrices on a device, kept for variants that take the same."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from sparsegen.backends.executor import Executor
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.packing import pack
from sparsegen.system.device_memory import Buffer

MOST_PACKED_BYTES = 2 << 30  # packed bytes that are kept on the device


@dataclass(frozen=True, slots=True)
class Packing:
    """A packed matrix, and how long that took."""

    packed: Packed[Buffer]
    seconds: float


class Packings:
    """The forms of one matrix that variants took so far; those unused for longest go where they are too much.

    Args:
        most_bytes: bytes that are kept at most. A larger packing is the only one.
    """

    def __init__(self, matrix: CsrMatrix, executor: Executor, *, most_bytes: int = MOST_PACKED_BYTES) -> None:
        self._matrix, self._executor, self._most_bytes = matrix, executor, most_bytes
        self._kept: OrderedDict[tuple[Hashable, ...], Packing] = OrderedDict()

    def of(
        self,
        family: AnyFamily,
        problem: Problem,
        config: Config,
        finish: Callable[[Packed[Buffer]], object] = lambda packed: None,
    ) -> Packing:
        """The matrix as a variant takes it, packed now or before for one that takes the same.

        Args:
            finish: called once with what is packed now.

        Raises:
            MatrixError, LaunchError, CompileError, DeviceUnavailableError: see `sparsegen.plan.packing.pack`.
        """
        key = (family.name, problem, *family.packing_key(problem, config))
        if key not in self._kept:
            began = time.perf_counter()
            packed = pack(family, problem, config, self._matrix, self._executor)
            seconds = time.perf_counter() - began
            kept = sum(packing.packed.nbytes for packing in self._kept.values())
            while self._kept and kept + packed.nbytes > self._most_bytes:
                kept -= self._kept.popitem(last=False)[1].packed.nbytes
            finish(packed)
            self._kept[key] = Packing(packed, seconds)
        self._kept.move_to_end(key)
        return self._kept[key]

    def clear(self) -> None:
        """Keep nothing: what the matrix goes with has changed."""
        self._kept.clear()
