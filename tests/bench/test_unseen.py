"""Dispatch without what the packaged results know of a row: what is hidden, and what is chosen then."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from bench_samples import cell, results, row

from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Independent
from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import TUNED, WITHOUT, Kind
from sparsegen.bench.results.summary import summarize
from sparsegen.bench.run.unseen import SparsegenWithout, Unseen, Without, without
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, SpmmProblem
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds

OWN, OTHER = "ab" * 32, "cd" * 32
FEATURES = Features(64, 32, 200, 200 / 64, 0.2, 8, 0.1)


def workload(fingerprint: str, m: int = 64, n: int = 8) -> Workload:
    return Workload(SpmmProblem(m, 32, n), fingerprint, replace(FEATURES, m=m))


def inputs_of(w: Workload) -> Inputs:
    return Inputs(w.problem, Path(), Path(), w.fingerprint, w.features)


def case(suite: str, m: int) -> Case:
    problem = SpmmProblem(m, 32, 8)
    return Case(suite, f"{m}", problem, (DType.FLOAT32,), Independent(m, 32, 0.9), "made up")


CASES = [case("one", 64), case("one", 128), case("other", 256)]
SAME_PATTERN, SAME_SHAPE = workload(OWN, n=128), workload(OTHER)
SAME_SUITE, ELSEWHERE = workload(OTHER, m=128), workload(OTHER, m=256)


@pytest.mark.parametrize(
    ("level", "hidden"),
    [
        (Unseen.PATTERN, [SAME_PATTERN]),
        (Unseen.SHAPE, [SAME_PATTERN, SAME_SHAPE]),
        (Unseen.SUITE, [SAME_PATTERN, SAME_SHAPE, SAME_SUITE]),
    ],
)
def test_each_level_hides_more(level: Unseen, hidden: list[Workload]) -> None:
    (baseline,) = without([level], CASES)
    assert baseline.name == WITHOUT + level
    every = [SAME_PATTERN, SAME_SHAPE, SAME_SUITE, ELSEWHERE]
    assert [w for w in every if baseline.hides(w, inputs_of(workload(OWN)))] == hidden


def test_what_is_packaged_of_a_row_is_not_recalled() -> None:
    known = seeds()
    tuned = next(
        t for t in known.list_workloads() if t.workload.problem.operator == "spmm" and t.measurements > 3
    )
    device: Device = tuned.device
    w = tuned.workload
    recalled = choose(w, device, Layers([known]))
    assert recalled.how is How.EXACT
    for level in Unseen:
        (baseline,) = without([level], [])
        chosen = baseline.choose_from(known, inputs_of(w), device)
        assert chosen.how is not How.EXACT
        assert all(not baseline.hides(n.workload, inputs_of(w)) for n in chosen.neighbours)


def test_what_is_hidden_is_in_no_answer_of_the_layer() -> None:
    known = seeds()
    tuned = next(t for t in known.list_workloads() if known.baselines(t.workload, t.device))
    w, device = tuned.workload, tuned.device
    hiding = Without(known, lambda other: other.fingerprint == w.fingerprint)
    assert known.measurements(w, device) and not hiding.measurements(w, device)
    assert (
        not hiding.baselines(w, device) and not hiding.predictions(w, device) and not hiding.probes(w, device)
    )
    left = [t.workload for t in hiding.list_workloads()]
    assert w not in left and len(left) > 100
    other = next(x for x in left if x.fingerprint != w.fingerprint)
    assert hiding.measurements(other, device) == known.measurements(other, device)
    assert hiding.rates(device) == known.rates(device) and hiding.generation == known.generation


def test_the_baseline_can_be_sent_to_its_process() -> None:
    (baseline,) = without([Unseen.SUITE, Unseen.SUITE], CASES)
    sent = pickle.loads(pickle.dumps(baseline))
    assert isinstance(sent, SparsegenWithout) and sent == baseline


def test_means_and_the_worst_row_are_told() -> None:
    name = WITHOUT + Unseen.SUITE
    rows = [row(f"{us}", ours=5.0) for us in (6.0, 7.0)]
    rows = [
        replace(r, cells=(*r.cells, cell(name, Kind.OURS, us)))
        for r, us in zip(rows, (5.0, 7.2), strict=True)
    ]
    (found,) = summarize(rows)
    assert found.unseen_to_tuned[name].value == pytest.approx(1.2)
    assert found.worst_unseen == {name: pytest.approx(1.44)}
    (plain,) = summarize([row()])
    assert not plain.unseen_to_tuned and not plain.worst_unseen


@pytest.mark.parametrize(
    ("ours", "dense", "calls"), [(5.0, 10.0, 300), (9.0, 10.0, 1500), (10.0, 10.0, None), (12.0, 10.0, None)]
)
def test_packing_pays_after_so_many_calls(ours: float, dense: float, calls: int | None) -> None:
    one = row(ours=ours, dense=dense)  # packed in 1.5 ms
    assert one.preparation_ms() == 1.5 and one.break_even_calls() == calls


def test_packing_that_was_not_measured_pays_nobody_knows_when() -> None:
    one = row()
    bare = replace(one, cells=tuple(replace(c, preparation_ms=None) for c in one.cells))
    assert bare.break_even_calls() is None
    without_us = replace(one, cells=tuple(c for c in one.cells if c.baseline != TUNED))
    assert without_us.break_even_calls() is None and without_us.preparation_ms() is None


def test_how_many_variants_were_tried_is_kept_and_told() -> None:
    rows = [
        replace(r, cells=tuple(replace(c, tried=n) if c.baseline == TUNED else c for c in r.cells))
        for n, r in ((60, row("a")), (500, row("b")), (90, row("c")))
    ]
    read = result_file.load(result_file.dump(results(*rows)), "made").rows
    assert [r.tried() for r in read] == [60, 500, 90]
    (found,) = summarize(read)
    assert found.tried == 90 and found.least_tried == 60
    assert "tried" in result_file.to_csv(results(*rows)).splitlines()[0]
    (older,) = summarize([row()])
    assert older.tried is None and row().tried() is None
