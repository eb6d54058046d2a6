"""Dispatch: what was measured, what is near, or a heuristic; never what is invalid or failed here."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked import ask
from tuning_samples import (
    A100,
    DIGEST,
    H100,
    checked,
    failed,
    features,
    other_operators,
    timed,
    variant,
    workload,
)

from sparsegen.dispatch.choice import FARTHEST, choose, forget
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.places import nearest
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels import families_of
from sparsegen.kernels.config import UnknownConfig
from sparsegen.operators import DType, Epilogue, ItemValues, Layout
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Check, Outcome, Variant, Workload
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store


def test_the_measured_winner_is_exact() -> None:
    choice = ask([timed(30, tile_n=32), timed(10, tile_n=64, dense_vector_width=2)])
    assert choice.how is How.EXACT and choice.config.dense_vector_width == 2
    assert choice.expected_us == 10 and "takes 10 µs (measured)" in choice.explain()


def test_an_invalid_winner_gives_way_to_the_next() -> None:
    invalid = timed(1, tile_n=32, dense_vector_width=8)  # 8 float32 are more than 16 bytes
    unknown = replace(
        timed(2), variant=Variant(UnknownConfig("csr_spmm", (("tile_n", "64; evil()"),)), DIGEST)
    )
    stranger = replace(
        timed(3), variant=Variant(UnknownConfig("of_the_future", variant().config.key[1]), DIGEST)
    )
    choice = ask([invalid, unknown, stranger, timed(10, tile_n=32)])
    assert (choice.how, choice.config.tile_n, choice.expected_us) == (How.EXACT, 32, 10)


def test_operators_are_asked_about_their_own_measurements() -> None:
    known = [timed(1.0), *other_operators()]
    for m in known:
        choice = ask(known, m.workload)
        assert (choice.how, choice.family.name) == (How.EXACT, m.variant.family)
    sddmm = known[1].workload
    further = replace(sddmm, problem=replace(sddmm.problem, k=96), fingerprint="0" * 64)
    choice = ask(known, further)
    assert (choice.how, choice.family.name, len(choice.neighbours)) == (How.NEAREST, "csr_sddmm", 2)
    assert choice.expected_us == pytest.approx(
        7.0 * modelled(choice, further) / modelled(choice, sddmm), rel=0.01
    )
    assert "asked: 128 × 256 × 64, 3000 nonzeros" in choice.explain()
    assert ask([timed(1.0)], further).how is How.DEFAULT


PACKAGED = (
    ("spmm m=4096 k=1024 n=32 ", "ecd7eb7508e0"),
    ("spmm m=4096 k=1024 n=128 ", "60ca3d9d0f6f"),
    ("spmm m=8192 k=2048 n=128 ", "7742ab24e85c"),
    ("spmm m=512 k=512 n=256 ", "c3a218fb4c5e"),
    ("spmm m=512 k=512 n=256 ", "f51bab5ddcd8"),
)


def test_the_packaged_seeds_are_of_single_items_and_chosen_as_they_were_measured() -> None:
    kind = workload().problem.kind
    listed = {str(t.workload.problem) + t.workload.fingerprint: t for t in seeds().list_workloads(kind=kind)}
    for sizes, fingerprint in PACKAGED:
        [tuned] = (t for told, t in listed.items() if told.startswith(sizes) and fingerprint in told)
        of = tuned.workload
        found = choose(of, tuned.device, seeds())
        assert of.problem.batch == 1 and found.how is How.EXACT
        several = choose(replace(of, problem=replace(of.problem, batch=2)), tuned.device, seeds())
        assert several.how is How.NEAREST and several.family.computes(several.problem)
        assert several.neighbours[0].workload == of and several.neighbours[0].distance == pytest.approx(0.5)


def test_batches_are_asked_about_like_problems_of_more_work() -> None:
    alone = workload()
    heads = {b: replace(alone, problem=replace(alone.problem, batch=b)) for b in (2, 8, 9, 64)}
    own = replace(heads[8], problem=replace(heads[8].problem, item_values=ItemValues.OWN))
    known = [timed(1.0, alone, tile_n=32), timed(30.0, heads[64], tile_n=128), timed(7.0, heads[8])]
    assert ask(known, heads[8]).how is ask(known, alone).how is How.EXACT
    near = {b: ask(known, heads[b]).neighbours for b in (2, 9)}
    assert [n.workload.problem.batch for n in near[9]] == [8, 64, 1]
    assert [n.workload.problem.batch for n in near[2]] == [1, 8, 64]
    assert [n.distance for n in near[2]] == pytest.approx([0.5, 1.0, 2.5])
    assert (
        ask(known, heads[9]).how is How.NEAREST
        and "8 batch elements of 128 × 256 × 64" in ask(known, heads[9]).explain()
    )
    fewer = ask(known[:1], heads[2])
    assert fewer.config.tile_n == 32
    assert fewer.expected_us == pytest.approx(modelled(fewer, heads[2]) / modelled(fewer, alone), rel=0.1)
    other = ask(known, own)
    assert other.how is How.NEAREST and other.neighbours[0].distance == pytest.approx(0.5)
    assert ask([], heads[8]).family.computes(heads[8].problem)


def test_equal_sizes_and_close_features_are_a_bucket() -> None:
    near = workload(tag="near", nnz=3100)
    choice = ask([timed(10, tile_n=32)], near)
    assert choice.how is How.BUCKET and choice.config.tile_n == 32
    assert choice.expected_us == pytest.approx(10 * 3101 / 3001)
    assert ask([timed(10, tile_n=32)], workload(tag="far", nnz=9000)).how is How.NEAREST
    assert ask([timed(10, tile_n=32)], workload(n=60, tag="near", nnz=3100)).how is How.NEAREST
    assert ask([timed(10, device=replace(H100, key="another H100"))], near).how is How.NEAREST


def test_the_nearest_vote() -> None:
    """One neighbour's lucky winner loses to what is good on all of them."""
    measured = []
    for i, nnz in enumerate((5000, 5500, 6500, 7000)):
        of = workload(tag=str(i), nnz=nnz)
        measured += [
            timed(10, of, tile_n=64),
            timed(14, of, tile_n=128),
            timed(9.8 if i == 1 else 15, of, tile_n=32),
        ]
    choice = ask(measured, workload(tag="asked", nnz=6000))
    assert (choice.how, choice.config.tile_n, len(choice.neighbours)) == (How.NEAREST, 64, 4)
    assert choice.neighbours[0].distance <= choice.neighbours[1].distance
    assert choice.why.startswith(
        "of 3 variants it should be the fastest, by the cost model and the 4 nearest"
    )
    two = ask(measured[:6], workload(tag="asked", nnz=6000))
    assert two.why.endswith("by the cost model and the 2 nearest measured workloads")
    alone = ask(measured[:3], workload(tag="asked", nnz=6000))
    assert alone.why.endswith("by the cost model and the nearest measured workload")


