"""Dropout of blocks of a dense matrix on a device, in one launch."""

from __future__ import annotations

import struct
from collections.abc import Callable

from sparsegen.backends.executor import Executor
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import grid
from sparsegen.matrix.block_mask_draw import MaskDraw
from sparsegen.operators import DType
from sparsegen.plan.block_masks import as_signed, may_start_early
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.integers import ceil_div

ROWS = 4  # rows of a thread, as in block_dropout.cu
THREADS = 128
VECTOR_BYTES = 16
MOST_BLOCKS = 65535  # blocks of a grid along y


def bind_block_dropout(
    executor: Executor, shape: tuple[int, int], block: tuple[int, int], p: float, dtype: DType, masks: int = 1
) -> Callable[..., None]:
    """A launch for one thread to start many times: ``bound(stream, state, seed, step, apart, x, y)``, of which state, x
    and y are addresses.

    It writes to Y the matrix X with blocks dropped, each with probability p, and the others divided by the share that
    is expected to be left. The mask is the one that `BlockMaskMaker.bind_draw` makes for the same state, which stays as
    it is; with an address of 0 for it, of this seed and step. X and Y are row-major, and begin at multiples of 16
    bytes. An address of 0 for X stands for ones.

    Args:
        shape: rows and columns of X.
        block: sides of 16 rows and columns or multiples of that.
        masks: number of results, which lie behind each other: without a state, the step of each is ``apart`` more than
            that of the one before. Each is of a multiple of 16 bytes, if there are several.

    Raises:
        MatrixError: p is outside [0, 1).
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    draw, layout = MaskDraw(p), grid(shape, block)
    width = VECTOR_BYTES // dtype.itemsize
    if shape[1] % width:
        width = 1
    (kernel,) = plain_launchers(executor, "block_dropout.cu", f"drop_{dtype}_{width}")
    across, down = ceil_div(shape[1], width * THREADS), ceil_div(shape[0], ROWS)
    (scale,) = struct.unpack("<i", struct.pack("<f", 1 / draw.density(layout)))
    arguments = [*shape, *block, as_signed(draw.amount(layout)), scale, *[None] * 6]
    grid_sides = (across, min(down, MOST_BLOCKS), masks)
    launch = Launch(grid_sides, (THREADS, 1, 1), starts_early=may_start_early(executor))
    return kernel.bind(launch, *arguments)


def bind_store_state(executor: Executor) -> Callable[..., None]:
    """A launch for one thread to start many times: ``bound(stream, seed, step, state)``, the last one an address.

    Raises:
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    (kernel,) = plain_launchers(executor, "block_dropout.cu", "store_state")
    launch = Launch((1, 1, 1), (1, 1, 1), starts_early=may_start_early(executor))
    return kernel.bind(launch, None, None, None)
