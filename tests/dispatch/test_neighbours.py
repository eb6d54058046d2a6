"""Distances of measured workloads, and their weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tuning_samples import DIGEST, H100, failed, other_operators, timed, workload

from sparsegen.dispatch import places
from sparsegen.dispatch.choice import BUCKET_RADIUS, Choice, How, choose
from sparsegen.dispatch.evidence import Evidence
from sparsegen.dispatch.neighbours import Prediction, predict
from sparsegen.dispatch.places import nearest
from sparsegen.kernels import family, family_of
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Epilogue
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Measurement, Outcome, Variant, Workload

OTHER_H100 = replace(H100, key="another H100")


def distances(asked: Workload, known: list[Measurement], device: Device = H100) -> list[tuple[str, float]]:
    """The keys of the devices of all that is known, and how far away it is, nearest first."""
    tuned = MemoryLayer(known, []).list_workloads()
    found = nearest(asked.problem, asked.features, device, tuned)
    return [(neighbour.device.key, neighbour.distance) for neighbour in found]


def chosen(asked: Workload, known: list[Measurement]) -> Choice:
    return choose(asked, H100, MemoryLayer(known, []))


def test_another_device_is_an_octave_further_away() -> None:
    of = workload()
    known = [timed(10, of, device=OTHER_H100), timed(10, of)]
    assert distances(of, known) == [(H100.key, 0.0), (OTHER_H100.key, 1.0)]
    assert distances(of, known, OTHER_H100) == [(OTHER_H100.key, 0.0), (H100.key, 1.0)]


def test_what_is_half_an_octave_away_here_comes_before_equal_work_on_another_device() -> None:
    of = workload(64)
    here, there = timed(10, workload(96)), timed(10, of, device=OTHER_H100)
    assert [key for key, _ in distances(of, [there, here])] == [H100.key, OTHER_H100.key]


def test_another_epilogue_is_half_an_octave_further_away() -> None:
    of = workload()
    other = replace(of, problem=replace(of.problem, epilogue=Epilogue.BIAS))
    assert distances(of, [timed(10, other)]) == [(H100.key, 0.5)]


BASE = Features(m=127, k=255, nnz=4095, row_mean=31.0, row_cov=0.25, row_max=63, block_fill=0.039)


@pytest.mark.parametrize(
    "change",
    [
        {"m": 255},
        {"k": 1023},
        {"nnz": 16383},
        {"row_mean": 63.0},
        {"row_cov": 1.25},
        {"row_max": 255},
        {"block_fill": 0.159},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_feature_counts(change: dict[str, float]) -> None:
    """An octave is twice as many rows, four times as many nonzeros, or lengths that vary more by their mean."""
    problem = workload().problem
    known = Workload(problem, "0" * 64, BASE)
    asked = Workload(problem, "1" * 64, replace(BASE, **change))
    [(_, found)] = distances(asked, [timed(10, known)])
    assert found == pytest.approx(1.0)


@pytest.mark.parametrize("change", [{"n": 128}, {"batch": 4}], ids=lambda change: next(iter(change)))
def test_every_size_of_the_problem_counts(change: dict[str, int]) -> None:
    known = workload(64)
    asked = replace(known, problem=replace(known.problem, **change))
    [(_, found)] = distances(asked, [timed(10, known)])
    assert found == pytest.approx(1.0)


def test_workloads_whose_rows_vary_alike_are_nearer() -> None:
    even, uneven = workload(tag="a", row_cov=0.1), workload(tag="b", row_cov=2.0)
    measured = [
        *(timed(us, even, tile_n=tile) for us, tile in ((10, 32), (15, 64))),
        *(timed(us, uneven, tile_n=tile) for us, tile in ((15, 32), (10, 64))),
    ]
    for row_cov, tile in ((0.3, 32), (1.8, 64)):
        choice = chosen(workload(tag="asked", row_cov=row_cov), measured)
        assert (choice.how, choice.config.tile_n) == (How.NEAREST, tile)


def test_other_kinds_and_what_only_failed_are_no_neighbours() -> None:
    of = workload()
    half = replace(of, problem=replace(of.problem, dtype=DType.FLOAT16))
    known = [timed(10, half), *other_operators(), failed(Outcome.CRASHED)]
    assert distances(of, known) == []
    assert distances(half, known) == [(H100.key, 0.0)]


def test_the_nearest_twelve_are_asked() -> None:
    known = [timed(10, workload(tag=str(i), nnz=4000 + 100 * i)) for i in range(15)]
    found = chosen(workload(tag="asked", nnz=3000), known).neighbours
    assert [n.workload.features.nnz for n in found] == [4000 + 100 * i for i in range(12)]


def test_all_of_this_device_are_asked_before_any_of_another_one() -> None:
    """Another device's rows fill what is left of the twelve, and tell alone where this one has none."""
    h200 = replace(H100, key="nvidia-h200-sm90", name="NVIDIA H200")
    own = [timed(10, workload(tag=str(i), nnz=6000 + 100 * i)) for i in range(10)]
    others = [replace(timed(10, workload(tag=f"o{i}", nnz=3000 + i)), device=h200) for i in range(10)]
    asked = workload(tag="asked", nnz=3000)
    assert [n.device for n in chosen(asked, [*own, *others]).neighbours] == [H100] * 10 + [h200] * 2
    assert [n.device for n in chosen(asked, others).neighbours] == [h200] * 10


