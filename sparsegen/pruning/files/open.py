"""Opening of containers of weights by path."""

from __future__ import annotations

from pathlib import Path

from sparsegen.errors import PruningError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.readers.files import check_readable
from sparsegen.matrix.readers.numpy_files import archive_members, is_sparse_archive, open_archive
from sparsegen.pruning.files.numpy_files import NpyFile, NpzFile, SparseNpzFile
from sparsegen.pruning.files.safetensors import SafetensorsFile
from sparsegen.pruning.files.sharded import INDEX_SUFFIX, ShardedFiles
from sparsegen.pruning.files.stored_layers import StoredLayers
from sparsegen.pruning.weights import WeightFile

SUFFIXES = (".npz", ".npy", ".safetensors")


def open_weights(path: Path, memory_limit: int | None = None) -> WeightFile:
    """The weights of a file; its suffix says which container it is. Layers stored in parts are one tensor each.

    A checkpoint of several files is read by its ``model.safetensors.index.json``, or by the folder that holds it.

    Args:
        memory_limit: see `sparsegen.load_matrix`.

    Raises:
        PruningError: another suffix, or a folder without one checkpoint.
        MatrixError: missing, empty, malformed, or over the limit.
    """
    if path.is_dir():
        path = _of_folder(path)
    if path.name.endswith(INDEX_SUFFIX):
        check_readable(path)
        return StoredLayers(ShardedFiles(path, memory_limit))
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise PruningError(
            f"{path}: weights are read from {', '.join((*SUFFIXES, INDEX_SUFFIX))}, not {suffix or 'other files'}"
        )
    check_readable(path)
    budget = MemoryBudget.of_file(path, memory_limit)
    if suffix == ".safetensors":
        return StoredLayers(SafetensorsFile(path, budget))
    if suffix == ".npy":
        return NpyFile(path, budget)
    with open_archive(path) as archive:
        sparse = is_sparse_archive(archive_members(archive))
    return SparseNpzFile(path, budget) if sparse else NpzFile(path, budget)


def _of_folder(folder: Path) -> Path:
    """The one index of a folder, else its one ``.safetensors`` file."""
    for ending in (INDEX_SUFFIX, ".safetensors"):
        found = sorted(path for path in folder.iterdir() if path.name.endswith(ending))
        if len(found) == 1:
            return found[0]
    raise PruningError(
        f"{folder} is a folder without one {INDEX_SUFFIX.removeprefix('.')} or .safetensors file: name the file"
    )
