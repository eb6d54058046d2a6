"""Cases from the files of the Deep Learning Matrix Collection, or of any folder of ``.smtx`` files.

The collection gives n for ResNet-50: rn50_batchsizes.txt holds the product of the output's spatial sizes of each
convolution, for one image. Matrices of other models, for which it has no such list, are measured at several n.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sparsegen.bench.patterns.case import Case, dtypes_of
from sparsegen.bench.patterns.patterns import MatrixFile
from sparsegen.errors import SuiteError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.matrix.readers.smtx import read_smtx_shape
from sparsegen.operators import Layout, SddmmProblem, SpmmProblem
from sparsegen.tuning_db.json_reader import Node

SUFFIXES = (".smtx", ".smtx.gz")


def collection_cases(suite: str, description: dict[str, Node], data: Path) -> Iterator[Case]:
    """The cases of a collection of matrix files.

    Args:
        description: ``resnet`` (folders of this name hold ResNet-50), ``batch_sizes`` (name of its list, in
            ``data`` or beside it), ``images`` (by which its sizes are multiplied), ``n`` (for all other matrices), and
            what every case has. Of ``sddmm``, the gradient of the matrix, these are k.

    Raises:
        SuiteError: ``data`` is no folder or holds no ``.smtx`` file; ResNet-50 without its list, with a
            malformed one, or with a layer that is not in it.
        MatrixError: a file whose first line is malformed.
    """
    files = [(file, file.resolve()) for file in find_matrices(data)]
    dtypes, layout = dtypes_of(description["dtypes"]), Layout(description["layout"].text(40))
    is_gradient = description["operator"].text(40) == SddmmProblem.operator
    images = description["images"].integer(1, MAX_INDEX)
    resnet = description["resnet"].text(40)
    layers: dict[str, int] = {}
    if any(resnet in path.parts[:-1] for _, path in files):
        listing = _find_list(data, description["batch_sizes"].text(100))
        layers = read_batch_sizes(listing)
    for file, path in files:
        name = file.name.removesuffix(".gz").removesuffix(".smtx")
        sizes = [n.integer(1, MAX_INDEX) for n in description["n"].items()]
        if resnet in path.parts[:-1]:
            if name not in layers:
                raise SuiteError(f"{listing}: there is no line 'LAYER,N' for {name}, the layer of {file}")
            sizes = [images * layers[name]]
        rows, columns = read_smtx_shape(path)
        where = (file.relative_to(data).parent / name).as_posix()
        for n in sizes:
            problem = (
                SddmmProblem(rows, columns, n, dtypes[0])
                if is_gradient
                else SpmmProblem(rows, columns, n, dtypes[0], layout)
            )
            yield Case(
                suite=suite,
                name=f"{where} {'k' if is_gradient else 'n'}={n}",
                problem=problem,
                dtypes=dtypes,
                pattern=MatrixFile(rows, columns, str(path)),
                source=description["source"].text(1000),
            )


def find_matrices(data: Path) -> list[Path]:
    """The ``.smtx`` and ``.smtx.gz`` files below a folder, sorted; of a pair with both, the former.

    Raises:
        SuiteError: there is no such folder, it cannot be read, or there is no such file in it.
    """
    try:
        if not data.is_dir():
            word = "is no folder" if data.exists() else "does not exist"
            raise SuiteError(f"{data}: {word}; --data names a folder of .smtx files")
        files = {path for path in data.rglob("*.smtx*") if path.name.endswith(SUFFIXES)}
    except OSError as error:
        raise SuiteError(f"{data}: cannot be read: {error.strerror}") from error
    if not files:
        raise SuiteError(f"{data}: there is no .smtx or .smtx.gz file in it or in its subfolders")
    return sorted(path for path in files if path.suffix != ".gz" or path.with_suffix("") not in files)


def read_batch_sizes(path: Path) -> dict[str, int]:
    """n for each layer from lines of ``LAYER,N``.

    Raises:
        SuiteError: the file cannot be read, or a line is malformed or gives a layer again.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SuiteError(f"{path}: is no text: {error.reason}") from None
    sizes: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        match = re.fullmatch(r"\s*([^,\s]+)\s*,\s*(\d{1,10})\s*", line, re.ASCII)
        if match is None or not 1 <= int(match[2]) <= MAX_INDEX:
            raise SuiteError(f"{path}, line {number}: expected 'LAYER,N' with N from 1, found {line[:80]!r}")
        if match[1] in sizes:
            raise SuiteError(f"{path}, line {number}: the layer {match[1]!r} stands there a second time")
        sizes[match[1]] = int(match[2])
    return sizes


def _find_list(data: Path, name: str) -> Path:
    """The list of batch sizes in the folder, or beside it where ``data`` is the model's own folder."""
    for folder in (data, data.resolve().parent):
        if (folder / name).is_file():
            return folder / name
    raise SuiteError(f"{data}: matrices of ResNet-50 need {name} (layer, n) there or beside it")
