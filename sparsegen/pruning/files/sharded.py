"""Checkpoints of several ``.safetensors`` files: ``model.safetensors.index.json`` says which one holds which tensor."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from sparsegen.errors import MatrixError, PruningError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.readers.files import check_readable
from sparsegen.pruning.files.safetensors import SafetensorsFile
from sparsegen.pruning.weights import Masks, WeightSpec
from sparsegen.system.numpy_types import Array

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
