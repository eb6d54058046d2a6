"""Sums of a dense matrix's columns on a device, in one launch."""

from __future__ import annotations

from collections.abc import Callable

from sparsegen.backends.executor import Executor
from sparsegen.kernels.launch import Launch
from sparsegen.operators import DType
from sparsegen.plan.block_masks import may_start_early
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.integers import ceil_div

THREADS = 512  # as in column_sums.cu
VECTOR_BYTES = 16
SIDE_BY_SIDE = (4, 2, 1)  # threads with vectors of one row
UNEVEN = 16  # factor if vectors do not divide a row
FILLED = 0.9  # fraction of the multiprocessors for which one block each is enough


def bind_column_sums(executor: Executor, shape: tuple[int, int], dtype: DType) -> Callable[..., None]:
    """A launch for one thread to start many times: ``bound(stream, x, sums)``, both addresses.

    Args:
        shape: rows and columns of X, which is row-major, at a multiple of 16 bytes; one at the least of each.
        dtype: type of X and of the sums, which are added in float32.

    Raises:
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    width = VECTOR_BYTES // dtype.itemsize
    enough = FILLED * executor.device.multiprocessors
    lanes = next((lanes for lanes in SIDE_BY_SIDE if shape[1] >= width * lanes * enough), SIDE_BY_SIDE[-1])
    if shape[1] % width:
        width, lanes = 1, UNEVEN
    (kernel,) = plain_launchers(executor, "column_sums.cu", f"add_{dtype}_{width}x{lanes}")
    blocks = ceil_div(shape[1], width * lanes)
    launch = Launch((blocks, 1, 1), (THREADS, 1, 1), starts_early=may_start_early(executor))
    return kernel.bind(launch, *shape, None, None)
