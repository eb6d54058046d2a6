"""Our variants by dispatch: the tuned winner of a row's workload, and what the packaged results and heuristics say."""

from __future__ import annotations

from sparsegen.bench.baseline.baseline import MissingError
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baselines._ours import Ours
from sparsegen.bench.results.results import TUNED, UNTUNED
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.tuning_db.layers import Layers, open_layers
from sparsegen.tuning_db.seeds_reader import seeds


class SparsegenTuned(Ours):
    name = TUNED

    def choose(self, inputs: Inputs, device: Device, db: str | None) -> Choice:
        with open_layers(Settings.from_environment(), db) as layers:
            choice = choose(inputs.workload, device, layers)
        if choice.how is not How.EXACT:
            raise MissingError("no tuning of this workload is recorded; --tune quick makes one")
        return choice

    def tried(self, inputs: Inputs, device: Device, db: str | None) -> int | None:
        with open_layers(Settings.from_environment(), db) as layers:
            return len({m.variant for m in layers.measurements(inputs.workload, device)})


class SparsegenUntuned(Ours):
    name = UNTUNED

    def choose(self, inputs: Inputs, device: Device, db: str | None) -> Choice:
        seeded = Layers([seeds()])
        return choose(inputs.workload, device, seeded)


BASELINES = (SparsegenTuned(), SparsegenUntuned())
