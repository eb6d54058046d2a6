"""Transposes of two matrices on a device, in one launch."""

from __future__ import annotations

from sparsegen.backends.executor import Executor
from sparsegen.kernels.launch import Launch
from sparsegen.plan.block_masks import may_start_early
from sparsegen.plan.own_launch import Bound
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.integers import ceil_div

SIDE, THREADS = 32, 256  # of a tile, as in transpose.cu
MOST_BLOCKS = 65535  # blocks of a grid along y


def bind_transposes(executor: Executor, rows: int, columns: tuple[int, int], itemsize: int) -> Bound:
    """A launch for one thread to start many times: ``bound(stream, x, y, x_transposed, y_transposed)``, addresses all.

    Args:
        rows: rows of X and of Y, which are row-major; one at the least.
        columns: columns of both, one of each at the least.
        itemsize: bytes of an element: 2 or 4.

    Raises:
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """
    (kernel,) = plain_launchers(executor, "transpose.cu", f"transpose_{8 * itemsize}")
    across, down = sum(ceil_div(side, SIDE) for side in columns), min(ceil_div(rows, SIDE), MOST_BLOCKS)
    launch = Launch((across, down, 1), (THREADS, 1, 1), starts_early=may_start_early(executor))
    return kernel.bind(launch, rows, *columns, None, None, None, None)
