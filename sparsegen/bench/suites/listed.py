"""Cases that a suite's file lists: groups of rows of values, each group with one source, operator and pattern.

A value is a field of the operator's problems, one of the pattern's, or a ``label`` for the case's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparsegen.bench.patterns.case import Case, dtypes_of, variations
from sparsegen.bench.patterns.dlmc_rows import row_cov
from sparsegen.bench.patterns.patterns import PATTERNS, Pattern, VaryingRows, pattern_from_dict
from sparsegen.errors import ConfigError, SuiteError
from sparsegen.operators import OPERATORS, fields_of
from sparsegen.tuning_db.json_reader import Node

_REQUIRED = ("source", "operator", "dtypes", "pattern", "columns", "cases")
_DLMC_LIKE = "dlmc_like"  # varying_rows, with the variation that DLMC has for a model and way of pruning


def listed_cases(suite: str, groups: Node) -> Iterator[Case]:
    """The cases that a file lists.

    Raises:
        SuiteError: the file is malformed; the message names the path in it.
    """
    names: set[str] = set()
    for group in groups.items():
        for case in _group_cases(suite, group.fields(_REQUIRED, ("fixed",))):
            if case.name in names:
                raise SuiteError(f"{suite}.json: the case {case.name!r} stands there twice")
            names.add(case.name)
            yield case


def _group_cases(suite: str, group: dict[str, Node]) -> Iterator[Case]:
    columns = [column.text(40) for column in group["columns"].items()]
    fixed = {name: node.value for name, node in group["fixed"].members().items()} if "fixed" in group else {}
    kind = OPERATORS[group["operator"].text(40, "|".join(OPERATORS))]
    dtypes = dtypes_of(group["dtypes"])
    for line in group["cases"].items():
        cells = list(line.items())
        if len(cells) != len(columns):
            line.refuse(f"{len(columns)} values ({', '.join(columns)})")
        values = fixed | {name: cell.value for name, cell in zip(columns, cells, strict=True)}
        fields = {name: values.pop(name) for name in fields_of(kind) if name in values}
        rows, width = (fields.pop(name, None) for name in kind.matrix_sizes)
        if not (isinstance(rows, int) and isinstance(width, int)):
            line.refuse(f"whole numbers for {' and '.join(kind.matrix_sizes)}")
        label = values.pop("label", "")
        try:
            problem = kind.of((rows, width), dtype=dtypes[0], **fields)
            pattern = _pattern(group["pattern"], rows, width, values)
        except (ConfigError, SuiteError) as error:
            raise SuiteError(f"{line.source}: {line.path}: {error}") from None
        sizes = "x".join(str(problem.sizes[size]) for size in (*kind.matrix_sizes, *kind.dense_sizes))
        sparsity = f"{values['sparsity']:.2f}".removeprefix("0") if "sparsity" in values else ""
        yield Case(
            suite=suite,
            name=" ".join(part for part in (sizes, sparsity, *variations(problem), label) if part),
            problem=problem,
            dtypes=dtypes,
            pattern=pattern,
            source=group["source"].text(1000),
        )


def _pattern(kind: Node, rows: int, columns: int, values: dict[str, Any]) -> Pattern:
    word = kind.text(40, "|".join((*PATTERNS, _DLMC_LIKE)))
    if word != _DLMC_LIKE:
        return pattern_from_dict({"kind": word, "rows": rows, "columns": columns, **values})
    sparsity = values["sparsity"]
    variation = row_cov(values["model"], values["method"], columns, 1 - sparsity)
    return VaryingRows(rows, columns, sparsity, variation)
