"""Our tuned winner: what the database holds for exactly this workload on this device."""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen import dispatch
from sparsegen.bench.contender import MissingError, Way
from sparsegen.bench.contenders._ours import Ours, way_of
from sparsegen.bench.results import TUNED
from sparsegen.bench.workbench import Workbench
from sparsegen.settings import Settings
from sparsegen.tuning_db.layers import open_layers


class SparsegenTuned(Ours):
    name = TUNED

    def ways(self, bench: Workbench) -> Iterator[Way]:
        with open_layers(Settings.from_environment(), bench.db) as layers:
            choice = dispatch.choose(
                bench.task.problem, bench.features, bench.parcel.fingerprint, bench.device, layers
            )
        if choice.how is not dispatch.How.EXACT:
            raise MissingError("no tuning of this workload is recorded; --tune quick makes one")
        yield way_of(bench, choice)


CONTENDER = SparsegenTuned()
