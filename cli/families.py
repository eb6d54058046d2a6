"""``sparsegen families``: tuning spaces and constraints in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sparsegen import backends, kernels
from sparsegen.cli.common import device_option, emit, even_features, json_option, problem_options
from sparsegen.family import Constraint, Device, Family, Value, tunables
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem


@click.command()
@click.argument("name", required=False)
@click.option("--m", type=click.IntRange(min=0), default=1024, show_default=True, help="Rows of A.")
@click.option("--k", type=click.IntRange(min=0), default=1024, show_default=True, help="Columns of A.")
@problem_options
@device_option
@json_option
def command(
    name: str | None,
    m: int,
    k: int,
    n: int,
    dtype: DType,
    layout: Layout,
    epilogue: Epilogue,
    device: str | None,
    as_json: bool,
) -> None:
    """List kernel families: tunables with their choices, what must hold, and which matrices suit them.

    Constraints and requirements are read out for the config that the family guesses for a problem of the given
    sizes with equal rows at 10 % density; numbers in them are that config's and that matrix's.
    """
    chosen = kernels.families().values() if name is None else [kernels.family(name)]
    problem = SpmmProblem(m, k, n, dtype, layout, epilogue)
    where = backends.find_device(device)
    described = [describe(family, problem, where) for family in chosen]
    data = {"problem": problem.to_dict(), "device": where.key, "families": described}
    emit(as_json, data, *(_render(d) for d in described))


def describe(family: Family[Any, Any], problem: SpmmProblem, device: Device) -> dict[str, Any]:
    """A family as JSON values: space, example config and its constraints."""
    features = even_features(problem.m, problem.k, 0.1)
    config = family.guess(problem, features, device)
    space = tunables(family.config_type)
    return {
        "name": family.name,
        "operator": family.problem_type.operator,
        "summary": family.summary,
        "source": family.source,
        "template": family.template,
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
        "example": family.config_dict(config),
        "constraints": _as_data(family.constraints(problem, config, device)),
        "requirements": _as_data(family.requirements(problem, features, config)),
    }


def _as_data(constraints: Iterable[Constraint]) -> list[dict[str, bool | str]]:
    return [{"holds": c.holds, "sentence": c.sentence} for c in constraints]


def _render(family: dict[str, Any]) -> RenderableType:
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
