"""Our dispatch for a matrix that nothing packaged knows: ``--untuned-without pattern|shape|suite``.

The packaged results hold many of the benchmarked rows, so that ``sparsegen-untuned`` recalls more than it predicts.
These baselines choose from the packaged results without the row's own pattern, without all matrices of its shape, or
without all matrices of any shape in its suite, whatever suite, operator or type these were measured for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baselines._ours import Ours
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results.results import WITHOUT, Kind
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.tuning_db import layer
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.records import Baseline, Check, Measurement, Prediction, Probe, Tuned, Workload
from sparsegen.tuning_db.seeds_reader import seeds


@dataclass(frozen=True, eq=False)
class Without(layer.Around):
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

    def list_workloads(self, *, kind: layer.Kind | None = None, like: Device | None = None) -> list[Tuned]:
        found = self.layer.list_workloads(kind=kind, like=like)
        return [tuned for tuned in found if not self.hides(tuned.workload)]


Shape = tuple[int, int]


class Unseen(StrEnum):
    """Part of the packaged results that is hidden for a row; each hides all that the one before it does."""

    PATTERN = "pattern"
    SHAPE = "shape"
    SUITE = "suite"


@dataclass(frozen=True)
class SparsegenWithout(Ours):
    """Plain dispatch from the packaged results without those of the row's pattern, shape or suite.

    Attributes:
        suites: the shapes of each suite's sparse matrices.
    """

    unseen: Unseen
    suites: tuple[frozenset[Shape], ...] = ()
    name: str = field(init=False)
    kind: Kind = field(default=Kind.OURS, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", WITHOUT + self.unseen)

    def choose(self, inputs: Inputs, device: Device, db: str | None) -> Choice:
        return self.choose_from(Layers([seeds()]), inputs, device)

    def choose_from(self, known: layer.Layer, inputs: Inputs, device: Device) -> Choice:
        """Returns dispatch's choice from a layer for this row."""
        hidden = Without(known, lambda workload: self.hides(workload, inputs))
        return choose(inputs.workload, device, hidden)

    def hides(self, workload: Workload, inputs: Inputs) -> bool:
        """True if a packaged workload is hidden for this row."""
        if workload.fingerprint == inputs.fingerprint:
            return True
        if self.unseen is Unseen.PATTERN:
            return False
        return workload.problem.matrix_shape in self._shapes(inputs.problem.matrix_shape)

    def _shapes(self, own: Shape) -> frozenset[Shape]:
        """The row's, and with ``suite`` those of all suites that it may be of."""
        if self.unseen is Unseen.SHAPE:
            return frozenset([own])
        return frozenset([own]).union(*(shapes for shapes in self.suites if own in shapes))


def without(levels: Iterable[Unseen], cases: Sequence[Case]) -> list[SparsegenWithout]:
    """A baseline for each level.

    Args:
        cases: all of their suites, also those that are not measured.
    """
    shapes: dict[str, set[Shape]] = {}
    for case in cases:
        shapes.setdefault(case.suite, set()).add(case.problem.matrix_shape)
    suites = tuple(frozenset(found) for found in shapes.values())
    return [SparsegenWithout(level, suites) for level in dict.fromkeys(levels)]