def ask(measured: list[list[Measurement]]) -> list[Prediction]:
    """Predicts from several neighbours, all of them equal to the workload in question."""
    of = workload()
    return predict(of, H100, [Evidence.of(of, H100, found) for found in measured], lambda config: True)


def test_what_was_measured_on_equal_work_is_expected() -> None:
    found = {p.config.tile_n: p.expected_us for p in ask([[timed(30, tile_n=32), timed(10, tile_n=64)]])}
    assert found[32] == pytest.approx(30, rel=0.1) and found[64] == pytest.approx(10, rel=0.1)


def test_a_config_that_a_neighbour_has_not_tried_is_rated_by_similar_ones() -> None:
    """Rows in their own order were not measured with tiles of 64 columns; with 32 they were four times slower."""
    tried = [timed(10, tile_n=32), timed(40, tile_n=32, row_order="natural"), timed(10, tile_n=64)]
    alike = replace(tried[2].variant.config, row_order="natural")
    of = workload()
    other = timed(1000, workload(tag="far", nnz=60000), tile_n=64, row_order="natural")
    near = [Evidence.of(of, H100, tried), Evidence.of(other.workload, H100, [other])]
    found = {p.config: p.expected_us for p in predict(of, H100, near, is_allowed=lambda config: True)}
    assert found[alike] > 1.5 * found[tried[2].variant.config]


def test_what_is_doubtful_has_to_be_better() -> None:
    """The model rates two configs alike: one was measured here, and the other a long way off."""
    here, far = workload(), workload(tag="far", nnz=20000)
    known = timed(10, here, tile_n=64, row_order="sorted")
    model = family("csr_spmm").analytic_us
    there = 10 * model(far.problem, far.features, known.variant.config, H100)
    there /= model(here.problem, here.features, known.variant.config, H100)
    other = timed(0.97 * there, far, tile_n=64, row_order="natural")
    near = [Evidence.of(here, H100, [known]), Evidence.of(far, H100, [other])]
    first, second = predict(here, H100, near, is_allowed=lambda config: True)
    assert first.config == known.variant.config and second.expected_us < first.expected_us


def test_evidence_from_afar_has_to_show_more_than_near_one() -> None:
    """A config should take .95 of the heuristic one's time, by what was measured of both on one workload."""
    of, csr = workload(tag="asked"), family("csr_spmm")
    heuristic = csr.heuristic(of.problem, of.features, H100)
    both = heuristic, replace(heuristic, tile_n=2 * heuristic.tile_n)

    def modelled(there: Workload) -> list[float]:
        return [csr.analytic_us(there.problem, there.features, config, H100) for config in both]

    gain = 0.95 * modelled(of)[0] / modelled(of)[1]
    found = []
    for there in (workload(tag="near"), workload(tag="far", nnz=6 * of.features.nnz)):
        times = zip(both, modelled(there), (1.0, gain), strict=True)
        known = [replace(timed(us * off, there), variant=Variant(c, DIGEST)) for c, us, off in times]
        near = [Evidence.of(there, H100, known)]
        found.append(predict(of, H100, near, is_allowed=lambda config: config in both)[0].config)
    assert found == [both[1], both[0]]


def test_the_regression_knows_the_fastest_and_some_of_each_family() -> None:
    csr = [
        timed(10 + i, tile_n=tile, rows_per_block=rows, threads_per_row=threads)
        for i, (tile, rows, threads) in enumerate(product((32, 64, 128), (1, 2, 4), (8, 16, 32)))
    ]
    others = [
        replace(timed(100 + i), variant=Variant(family("uspmm").config(vsize=1 + i % 2, nwarp=2**i), DIGEST))
        for i in range(5)
    ]
    of = workload()
    known = [point.config for point in Evidence.of(of, H100, [*others, *csr]).points]
    problem = of.problem
    fast = [m.variant.config for m in [*csr[:24], *others[:4]]]
    valid = [c for c in fast if not family_of(c).broken_constraints(problem, c, H100)]
    assert known == valid and {c.family_name for c in valid} == {"csr_spmm", "uspmm"}


def test_many_workloads_that_are_alike_count_as_one() -> None:
    """Eight equal ones further away would outvote the one that is near."""
    near = workload(tag="near", nnz=3600)
    measured = [timed(10, near, tile_n=32), timed(12, near, tile_n=64)]
    for i in range(8):
        far = workload(tag=str(i), nnz=6000)
        measured += [timed(10, far, tile_n=64), timed(12, far, tile_n=32)]
    asked = workload(tag="asked", nnz=3000)
    assert chosen(asked, measured).config.tile_n == 32


def test_a_bucket_is_of_this_device_however_near_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "OTHER_DEVICE", 0.0)
    asked = workload(tag="asked", nnz=3000)
    nearer = timed(10, workload(tag="near", nnz=3010), device=OTHER_H100, tile_n=64)
    choice = chosen(asked, [nearer])
    assert choice.neighbours[0].distance < BUCKET_RADIUS and choice.how is How.NEAREST
    choice = chosen(asked, [nearer, timed(10, workload(tag="own", nnz=3100), tile_n=32)])
    assert (choice.how, choice.config.tile_n) == (How.BUCKET, 32)
    assert choice.neighbours[0].device == H100
