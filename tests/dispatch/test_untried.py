"""Families that were not tried, here or near, and should be faster than what was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from asked import ask
from tuning_samples import (
    DIGEST,
    H100,
    baseline,
    probe,
    timed,
    workload,
)

from sparsegen.dispatch import neighbours
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.untried import FEW_TRIED, WORTH_UNTRIED, left_to_try
from sparsegen.kernels import families_of, family, family_of
from sparsegen.kernels.config import Config
from sparsegen.operators import BlockAttentionBackwardProblem, DType, MasksOf
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Variant, Workload


def test_a_family_newer_than_the_measurements_is_used_where_it_should_be_much_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that is known of half of a matrix in float16 is csr_spmm; the tensor cores should be far faster."""
    monkeypatch.setattr(neighbours, "families_of", families_of)
    half = half_full()
    same = [timed(40, half, tile_n=32)]
    asked = replace(half, fingerprint=workload(tag="asked").fingerprint)
    choice = ask(same, asked)
    assert (choice.how, choice.family.name) == (How.NEAREST, "mma_spmm")
    wide = replace(asked, problem=replace(asked.problem, n=1024))
    assert ask(same, wide).family.name == "block_spmm"
    of = family("mma_spmm")
    heuristic = of.heuristic(half.problem, half.features, H100)
    slow = replace(timed(90, half), variant=Variant(heuristic, DIGEST))
    assert ask([*same, slow], asked).family.name != "mma_spmm", "it was tried"


def half_full() -> Workload:
    """In float16, where the tensor cores should be far faster than csr_spmm."""
    float32 = workload(512, m=512, k=1024, nnz=256000)
    return replace(float32, problem=replace(float32.problem, dtype=DType.FLOAT16))


def few_tried_here(best_us: float, **options: Any) -> Choice:
    """The choice where a variant of csr_spmm was measured, and nothing else."""
    return ask([timed(best_us, half_full(), tile_n=32)], half_full(), **options)


def test_few_measurements_do_not_keep_an_untried_family_from_the_very_workload() -> None:
    choice = few_tried_here(40)
    assert (choice.how, choice.family.name, choice.expected_us) == (How.DEFAULT, "mma_spmm", None)
    assert "mma_spmm was not tried here" in choice.why and "csr_spmm" in choice.why and "40 µs" in choice.why
    assert choice.predicted_us is not None
    near = few_tried_here(choice.predicted_us * (WORTH_UNTRIED - 0.01))
    assert (near.how, near.family.name) == (How.EXACT, "csr_spmm"), "predictions are not that sure"


def test_a_variant_that_beats_the_dense_product_stays() -> None:
    for dense_us, name in ((39, "mma_spmm"), (41, "csr_spmm")):
        assert few_tried_here(40, baselines=[baseline(dense_us, half_full())]).family.name == name


@pytest.mark.parametrize("on_miss", ["error", "tune"])
def test_whoever_wants_measurements_gets_the_few(on_miss: str) -> None:
    assert few_tried_here(40, on_miss=on_miss).how is How.EXACT


def test_a_search_of_many_variants_is_trusted() -> None:
    half = half_full()
    space = family("csr_spmm").space(half.problem, H100)
    tried = [replace(timed(40, half), variant=Variant(config, DIGEST)) for config in space[:FEW_TRIED]]
    assert ask(tried[:-1], half).family.name == "mma_spmm"
    assert ask(tried, half).how is How.EXACT


def test_a_probe_tells_whether_the_untried_family_is_faster() -> None:
    best, untried = timed(40, half_full(), tile_n=32), few_tried_here(40).config
    for us, name in ((41.0, "csr_spmm"), (12.0, "mma_spmm")):
        probed = replace(probe(us, 50.0, half_full()), variant=Variant(untried, DIGEST))
        choice = choose(half_full(), H100, MemoryLayer([best], [], probes=[probed]))
        assert choice.family.name == name
        assert choice.probed_us == (us if name == "mma_spmm" else None)


def test_a_search_ends_with_nothing_left_that_a_look_up_would_take() -> None:
    """The remaining gain of families shrinks with each trial; then the look-up takes what was measured."""
    half = half_full()
    measured = [timed(40, half, tile_n=32)]
    tried: list[str] = []

    def is_allowed(config: Config) -> bool:
        return family_of(config).suits(half.problem, half.features, config, H100)

    while (config := left_to_try(half, H100, measured, is_allowed)) is not None:
        tried.append(config.family_name)
        measured.append(replace(timed(41, half), variant=Variant(config, DIGEST)))
    assert "mma_spmm" in tried and len(set(tried)) == len(tried) < len(families_of("spmm"))
    assert ask(measured, half).how is How.EXACT
    assert left_to_try(half, H100, [], is_allowed) is None, "nothing was right"
    assert left_to_try(half, H100, [timed(40, half, tile_n=32)], lambda config: False) is None


def test_equal_bits_take_an_alternative_to_a_heuristic_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = family("tma_attention_backward")
    one, two = (backward.config(passes=passes) for passes in (1, 2))
    monkeypatch.setattr(type(backward), "heuristic", lambda *_: one)
    monkeypatch.setattr(type(backward), "alternatives", lambda *_: (two,))
    problem = BlockAttentionBackwardProblem(16384, 16384, 8, 1, 64, DType.FLOAT16, masks=MasksOf.NOBODY)
    of = Workload.of(problem, problem.without_pattern)
    passes = []
    for deterministic in (False, True):
        choice = ask([], of, on_miss="default", deterministic=deterministic)
        passes.append(choice.config.passes)
    assert passes == [1, 2]
