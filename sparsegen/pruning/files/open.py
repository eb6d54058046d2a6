"""From a path to the container that it holds."""

from __future__ import annotations

from pathlib import Path

from sparsegen.errors import PruningError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.readers.files import check_readable
from sparsegen.matrix.readers.numpy_files import archive_members, is_sparse_archive, open_archive
from sparsegen.pruning.files.container import WeightFile
from sparsegen.pruning.files.npy import NpyFile
from sparsegen.pruning.files.npz import NpzFile
from sparsegen.pruning.files.safetensors import SafetensorsFile
from sparsegen.pruning.files.sparse_npz import SparseNpzFile

SUFFIXES = (".npz", ".npy", ".safetensors")


def open_weights(path: Path, memory_limit: int | None = None) -> WeightFile:
    """The weights of a file; its suffix says which container it is.

    Args:
        memory_limit: as `sparsegen.load_matrix` takes it.

    Raises:
        PruningError: another suffix.
        MatrixError: missing, empty, malformed, or over the limit.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise PruningError(
            f"{path}: weights are read from {', '.join(SUFFIXES)}, not {suffix or 'other files'}"
        )
    check_readable(path)
    budget = MemoryBudget.of_file(path, memory_limit)
    if suffix == ".safetensors":
        return SafetensorsFile(path, budget)
    if suffix == ".npy":
        return NpyFile(path, budget)
    with open_archive(path) as archive:
        sparse = is_sparse_archive(archive_members(archive))
    return SparseNpzFile(path, budget) if sparse else NpzFile(path, budget)
