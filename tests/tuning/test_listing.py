"""The list of candidates out of a process of its own, against the one that is made here."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import pytest
import tuning_fakes
from tuning_fakes import DEVICE, TOY, ToyConfig

from sparsegen.errors import MachineError, NoVariantError
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, SpmmProblem
from sparsegen.system.child import Interrupted
from sparsegen.tuning.prediction.model import expected_times
from sparsegen.tuning.search import listing
from sparsegen.tuning.search.listing import FEW_POINTS, Lister
from sparsegen.tuning.space import Space, points
from sparsegen.tuning_db.records import Workload

MATRIX = random_uniform(256, 512, 0.1, seed=0)
H100 = Device("H100", "H100", "cuda", (9, 0), 132, 232448, 233472, 50 << 20)
WORKLOAD = Workload.of(SpmmProblem(256, 512, 128, DType.FLOAT16), MATRIX)
FAMILIES = [family("mma_spmm"), family("csr_spmm")]  # explored, and enumerated
FIRST = [f.heuristic(WORKLOAD.problem, WORKLOAD.features, H100) for f in FAMILIES]


@pytest.mark.parametrize("deterministic", [False, True])
def test_another_process_lists_the_same_in_the_same_order(deterministic: bool) -> None:
    here = Space.build(
        FAMILIES,
        WORKLOAD.problem,
        H100,
        features=WORKLOAD.features,
        first=FIRST,
        deterministic=deterministic,
    )
    with closing(Lister(FAMILIES, whole=False)) as lister:
        there = lister.space(WORKLOAD, H100, FIRST, deterministic=deterministic)
    assert sum(points(f, whole=False) for f in FAMILIES) > FEW_POINTS  # a process was asked
    assert there.candidates == here.candidates and len(there.candidates) > 500
    assert (there.families, there.pruned, there.left_out) == (here.families, here.pruned, here.left_out)
    assert there.expected_us == expected_times(WORKLOAD, here.candidates, H100)
    assert [hash(c) for c in there.candidates] == [hash(c) for c in here.candidates]


def test_few_candidates_are_listed_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(listing, "ChildProcess", refused)
    tuning_fakes.install(monkeypatch.setattr)
    try:
        with closing(Lister([TOY], whole=True)) as lister:
            workload = Workload.of(tuning_fakes.PROBLEM, tuning_fakes.MATRIX)
            found = lister.space(workload, DEVICE, [ToyConfig()])
    finally:
        tuning_fakes.uninstall()
    assert found.candidates[0] == ToyConfig() and len(found.candidates) > 100


def test_nothing_is_expected_of_the_emulator() -> None:
    emulator = replace(H100, backend="emulator")
    space = listing.space_of(WORKLOAD, emulator, FAMILIES[1:], FIRST[1:])
    assert space.candidates and not space.expected_us


def test_an_empty_list_says_why() -> None:
    old = Device("old", "old", "cuda", (7, 0), 1, 1 << 16, 1 << 16, 1 << 20)  # copies asynchronously nowhere
    with (
        closing(Lister(FAMILIES[:1], whole=False)) as lister,
        pytest.raises(NoVariantError, match="is valid here"),
    ):
        lister.space(WORKLOAD, old, [])


def test_a_process_that_dies_is_the_machines_fault() -> None:
    with closing(Lister(FAMILIES, whole=False)) as lister:
        assert lister._child is not None
        lister._child._kill()
        with pytest.raises(MachineError, match="candidates could not be listed"):
            lister.space(WORKLOAD, H100, FIRST)


def test_a_stop_ends_the_waiting() -> None:
    stop = threading.Event()
    stop.set()
    with closing(Lister(FAMILIES, whole=False, stop=stop)) as lister, pytest.raises(Interrupted):
        lister.space(WORKLOAD, H100, FIRST)
