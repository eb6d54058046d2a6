"""Data of the studies: real ones from a folder that is given, or generated stand-ins of the same shapes.

The folder holds ``mnist/mnist.npz`` (``train_images``, ``train_labels``, ``test_images``, ``test_labels``: uint8 images
of 28 × 28), ``text/tinyshakespeare.txt.gz`` and ``points/kitti_sweep.npz`` (``xyz``: float32 metres);
of ``dlmc``, the matrices, `sputnik_matrices` says more.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsegen.errors import SparsegenError
from sparsegen.system.numpy_types import Array

SIDE = 28
STYLES = 8  # smooth shapes of a class, of generated digits
SHIFT = 3  # pixels by which they are shifted at most
TEXT_BYTES = 1 << 18


@dataclass(frozen=True)
class Images:
    """Grey images of 28 × 28 in [0, 1], float32, and their classes, int64."""

    images: Array
    labels: Array


@dataclass(frozen=True)
class Data:
    """The source of data; ``folder`` is None for generated ones."""

    folder: Path | None

    def digits(self, train: int, test: int) -> tuple[Images, Images, str]:
        """Images to learn from, others, and what they are."""
        if self.folder is None:
            return _made_digits(train, 1), _made_digits(test, 2), "generated digits"
        with np.load(self._file("mnist/mnist.npz")) as held:
            found = [
                Images(
                    held[f"{part}_images"][:count].astype(np.float32) / 255,
                    held[f"{part}_labels"][:count].astype(np.int64),
                )
                for part, count in (("train", train), ("test", test))
            ]
        return found[0], found[1], "MNIST"

    def text(self) -> tuple[Array, Array, str]:
        """Bytes to learn from, the tenth that follows them, and what they are."""
        if self.folder is None:
            whole, what = _made_text(), "generated text"
        else:
            with gzip.open(self._file("text/tinyshakespeare.txt.gz")) as stream:
                whole, what = np.frombuffer(stream.read(), np.uint8), "Shakespeare"
        cut = len(whole) * 9 // 10
        return whole[:cut], whole[cut:], what

    def sweep(self) -> tuple[Array, str]:
        """Points of a LiDAR sweep, n × 3 in metres, and what they are."""
        if self.folder is None:
            return _made_sweep(), "generated sweep"
        with np.load(self._file("points/kitti_sweep.npz")) as held:
            return held["xyz"], "KITTI sweep"

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        path = self.folder / name
        if not path.is_file():
            raise SparsegenError(
                f"there is no {name} in the folder of --data; benchmarks/README.md says what it holds"
            )
        return path


def _made_digits(count: int, seed: int) -> Images:
    """Smooth shapes of ten classes, shifted, with noise."""
    shapes = np.random.default_rng(0).normal(size=(10 * STYLES, 7, 7))
    smooth = shapes.repeat(4, 1).repeat(4, 2)
    for axis in (1, 2):
        smooth = (np.roll(smooth, 1, axis) + smooth + np.roll(smooth, -1, axis)) / 3
    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=count)
    images = smooth[labels * STYLES + rng.integers(STYLES, size=count)]
    shifts = rng.integers(-SHIFT, SHIFT + 1, (count, 2))
    moved = np.stack([np.roll(i, tuple(s), (0, 1)) for i, s in zip(images, shifts, strict=True)])
    grey = 1 / (1 + np.exp(-2 * moved - rng.normal(scale=0.5, size=moved.shape)))
    return Images(grey.astype(np.float32), labels)


def _made_text() -> npt.NDArray[np.uint8]:
    """Words of a fixed vocabulary, each followed by one of few others."""
    rng = np.random.default_rng(0)
    words = [
        bytes(rng.integers(97, 123, size=rng.integers(2, 8)).astype(np.uint8)) + b" " for _ in range(200)
    ]
    following = rng.integers(len(words), size=(len(words), 4))
    made, at = bytearray(), 0
    while len(made) < TEXT_BYTES:
        made += words[at]
        at = int(following[at, rng.integers(4)])
    return np.frombuffer(bytes(made), np.uint8)


def _made_sweep() -> Array:
    """Rings of points around a sensor, in front of it, on a floor with boxes."""
    rng = np.random.default_rng(0)
    angle = np.repeat(np.linspace(-0.7, 0.7, 512), 32)
    distance = np.tile(np.geomspace(4, 60, 32), 512) * rng.uniform(0.98, 1.02, angle.size)
    xyz = np.stack([distance * np.cos(angle), distance * np.sin(angle), np.full(angle.size, -1.7)], 1)
    return xyz[rng.random(angle.size) < 0.9].astype(np.float32)
