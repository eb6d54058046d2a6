"""``sparsegen families``: tuning spaces and constraints in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sparsegen import backends, kernels
from sparsegen.cli.parts.common import device_option, emit, even_features, family_names, json_option
from sparsegen.cli.parts.problems import ProblemOptions, problem_options
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import AnyFamily, Constraint, Device
from sparsegen.kernels.config import Value
from sparsegen.operators import OPERATORS, Problem
from sparsegen.system.json_object import Json

MATRIX_SIZE = 1024  # default of a matrix's size that no option gives
VARIES = "results of some configs differ in their last bits from call to call: sums are added up in any order"


@click.command()
@click.argument("name", required=False, shell_complete=family_names)
@problem_options(any_operator=True, without_matrix=True)
@device_option
@json_option
def command(
    name: str | None,
    wanted: ProblemOptions,
    device: str | None,
    as_json: bool,
) -> None:
    """List kernel families, or tell all of one: tunables with their choices, what must hold, which matrices suit it.

    Constraints and requirements are read out for the family's heuristic config for a problem of the given
    sizes (of 1024 for the matrix's, if none are) with equal rows at 10 % density; numbers in them are that config's
    and that matrix's. Listed are the families of the operators that take the options given; --json tells all of each.
    """
    named = None if name is None else kernels.family(name)
    if named is not None and wanted.operator is None:
        wanted = replace(wanted, operator=named.problem_type.operator)
    problems = _problems(wanted)
    if named is None:
        chosen = [f for f in kernels.families().values() if f.problem_type.operator in problems]
    else:
        [problem] = problems.values()
        chosen = [kernels.require_family(named.name, problem)]
    where = backends.find_device(device)
    described = [describe(family, problems[family.problem_type.operator], where) for family in chosen]
    data = {"device": where.key, "families": described}
    emit(as_json, data, _list(described) if named is None else _render(described[0]))


def _problems(wanted: ProblemOptions) -> dict[str, Problem]:
    """The problem of each operator that the options leave open, or of the one that they name.

    Raises:
        ConfigError: no operator takes the options.
    """
    operators = list(OPERATORS) if wanted.operator is None else [wanted.operator]
    problems, reasons = {}, []
    for operator in operators:
        try:
            problems[operator] = replace(wanted, operator=operator).problem_without_matrix(MATRIX_SIZE)
        except ConfigError as error:
            reasons.append(error)
    if not problems:
        raise reasons[0]
    return problems


def describe(family: AnyFamily, problem: Problem, device: Device) -> Json:
    """A family as JSON values: space, example config and its constraints."""
    features = even_features(*problem.matrix_shape, 0.1)
    config = family.heuristic(problem, features, device)
    space = family.config_type.tunables()
    return {
        "name": family.name,
        "operator": family.problem_type.operator,
        "problem": problem.to_dict(),
        "summary": family.summary,
        "source": family.source,
        "template": family.template,
        "deterministic": family.deterministic,
        "tunables": [
            {
                "name": t.name,
                "doc": t.doc,
                "default": t.default,
                "choices": list(t.choices),
                "searched": list(t.searched),
                "packs": t.packs,
            }
            for t in space
        ],
        "points": math.prod(len(t.choices) for t in space),
        "points_searched": math.prod(len(t.searched) for t in space),
        "example": config.to_dict(),
        "constraints": _as_data(family.constraints(problem, config, device)),
        "requirements": _as_data(family.requirements(problem, features, config)),
    }


def _as_data(constraints: Iterable[Constraint]) -> list[dict[str, bool | str]]:
    return [{"holds": c.holds, "sentence": c.sentence} for c in constraints]


def _list(families: Iterable[Json]) -> RenderableType:
    """A line for each family below its operator's, and how to see more."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    shown = ""
    for family in sorted(families, key=lambda one: (list(OPERATORS).index(one["operator"]), one["name"])):
        operator = family["operator"]
        if operator != shown:
            table.add_row(Text(operator, style="bold"), Text(OPERATORS[operator].summary, style="bold"))
        table.add_row(Text(f"  {family['name']}"), Text(family["summary"]))
        shown = operator
    told = "tunables, what must hold, which matrices suit it, and whose idea it is"
    return Group(table, Text(f"\n`sparsegen families NAME` says all of one: {told}."))


def _render(family: Json) -> RenderableType:
    table = Table("tunable", "choices", "default", "what it is", box=None, padding=(0, 2, 0, 0))
    for t in family["tunables"]:
        choices = Text(", ").join(
            Text(_word(c), style="bold" if c in t["searched"] else "dim") for c in t["choices"]
        )
        table.add_row(t["name"], choices, _word(t["default"]), t["doc"])
    constraints, requirements = (
        Text("\n").join(Text(f"- {c['sentence']}") for c in family[kind])
        for kind in ("constraints", "requirements")
    )
    asked = [Text("What a matrix must be like:"), Padding(requirements, (0, 0, 1, 2))]
    example = " ".join(f"{name}={_word(value)}" for name, value in family["example"].items())
    return Group(
        Text(f"{family['name']}: {family['summary']}", style="bold"),
        Text(f"computes {family['operator']}; {family['source']}"),
        *(() if family["deterministic"] else (Text(VARIES),)),
        Text(
            f"{family['points']:,} points before constraints; "
            f"normal effort searches the bold choices ({family['points_searched']:,} points)"
        ),
        Padding(table, (1, 0, 1, 2)),
        Text(f"What must hold, read out for {example}:"),
        Padding(constraints, (0, 0, 1, 2)),
        *(asked if family["requirements"] else ()),
    )


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