def test_nearer_neighbours_weigh_more() -> None:
    close, distant = workload(tag="c", nnz=3600), workload(tag="d", nnz=12000)
    measured = [
        timed(10, close, tile_n=32),
        timed(14, close, tile_n=64),
        timed(10, distant, tile_n=64),
        timed(14, distant, tile_n=32),
    ]
    assert ask(measured, workload(tag="x", nnz=3400)).config.tile_n == 32
    assert ask(measured, workload(tag="x", nnz=11000)).config.tile_n == 64


def test_an_unmeasured_config_is_judged_by_similar_ones() -> None:
    """tile_n=32 was tried on one neighbour alone; on the other its likes were slow, so it does not win."""
    a, b = workload(tag="a", nnz=5000), workload(tag="b", nnz=7200)
    measured = [
        timed(9.9, a, tile_n=32),
        timed(10, a, tile_n=64),
        timed(10, b, tile_n=64),
        timed(30, b, tile_n=32, row_order="sorted"),
        timed(28, b, tile_n=32, row_order="natural"),
    ]
    assert ask(measured, workload(tag="x", nnz=6000)).config.tile_n == 64


@pytest.mark.parametrize(
    "change", [{"dtype": DType.FLOAT16}, {"layout": Layout.COLUMN}], ids=["dtype", "layout"]
)
def test_other_dtypes_and_layouts_do_not_vote(change: dict[str, Any]) -> None:
    of = workload()
    asked = replace(of, problem=replace(of.problem, **change))
    assert ask([timed(10, of)], asked).how is How.DEFAULT


def test_another_epilogue_votes_and_another_chip_does_not() -> None:
    of = workload()
    asked = replace(of, problem=replace(of.problem, epilogue=Epilogue.BIAS))
    assert ask([timed(10, of, tile_n=32)], asked).config.tile_n == 32
    assert ask([timed(10, of, tile_n=32)], of, device=A100).how is How.DEFAULT


def test_far_workloads_do_not_vote() -> None:
    huge = workload(n=65536, tag="huge", m=2**17, k=2**17, nnz=2**28)
    assert ask([timed(10, huge)]).how is How.DEFAULT


def test_constraints_are_checked_again_here() -> None:
    """On n = 64 four-wide loads won; n = 63 cannot have them."""
    measured = [timed(10, dense_vector_width=4), timed(20, dense_vector_width=1, threads_per_row=32)]
    choice = ask(measured, workload(n=63, tag="odd"))
    assert choice.how is How.NEAREST and choice.config.dense_vector_width == 1


