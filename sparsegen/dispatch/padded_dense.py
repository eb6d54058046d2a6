"""Dense products on copies with zeros behind rows that are no whole vectors of 16 bytes, which cuBLAS reads slowly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparsegen.dispatch.dense_or_sparse import Time, estimated_dense
from sparsegen.dispatch.dense_time import Known
from sparsegen.kernels.base import Device
from sparsegen.operators import MaskedProblem, Problem, Rest, SddProblem
from sparsegen.system.integers import round_up

VECTOR_BYTES = 16  # of the widest load
OPERATION_US = 6.0  # of a small operation of PyTorch, called from Python; an estimate
COPYING = 1.5  # time of its copies of rows that no vector divides, over those of whole vectors; an estimate


def padded_product(problem: MaskedProblem) -> MaskedProblem:
    """The product with features that vectors divide, in and out, that may take a problem's place; itself if they do.

    Blocks of a mask have whole vectors, so that the mask stays. A result in another's memory keeps its rows.
    """
    p, vector = problem, VECTOR_BYTES // problem.dtype.itemsize
    wider = replace(p, k=round_up(p.k, vector), n=round_up(p.n, vector))
    is_kept = isinstance(p, SddProblem) and p.rest is Rest.KEPT
    return p if is_kept and wider.k != p.k else wider


def is_dense_faster_padded(problem: Problem, wider: Problem, device: Device) -> bool:
    """True if PyTorch's product should take longer than the wider one with copies; False where there is no model."""
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


def padded_for_dense(problem: Problem, device: Device) -> MaskedProblem | None:
    """The `padded_product` whose dense product, with the copies, should take less time; None where there is none."""
    if not isinstance(problem, MaskedProblem):
        return None
    wider = padded_product(problem)
    return wider if wider != problem and is_dense_faster_padded(problem, wider, device) else None


def estimated_dense_or_padded(problem: Problem, device: Device, known: Sequence[Known]) -> Time | None:
    """`estimated_dense`, or that of the padded product with its copies where this should take less time."""
    wider = padded_for_dense(problem, device)
    if wider is None:
        return estimated_dense(problem, device, known)
    found = estimated_dense(wider, device, known)
    return found and found._replace(us=found.us + padding_us(problem, wider, device))
