"""Masks of spatial blocks packed on their device, in one launch: bools become the bits that kernels walk."""

from __future__ import annotations

from sparsegen.backends.executor import Executor
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.bits import words_for
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.plain_launcher import plain_launchers

THREADS = 128


class MaskPacking(OwnLaunch):
    """Packs rows of bools: ``bound(stream, bools, words)``, both addresses, of bytes and of 64-bit words.

    Attributes:
        words: words that a launch writes.

    Raises:
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """

    def __init__(self, executor: Executor, rows: int, columns: int) -> None:
        super().__init__(executor)
        self._rows, self._columns = rows, columns
        self.words = rows * words_for(columns)

    def _bind(self) -> Bound:
        with self.executor.entered():
            (kernel,) = plain_launchers(self.executor, "mask_words.cu", "pack_rows")
            return kernel.bind(Launch.flat(self.words, THREADS), self._rows, self._columns, None, None)
