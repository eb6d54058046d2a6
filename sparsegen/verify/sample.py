"""Some rows of a device's reference, computed again on the host: a device that computes wrongly verifies nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sparsegen.errors import SparsegenError
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DeviceReference, Problem
from sparsegen.system.device_memory import PlainDevice
from sparsegen.system.numpy_types import Array

ROWS = 8
PLACES = 64  # places of each of them, at most
SPAN = 1 << 18  # elements, 3 MB: copied at once they take less time than 64 copies of one
ROUNDING = 1e-9  # relative to the row's largest result: functions differ in their last places
SUM_ROUNDING = 1e-12  # error of sums in float64, relative to the magnitude


def require_sample(
    problem: Problem,
    matrix: CsrMatrix,
    operands: Mapping[str, Array],
    found: DeviceReference,
    device: PlainDevice,
) -> None:
    """Hold random rows of a device's reference against the host's.

    Args:
        operands: operands in storage form.

    Raises:
        SparsegenError: they differ, so that nothing can be verified on this device.
    """
    filled = problem.checkable_rows(matrix)
    if not filled.size:
        return
    rng = np.random.default_rng(1)
    written = problem.result(matrix.nnz)
    each = written.nbytes // written.dtype.itemsize // problem.batch
    of_item = np.bincount(rng.integers(problem.batch, size=ROWS), minlength=problem.batch)
    for i, (own, given) in enumerate(problem.batch_elements(matrix, operands)):
        rows = rng.choice(filled, size=of_item[i]).tolist()
        for lone in problem.alone.lone_rows(own, given, rows, rng):
            right = lone.problem.reference(lone.matrix, lone.operands)
            exact, magnitude = right.exact.reshape(-1), right.magnitude.reshape(-1)
            allowed = ROUNDING * float(np.nanmax(np.abs(exact), initial=0.0)) + SUM_ROUNDING * magnitude
            chosen = rng.permutation(exact.size)[:PLACES]
            places = i * each + np.asarray(lone.places)[chosen]
            on_device = _downloaded(found, places, device)
            for place, at, value, size in zip(chosen.tolist(), places.tolist(), *on_device, strict=True):
                if math.isnan(value) and math.isnan(exact[place]):
                    continue  # left as it was, whatever the magnitude
                is_close = abs(value - exact[place]) <= allowed[place]
                slack = problem.magnitude_rounding * magnitude[place] + np.finfo(np.float32).tiny
                if not is_close or not abs(size - magnitude[place]) <= slack:
                    raise SparsegenError(
                        f"the device's float64 result of {problem} is wrong: {value!r} (of magnitude {size:.6g}) at "
                        f"place {at}, {float(exact[place])!r} (of {magnitude[place]:.6g}) on the host; nothing can be "
                        "verified on this device"
                    )


def _downloaded(
    found: DeviceReference, places: Array, device: PlainDevice
) -> tuple[list[float], list[float]]:
    """The exact results and magnitudes at some places; in one copy where they lie close to each other."""
    if not places.size:
        return [], []
    first, last = int(places.min()), int(places.max())
    if last - first < SPAN:
        span = found.part(first, last - first + 1).download((last - first + 1,), device)
        return span.exact[places - first].tolist(), span.magnitude[places - first].tolist()
    each = [found.part(int(place), 1).download((1,), device) for place in places]
    return [float(one.exact[0]) for one in each], [float(one.magnitude[0]) for one in each]
