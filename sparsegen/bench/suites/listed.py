"""Cases that a suite's file lists: groups of rows of values, each group with one source, operator and pattern.

A value is a field of the operator's problems, one of the pattern's, or a ``label`` for the case's name.

Row lengths like those of the Deep Learning Matrix Collection vary by numbers that benchmarks/fit_dlmc.py fitted. The
squared CoV of row lengths is taken as the sum of two parts: what independent elements would have anyway, (1 - d) /
(d · k) at density d and k columns, and a part that pruning adds because rows differ in importance. The root of the
second part is fitted as scale · d^-power for each model and way of pruning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sparsegen.bench.patterns.case import Case, dtypes_of, variations
from sparsegen.bench.patterns.patterns import PATTERNS, Pattern, VaryingRows, pattern_from_dict
from sparsegen.errors import ConfigError, SuiteError
from sparsegen.operators import OPERATORS, fields_of
from sparsegen.tuning_db.json_reader import Node, parse_json

FILE = "dlmc_row_cov.json"
_REQUIRED = ("source", "operator", "dtypes", "pattern", "columns", "cases")
_DLMC_LIKE = "dlmc_like"  # varying_rows, with the variation that DLMC has for a model and way of pruning


@dataclass(frozen=True, slots=True)
class RowVariation:
    """The fit for one model and way of pruning.

    Attributes:
        scale, power: the part that pruning adds is scale · density^-power.
        spread: a typical factor between a matrix's CoV and the fit's, above or below (the exponential of
            the median absolute deviation of the logarithms).
        matrices: number of measured matrices.
    """

    scale: float
    power: float
    spread: float
    matrices: int

    def row_cov(self, columns: int, density: float) -> float:
        """CoV of the row lengths of a matrix with this many columns; density in (0, 1]."""
        return float(
            (independent_variance(columns, density) + (self.scale * density**-self.power) ** 2) ** 0.5
        )


def independent_variance(columns: int, density: float) -> float:
    """Squared CoV of the row lengths where every element is drawn independently."""
    return (1 - density) / (density * columns)


def row_cov(model: str, method: str, columns: int, density: float) -> float:
    """CoV of row lengths for a model (``rn50``, ``transformer``) and a way of pruning, as DLMC's folders name them.

    Raises:
        SuiteError: the collection has no such model, or not pruned in this way.
    """
    fits = row_variations()
    if (model, method) not in fits:
        known = ", ".join(" ".join(pair) for pair in fits)
        raise SuiteError(f"DLMC has no matrices of {model} {method}; there are {known}")
    return fits[model, method].row_cov(columns, density)


@cache
def row_variations() -> dict[tuple[str, str], RowVariation]:
    """The fits by (model, way of pruning)."""
    text = (resources.files("sparsegen.bench.patterns") / FILE).read_text(encoding="utf-8")
    root = parse_json(text, FILE, SuiteError).fields(("source", "fits"))
    fits: dict[tuple[str, str], RowVariation] = {}
    for model, methods in root["fits"].members().items():
        for method, node in methods.members().items():
            f = node.fields(("scale", "power", "spread", "matrices"))
            fits[model, method] = RowVariation(
                f["scale"].number(),
                f["power"].number(-10.0),
                f["spread"].number(1.0),
                f["matrices"].integer(1, 10**6),
            )
    return fits


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