def test_what_failed_here_is_not_chosen_again() -> None:
    other = workload(tag="other", nnz=3500)
    measured = [timed(5, other, tile_n=32), timed(10, other, tile_n=128)]
    assert ask(measured).config.tile_n == 32
    assert ask([*measured, failed(Outcome.WRONG, tile_n=32)]).config.tile_n == 128


def test_without_any_variant_left_the_reasons_are_told() -> None:
    """Every family's heuristic config has failed here."""
    of = workload()
    failures = []
    for each in families_of("spmm"):
        heuristic = each.heuristic(of.problem, of.features, H100)
        failures.append(replace(failed(Outcome.WRONG), variant=Variant(heuristic, DIGEST)))
    with pytest.raises(NoVariantError, match="failed on this workload") as told:
        ask(failures)
    assert str(told.value).count("failed on this workload") == 1, (
        "once, behind all families that it keeps from it"
    )
    assert "tile_n" not in str(told.value)


def test_the_default_is_the_family_that_should_be_fastest() -> None:
    """Zeros cost the tensor cores as much as nonzeros: they win where there are few of them."""

    def default(nnz: int, k: int = 1024, **changes: Any) -> str:
        of = workload(512, m=512, k=k, nnz=nnz)
        choice = ask([], replace(of, problem=replace(of.problem, **changes)))
        assert (
            choice.predicted_us
            and f"takes {microseconds(choice.predicted_us)} (predicted" in choice.explain()
        )
        assert choice.expected_us is None
        return choice.family.name

    assert default(8000) in {"csr_spmm", "segment_spmm"}, "which take about as long"
    assert default(200000) == "mma_spmm"
    assert default(16000, dtype=DType.FLOAT16, layout=Layout.COLUMN) == "uspmm_vec"
    assert default(144000, k=2048, dtype=DType.FLOAT16) == "bitmap_spmm", "too few for whole tiles"
    assert default(256000, n=2048, dtype=DType.FLOAT16) == "block_spmm"


def test_a_measurement_by_a_family_of_another_operator_is_passed_over() -> None:
    """Imports refuse it, but a database may hold it."""
    known = [timed(1.0), *other_operators()]
    for own in known:
        near = replace(own.workload, fingerprint="0" * 64)
        for other in known:
            if other.workload.problem.operator != own.workload.problem.operator:
                measured = [replace(own, workload=near), replace(own, workload=near, variant=other.variant)]
                choice = ask(measured, own.workload)
                assert (choice.how, choice.config) == (How.BUCKET, own.variant.config)


def test_what_was_wrong_on_a_neighbour_is_not_chosen() -> None:
    a, b = workload(tag="a", nnz=3500), workload(tag="b", nnz=3600)
    measured = [timed(5, a, tile_n=32), timed(9, a, tile_n=64), timed(9, b, tile_n=64)]
    wrong = replace(failed(Outcome.WRONG, tile_n=32), workload=b)
    assert ask(measured).config.tile_n == 32
    assert ask([*measured, wrong]).config.tile_n == 64


def test_on_miss() -> None:
    other = [timed(10, workload(tag="other", nnz=5000), tile_n=128)]
    assert ask(other, on_miss="nearest").how is How.NEAREST
    assert ask(other, on_miss="default").how is How.DEFAULT
    assert ask(other, on_miss="tune").how is How.NEAREST
    with pytest.raises(NoVariantError, match="sparsegen tune"):
        ask(other, on_miss="error")
    assert ask([timed(10)], on_miss="error").how is How.EXACT
    with pytest.raises(ConfigError, match="nearest, default, tune, error"):
        ask(other, on_miss="anything")


def test_what_failed_where_it_was_used_is_not_chosen_again() -> None:
    measured = [timed(5, tile_n=32), timed(9, tile_n=64)]
    of = workload()

    def asked(*checks: Check, of: Workload = of) -> int:
        layer = MemoryLayer(measured, [], checks=checks)
        config = choose(of, H100, layer).config
        return int(config.to_dict()["tile_n"])

    assert asked() == 32 and asked(checked(tile_n=32)) == 32
    assert asked(checked(Outcome.WRONG, tile_n=32, at=1)) == 64
    assert asked(checked(Outcome.CRASHED, workload(n=96), tile_n=32, at=1)) == 64, "of another workload too"
    assert asked(checked(Outcome.WRONG, tile_n=32, at=-1)) == 32, "measured to be right since"


def modelled(choice: Choice, of: Workload) -> float:
    """Microseconds that the family's cost model expects of the chosen config on a workload."""
    return float(choice.family.analytic_us(of.problem, of.features, choice.config, H100))


