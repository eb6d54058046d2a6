"""Look-ups in databases that hold a few made-up measurements."""

from __future__ import annotations

from typing import Any

from tuning_samples import H100, workload

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import DispatchOptions
from sparsegen.kernels.base import Device
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Baseline, Measurement, Workload


def ask(
    measurements: list[Measurement],
    of: Workload | None = None,
    *,
    baselines: list[Baseline] | None = None,
    device: Device = H100,
    **options: Any,
) -> Choice:
    of = of or workload()
    layer = MemoryLayer(measurements, baselines or [])
    return choose(of, device, layer, DispatchOptions.of(**options))
