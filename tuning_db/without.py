"""A layer as if some workloads had never been measured: what dispatch does with what it does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.tuning_db.layer import Around, Kind
from sparsegen.tuning_db.records import Baseline, Check, Measurement, Prediction, Probe, Tuned, Workload


@dataclass(frozen=True, eq=False)
class Without(Around):
    """Another layer with some workloads hidden, and all that was recorded of them.

    Attributes:
        hides: true for workloads that are hidden.
    """

    hides: Callable[[Workload], bool]

    def measurements(self, workload: Workload, device: Device) -> list[Measurement]:
        return [] if self.hides(workload) else self.layer.measurements(workload, device)

    def baselines(self, workload: Workload, device: Device) -> list[Baseline]:
        return [] if self.hides(workload) else self.layer.baselines(workload, device)

    def predictions(self, workload: Workload, device: Device) -> list[Prediction]:
        return [] if self.hides(workload) else self.layer.predictions(workload, device)

    def probes(self, workload: Workload, device: Device) -> list[Probe]:
        return [] if self.hides(workload) else self.layer.probes(workload, device)

    def rates(self, device: Device) -> Rates | None:
        return self.layer.rates(device)

    def failed_checks(self, device: Device) -> list[Check]:
        return [check for check in self.layer.failed_checks(device) if not self.hides(check.workload)]

    def list_workloads(self, *, kind: Kind | None = None, like: Device | None = None) -> list[Tuned]:
        found = self.layer.list_workloads(kind=kind, like=like)
        return [tuned for tuned in found if not self.hides(tuned.workload)]
