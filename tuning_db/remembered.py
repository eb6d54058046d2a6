"""A layer that asks another one each question once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.system.bounded import Bounded
from sparsegen.tuning_db.layer import Around, Kind
from sparsegen.tuning_db.records import Baseline, Check, Measurement, Prediction, Probe, Tuned, Workload

Answers = dict[Hashable, Any]  # by question

MOST_ANSWERS = 4096

R = TypeVar("R")


def no_answers() -> Answers:
    """Returns an empty store of answers, at most `MOST_ANSWERS`: one more takes the place of all."""
    return Bounded(MOST_ANSWERS)


@dataclass(frozen=True, eq=False)
class Remembered(Around):
    """Another layer, whose answers are kept: what is written later is not seen through it.

    Attributes:
        answers: earlier answers; a caller that makes such an object for every look-up keeps them.
    """

    answers: Answers = field(default_factory=no_answers)

    def measurements(self, workload: Workload, device: Device) -> list[Measurement]:
        return list(self._once(self.layer.measurements, workload, device))

    def baselines(self, workload: Workload, device: Device) -> list[Baseline]:
        return list(self._once(self.layer.baselines, workload, device))

    def predictions(self, workload: Workload, device: Device) -> list[Prediction]:
        return list(self._once(self.layer.predictions, workload, device))

    def probes(self, workload: Workload, device: Device) -> list[Probe]:
        return list(self._once(self.layer.probes, workload, device))

    def rates(self, device: Device) -> Rates | None:
        return self._once(self.layer.rates, device)

    def failed_checks(self, device: Device) -> list[Check]:
        return list(self._once(self.layer.failed_checks, device))

    def list_workloads(self, *, kind: Kind | None = None, like: Device | None = None) -> list[Tuned]:
        return list(self._once(self.layer.list_workloads, kind=kind, like=like))

    def _once(self, ask: Callable[..., R], *asked: Hashable, **named: Hashable) -> R:
        """The answer of one of the layer's methods."""
        question = (ask.__name__, asked, tuple(named.items()))
        if question not in self.answers:
            self.answers[question] = ask(*asked, **named)
        kept: R = self.answers[question]
        return kept
