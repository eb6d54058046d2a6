"""Our dispatch without any tuning by the user: the packaged seeds and heuristics."""

from __future__ import annotations

from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baselines._ours import Ours
from sparsegen.bench.results.results import UNTUNED
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice
from sparsegen.kernels.base import Device
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.seeds_reader import seeds


class SparsegenUntuned(Ours):
    name = UNTUNED

    def choose(self, inputs: Inputs, device: Device, db: str | None) -> Choice:
        seeded = Layers([seeds()])
        return choose(inputs.workload, device, seeded)


BASELINE = SparsegenUntuned()
