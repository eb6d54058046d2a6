"""Layers that checkpoints store in parts: as the libraries that wrote them read them.

- ``weight_orig`` and ``weight_mask`` of ``torch.nn.utils.prune``: the weight is their product;
- ``weight.compressed``, ``weight.bitmask`` and ``weight.shape`` of compressed-tensors (sparse-bitmask and
  sparse-24-bitmask): the nonzeros in order, and a bit for each weight.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import BinaryIO, Protocol

import numpy as np

from sparsegen.errors import MatrixError, PruningError
from sparsegen.matrix.csr import check_shape
from sparsegen.pruning.weights import Masks, WeightFile, WeightSpec
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

ORIGINAL, MASK = "_orig", "_mask"
COMPRESSED, BITMASK, SHAPE, OFFSETS = ".compressed", ".bitmask", ".shape", ".row_offsets"


class PartsFile(WeightFile, Protocol):
    """A file whose tensors of whatever type can be read."""

    def read_any(self, name: str) -> Array:
        """A tensor's elements as they are stored, in its shape."""


class StoredLayers:
    """The weights of a file, in which layers that are stored in parts are one tensor each."""

    def __init__(self, file: PartsFile) -> None:
        """Look for parts among the names.

        Raises:
            MatrixError: parts that do not fit each other.
        """
        self._file, self.source = file, file.source
        by_name = {spec.name: spec for spec in file.specs}
        self._masked = {
            name: name.removesuffix(ORIGINAL) + MASK
            for name in by_name
            if name.endswith(ORIGINAL) and name.removesuffix(ORIGINAL) + MASK in by_name
        }
        self._compressed = {
            name.removesuffix(COMPRESSED): _shape(file, name.removesuffix(COMPRESSED))
            for name in by_name
            if name.endswith(COMPRESSED)
            and all(name.removesuffix(COMPRESSED) + part in by_name for part in (BITMASK, SHAPE))
        }
        parts = {name + part for name in self._compressed for part in (BITMASK, SHAPE, OFFSETS)}
        self.specs = [
            made for spec in file.specs if spec.name not in parts for made in (self._spec(spec, by_name),)
        ]

    def _spec(self, spec: WeightSpec, by_name: dict[str, WeightSpec]) -> WeightSpec:
        if spec.name in self._masked.values():
            return WeightSpec(spec.name, spec.shape, "a mask", None)
        name = spec.name.removesuffix(COMPRESSED)
        if name in self._compressed and name != spec.name:
            return WeightSpec(name, self._compressed[name], spec.dtype, spec.value_type)
        if spec.name in self._masked and by_name[self._masked[spec.name]].shape != spec.shape:
            raise MatrixError(f"its mask has another shape than {spec.name!r}", source=self.source)
        return spec

    def read(self, name: str) -> Array:
        if name in self._masked:
            weight = self._file.read(name)
            kept = self._file.read_any(self._masked[name]) != 0
            return np.where(kept, weight, 0).astype(weight.dtype)
        if name in self._compressed:
            return self._expanded(name)
        return self._file.read(name)

    def _expanded(self, name: str) -> Array:
        rows, columns = shape = self._compressed[name]
        values, bits = self._file.read(name + COMPRESSED).ravel(), self._file.read_any(name + BITMASK)
        wide = ceil_div(columns, 8)
        if bits.dtype != np.uint8 or bits.shape != (rows, wide):
            raise MatrixError(
                f"expected a bit for each weight, {rows} × {wide} bytes, got {bits.dtype} of shape {bits.shape}",
                source=self.source,
                place=f"tensor {name + BITMASK!r}",
            )
        kept = np.unpackbits(bits, axis=1, count=columns, bitorder="little").astype(bool)
        if np.count_nonzero(kept) != values.size:
            raise MatrixError(
                f"{np.count_nonzero(kept)} bits are set, but {values.size} values are there",
                source=self.source,
                place=f"tensor {name + COMPRESSED!r}",
            )
        found = np.zeros(shape, dtype=values.dtype)
        found[kept] = values
        return found

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        compressed = sorted(self._compressed.keys() & set(pruned))
        if compressed:
            raise PruningError(
                f"{self.source}: {compressed[0]} is stored compressed (the bitmask format of compressed-tensors); "
                "decompress the checkpoint first, or write csr-npz"
            )
        self._file.write(target, pruned, masks)


def _shape(file: PartsFile, name: str) -> tuple[int, int]:
    """Shape of a compressed tensor, read from its part."""
    stored = file.read_any(name + SHAPE).ravel()
    if stored.size != 2 or stored.dtype.kind not in "iu":
        raise MatrixError(
            f"expected 2 sizes, got {stored.size} of {stored.dtype}",
            source=file.source,
            place=f"tensor {name + SHAPE!r}",
        )
    return check_shape(stored.tolist(), source=file.source)
