"""Look-ups in the user's databases, as `sparsegen.api` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsegen.dispatch import choice
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import DispatchOptions
from sparsegen.dispatch.wanted import Wanted
from sparsegen.kernels.base import Device
from sparsegen.tuning_db.layers import Layers, MemoryLayer
from sparsegen.tuning_db.records import Check, Workload
from sparsegen.tuning_db.shared_layers import shared_layers


def workload_of(wanted: Wanted, db: str | Path | None) -> Workload:
    """Returns the workload; beside it reads what any choice needs, while the driver may start."""
    shared_layers(db)
    return Workload.of(wanted.problem, wanted.matrix)


def choose(
    workload: Workload,
    device: Device,
    db: str | Path | None,
    options: DispatchOptions,
    failed: Sequence[Check] = (),
) -> Choice:
    """Returns dispatch's choice, without the variants that failed these checks, whether they could be recorded or
    not.
    """
    layers = shared_layers(db)
    if failed:
        layers = Layers([MemoryLayer([], [], checks=failed), layers], layers.rules)
    return choice.choose(workload, device, layers, options)
