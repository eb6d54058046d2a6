"""Named lists of cases. Each suite is one JSON file in this folder; its name is the file's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from sparsegen import arguments
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.suites.collection import collection_cases
from sparsegen.bench.suites.listed import listed_cases
from sparsegen.errors import SuiteError
from sparsegen.tuning_db.json_reader import Node, parse_json

DATA_FIELDS = ("source", "operator", "dtypes", "layout", "resnet", "batch_sizes", "images", "n")


@dataclass(frozen=True, slots=True)
class Suite:
    """A named list of cases.

    Attributes:
        description: one line.
        sources: sources of sizes and sparsities, in the order of the cases.
        needs_data: the cases are matrix files of a folder that the user names; without it there are none.
    """

    name: str
    description: str
    sources: tuple[str, ...]
    needs_data: bool
    cases: tuple[Case, ...]

    @property
    def rows(self) -> int:
        """Rows of the result file: cases times their dtypes."""
        return sum(len(case.dtypes) for case in self.cases)


@cache
def suite_names() -> tuple[str, ...]:
    """The suites' names, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def describe_suite(name: str) -> Suite:
    """The suite without its data: one that needs some has no cases.

    Raises:
        SuiteError: there is no suite of this name.
    """
    return _suite(name, _document(name), None)


def load_suite(name: str, data: Path | None = None) -> Suite:
    """The suite with all of its cases; no matrix is made or read yet, of files only the first line.

    Args:
        data: the folder that a suite of matrix files is to be found in; others do not look at it.

    Raises:
        SuiteError: an unknown suite, a folder that is needed and not given, is missing or holds no matrix, or
            a malformed list of batch sizes.
        MatrixError: a matrix file whose first line is malformed.
    """
    document = _document(name)
    if "data" in document and data is None:
        raise SuiteError(f"the suite {name!r} reads matrix files: name their folder with --data DIR")
    return _suite(name, document, data)


def _suite(name: str, document: dict[str, Node], data: Path | None) -> Suite:
    if "data" in document:
        description = document["data"].fields(DATA_FIELDS)
        cases = () if data is None else tuple(collection_cases(name, description, data))
        sources: tuple[str, ...] = (description["source"].text(1000),)
    else:
        cases = tuple(listed_cases(name, document["groups"]))
        sources = tuple(dict.fromkeys(case.source for case in cases))
    return Suite(name, document["description"].text(200), sources, "data" in document, cases)


def _document(name: str) -> dict[str, Node]:
    if name not in suite_names():
        raise SuiteError(f"unknown suite {arguments.unknown(name, suite_names())}")
    file = resources.files(__name__) / f"{name}.json"
    root = parse_json(file.read_text(encoding="utf-8"), f"{name}.json", SuiteError)
    return root.fields(("description",), ("groups", "data"))
