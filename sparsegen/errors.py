"""Every error that sparsegen raises on purpose, with the exit code that the command line gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HELP = "docs/errors.md"  # has a section for every class of this module, and the site an address


def one_line(text: object) -> str:
    """Text as a part of a message: line ends and other characters that are not printed are written as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


class SparsegenError(Exception):
    """Root of sparsegen's errors. The message says what happened and what to do next.

    Every error can be pickled and copied, whatever its constructor takes, and keeps its attributes and notes. As with
    all of Python's exceptions its own traceback and its cause stay behind.

    Attributes:
        exit_code: exit code of the command line.
        child_traceback: traceback of the child process that raised it, as Python prints it; empty if this process did.
    """

    exit_code = 1
    child_traceback: str = ""

    @property
    def help(self) -> str:
        """The section of the documentation on this class, or on the nearest of its bases in `sparsegen.errors`."""
        known = next(cls for cls in type(self).__mro__ if cls.__module__ == __name__)
        return f"{HELP}#{known.__name__.lower()}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the constructor with `args`, which is the finished message and lacks the keywords.
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(error: type[SparsegenError], arguments: tuple[object, ...]) -> SparsegenError:
    return error.__new__(error, *arguments)


class MatrixError(SparsegenError):
    """A matrix (a file or an object in memory) is malformed or of a kind that cannot be read.

    Args:
        message: the fault, and the accepted values.
        source: the file, or a word for the object in memory (``"scipy.sparse matrix"``).
        place: place in it: a line, an array's name and index, a tensor's name.
    """

    exit_code = 3

    def __init__(self, message: str, *, source: str | Path | None = None, place: str | None = None) -> None:
        self.source = None if source is None else str(source)
        self.place = place
        where = ", ".join(one_line(part) for part in (self.source, place) if part)
        super().__init__(f"{where}: {message}" if where else message)


class OperandError(SparsegenError):
    """An argument of an operator call has the wrong shape, dtype, device or memory layout."""

    exit_code = 3


class ConfigError(SparsegenError):
    """A configuration names an unknown tunable, a value outside its choices, or breaks a constraint."""

    exit_code = 3


class SavedOperatorError(SparsegenError):
    """A file is not one that `sparsegen.save_operator` wrote, is damaged, or was packed by another version."""

    exit_code = 3


class PruningError(SparsegenError):
    """A pruning request that cannot be met: an unknown word, a sparsity out of range, no tensor that it fits."""

    exit_code = 3


class OutputError(SparsegenError):
    """A file or folder cannot be written; what was there before is untouched.

    Args:
        message: the fault, and advice.
        path: the file or folder.
    """

    def __init__(self, message: str, *, path: str | Path) -> None:
        self.path = str(path)
        super().__init__(f"{one_line(path)}: {message}")


class OutputExistsError(OutputError):
    """The output is there already, and overwriting was not asked for."""

    exit_code = 3


class DeviceUnavailableError(SparsegenError):
    """The device asked for is not there, or what drives it (PyCUDA, a compiler) is missing."""

    exit_code = 4


class MachineError(SparsegenError):
    """The machine failed, not the request: a full disk, too little memory, a process that was killed.

    Nothing is recorded of what was tried meanwhile, so that it is tried again.
    """


class CacheError(MachineError):
    """The cache of compiled variants cannot be used: it cannot be written, or others than its user could write it."""


class CacheEntryError(CacheError):
    """A compiled variant is gone or is not what was compiled; compiling it again mends it."""


class ContractError(SparsegenError):
    """A kernel family breaks what every family must hold to (`sparsegen.testing`); the message says what and where."""

    exit_code = 5


class NoVariantError(SparsegenError):
    """No variant may be dispatched: none is valid, none verified, or none was tuned and that was asked for."""

    exit_code = 5


class DatabaseError(SparsegenError):
    """The tuning database cannot be used; the subclasses say why. The file is never overwritten."""

    exit_code = 6


class DatabaseCorruptError(DatabaseError):
    """The file is not a SQLite database, is damaged, or does not hold sparsegen's tables."""


class DatabaseNewerError(DatabaseError):
    """The database was written by a newer sparsegen."""


class DatabaseOlderError(DatabaseError):
    """The database was written by a sparsegen of before the first release, whose schema is not read any more."""


class DatabaseReadOnlyError(DatabaseError):
    """The database, or the folder that it is in, cannot be written."""


class DatabaseLockedError(DatabaseError):
    """Another process holds the database longer than the time limit."""


class DatabaseUnavailableError(DatabaseError):
    """The database's server went away and did not come back within the time limit, or is starting or stopping."""


class DatabaseFullError(DatabaseError):
    """The disk is full (or a quota is reached)."""


class UnreadableRecordError(DatabaseError):
    """The record to write is nothing that a look-up would read; nothing was written."""


class ImportFileError(DatabaseError):
    """A JSON export that is to be imported is malformed or holds values that sparsegen would not write."""


class PinsError(SparsegenError):
    """The file of pins is malformed, or pins what cannot run."""

    exit_code = 3


class BundleError(SparsegenError):
    """A job's bundle or its result file is damaged, does not belong together, or holds what cannot be."""

    exit_code = 3


class SuiteError(SparsegenError):
    """A benchmark suite is unknown, its data is missing, or its list of cases is malformed."""

    exit_code = 3


class PackageMissingError(SparsegenError):
    """A package of an extra is needed and not installed."""

    exit_code = 4


class ReportError(SparsegenError):
    """A report cannot be made or written: nothing to report on, or a place that cannot be written."""

    exit_code = 3


class ResultsError(SparsegenError):
    """A result file of ``sparsegen bench`` cannot be read or written, or does not hold what it should."""

    exit_code = 3


class ResultsNewerError(ResultsError):
    """The result file was written by a newer sparsegen."""


class ResultsMismatchError(ResultsError):
    """Two result files were measured under conditions that must not be mixed.

    Args:
        message: the attempt, and advice.
        differences: one sentence for each fact that differs.
    """

    def __init__(self, message: str, *, differences: tuple[str, ...]) -> None:
        self.differences = differences
        super().__init__("\n".join((message, *(f"  {line}" for line in differences))))


class CompileError(SparsegenError):
    """A variant did not compile, or not in time. ``log`` is what the compiler printed."""

    def __init__(self, message: str, *, log: str = "") -> None:
        self.log = log
        super().__init__(f"{message}\n{log}" if log else message)


class LaunchError(SparsegenError):
    """A kernel launch, or a call of the driver, failed."""


class DeviceMemoryError(LaunchError):
    """The device has not enough memory."""


class WrongResultError(SparsegenError):
    """Variants give wrong results on this device, and no right one was found."""

    exit_code = 5


class KernelFault(LaunchError):  # noqa: N818  what the field calls it
    """The emulator or a sanitizer caught a kernel at a fault: out of bounds, divergent barrier, ..."""
