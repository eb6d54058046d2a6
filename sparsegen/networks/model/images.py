"""Seeded images of strokes, as the handwritten digits of the Sparse DNN Challenge: enlarged, and black or white."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.matrix.random_words import Words
from sparsegen.system.numpy_types import Array

DRAWN = 28  # pixels of a side at which strokes are drawn, as those of MNIST
POINTS = 6  # points of a stroke, at most
FEWEST_POINTS = 4
DRAWS = 6 + 3 * POINTS + 4  # random numbers of an image
THICKNESS = 0.049  # half of a stroke's, of the side
CHUNK = 256  # images that a thread draws
CHUNK_PIXELS = 1 << 18  # pixels that it enlarges at a time, so that they stay in its cache
THRESHOLD = 0.5


def stroke_images(count: int, neurons: int, *, seed: int = 0) -> Array:
    """Images as inputs of a network: zeros and ones, about 7 % ones.

    A stroke is a bent line of 4 to 6 points; it is drawn in grey at 28 × 28, interpolated to √neurons × √neurons, and
    what is at least half black becomes 1. Image i is the same whatever else is made.

    Args:
        count: number of images.
        neurons: pixels of one, a square.

    Returns:
        uint8, count × neurons, row by row of each image.

    Raises:
        ConfigError: neurons are no square.
    """
    number = arguments.whole(count, "count", least=0)
    side = round(arguments.whole(neurons, "neurons", least=1) ** 0.5)
    if side * side != neurons:
        raise ConfigError(f"neurons = {neurons}: expected a square, as 1024, 4096, 16384 or 65536")
    words = Words(arguments.whole(seed, "seed", least=0))
    found = np.empty((number, side, side), dtype=np.uint8)

    def draw(begin: int, drawn: Array) -> None:
        some = CHUNK_PIXELS // neurons or 1
        for first in range(0, len(drawn), some):
            grey = _grey(drawn[first : first + some])
            rows = begin + first
            found[rows : rows + len(grey)] = _enlarged(_enlarged(grey, side, 1), side, 2) >= THRESHOLD

    with ThreadPoolExecutor() as pool:  # NumPy leaves the interpreter to others while it computes
        drawing = []
        for begin in range(0, number, CHUNK):
            drawn = words.fractions(min(CHUNK, number - begin) * DRAWS).reshape(-1, DRAWS)
            drawing.append(pool.submit(draw, begin, drawn.astype(np.float32)))
        for job in drawing:
            job.result()
    return found.reshape(number, neurons)


def _enlarged(pixels: Array, side: int, axis: int) -> Array:
    """Interpolates linearly between pixels' centres along one axis, from 28 to ``side`` pixels."""
    at = np.clip((np.arange(side) + 0.5) * DRAWN / side - 0.5, 0, DRAWN - 1)
    left = np.minimum(at.astype(np.int64), DRAWN - 2)
    shape = [1] * pixels.ndim
    shape[axis] = side
    part = (at - left).astype(np.float32).reshape(shape), (1 - (at - left)).astype(np.float32).reshape(shape)
    found: Array = np.take(pixels, left, axis=axis)
    found *= part[1]
    right = np.take(pixels, left + 1, axis=axis)
    right *= part[0]
    found += right
    return found


def _grey(drawn: Array) -> Array:
    """float32, images × 28 × 28 in [0, 1].

    Args:
        drawn: images × `DRAWS`, in [0, 1).
    """
    x, y, segments = _points(drawn)
    bell = (drawn[:, -4:].sum(axis=1) - 2) * np.float32(np.sqrt(3))  # about normal
    thickness = np.maximum(THICKNESS * (1 + 0.22 * bell), 0.02)[:, None]
    centre = (np.arange(DRAWN, dtype=np.float32) + 0.5) / DRAWN
    across, down = (a.ravel()[None, :] for a in np.meshgrid(centre, centre))
    nearest = np.full((len(drawn), DRAWN * DRAWN), 4.0, dtype=np.float32)  # squared
    for i in range(POINTS - 1):
        ax, ay = x[:, i, None], y[:, i, None]
        bx, by = x[:, i + 1, None] - ax, y[:, i + 1, None] - ay
        along = np.clip(((across - ax) * bx + (down - ay) * by) / (bx * bx + by * by + 1e-9), 0, 1)
        distance = (across - ax - along * bx) ** 2 + (down - ay - along * by) ** 2
        np.minimum(nearest, np.where(i < segments[:, None], distance, 4.0), out=nearest)
    grey = np.clip((thickness - np.sqrt(nearest)) * DRAWN + 0.5, 0, 1)
    found: Array = grey.reshape(-1, DRAWN, DRAWN).astype(np.float32)
    return found


def _points(drawn: Array) -> tuple[Array, Array, Array]:
    """The points of each stroke on an arc, x and y in the unit square, and how many segments it has."""
    segments = FEWEST_POINTS + (drawn[:, 0] * 3).astype(np.int64) - 1
    centre = 0.5 + 0.06 * (drawn[:, 1:3] - 0.5)
    turn = (1.2 + 3.2 * drawn[:, 4]) * np.where(drawn[:, 5] < 0.5, -1, 1) / segments
    angle = 2 * np.pi * drawn[:, 3, None] + turn[:, None] * np.arange(POINTS)
    wobble = 1 + 0.5 * (drawn[:, 6 : 6 + POINTS] - 0.5)
    jitter = 0.05 * (drawn[:, 6 + POINTS : 6 + 3 * POINTS].reshape(-1, 2, POINTS) - 0.5)
    x = centre[:, 0, None] + (0.13 + 0.10 * drawn[:, 4, None]) * wobble * np.cos(angle) + jitter[:, 0]
    y = centre[:, 1, None] + (0.22 + 0.12 * drawn[:, 5, None]) * wobble * np.sin(angle) + jitter[:, 1]
    return x.astype(np.float32), y.astype(np.float32), segments
