"""Errors survive pickling and copying: they come from child processes and pools of processes."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from sparsegen.errors import (
    CompileError,
    MatrixError,
    OutputError,
    OutputExistsError,
    PackageMissingError,
    ResultsMismatchError,
    SparsegenError,
)

# Those with a constructor of their own; the others take a message.
from sparsegen.operators.base.fields import NoValueError
from sparsegen.system.child import ChildDiedError

SPECIAL: dict[type[SparsegenError], Callable[[], SparsegenError]] = {
    MatrixError: lambda: MatrixError("a row is missing", source=Path("w.mtx"), place="line 3"),
    OutputError: lambda: OutputError("the disk is full", path="w.npz"),
    OutputExistsError: lambda: OutputExistsError("it is there already", path=Path("w.npz")),
    ResultsMismatchError: lambda: ResultsMismatchError("not the same", differences=("n is 3", "m is 4")),
    CompileError: lambda: CompileError("it failed", log="kernel.cu(3): error: nonsense"),
    ChildDiedError: lambda: ChildDiedError("it ended by signal SIGKILL", was_killed=True),
    NoValueError: lambda: NoValueError("no density"),
}


def import_all() -> None:
    """Every module that can be imported here; Alembic's environment runs only within a migration."""
    for package in ("sparsegen", "sparsegen.cli", "sparsegen.tuning_db"):
        paths = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(paths, f"{package}.", onerror=lambda name: None):
            if module.name.endswith((".__main__", ".migrations.env")):
                continue
            try:
                importlib.import_module(module.name)
            except (ImportError, PackageMissingError):  # of PyTorch, PyCUDA, Matplotlib
                continue


def below(error: type[SparsegenError]) -> Iterator[type[SparsegenError]]:
    yield error
    for subclass in error.__subclasses__():
        yield from below(subclass)


@cache
def errors() -> list[type[SparsegenError]]:
    import_all()
    return [e for e in dict.fromkeys(below(SparsegenError)) if e.__module__.startswith("sparsegen.")]


def made(error: type[SparsegenError]) -> SparsegenError:
    """One of the class, with everything that can be on it."""
    one = SPECIAL[error]() if error in SPECIAL else error("it went wrong")
    one.child_traceback = "Traceback ..."
    one.add_note("seen in a test")
    return one


def test_the_walk_sees_errors_of_every_package() -> None:
    names = {error.__name__ for error in errors()}
    assert {"ChildDiedError", "VendorError", "UnsupportedError", "DeviceLostError"} <= names


def test_every_constructor_is_known() -> None:
    """A new error whose constructor takes more than a message belongs into SPECIAL."""
    special = {error for error in errors() if error.__init__ is not SparsegenError.__init__}
    assert special == set(SPECIAL)


def test_every_error_survives_pickling_and_copying() -> None:
    for error in errors():
        one = made(error)
        pickled = [pickle.dumps(one, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for other in (*map(pickle.loads, pickled), copy.copy(one), copy.deepcopy(one)):
            assert type(other) is error and other is not one
            assert str(other) == str(one) and other.args == one.args
            assert vars(other) == vars(one) and other.__notes__ == ["seen in a test"]
            assert other.exit_code == one.exit_code


PAGE = Path(__file__).parents[1] / "docs" / "errors.md"


def test_every_class_has_its_section_and_exit_code() -> None:
    page = dict(re.findall(r"^## (\w+)\n\nExit code (\d+)\.", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    declared = [error for error in errors() if error.__module__ == "sparsegen.errors"]
    assert {name: int(code) for name, code in page.items()} == {e.__name__: e.exit_code for e in declared}
    for error in errors():
        name = SPECIAL.get(error, lambda error=error: error("why"))().help.partition("#")[2]
        assert name in {known.lower() for known in page}, error
    assert ChildDiedError("it ended", was_killed=False).help == "docs/errors.md#sparsegenerror"
