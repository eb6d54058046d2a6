"""Predicting for a device that is not here: compiled by a fake toolchain, recorded, resumed, and found by dispatch."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tuning_samples import DIGEST, timed

from sparsegen.backends.cuda.instructions import Instructions
from sparsegen.backends.executor import CompiledKernel
from sparsegen.dispatch.choice import How, choose
from sparsegen.dispatch.options import DispatchOptions, OnMiss
from sparsegen.errors import CompileError, ConfigError, MachineError, NoVariantError, SparsegenError
from sparsegen.kernels import families, families_of
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import SpmmProblem
from sparsegen.plan.variants import RenderedVariant
from sparsegen.tuning.prediction.model import cost_model
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning.report import Budget
from sparsegen.tuning.search.first_configs import first_to_try
from sparsegen.tuning.search.predicted_search import PredictResult, Status, _Search, tune_for
from sparsegen.tuning_db.records import Basis, Measurement, Outcome, Prediction, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store

H200 = find_target("nvidia-h200")
H100 = find_target("nvidia-h100")
MATRIX = random_uniform(256, 512, 0.1, 3)
PROBLEM = SpmmProblem(256, 512, 64)
WORKLOAD = Workload.of(PROBLEM, MATRIX)


class Compiler:
    """Makes nothing of a source but registers; fails with what it is given."""

    fingerprint = "fake for the target"

    def __init__(self, error: Exception | None = None, registers: int | None = 64) -> None:
        self.error, self.registers = error, registers
        self.compiled: list[str] = []

    def warm_up(self, jobs: int) -> None: ...

    def make_ready(self) -> None: ...

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        if self.error is not None:
            raise self.error
        self.compiled.append(source)
        digest = hashlib.sha256(source.encode()).hexdigest()
        return CompiledKernel(entry, Path("kernel.cu"), Path("kernel.cubin"), digest, self.registers, 0, 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "tuning.db")


def predicted(
    store: Store, compiler: Compiler | None = None, trials: int = 6, **options: object
) -> PredictResult:
    return tune_for(
        H200,
        MATRIX,
        PROBLEM,
        store=store,
        budget=Budget(trials=trials),
        toolchain=compiler or Compiler(),
        count=lambda kernel: Instructions(500, 60, 4096),
        **options,  # type: ignore[arg-type]
    )


def test_predictions_are_recorded_ranked_and_never_measurements(store: Store) -> None:
    seen: list[Status] = []
    result = predicted(store, progress=seen.append)
    times = [p.predicted_us for p in result.predictions]
    assert len(times) == 6 and times == sorted(times)
    assert {p.device for p in result.predictions} == {H200.device}
    assert {p.model for p in result.predictions} == {cost_model().digest}
    assert {p.registers for p in result.predictions} == {64}
    assert sorted(store.all_predictions(), key=lambda p: p.predicted_us) == list(result.predictions)
    assert not store.all_measurements()
    assert [s.tried for s in seen] == list(range(7)) and seen[-1].best == result.predictions[0]
    assert result.space_size > 100 and result.status.planned == 6


def test_a_later_search_goes_on(store: Store) -> None:
    predicted(store, trials=4)
    compiler = Compiler()
    result = predicted(store, compiler, trials=6)
    assert (result.status.resumed, result.status.compiled) == (4, 2) and len(compiler.compiled) == 2
    assert len(store.all_predictions()) == 6
    again = predicted(store, trials=6, again=True)
    assert (again.status.resumed, again.status.compiled) == (0, 6)
    other = replace(cost_model(), unlike=0.5)
    assert predicted(store, trials=6, model=other).status.resumed == 0, "another model's are not its own"
    newer = Compiler()
    newer.fingerprint = "a newer compiler"
    assert predicted(store, newer, trials=6).status.resumed == 0


def test_the_time_is_over_after_the_first(store: Store) -> None:
    result = tune_for(
        H200,
        MATRIX,
        PROBLEM,
        store=store,
        budget=Budget(seconds=1e-6),
        toolchain=Compiler(),
        count=lambda k: None,
    )
    assert result.predictions and result.status.tried < result.space_size


def test_what_does_not_compile(store: Store) -> None:
    with pytest.raises(NoVariantError, match=r"none of 6 variants compiled for NVIDIA H200: .*not today"):
        predicted(store, Compiler(CompileError("not today")))
    assert not store.all_predictions()
    with pytest.raises(MachineError):
        predicted(store, Compiler(MachineError("the disk is full")))
    with pytest.raises(ConfigError, match="the matrix is"):
        tune_for(H200, MATRIX, replace(PROBLEM, m=99), store=store)
    with pytest.raises(ConfigError, match="computes sddmm"):
        predicted(store, families=["csr_sddmm"])


def test_a_time_of_a_like_device_is_scaled(store: Store) -> None:
    """The H200's memory is faster, and all else is equal: the order is the H100's, the times a little less."""
    plain = predicted(store).predictions
    config = plain[3].variant.config
    fast = Measurement(
        WORKLOAD, H100.device, Variant(config, DIGEST), Outcome.OK, Sample(4.0, 3.9, 4.1, 30), registers=64
    )
    store.add_measurement(fast)
    first = predicted(store, again=True).predictions[0]
    assert first.variant.config == config and first.basis is Basis.SCALED
    assert 2.5 < first.predicted_us <= 4.0
    assert {p.basis for p in plain} == {Basis.MODEL}


def look_up(store: Store, on_miss: OnMiss = OnMiss.NEAREST):  # type: ignore[no-untyped-def]
    return choose(WORKLOAD, H200.device, store, DispatchOptions(on_miss))


def test_dispatch_trusts_predictions_less_than_measurements(store: Store) -> None:
    best, second, *_ = predicted(store).predictions
    choice = look_up(store)
    assert (choice.how, choice.config) == (How.PREDICTED, best.variant.config)
    assert choice.predicted_us == best.predicted_us and choice.expected_us is None and not choice.is_hit
    assert "predicted to be the fastest of 6 variants" in choice.explain()
    assert look_up(store, OnMiss.DEFAULT).how is How.DEFAULT
    with pytest.raises(NoVariantError):
        look_up(store, OnMiss.ERROR)

    def measured(of: Workload, time_us: float) -> None:
        m = timed(time_us, of)
        store.add_measurement(
            replace(m, device=H200.device, variant=replace(m.variant, config=second.variant.config))
        )

    near = replace(WORKLOAD, fingerprint="b" * 64, features=replace(WORKLOAD.features, row_cov=0.9))
    measured(near, 120.0)  # the model says much less: it is not asked
    assert look_up(store).how is How.NEAREST, "this very device was measured near"
    measured(WORKLOAD, best.predicted_us)
    choice = look_up(store)
    assert (choice.how, choice.config) == (How.EXACT, second.variant.config)
    assert choice.expected_us == best.predicted_us
    assert choice.predicted_us == second.predicted_us and "were predicted" in choice.explain()


def test_the_first_real_search_begins_with_what_was_predicted(store: Store) -> None:
    predictions = predicted(store).predictions
    searched = [f for f in families_of("spmm") if f.name in {p.variant.family for p in predictions}]
    first = first_to_try(WORKLOAD, H200.device, store, searched)
    assert first[0] == predictions[0].variant.config
    assert {p.variant.config for p in predictions} <= set(first)


def test_predictions_of_another_model_are_not_taken_over(tmp_path: Path) -> None:
    variant = Variant(families()["csr_spmm"].heuristic(PROBLEM, WORKLOAD.features, H200.device), DIGEST)
    compiler: Any = Compiler()
    source = RenderedVariant.of(variant.config, PROBLEM, compiler).digest
    known = Prediction(
        WORKLOAD, H200.device, replace(variant, source_digest=source), 9.0, Basis.MODEL, "ours"
    )
    stale = replace(known, variant=variant)
    estimate: Any = SimpleNamespace(
        workload=WORKLOAD, device=H200.device, model=SimpleNamespace(digest="ours")
    )
    for kept, is_known in ((known, True), (replace(known, model="another"), False), (stale, False)):
        store: Any = SimpleNamespace(predictions=lambda *_, kept=kept: [kept])
        nothing: Any = None
        search = _Search(estimate, store, nothing, nothing, 0.0, 1.0, 1)
        assert search._known(compiler) == ({known.variant.config: known} if is_known else {})


@pytest.mark.parametrize("error", [CompileError("too many registers"), MachineError("no compiler")])
def test_what_is_no_fault_of_a_variant_ends_the_search(error: SparsegenError) -> None:
    estimate: Any = SimpleNamespace(workload=WORKLOAD)
    nothing: Any = None
    search = _Search(estimate, nothing, nothing, nothing, 0.0, 1.0, 1)
    compiled: Any = SimpleNamespace(variant=None, rendered=None, error=error, candidate="csr_spmm")
    if isinstance(error, CompileError):
        search._take(compiled)
        assert "too many registers" in search.failure and search.status().failed == 1
    else:
        with pytest.raises(MachineError):
            search._take(compiled)
