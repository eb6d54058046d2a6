"""A problem as JSON documents hold it: its operator's name beside its fields."""

from __future__ import annotations

from sparsegen.errors import ConfigError
from sparsegen.operators import MAX_INDEX, OPERATORS, Problem, fields_of
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.json_reader import Node


def problem_dict(problem: Problem) -> Json:
    """Return its operator and what differs from defaults, as JSON values; `read_problem` is the inverse."""
    return {"operator": problem.operator, **problem.distinct()}


def read_problem(node: Node) -> Problem:
    """The problem of an object, every value checked.

    Raises:
        SparsegenError: the node's own error: no such operator, a field that is missing or unknown, or a value that it
            cannot have.
    """
    members = node.members()
    if "operator" not in members:
        node.refuse("a member 'operator'")
    operator = members["operator"]
    if operator.text(40) not in OPERATORS:
        operator.refuse(f"one of {', '.join(OPERATORS)}")
    problem_type = OPERATORS[operator.value]
    fields = fields_of(problem_type)
    needed = [name for name, field in fields.items() if field.default is None]
    f = node.fields(("operator", *needed), tuple(fields.keys() - set(needed)))
    for name, field in fields.items():
        if field.is_size and name in f:
            f[name].integer(0, MAX_INDEX)
    try:
        return problem_type.from_dict({name: f[name].value for name in fields if name in f})
    except (ValueError, ConfigError) as error:
        raise node.error(f"{node.source}: {node.path}: {error}") from None
