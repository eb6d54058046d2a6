"""Weights in a ``.safetensors`` file, one tensor in memory at a time.

Pruning changes no type, shape or length, so that the pruned file is the file itself with other bytes in some places:
a copy keeps header, metadata and the tensors whose type is not known here, and needs no writer of the format.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.readers.safetensors import read_entries, read_raw, widened
from sparsegen.pruning.weights import Masks, WeightSpec, value_type
from sparsegen.system.numpy_types import Array

_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


class SafetensorsFile:
    def __init__(self, path: Path, budget: MemoryBudget) -> None:
        self._path, self.source, self._budget = path, str(path), budget
        self._entries = {entry.name: entry for entry in read_entries(path)}
        self.specs = [
            WeightSpec(entry.name, entry.shape, entry.kind, value_type(_FLOATS.get(entry.kind, "")))
            for entry in self._entries.values()
        ]

    def read(self, name: str) -> Array:
        entry = self._entries[name]
        self._budget.require(2 * (entry.end - entry.begin), "the tensor", f"tensor {name!r}")
        values = widened(entry, read_raw(self._path, entry))
        return values.astype(value_type(_FLOATS[entry.kind]), copy=False)

    def read_any(self, name: str) -> Array:
        """A tensor's elements as they are stored, bfloat16 as float32, in its shape.

        Raises:
            MatrixError: elements of a type that is not read, or more of them than memory may hold.
        """
        entry = self._entries[name]
        if entry.dtype is None:
            raise MatrixError(
                f"elements of {entry.kind} are not read", source=self.source, place=f"tensor {name!r}"
            )
        self._budget.require(2 * (entry.end - entry.begin), "the tensor", f"tensor {name!r}")
        return widened(entry, read_raw(self._path, entry)).reshape(entry.shape)

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        with self._path.open("rb") as original:
            shutil.copyfileobj(original, target, 1 << 20)
        for name in pruned:
            entry = self._entries[name]
            raw = read_raw(self._path, entry)
            raw[~masks(name).reshape(entry.shape)] = 0
            target.seek(entry.begin)
            target.write(raw.data)
