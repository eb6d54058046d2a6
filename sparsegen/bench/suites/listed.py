"""Cases that a suite's file lists: groups of rows of values, each group with one source and one pattern."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparsegen.bench.case import Case, Operator
from sparsegen.bench.dlmc_rows import row_cov
from sparsegen.bench.patterns import PATTERNS, Pattern, VaryingRows, pattern_from_dict
from sparsegen.errors import SuiteError
from sparsegen.operators import DType, Layout
from sparsegen.tuning_db.json_reader import Node

_REQUIRED = ("source", "operator", "dtypes", "layout", "pattern", "columns", "cases")
_DLMC_LIKE = "dlmc_like"  # varying_rows, with the variation that DLMC has for a model and way of pruning


def listed_cases(suite: str, groups: Node) -> Iterator[Case]:
    """
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
    operator = Operator(group["operator"].text(40, "|".join(Operator)))
    for line in group["cases"].items():
        cells = list(line.items())
        if len(cells) != len(columns):
            line.refuse(f"{len(columns)} values ({', '.join(columns)})")
        values = fixed | {name: cell.value for name, cell in zip(columns, cells, strict=True)}
        m, k, n = (values.pop(size) for size in "mkn")
        label = values.pop("label", "")
        rows, width, inner = (m, k, n) if operator is Operator.SPMM else (m, n, k)
        sparsity = f"{values['sparsity']:.2f}".removeprefix("0") if "sparsity" in values else ""
        name = " ".join(part for part in (f"{rows}x{width}x{inner}", sparsity, label) if part)
        yield Case(
            suite=suite,
            name=name,
            operator=operator,
            m=m,
            k=k,
            n=n,
            dtypes=tuple(DType(dtype.text(40, "|".join(DType))) for dtype in group["dtypes"].items()),
            layout=Layout(group["layout"].text(40, "|".join(Layout))),
            pattern=_pattern(group["pattern"], rows, width, values),
            source=group["source"].text(1000),
        )


def _pattern(kind: Node, rows: int, columns: int, values: dict[str, Any]) -> Pattern:
    word = kind.text(40, "|".join((*PATTERNS, _DLMC_LIKE)))
    if word != _DLMC_LIKE:
        return pattern_from_dict({"kind": word, "rows": rows, "columns": columns, **values})
    sparsity = values["sparsity"]
    variation = row_cov(values["model"], values["method"], columns, 1 - sparsity)
    return VaryingRows(rows, columns, sparsity, variation)
