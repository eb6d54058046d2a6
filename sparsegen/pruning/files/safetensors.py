"""Weights in a ``.safetensors`` file, one tensor in memory at a time.

Pruning changes no type, shape or length, so that the pruned file is the file itself with other bytes in some places:
a copy keeps header, metadata and the tensors whose type is not known here, and needs no writer of the format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from sparsegen.errors import MatrixError, PruningError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.readers.files import check_readable
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


INDEX_SUFFIX = ".safetensors.index.json"
LARGEST_INDEX = 1 << 28  # bytes


class ShardedFiles:
    """The tensors of all shards, each from the file that the index names, whatever others hold under that name."""

    def __init__(self, path: Path, memory_limit: int | None) -> None:
        """Read the index and the shards' headers.

        Raises:
            MatrixError: no index, a shard that is missing or malformed, or that lacks a tensor.
        """
        self.source = str(path)
        self._of_tensor: dict[str, SafetensorsFile] = {}
        shards: dict[str, SafetensorsFile] = {}
        for tensor, name in _weight_map(path).items():
            if name not in shards:
                shard = path.parent / name
                check_readable(shard)
                shards[name] = SafetensorsFile(shard, MemoryBudget.of_file(shard, memory_limit))
            self._of_tensor[tensor] = shards[name]
        specs = {name: {spec.name: spec for spec in shard.specs} for name, shard in shards.items()}
        self.specs: list[WeightSpec] = []
        for tensor, name in _weight_map(path).items():
            if tensor not in specs[name]:
                raise MatrixError(f"tensor {tensor!r} should be in {name} and is not", source=path)
            self.specs.append(specs[name][tensor])

    def read(self, name: str) -> Array:
        return self._of_tensor[name].read(name)

    def read_any(self, name: str) -> Array:
        return self._of_tensor[name].read_any(name)

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        raise PruningError(f"{self.source}: a checkpoint of several files is pruned file by file")


def _weight_map(path: Path) -> dict[str, str]:
    """The file of each tensor, all of them beside the index."""
    with path.open("rb") as stream:
        content = stream.read(LARGEST_INDEX + 1)
    try:
        if len(content) > LARGEST_INDEX:
            raise ValueError(f"more than {LARGEST_INDEX} bytes")
        index: Any = json.loads(content)
        found = index["weight_map"]
        files = {str(tensor): str(name) for tensor, name in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MatrixError(
            f"no index of a sharded checkpoint, with a weight_map: {type(error).__name__} {error}"[:300],
            source=path,
        ) from error
    for name in files.values():
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise MatrixError(f"{name!r} is no .safetensors file beside the index", source=path)
    return files
