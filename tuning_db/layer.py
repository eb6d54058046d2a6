"""Interface through which dispatch reads a tuning database, whatever holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.tuning_db.records import Baseline, Check, Measurement, Prediction, Probe, Tuned, Workload
from sparsegen.tuning_db.rules import Rules

Kind = tuple[str, ...]  # see `Problem.kind`


class Layer(Protocol):
    """Records that dispatch reads; `Store`, `SqliteReader`, `MemoryLayer` and `Layers` all have them."""

    @property
    def generation(self) -> int:
        """Grows when something was written through this object."""

    def measurements(self, workload: Workload, device: Device) -> list[Measurement]: ...

    def baselines(self, workload: Workload, device: Device) -> list[Baseline]: ...

    def predictions(self, workload: Workload, device: Device) -> list[Prediction]: ...

    def rates(self, device: Device) -> Rates | None: ...

    def probes(self, workload: Workload, device: Device) -> list[Probe]: ...

    def failed_checks(self, device: Device) -> list[Check]: ...

    def is_verified(self, device: Device, driver: str, digest: str) -> bool: ...

    def list_workloads(self, *, kind: Kind | None = None, like: Device | None = None) -> list[Tuned]: ...

    @property
    def rules(self) -> Rules:
        """Rules that restrict choices, whatever was measured."""

    def close(self) -> None:
        """Give back what is open; a later question opens it again."""


@dataclass(frozen=True, eq=False)
class Around:
    """Base class of a `Layer` that answers some questions itself and passes the others to another layer."""

    layer: Layer

    @property
    def generation(self) -> int:
        return self.layer.generation

    @property
    def rules(self) -> Rules:
        return self.layer.rules

    def is_verified(self, device: Device, driver: str, digest: str) -> bool:
        return self.layer.is_verified(device, driver, digest)

    def close(self) -> None:
        self.layer.close()


def with_rates(device: Device, layer: Layer) -> Device:
    """The device with the rates that were measured of it; as it is where none are known."""
    if device.rates is not None:
        return device
    rates = layer.rates(device)
    return device if rates is None else replace(device, rates=rates)
