"""Copies of operands that lie as fast kernels read them, where a problem takes less time with them."""

from __future__ import annotations

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.options import Dense, DispatchOptions
from sparsegen.dispatch.padded_dense import padding_us
from sparsegen.errors import NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.operators import Problem
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.shared_layers import shared_layers

_BY_VARIANT = DispatchOptions(dense=Dense.NEVER)
_MEASURED = How.PINNED, How.EXACT


def is_faster_copied(
    problem: Problem, copied: Problem, device: Device, copies_us: float, spared_us: float = 0.0
) -> bool:
    """True if a problem that was not measured on the device should take longer than the one in its place, with copies.

    Args:
        copied: the same with other memory orders or more channels; both have no pattern.
        copies_us: microseconds of the copies.
        spared_us: those of what else is copied without them.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    try:
        own, other = (_choice_of(one, device) for one in (problem, copied))
    except NoVariantError:
        return False
    if own.how in _MEASURED:
        return False
    return expected_us(other, device) + copies_us < expected_us(own, device) + spared_us


def are_worth_more(copies_us: float, more_us: float, spared_us: float) -> bool:
    """True if copies that take longer than others spare the kernel behind them more than that."""
    return more_us < copies_us + spared_us


def is_faster_padded(problem: Problem, wider: Problem, device: Device) -> bool:
    """The same of a problem with larger operands, which a `RowCopy` each makes.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    return is_faster_copied(problem, wider, device, padding_us(problem, wider, device))


def _choice_of(problem: Problem, device: Device) -> Choice:
    workload = Workload.of(problem, problem.without_pattern)
    return choose(workload, device, shared_layers(None), _BY_VARIANT)


def expected_us(choice: Choice, device: Device) -> float:
    """Microseconds that a choice's variant should take."""
    if choice.expected_us is not None:
        return choice.expected_us
    features = choice.problem.features(choice.problem.without_pattern)
    return choice.family.analytic_us(choice.problem, features, choice.config, device)
