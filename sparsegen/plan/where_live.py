"""Live blocks of dense matrices copied and scaled on a device, by masks that stay packed, in one launch."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import is_loaded
from sparsegen.errors import MatrixError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import grid
from sparsegen.operators import DType
from sparsegen.plan.block_masks import may_start_early
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

LEAST_ROWS, MOST_ROWS = 4, 16  # rows of a thread, by its width, as in where_live.cu
MOST_THREADS = 128
VECTOR_BYTES = 16
MOST_BLOCKS = 65535  # blocks of a grid along y, and matrices of a batch along z
FILE = "where_live.cu"


class Dead(StrEnum):
    """Values of the result's dead blocks."""

    ZERO = "zero"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class WhereLive:
    """Y = scale · X where the block of an element is live, for matrices that lie one behind the other.

    Attributes:
        shape: rows and columns of a matrix, one of each at the least.
        block: rows and columns of a block, of any size.
        strides: elements from a row of X to the next one, and of Y; by default those of contiguous matrices.
        aligned: bytes that both addresses are multiples of: 16, 8, 4 or 2.
        batch: number of matrices, each with a mask of its own.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    dtype: DType
    strides: tuple[int, int] | None = None
    aligned: int = VECTOR_BYTES
    batch: int = 1
    scale: float = 1.0
    dead: Dead = Dead.ZERO

    @property
    def width(self) -> int:
        """Neighbours that one access moves: the widest vector, of 16 bytes at most, that no row and no block cuts."""
        sides = self.shape[1], self.block[1], *(self.strides or ())
        return math.gcd(max(1, self.aligned // self.dtype.itemsize), *sides)

    @property
    def entry(self) -> str:
        """Name of the kernel."""
        return f"where_live_{self.dtype}_{self.width}"

    @property
    def groups(self) -> int:
        """Groups of rows that a thread takes at once, within rows of blocks."""
        rows = max(LEAST_ROWS, MOST_ROWS // self.width)
        return ceil_div(self.shape[0], self.block[0]) * ceil_div(self.block[0], rows)

    @property
    def launch(self) -> Launch:
        """The launch's sizes: threads of a block have neighbours, so that small matrices want few."""
        across = ceil_div(self.shape[1], self.width)
        threads = min(MOST_THREADS, WARP * ceil_div(across, WARP))
        return Launch((ceil_div(across, threads), min(self.groups, MOST_BLOCKS), self.batch), (threads, 1, 1))

    @property
    def sizes(self) -> list[int]:
        """The kernel's arguments before the addresses."""
        layout, strides = grid(self.shape, self.block), self.strides or (self.shape[1], self.shape[1])
        words = layout.row_words, layout.row_order_at, layout.words
        (scale,) = struct.unpack("<i", struct.pack("<f", self.scale))
        return [*self.shape, *self.block, *strides, *words, self.groups, int(self.dead is Dead.ZERO), scale]

    def is_loaded(self, executor: Executor) -> bool:
        """True if `bind_where_live` loads nothing, so that it can be called while a CUDA graph is captured."""
        return is_loaded(executor, (FILE, self.entry))


def bind_where_live(executor: Executor, what: WhereLive) -> Callable[..., None]:
    """A launch for one thread to start many times: ``bound(stream, mask, x, y)``, addresses all.

    The mask is the buffer of a `BlockMask`, or as many as matrices, one behind the other. X may be Y. An address of 0
    for X says that Y holds it, scaled already: its live blocks stay as they are, and only dead ones are written.

    Raises:
        MatrixError: more matrices than `MOST_BLOCKS`.
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    if what.batch > MOST_BLOCKS:
        raise MatrixError(
            f"a launch takes at most {MOST_BLOCKS} matrices, got {what.batch}; pass them in parts"
        )
    (kernel,) = plain_launchers(executor, FILE, what.entry)
    launch = replace(what.launch, starts_early=may_start_early(executor))
    return kernel.bind(launch, *what.sizes, None, None, None)