def test_an_estimate_scales_with_what_the_model_says_of_both() -> None:
    """A small product is mostly its launch: twice the columns take hardly longer; a large one's take twice as long."""
    small = ask([timed(10, tile_n=32)], workload(n=128, tag="wide"))
    assert small.expected_us is not None and 9 < small.expected_us < 12
    large = {"m": 8192, "k": 8192, "nnz": 1_000_000}
    measured = timed(1000, workload(n=1024, **large), tile_n=32)
    wide = ask([measured], workload(n=2048, tag="wide", **large))
    assert wide.how is How.NEAREST and wide.expected_us == pytest.approx(2000, rel=0.1)


def test_answers_are_kept_until_something_is_written(tmp_path: Path) -> None:
    of = workload()
    with Store.open(tmp_path / "tuning.db") as store:
        first = choose(of, H100, store)
        assert first.how is How.DEFAULT
        assert choose(of, H100, store) is first
        store.add_measurement(timed(10, tile_n=32))
        second = choose(of, H100, store)
        assert second.how is How.EXACT
        with Store.open(tmp_path / "tuning.db") as other:
            other.add_measurement(timed(5, at=1, tile_n=128))
        assert choose(of, H100, store) is second
        forget(store)
        assert choose(of, H100, store).config.tile_n == 128


def test_answers_are_kept_for_each_device() -> None:
    of, other = workload(), replace(H100, key="another H100")
    layer = MemoryLayer([timed(10, of, tile_n=32), timed(10, of, device=other, tile_n=64)], [])
    for device, tile in ((H100, 32), (other, 64), (H100, 32)):
        choice = choose(of, device, layer)
        assert (choice.how, choice.config.tile_n) == (How.EXACT, tile)


@pytest.mark.parametrize("change", [{"clock_mhz": 900.0}, {"multiprocessors": 66}], ids=str)
def test_answers_are_kept_for_each_description_of_a_device(change: dict[str, Any]) -> None:
    """A device's known properties may turn out to be out of date: then no answer that used them counts."""
    of, layer, told = workload(), MemoryLayer([], []), replace(H100, clock_mhz=1980.0)
    before, after = (choose(of, device, layer) for device in (told, replace(told, **change)))
    assert before.predicted_us is not None and after.predicted_us is not None
    assert before.predicted_us != after.predicted_us
    assert choose(of, told, layer) is before


def test_a_kept_answer_costs_microseconds_and_no_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = workload()
    with Store.open(tmp_path / "tuning.db") as store:
        store.add_measurement(timed(10))
        choose(of, H100, store)
        monkeypatch.setattr(Store, "_rows", lambda *asked: pytest.fail("a query"))
        started = time.thread_time()
        for _ in range(1000):
            choose(of, H100, store)
        assert (time.thread_time() - started) / 1000 < 100e-6  # a few µs, whatever else runs


def test_an_empty_matrix_has_a_variant() -> None:
    empty = features(m=1, k=1, nnz=0)
    choice = ask([timed(10)], Workload(workload(m=1, k=1, nnz=0).problem, "0" * 64, empty))
    assert choice.how in (How.NEAREST, How.DEFAULT)


@pytest.mark.parametrize("factor", [2, 4, 64, 1024])
@pytest.mark.parametrize("size", ["m", "n", "nnz"])
def test_near_means_near(size: str, factor: int) -> None:
    """One size of a measured workload grows: while it is near the vote decides, further away a heuristic."""
    alone = workload(n=64)
    sizes = {"m": 128, "n": 64, "nnz": 3000}
    sizes[size] *= factor
    there = workload(sizes["n"], m=sizes["m"], nnz=sizes["nnz"], tag="b")
    known = MemoryLayer([timed(10.0, alone, tile_n=32)], [])
    (distance,) = [n.distance for n in nearest(there.problem, there.features, H100, known.list_workloads())]
    choice = ask([timed(10.0, alone, tile_n=32)], there)
    if distance <= FARTHEST:
        assert choice.how is How.NEAREST and choice.neighbours[0].distance == distance
    else:
        assert choice.how is How.DEFAULT and not choice.neighbours and choice.expected_us is None
        assert f"the nearest is {distance:.1f} octaves away; up to 3.5 are asked" in choice.why
        assert choice.config == choice.family.heuristic(there.problem, there.features, H100)


def test_an_estimate_below_what_the_device_can_do_is_not_believed() -> None:
    alone = workload(n=4096, m=8192, k=8192, nnz=6_000_000)
    there = workload(n=4096, m=8192, k=8192, nnz=9_000_000, tag="b")
    choice = ask([timed(1.0, alone, tile_n=32)], there)
    assert choice.how is How.DEFAULT and choice.expected_us is None
    assert re.search(r"it would take [12]\.\d+ µs, and this device cannot do it in less than", choice.why)
    assert ask([timed(1000.0, alone, tile_n=32)], there).how is How.NEAREST
    fixed = ask([], there, on_miss="default")
    assert (fixed.how, fixed.why) == (How.DEFAULT, "a heuristic")
