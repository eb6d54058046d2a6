"""Shared parts of the families that compute batches, and the constraint for those that do not."""

from __future__ import annotations

from sparsegen.kernels.base import Constraint
from sparsegen.kernels.config import Value
from sparsegen.operators import Problem

MAX_GRID_Z = 65535


def one_batch_element(problem: Problem) -> Constraint:
    """The scope of a family whose kernel computes one batch element."""
    return Constraint(problem.batch == 1, f"a launch computes one batch element (batch = {problem.batch})")


def batch_in_grid(problem: Problem) -> Constraint:
    """The scope of a family whose grid counts batch elements along z."""
    return Constraint(
        problem.batch <= MAX_GRID_Z,
        f"a grid has at most {MAX_GRID_Z} batch elements along z (batch = {problem.batch})",
    )


def batch_constants(problem: Problem) -> dict[str, Value]:
    """Returns the constants of a batch that its source is specialised on; empty for one element, whose source is the
    plain one.
    """
    if problem.batch == 1:
        return {}
    return {"batched": True, **({"own_values": True} if problem.value_sets > 1 else {})}
