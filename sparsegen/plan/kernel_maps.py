"""Kernel maps of submanifold convolutions made on a device: no wait, no host plan, the host's bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sparsegen.backends.executor import Executor
from sparsegen.errors import MatrixError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.kernel_map import BINS
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.integers import ceil_div, round_up

FILE = "kernel_map.cu"
THREADS, CHUNK = 256, 1024  # as in the file
ALIGNMENT = 256  # bytes, of the parts of the scratch memory
MOST_SLOTS = 1 << 30


@dataclass(frozen=True, slots=True)
class KernelMapShape:
    """Sizes of a kernel map: points, and taps of a filter along z, y and x.

    Attributes:
        dilation: steps from one tap to the next along each axis.
    """

    points: int
    filter_size: tuple[int, int, int]
    dilation: tuple[int, int, int] = (1, 1, 1)

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        depth, rows, columns = self.filter_size
        return depth * rows * columns

    @property
    def filter_rows(self) -> int:
        """Rows of the filter, of taps along x."""
        return self.filter_size[0] * self.filter_size[1]

    @property
    def slots(self) -> int:
        """Places of the hash table: a power of two, half of them free at least."""
        return 1 << (2 * self.points - 1).bit_length()

    @property
    def chunks(self) -> int:
        """Parts of the points that blocks sort."""
        return ceil_div(self.points, CHUNK)

    @property
    def scratch_parts(self) -> tuple[int, int, int, int]:
        """Bytes of the hash table, of what taps read, of the rows that are live, and of the counts of bins."""
        return (
            4 * self.slots,
            4 * self.taps * self.points,
            self.filter_rows * self.points,
            4 * BINS * self.chunks,
        )

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that a launch takes."""
        return sum(_padded(part) for part in self.scratch_parts)


def bind_kernel_map(executor: Executor, shape: KernelMapShape) -> Callable[..., None]:
    """Launches for one thread to start many times: ``bound(stream, coordinates, scratch, kernel_map)``, addresses all.

    Coordinates are int32, points × 4, at a multiple of 16 bytes; the scratch memory is ``shape.scratch_bytes`` long, at
    a multiple of 4 bytes, and may hold anything; the map is that of `sparsegen.matrix.kernel_map.kernel_map`, bit for
    bit. CUDA graphs capture it.

    Raises:
        MatrixError: too many points.
        CompileError, DeviceUnavailableError: the kernels cannot be compiled.
    """
    if shape.points < 1 or shape.slots > MOST_SLOTS:
        raise MatrixError(f"a device makes kernel maps of 1 to {MOST_SLOTS // 2} points, got {shape.points}")
    points, last_slot, taps, rows = shape.points, shape.slots - 1, shape.taps, shape.filter_rows
    names = ("clear_slots", "insert_points", "look_up", "count_bins", "scan_counts", "place_points")
    clear, insert, look_up, count, scan, place = plain_launchers(executor, FILE, *names)
    per_point, per_chunk = Launch.flat(points, THREADS), Launch.flat(points, CHUNK)
    per_row = replace(per_point, grid=(per_point.grid[0], rows, 1))
    sizes = (points, last_slot, *shape.filter_size, *shape.dilation)
    clearing = clear.bind(Launch.flat(shape.slots, THREADS), shape.slots, None)
    inserting = insert.bind(per_point, points, last_slot, None, None)
    looking = look_up.bind(per_row, *sizes, None, None, None, None)
    counting = count.bind(per_chunk, points, rows, None, None)
    scanning = scan.bind(Launch.flat(1, CHUNK), shape.chunks, None)
    placing = place.bind(per_chunk, points, rows, taps, None, None, None, None)
    table_bytes, found_bytes, live_bytes, _ = map(_padded, shape.scratch_parts)

    def bound(stream: int, coordinates: int, scratch: int, kernel_map: int) -> None:
        table, found = scratch, scratch + table_bytes
        is_live = found + found_bytes
        counts = is_live + live_bytes
        clearing(stream, table)
        inserting(stream, coordinates, table)
        looking(stream, coordinates, table, found, is_live)
        counting(stream, is_live, counts)
        scanning(stream, counts)
        placing(stream, is_live, counts, found, kernel_map)

    return bound


def _padded(nbytes: int) -> int:
    return round_up(nbytes, ALIGNMENT)
