"""Results shared by all look-ups in one database: what does not depend on the question is read and computed once."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial

from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.evidence import Evidence, evidence_of
from sparsegen.dispatch.neighbours import Prediction
from sparsegen.dispatch.options import DispatchOptions
from sparsegen.dispatch.places import Neighbour, Places
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.system.bounded import Bounded
from sparsegen.tuning_db.layer import Kind, Layer
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.remembered import Answers, no_answers

MOST_CHOICES, MOST_EVIDENCE, MOST_PROBLEMS, MOST_PREDICTIONS = 4096, 4096, 256, 256

Speed = tuple[float | None, float | None, Rates | None]  # speed of a device; equal ones may differ
Question = tuple[Problem, str, Device, Speed, DispatchOptions, bool]
Asked = tuple[Problem, Features, Device, Speed, bool | None, frozenset[Config]]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Results found in one generation of a database, without a reference to it.

    Attributes:
        choices: the answers to whole look-ups.
        answers: records read (`Remembered`).
    """

    generation: int
    choices: dict[Question, Choice] = field(default_factory=partial(Bounded, MOST_CHOICES))
    answers: Answers = field(default_factory=no_answers)
    _predictions: dict[Asked, list[Prediction]] = field(default_factory=partial(Bounded, MOST_PREDICTIONS))
    _valid: dict[tuple[Problem, Device], dict[Config, bool]] = field(
        default_factory=partial(Bounded, MOST_PROBLEMS)
    )
    _places: dict[tuple[Kind, Device], Places] = field(default_factory=dict)
    _evidence: dict[tuple[Workload, Device, Device, Speed], Evidence] = field(
        default_factory=partial(Bounded, MOST_EVIDENCE)
    )

    def is_valid(self, problem: Problem, config: Config, device: Device) -> bool:
        """True if the constraints of the config's family hold: they depend neither on features nor on rates."""
        known = self._valid.get((problem, device))
        if known is None:
            known = self._valid[problem, device] = {}
        is_valid = known.get(config)
        if is_valid is None:
            is_valid = known[config] = family_of(config).is_valid(problem, config, device)
        return is_valid

    def nearest(self, workload: Workload, device: Device, database: Layer) -> list[Neighbour]:
        """The measured workloads of the same kind on like devices, nearest first."""
        key = workload.problem.kind, device
        places = self._places.get(key)
        if places is None:
            known = database.list_workloads(kind=key[0], like=device)
            places = self._places[key] = Places.of(key[0], known)
        return places.nearest(workload.problem, workload.features, device)

    def evidence(self, neighbour: Neighbour, device: Device, database: Layer) -> Evidence:
        """`evidence_of` a neighbour, where this device's rates stay as they are."""
        key = neighbour.workload, neighbour.device, device, speed(device)
        found = self._evidence.get(key)
        if found is None:
            found = self._evidence[key] = evidence_of(neighbour, device, database)
        return found

    def predictions(
        self,
        workload: Workload,
        device: Device,
        deterministic: bool | None,
        suspects: Set[Config],
        make: Callable[[], list[Prediction]],
    ) -> list[Prediction]:
        """Returns the predictions of ``make``, shared by all workloads with the same problem and features.

        Patterns whose rows have equal lengths, as of N:M and blocks, often have the same.

        Args:
            deterministic, suspects: conditions that exclude configs, besides problem, features and device.
        """
        key = workload.problem, workload.features, device, speed(device), deterministic, frozenset(suspects)
        found = self._predictions.get(key)
        if found is None:
            found = self._predictions[key] = make()
        return found


def speed(device: Device) -> Speed:
    """Device properties that `==` ignores and that times depend on."""
    return device.clock_mhz, device.memory_bytes_per_us, device.rates
