"""A config as JSON documents hold it: its family's name beside its values."""

from __future__ import annotations

from sparsegen.errors import ConfigError
from sparsegen.kernels import family
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.tuning_db.json_codec import config_values
from sparsegen.tuning_db.json_reader import Node


def read_config(named: Node, values: Node, problem: Problem) -> Config:
    """A config from a family's name and its values; a tunable added since has its default.

    Raises:
        SparsegenError: the nodes' own error: no family for this problem, or a value that it does not declare.
    """
    try:
        known = family(named.text(80))
    except ConfigError as error:
        raise named.error(f"{named.source}: {named.path}: {error}") from None
    if known.problem_type.operator != problem.operator:
        named.refuse(f"a family that computes {problem.operator}")
    try:
        return known.config(**config_values(values))  # type: ignore[no-any-return]
    except ConfigError as error:
        wrong = _wrong_tunable(known, values.members()) or values
        raise wrong.error(f"{wrong.source}: {wrong.path}: {error}") from None


def _wrong_tunable(known: AnyFamily, members: dict[str, Node]) -> Node | None:
    """The first member that the family does not take."""
    for name, member in members.items():
        try:
            known.config(**{name: member.value})
        except ConfigError:
            return member
    return None
