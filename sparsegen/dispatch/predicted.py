"""Predictions of `sparsegen tune --for`, made before anything ran on the device.

It is trusted less than measurements: it counts where this very device was measured on nothing near. The first
`sparsegen tune` there tries these variants early, and from then on what it measured counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsegen.dispatch.places import Neighbour
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Basis, Prediction, Workload

WORDS = {
    Basis.MODEL: "by the cost model alone",
    Basis.SCALED: "after its time on a like device",
}


def fastest_predicted(
    workload: Workload,
    device: Device,
    database: Layer,
    near: Sequence[Neighbour],
    is_allowed: Callable[[Config], bool],
) -> tuple[Prediction, str] | None:
    """The variant with the least predicted time that may run, and why in words.

    Args:
        near: measured workloads that are near enough to be asked; where one is of this device, nothing is returned.
    """
    if any(n.device.key == device.key for n in near):
        return None
    known = ranking.predicted(database.predictions(workload, device))
    for found in known:
        if is_allowed(found.variant.config):
            return found, (
                f"predicted to be the fastest of {len(known)} variants, {WORDS[found.basis]}; nothing near was "
                "measured on this device, and `sparsegen tune` checks it"
            )
    return None


def predicted_us(workload: Workload, device: Device, database: Layer, config: Config) -> float | None:
    """Returns the predicted time of a config; None if there is no prediction."""
    known = ranking.predicted(database.predictions(workload, device))
    return next((p.predicted_us for p in known if p.variant.config == config), None)
