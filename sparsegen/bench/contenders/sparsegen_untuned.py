"""Our dispatch for somebody who has tuned nothing: the packaged seeds and rules of thumb."""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen import dispatch
from sparsegen.bench.contender import Way
from sparsegen.bench.contenders._ours import Ours, way_of
from sparsegen.bench.results import UNTUNED
from sparsegen.bench.workbench import Workbench
from sparsegen.tuning_db.layers import Layers, seeds


class SparsegenUntuned(Ours):
    name = UNTUNED

    def ways(self, bench: Workbench) -> Iterator[Way]:
        choice = dispatch.choose(
            bench.task.problem, bench.features, bench.parcel.fingerprint, bench.device, Layers([seeds()])
        )
        yield way_of(bench, choice)


CONTENDER = SparsegenUntuned()
