"""Copies of operands that lie as fast kernels read them, where a problem takes less time with them."""

from __future__ import annotations

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.dense_or_sparse import estimated_dense
from sparsegen.dispatch.options import Dense, DispatchOptions
from sparsegen.errors import NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.operators import Problem
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.shared_layers import shared_layers

OPERATION_US = 6.0  # of a small operation of PyTorch, called from Python; an estimate
COPYING = 1.5  # time of its copies of rows that no vector divides, over those of whole vectors; an estimate
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


def is_dense_faster_padded(problem: Problem, wider: Problem, device: Device) -> bool:
    """The same of PyTorch's product, by the model of cuBLAS; False where there is none."""
    own, other = (estimated_dense(one, device, ()) for one in (problem, wider))
    return own is not None and other is not None and other.us + padding_us(problem, wider, device) < own.us


def padding_us(problem: Problem, wider: Problem, device: Device) -> float:
    """Microseconds that the copies of operands to larger ones, and of the result, should take."""
    rates, copies_us = device.expected_rates, 0.0
    for spec, other in zip(problem.operands(0), wider.operands(0), strict=True):
        if spec.shape != other.shape:
            copies_us += rates.launch_us + (spec.nbytes + other.nbytes) / rates.copy_bytes_per_us
    if (result := problem.result(0)).shape != wider.result(0).shape:  # PyTorch copies it
        copies_us += OPERATION_US + COPYING * 2 * result.nbytes / rates.copy_bytes_per_us
    return copies_us


def _choice_of(problem: Problem, device: Device) -> Choice:
    workload = Workload.of(problem, problem.without_pattern)
    return choose(workload, device, shared_layers(None), _BY_VARIANT)


def expected_us(choice: Choice, device: Device) -> float:
    """Microseconds that a choice's variant should take."""
    if choice.expected_us is not None:
        return choice.expected_us
    features = choice.problem.features(choice.problem.without_pattern)
    return choice.family.analytic_us(choice.problem, features, choice.config, device)
