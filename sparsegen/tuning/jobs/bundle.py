"""A job's bundle: one ZIP file that Python runs. Here it is read as data; nothing in it is run.

``manifest.json`` lists every other file with its size and its SHA-256. These find damage, not fraud: whoever can write
a bundle can write its manifest (docs/trust.md).
"""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from stat import S_ISREG

import numpy as np

from sparsegen.backends.precompiled import LIST, binary_name, source_digest
from sparsegen.errors import BundleError, MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.quantities import size_text
from sparsegen.tuning.jobs import job as job_file
from sparsegen.tuning.jobs.job import Job, Task
from sparsegen.tuning_db.json_reader import HEX, parse_json
from sparsegen.tuning_db.records import Workload

FORMAT, VERSION = "sparsegen-bundle", 1
MANIFEST, JOB = "manifest.json", "job.json"
KERNELS = "kernels"
LARGEST_MANIFEST = 32 * 2**20  # bytes
LARGEST_JOB = 64 * 2**20
LARGEST_SOURCE = 4 * 2**20
LARGEST_FILE = 8 * 2**30
LARGEST_BUNDLE = 16 * 2**30  # bytes of all files, unpacked
SMALL_BUNDLE = 256 * 2**20  # bytes that any file may unpack to
PER_FILE_BYTE = 50  # bytes that a byte of the file may unpack to; sources and patterns have some 10
MOST_FILES = 100_000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
CHUNK = 2**20
INDEX = np.dtype("<i4")
VALUE = np.dtype("<f4")


def pattern_name(digest: str) -> str:
    """The file with the row offsets, the column indices and perhaps the values of a matrix, by its SHA-256."""
    return f"patterns/{digest}.bin"


