"""Limits of the memory that a matrix may take, checked before anything is allocated for it.

A file of a hundred bytes can declare two thousand million rows, and a compressed one unpacks to a thousand times its
size. Both are refused by arithmetic alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.system.memory import available_bytes
from sparsegen.system.quantities import size_text

ALWAYS = 256 * 2**20  # bytes that any file may take
PER_FILE_BYTE = (
    100  # bytes that a byte of a file may become; text of a sparse matrix, compressed, takes about 30
)
PER_ROW = 16  # bytes that offsets and lengths of rows take
PER_NONZERO = 80  # bytes that indices and values take as they are stored, and beside them what sorts them


class MemoryBudget(NamedTuple):
    """The bytes that one matrix may take.

    Attributes:
        source: name of the matrix in messages.
        limit: bytes; None where nothing is known of the machine.
        reason: source of the limit, as the end of a sentence.
    """

    source: str
    limit: int | None
    reason: str

    @classmethod
    def of_machine(cls, source: str) -> MemoryBudget:
        """The budget that this machine has left."""
        return cls(source, available_bytes(), "which is what this machine has left")

    @classmethod
    def of_file(cls, path: Path, memory_limit: int | None = None) -> MemoryBudget:
        """The limit that was given, or what the file's size makes likely; never more than this machine has left.

        Raises:
            MatrixError: the limit is no whole number above 0.
        """
        if memory_limit is not None:
            limit = arguments.whole(memory_limit, "memory_limit", MatrixError, least=1)
            reason = "the limit that was given"
        else:
            limit = max(ALWAYS, PER_FILE_BYTE * path.stat().st_size)
            reason = (
                "more than a file of this size should need; if the file is right, raise the limit "
                "(--memory-limit, memory_limit=)"
            )
        machine = cls.of_machine(str(path))
        is_less = machine.limit is not None and machine.limit < limit
        return machine if is_less else cls(str(path), limit, reason)

    def require(self, count: int, what: str, place: str | None = None) -> None:
        """Refuses what takes more bytes.

        Args:
            what: thing that would take them, as the beginning of a sentence.

        Raises:
            MatrixError: it names the bytes, the limit and what to do.
        """
        if self.limit is not None and count > self.limit:
            raise MatrixError(
                f"{what} would take {size_text(count)} of memory, over {size_text(self.limit)}, {self.reason}",
                source=self.source,
                place=place,
            )

    def require_matrix(self, shape: tuple[int, int], nonzeros: int, place: str | None = None) -> None:
        """Refuses a sparse matrix that takes more bytes than that as CSR."""
        what = f"a matrix of {shape[0]} × {shape[1]} with {nonzeros} nonzeros"
        # Columns count too: the transpose, and every conversion from columns to rows, has offsets of columns.
        self.require(PER_ROW * max(shape) + PER_NONZERO * nonzeros, what, place)
