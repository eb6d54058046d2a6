"""Matrix files to `CsrMatrix`: the suffix chooses a reader of `sparsegen.matrix.readers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.formats import CsrMatrix, as_csr
from sparsegen.matrix.readers.files import check_readable
from sparsegen.matrix.readers.matrix_market import read_matrix_market
from sparsegen.matrix.readers.numpy_files import read_npy, read_npz
from sparsegen.matrix.readers.safetensors import read_safetensors
from sparsegen.matrix.readers.smtx import read_smtx

SUFFIXES = (".npz", ".npy", ".mtx", ".mtx.gz", ".smtx", ".smtx.gz", ".safetensors")


def load_matrix(
    path: str | Path,
    *,
    tensor: str | None = None,
    seed: int = 0,
    drop_zeros: bool = False,
    allow_nonfinite: bool = False,
    memory_limit: int | None = None,
    transpose: bool = False,
) -> CsrMatrix:
    """Read a matrix file; nothing in it is ever unpickled.

    Args:
        path: SciPy ``.npz`` (csr, csc, coo, bsr, dia), NumPy ``.npz`` or ``.npy`` of a dense matrix, Matrix
            Market ``.mtx[.gz]``, DLMC ``.smtx[.gz]`` or ``.safetensors``.
        tensor: name of the array in a ``.npz`` or ``.safetensors`` file that holds several.
        seed: seed of the values of a ``.smtx`` file, which stores none.
        drop_zeros: leave out zeros that a sparse file stores.
        allow_nonfinite: let NaN and infinities pass; see `as_csr`.
        memory_limit: bytes that reading may take. By default 100 for each byte of the file, at least 256 MiB, and no
            more than the machine has left: a small file cannot take the machine.
        transpose: return the transpose of the matrix in the file.

    Returns:
        The matrix with sorted indices and summed duplicates; its values are float64 if the file's are, else
        float32.

    Raises:
        MatrixError: names the file and the place in it; also where the matrix would take more memory than that.
    """
    path = Path(arguments.location(path, "path", MatrixError))
    tensor = None if tensor is None else arguments.text(tensor, "tensor", MatrixError)
    seed = arguments.whole(seed, "seed", MatrixError, least=0)
    transpose = arguments.flag(transpose, "transpose", MatrixError)
    try:
        check_readable(path)
        suffix = _suffix(path)
        budget = MemoryBudget.of_file(path, memory_limit)
        stored = _read(path, suffix, tensor, seed, budget)
        budget.require_matrix(stored.shape, 0)  # an array without columns may have any number of rows
        found = as_csr(stored, drop_zeros=drop_zeros, allow_nonfinite=allow_nonfinite, source=str(path))
        return found.transposed() if transpose else found
    except OSError as error:
        raise MatrixError(f"cannot be read: {error.strerror or error}", source=path) from error
    except MemoryError as error:
        raise MatrixError("the matrix does not fit into this machine's memory", source=path) from error


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() + suffix
    if suffix not in SUFFIXES:
        raise MatrixError(f"unknown suffix {suffix!r}; there are {', '.join(SUFFIXES)}", source=path)
    return suffix


def _read(path: Path, suffix: str, tensor: str | None, seed: int, budget: MemoryBudget) -> Any:
    if suffix == ".npz":
        return read_npz(path, tensor, budget)
    if suffix == ".safetensors":
        return read_safetensors(path, tensor, budget)
    if tensor is not None:
        raise MatrixError(f"a {suffix} file holds one matrix; leave out --tensor", source=path)
    if suffix == ".npy":
        return read_npy(path, budget)
    if suffix.startswith(".smtx"):
        return read_smtx(path, seed, budget)
    return read_matrix_market(path, budget)