def source_name(digest: str) -> str:
    """The file of a source."""
    return f"sources/{digest}.cu"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as the manifest lists it."""

    size: int
    sha256: str


class Bundle:
    """An open bundle. Files are checked against the manifest when they are read.

    Attributes:
        path: path of the file.
        digest: the manifest's SHA-256, which names the job.
        files: files of the manifest, by name.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        """Use `open_bundle`."""
        self.path, self._archive = path, archive
        members = {info.filename: info for info in archive.infolist()}
        if len(members) != len(archive.infolist()) or len(members) > MOST_FILES:
            raise BundleError(f"{path}: a file stands in it twice, or there are more than {MOST_FILES}")
        if MANIFEST not in members:
            raise BundleError(f"{path}: no bundle of a job: it has no {MANIFEST}")
        manifest = self._unpacked(MANIFEST, LARGEST_MANIFEST)
        self.digest = hashlib.sha256(manifest).hexdigest()
        self.files = _listed(_text(manifest, f"{path}: {MANIFEST}"), f"{path}: {MANIFEST}")
        if members.keys() - {MANIFEST} != self.files.keys():
            odd = sorted((members.keys() - {MANIFEST}) ^ self.files.keys())[0]
            raise BundleError(f"{path}: its files are not those of its manifest, such as {odd[:80]!r}")
        for name, entry in self.files.items():
            if members[name].file_size != entry.size:
                raise self._damaged(name)
        self._require_likely_size()

    def _require_likely_size(self) -> None:
        """Refuse what unpacks to so much more than the file's size as nothing that a job needs does."""
        unpacked = sum(entry.size for entry in self.files.values())
        limit = max(SMALL_BUNDLE, PER_FILE_BYTE * self.path.stat().st_size)
        if unpacked > limit:
            raise BundleError(
                f"{self.path}: {size_text(unpacked)} unpacked are more than a bundle of this size can need "
                f"({size_text(limit)})"
            )

    def read(self, name: str, largest: int = LARGEST_FILE) -> bytes:
        """A file's bytes.

        Raises:
            BundleError: it is not there, larger than ``largest``, or not what the manifest says.
        """
        entry = self.files.get(name)
        if entry is None:
            raise BundleError(f"{self.path}: it has no file {name}")
        if entry.size > largest:
            raise BundleError(f"{self.path}: {name} has {entry.size} bytes; at most {largest} are read")
        content = self._unpacked(name, entry.size)
        if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.sha256:
            raise self._damaged(name)
        return content

    def verify(self) -> None:
        """Read everything, and hold every matrix against what the job says of it.

        Raises:
            BundleError: something is not as it was made.
        """
        for task in self.job.tasks:
            if task.workload.problem.has_pattern:
                self._pattern_size(task)
        for name, entry in self.files.items():
            self._verify_file(name, entry)
        for number, task in enumerate(self.job.tasks):
            self.matrix(number)
            for candidate in task.candidates:
                self.source(candidate.source)

    def _verify_file(self, name: str, entry: Entry) -> None:
        digest, count = hashlib.sha256(), 0
        try:
            with self._archive.open(name) as file:
                while count <= entry.size and (piece := file.read(CHUNK)):
                    digest.update(piece)
                    count += len(piece)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError):
            raise self._damaged(name) from None
        if count != entry.size or digest.hexdigest() != entry.sha256:
            raise self._damaged(name)

    @cached_property
    def job(self) -> Job:
        """Returns the job that is asked for.

        Raises:
            BundleError: it is damaged, or not what a job has.
        """
        where = f"{self.path}: {JOB}"
        return job_file.load(_text(self.read(JOB, LARGEST_JOB), where), where)

    @property
    def has_kernels(self) -> bool:
        """True if the candidates were compiled beforehand."""
        return f"{KERNELS}/{LIST}" in self.files

    def source(self, digest: str) -> str:
        """A candidate's CUDA source.

        Raises:
            BundleError: it is not there, or is another.
        """
        name = source_name(digest)
        text = _text(self.read(name, LARGEST_SOURCE), f"{self.path}: {name}")
        if source_digest(text) != digest:
            raise self._damaged(name)
        return text

    def matrix(self, number: int) -> CsrMatrix:
        """The matrix of a task, with its own values or random ones; without a pattern what takes its place.

        Raises:
            BundleError: it is damaged, or not the matrix that the job names.
        """
        task = self.job.tasks[number]
        problem = task.workload.problem
        matrix = self._read_matrix(number, task) if problem.has_pattern else problem.without_pattern
        if Workload.of(problem, matrix) != task.workload:
            raise BundleError(
                f"{self.path}: {pattern_name(task.pattern)} is not the matrix that the job names"
            )
        return matrix

    def _pattern_size(self, task: Task) -> int:
        """The bytes of a task's matrix, which its file has; nothing is unpacked.

        Raises:
            BundleError: the file has others, or this machine has too little memory for the matrix.
        """
        name, features = pattern_name(task.pattern), task.workload.features
        indices = features.m + 1 + features.nnz
        nbytes = INDEX.itemsize * indices + VALUE.itemsize * features.nnz * task.has_values
        entry = self.files.get(name)
        if entry is not None and entry.size != nbytes:
            raise BundleError(f"{self.path}: {name} has not as many nonzeros as the job says")
        try:
            budget = MemoryBudget.of_machine(f"{self.path}: {name}")
            budget.require_matrix((features.m, features.k), features.nnz)
        except MatrixError as error:
            raise BundleError(str(error)) from None
        return nbytes

    def _read_matrix(self, number: int, task: Task) -> CsrMatrix:
        name, features = pattern_name(task.pattern), task.workload.features
        content = self.read(name, self._pattern_size(task))
        offsets = np.frombuffer(content, INDEX, features.m + 1)
        columns = np.frombuffer(content, INDEX, features.nnz, offset=offsets.nbytes)
        values: Array
        if task.has_values:
            values = np.frombuffer(content, VALUE, features.nnz, offset=offsets.nbytes + columns.nbytes)
        else:
            values = np.random.default_rng(number).standard_normal(features.nnz, dtype=np.float32)
        try:
            return CsrMatrix((features.m, features.k), offsets, columns, values)
        except MatrixError as error:
            raise BundleError(f"{self.path}: {name}: {error}") from None

    def unpack_kernels(self, folder: Path) -> None:
        """Write what was compiled beforehand into a folder, for `PrecompiledToolchain`.

        Raises:
            BundleError: it is damaged.
            OSError: it cannot be written.
        """
        for name in self.files:
            above, _, file = name.partition("/")
            if above == KERNELS:
                (folder / file).write_bytes(self.read(name))

    def _unpacked(self, name: str, largest: int) -> bytes:
        """Reads at most one byte more than ``largest``, however much the archive would give."""
        try:
            info = self._archive.getinfo(name)
            if info.file_size > largest:
                raise BundleError(f"{self.path}: {name} is larger than it may be")
            with self._archive.open(info) as file:
                return file.read(largest + 1)
        except (
            KeyError,
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            OSError,
            NotImplementedError,
            RuntimeError,
        ):
            raise self._damaged(name) from None

    def _damaged(self, name: str) -> BundleError:
        return BundleError(f"{self.path}: {name} is damaged; export the job again, or copy the bundle again")


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """A bundle for reading.

    Raises:
        BundleError: there is none, or it is not what `export` makes.
    """
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise BundleError(f"{path}: this is no file")
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise BundleError(f"{path}: no bundle of a job, or only a part of one: {error}") from None
    with archive:
        yield Bundle(path, archive)


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{where}: not UTF-8 text at byte {error.start}") from None


def _listed(text: str, where: str) -> dict[str, Entry]:
    """The files of a manifest."""
    f = parse_json(text, where, BundleError).fields(("format", "version", "files"))
    if f["format"].value != FORMAT or f["version"].value != VERSION:
        raise BundleError(
            f"{where}: not a bundle that this sparsegen knows; it needs {FORMAT} version {VERSION}"
        )
    files: dict[str, Entry] = {}
    for name, node in f["files"].members().items():
        if len(name) > 300 or not NAME.fullmatch(name):
            node.refuse("a file's name of letters, digits and _ . - /")
        entry = node.fields(("bytes", "sha256"))
        files[name] = Entry(entry["bytes"].integer(0, LARGEST_FILE), entry["sha256"].text(64, HEX))
    if (total := sum(entry.size for entry in files.values())) > LARGEST_BUNDLE:
        raise BundleError(f"{where}: {size_text(total)} unpacked are more than {size_text(LARGEST_BUNDLE)}")
    return files


def kernel_name(digest: str) -> str:
    """The file of a compiled source."""
    return f"{KERNELS}/{binary_name(digest)}"
