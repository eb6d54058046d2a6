"""Kernel maps of submanifold convolutions: for each point and each tap of the filter, the point that is read there.

Graham, Engelcke and van der Maaten, 3D Semantic Segmentation with Submanifold Sparse Convolutional Networks, CVPR 2018:
the outputs have the points of the inputs. What the host makes here, `sparsegen.plan.kernel_maps` makes on a device, bit
for bit.

A kernel map is int32, (1 + taps) × places. A place is a point's position in the order in which kernels compute outputs:
row 0 holds the number of the point at each place, and row 1 + t the number of the point that tap t of that output
reads, or -1 where there is none. Points whose filters have live taps in the same rows stand side by side, so that
kernels find tiles of points none of which needs a certain tap.
"""

from __future__ import annotations

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.system.numpy_types import Array

MOST_TAPS = 7  # taps of a filter along an axis
BINS = 512  # sets of live filter rows that the order tells apart; the same holds for kernel_map.cu
BIN_BITS = BINS.bit_length() - 1
NONE = -1  # in a map, and as the batch of a row of coordinates that is no point
_SOURCE = "kernel map"


def odd_sides(value: object, name: str) -> tuple[int, int, int]:
    """Three odd numbers from 1 to `MOST_TAPS`, from one of them or from three.

    Raises:
        MatrixError: other numbers.
    """
    sides = tuple(value) if isinstance(value, list | tuple) else (value,) * 3
    found = tuple(arguments.whole(side, name, MatrixError, least=1) for side in sides)
    if len(found) != 3 or not all(side % 2 and side <= MOST_TAPS for side in found):
        raise MatrixError(
            f"{name} = {value!r} is not one odd number up to {MOST_TAPS}, or three: filters have a middle tap",
            source=_SOURCE,
        )
    return found[0], found[1], found[2]


def tap_offsets(filter_size: tuple[int, int, int], dilation: tuple[int, int, int]) -> Array:
    """int64, taps × 3: where each tap lies from the middle one, by z, y and x; x runs fastest."""
    steps = [(np.arange(side) - side // 2) * step for side, step in zip(filter_size, dilation, strict=True)]
    return np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.int64)


def kernel_map(coordinates: Array, filter_size: object = 3, dilation: object = 1) -> Array:
    """The kernel map of points, by NumPy.

    Args:
        coordinates: int32, points × 4: batch, z, y and x. A row with a negative batch is no point: nothing reads it,
            and it reads nothing. Of rows that are equal the first alone is read.
        filter_size: taps along z, y and x, odd numbers; or one for all.
        dilation: steps from one tap to the next along each axis; or one for all.

    Returns:
        int32, (1 + taps) × points.

    Raises:
        MatrixError: coordinates of another shape or type, or sizes out of range; points so far apart that the
            host cannot number the cells between them (a device can).
    """
    checked = require_coordinates(coordinates)
    sides = odd_sides(filter_size, "filter_size")
    steps = three_steps(dilation)
    found = _neighbours(checked, tap_offsets(sides, steps))
    order = np.argsort(-_bins(found, sides[2]), kind="stable")
    return np.ascontiguousarray(np.concatenate([order[None], found[:, order]]), dtype=np.int32)


def require_coordinates(coordinates: object) -> Array:
    """Raises MatrixError unless these are int32, points × 4, and at least one."""
    shape = tuple(getattr(coordinates, "shape", ()))
    if not isinstance(coordinates, np.ndarray) or coordinates.dtype != np.int32 or shape[1:] != (4,):
        kind = getattr(coordinates, "dtype", type(coordinates).__name__)
        raise MatrixError(
            f"coordinates: expected int32, points × 4 (batch, z, y, x), got {kind} of shape {shape}",
            source=_SOURCE,
        )
    if not 1 <= shape[0] <= MAX_INDEX:
        raise MatrixError(f"coordinates: {shape[0]} points are outside [1, {MAX_INDEX}]", source=_SOURCE)
    return coordinates


def three_steps(dilation: object) -> tuple[int, int, int]:
    """Three whole numbers from 1 on, from one of them or from three.

    Raises:
        MatrixError: other numbers.
    """
    steps = tuple(dilation) if isinstance(dilation, list | tuple) else (dilation,) * 3
    found = tuple(arguments.whole(step, "dilation", MatrixError, least=1, most=MAX_INDEX) for step in steps)
    if len(found) != 3:
        raise MatrixError(f"dilation = {dilation!r} is not one number or three", source=_SOURCE)
    return found[0], found[1], found[2]


def _neighbours(coordinates: Array, offsets: Array) -> Array:
    """int64, taps × points: the point at each offset from each point, -1 where there is none."""
    wide = coordinates.astype(np.int64)
    is_point = wide[:, 0] >= 0
    if not is_point.any():
        return np.full((len(offsets), len(wide)), NONE)
    low, high = wide[is_point].min(axis=0), wide[is_point].max(axis=0)
    extent = [int(side) for side in high - low + 1]
    if extent[0] * extent[1] * extent[2] * extent[3] >= 1 << 62:
        raise MatrixError(
            f"points lie over {' × '.join(map(str, extent))} cells (batch, z, y, x), too many to number on the host",
            source=_SOURCE,
        )
    weights = np.array([extent[1] * extent[2] * extent[3], extent[2] * extent[3], extent[3], 1])
    numbers = np.flatnonzero(is_point)
    keys, first = np.unique((wide[numbers] - low) @ weights, return_index=True)  # equal keys keep the first
    found = np.full((len(offsets), len(wide)), NONE)
    for tap, offset in enumerate(offsets):
        at = wide[numbers]
        at[:, 1:] += offset
        is_inside = ((at >= low) & (at <= high)).all(axis=1)
        wanted = (at - low) @ weights
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        is_there = is_inside & (keys[place] == wanted)
        found[tap, numbers] = np.where(is_there, numbers[first[place]], NONE)
    return found


def _bins(found: Array, row_taps: int) -> Array:
    """Bins each point by the rows of its filter that have a live tap: a bit for each; very many rows share bits."""
    live: Array = np.logical_or.reduce((found >= 0).reshape(-1, row_taps, found.shape[1]), axis=1)
    bins = np.zeros(found.shape[1], dtype=np.int64)
    for row, is_live in enumerate(live):
        bins |= is_live.astype(np.int64) << row % BIN_BITS
    return bins
