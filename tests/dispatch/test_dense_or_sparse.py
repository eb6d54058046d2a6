"""The dense product beside the variant: measured, estimated or probed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asked import ask
from tuning_samples import (
    DIGEST,
    H100,
    baseline,
    features,
    probe,
    timed,
    workload,
)

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.dispatch.dense_or_sparse import Faster, Source, Time, compare, estimated_dense
from sparsegen.dispatch.options import DispatchOptions
from sparsegen.errors import ConfigError
from sparsegen.operators import (
    DsdProblem,
    DsdTransposedProblem,
    DType,
    MaskedProblem,
    SddmmProblem,
    SddProblem,
    SpmmProblem,
)
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import MeasuredAs, Variant, Workload


def test_dense_is_a_choice_like_any_other() -> None:
    choice = ask([timed(10)], baselines=[baseline(8), baseline(3, baseline="cusparse")])
    assert choice.dense_is_faster and choice.dense_us == 8 and choice.use_dense and not choice.is_open
    assert "dense takes 8 µs (measured): dense wins, it runs instead" in choice.explain()
    slower = ask([timed(10)], baselines=[baseline(12)])
    assert not slower.use_dense and "dense takes 12 µs (measured): sparse wins" in slower.explain()
    never = ask([timed(10)], baselines=[baseline(8)], dense="never")
    assert not never.use_dense and "dense wins, but sparse runs (dense=never)" in never.explain()
    always = ask([timed(10)], baselines=[baseline(12)], dense="always")
    assert always.use_dense and "it runs instead (dense=always)" in always.explain()


def test_estimates_of_dense_say_what_they_rest_on() -> None:
    other = workload(tag="other", nnz=5000)
    same_sizes = ask([timed(10, other)], baselines=[baseline(2, other)])
    assert same_sizes.how is How.NEAREST and same_sizes.use_dense and same_sizes.faster is Faster.DENSE
    assert same_sizes.dense == Time.of_dense(2.0, Source.SAME_SIZES)
    unknown = ask([])
    assert unknown.dense is not None and unknown.dense.source is Source.PREDICTED
    assert "predicted from the device's rates, within 1.35 ×" in unknown.explain()
    close = ask([timed(8, other)], baselines=[baseline(6, other)])
    assert close.is_open and close.use_dense and "as far as estimates tell" in close.explain()
    assert not ask([timed(8, other)], baselines=[baseline(6, other)], dense="never").is_open
    no_dense = ask([], Workload(SpmmProblem(128, 256, 64, batch=2), workload().fingerprint, features()))
    assert no_dense.dense is None and not no_dense.is_open and not no_dense.use_dense


def test_a_probe_tells_and_is_no_measurement() -> None:
    of, other = workload(), timed(10, workload(tag="other", nnz=3100))
    config = ask([other]).config.to_dict()
    mine = replace(probe(9.0, 7.0), variant=Variant(ask([other]).config, DIGEST))
    layer = MemoryLayer([other], [], probes=[mine])
    found = choose(of, H100, layer)
    assert found.how is ask([other]).how and found.config.to_dict() == config
    assert (found.probed_us, found.dense_us) == (9.0, 7.0) and found.use_dense and not found.is_open
    assert "takes 9 µs (measured)" in found.explain()
    tuned = MemoryLayer([timed(5, tile_n=32)], [], probes=[mine])
    faster = choose(of, H100, tuned)
    assert faster.probed_us is None and faster.dense == Time.of_dense(7.0, Source.MEASURED)
    assert not faster.use_dense
    warm = choose(of, H100, layer, DispatchOptions.of(l2="warm"))
    assert warm.probed_us is None, "the probe was cold"


def test_times_of_the_kind_that_is_asked_for_count() -> None:
    warm = replace(baseline(4), sample=replace(baseline(4).sample, measured_as=MeasuredAs.WARM))
    measured = [timed(10, tile_n=32), timed(6, tile_n=64, measured_as=MeasuredAs.WARM)]
    cold = ask(measured, baselines=[baseline(12), warm])
    assert (cold.config.tile_n, cold.expected_us, cold.dense_us) == (32, 10, 12)
    hot = ask(measured, baselines=[baseline(12), warm], l2="warm")
    assert (hot.config.tile_n, hot.expected_us, hot.dense_us) == (64, 6, 4)
    with pytest.raises(ConfigError, match="cold, clean, warm, graph"):
        ask(measured, l2="tepid")


def test_dense_words() -> None:
    with pytest.raises(ConfigError, match="auto, never, always"):
        ask([], dense="often")
    with pytest.raises(ConfigError, match="dense products are chosen by dense="):
        ask([], on_miss="dense")
    with pytest.raises(ConfigError, match=r"dense = always runs one batch element; .* \(batch = 2\)"):
        ask(
            [],
            Workload(SpmmProblem(128, 256, 64, batch=2), workload().fingerprint, features()),
            dense="always",
        )
    with pytest.raises(ConfigError, match="there is no dense sddmm to run instead"):
        ask([], Workload(SddmmProblem(128, 256, 64), workload().fingerprint, features()), dense="always")


@pytest.mark.parametrize("kind", [DsdProblem, DsdTransposedProblem, SddProblem])
def test_dense_products_of_rows_without_whole_chunks_are_expected_to_be_slow(
    kind: type[MaskedProblem],
) -> None:
    """On an H200 those of rows of 5000 bytes took 202 µs, at sizes whose products take 60 with whole chunks."""
    device = find_target("nvidia-h200").device

    def us(m: int, k: int, n: int, dtype: DType = DType.FLOAT16) -> float:
        found = estimated_dense(kind(m, k, n, dtype), device, ())
        assert found is not None
        return found.us

    assert us(3000, 2500, 2504) > 2 * us(3000, 2504, 2504)
    assert us(3000, 2504, 2500) > 2 * us(3000, 2504, 2504)
    assert us(3001, 2504, 2504) < 1.1 * us(3000, 2504, 2504)
    assert us(3000, 2500, 2500, DType.FLOAT32) < 1.1 * us(3000, 2504, 2504, DType.FLOAT32)
    assert us(3000, 2502, 2502, DType.FLOAT32) > 2 * us(3000, 2504, 2504, DType.FLOAT32)


@pytest.mark.parametrize("kind", [DsdProblem, DsdTransposedProblem, SddProblem])
def test_dense_products_with_masks_are_expected_in_tf32(kind: type[MaskedProblem]) -> None:
    """And nothing is decided where they should take less than twice or half of the time."""
    device = find_target("nvidia-h200").device
    problem = kind(4096, 4096, 4096)
    found = estimated_dense(problem, device, ())
    assert found is not None and 0.7 < found.us / 343 < 1.3
    times = [
        compare(Time.of_sparse(factor * found.us, Source.MEASURED), found) for factor in (0.4, 0.6, 1.8, 2.2)
    ]
    assert times == [Faster.SPARSE, Faster.OPEN, Faster.OPEN, Faster.DENSE]
