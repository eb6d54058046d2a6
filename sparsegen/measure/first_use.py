"""A variant's result held against the reference where it first runs: on a device, with a driver."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from sparsegen.errors import DeviceMemoryError, LaunchError
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.variant_launcher import VariantLauncher
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.records import Check, Outcome, Workload
from sparsegen.verify.variants import CheckedCall

log = logging.getLogger(__name__)

# Random numbers of a large operand, which repeat: a prime, so that no two of its rows are equal.
DRAWN = (1 << 17) - 1
MOST_HOST_FLOP = 2e8  # FLOP of a reference that the host computes; a tenth of a second


class FewDraws(np.random.Generator):
    """Draws at most `DRAWN` normal numbers and repeats them in larger arrays: drawing takes longest."""

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        count = 1 if size is None else int(np.prod(size))
        if out is not None or count <= DRAWN:
            return super().standard_normal(size, dtype, out)
        return np.resize(super().standard_normal(DRAWN, dtype), size)


def can_be_checked(problem: Problem, matrix: CsrMatrix, backend: str) -> bool:
    """True if a reference takes little time: one by the device, or a small one."""
    by_device = backend == "cuda" and type(problem).reference_on is not Problem.reference_on
    return by_device or problem.cost(matrix.nnz).flop <= MOST_HOST_FLOP


def checked(
    launcher: VariantLauncher,
    workload: Workload,
    matrix: CsrMatrix,
    driver: str,
    *,
    value_order: Array | None = None,
) -> Check | None:
    """Checks one launch on random operands of a matrix's workload; None if there is no memory for it.

    Afterwards kept operands, and values that batch elements have of their own, are as before.

    Args:
        value_order: the one that the launcher was made with.

    Raises:
        SparsegenError: the device's reference differs from the host's, so that nothing can be verified.
    """
    began = time.monotonic()
    outcome, reason, worst = Outcome.OK, "", None
    try:
        with launcher.prepared.executor.entered():  # its memory is freed inside, too
            worst, reason = _launched(launcher, workload.problem, matrix, value_order)
        if not worst <= 1:
            outcome = Outcome.WRONG
    except DeviceMemoryError as error:
        log.info("%s is not checked: %s", launcher.variant.family, error)
        return None
    except LaunchError as error:
        outcome, reason = Outcome.CRASHED, str(error)
    seconds = time.monotonic() - began
    return Check(workload, launcher.device, launcher.variant, driver, outcome, seconds, reason, worst)


def _launched(
    launcher: VariantLauncher, problem: Problem, matrix: CsrMatrix, value_order: Array | None
) -> tuple[float, str]:
    """The largest error over its bound, and what is wrong; the executor is entered."""
    bound, executor = launcher.prepared, launcher.prepared.executor
    own = bound.packed.arrays[bound.packed.values] if problem.value_sets > 1 and bound.packed.values else None
    before = None if own is None else np.empty(own.nbytes, np.uint8)
    if own is not None and before is not None:
        executor.synchronize()
        executor.download(own, before)
    call = CheckedCall(bound, problem, matrix, FewDraws(np.random.PCG64(1)), value_order)
    reason = "" if call.worst <= 1 else call.explain()
    if own is not None and before is not None:
        executor.overwrite(own, before)
        executor.synchronize()
    return call.worst, reason
