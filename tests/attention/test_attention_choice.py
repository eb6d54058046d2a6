"""Choice of attention's implementation: by the database, a heuristic, or the caller; and its arguments."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuning_samples import H100

import sparsegen
from sparsegen import api, masks
from sparsegen.attention.choice import AttentionImplementation, Request, decide_implementation
from sparsegen.backends import emulator
from sparsegen.cli.lookup import as_data
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import OnMiss
from sparsegen.errors import ConfigError, NoVariantError, OperandError
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure import decision as decision_module
from sparsegen.measure import race
from sparsegen.measure.decision import Entrants
from sparsegen.operators import DType
from sparsegen.tuning_db.pins import Pin, Pins
from sparsegen.tuning_db.pins_file import write_pins
from sparsegen.tuning_db.records import Called, Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("on_emulator")
TOKENS, HEAD_DIM, HEADS = 96, 16, 2


def called(
    mask: Any = None,
    dtype: DType = DType.FLOAT16,
    heads: int = HEADS,
    head_dim: int = HEAD_DIM,
    on_miss: OnMiss = OnMiss.NEAREST,
    device: Device | None = None,
) -> Request:
    found = masks.sliding_window(TOKENS, TOKENS) if mask is None else mask
    return Request(found, heads, heads, head_dim, dtype, on_miss, device or emulator.device(), None)


def decide(call: Request) -> Decision:
    """The decision without a race, as the emulator has no clock."""
    return decide_implementation(call, None, never)


def never() -> Entrants:
    raise AssertionError("this is known")


def record(call: Request, implementation: AttentionImplementation, times: list[float]) -> None:
    """Records times as if each operator's heuristic had been measured."""
    features = Features.of(call.mask)
    with Store.open(Path("tuning.db")) as store:
        for options, time in zip(call.options(implementation), times, strict=True):
            choice = api.lookup(call.mask, **options, **replace(call, on_miss=OnMiss.NEAREST).look_up)
            variant = Variant(choice.config, "ab" * 32)
            workload = Workload(choice.problem, call.mask.fingerprint(), features)
            sample = Sample(time, time, time, 50)
            store.add_measurement(
                Measurement(workload, call.device, variant, Outcome.OK, sample, worst_error=0.1)
            )


@pytest.mark.parametrize(
    ("fused", "implementation"),
    [(11.9, AttentionImplementation.FUSED), (12.1, AttentionImplementation.STEPS)],
)
def test_the_sum_of_the_measured_times_decides(fused: float, implementation: AttentionImplementation) -> None:
    call = called()
    record(call, AttentionImplementation.STEPS, [3.0, 4.0, 5.0])
    record(call, AttentionImplementation.FUSED, [fused])
    decision = decide(call)
    assert decision.is_settled and decision.on_device is (implementation is AttentionImplementation.FUSED)
    assert decision.why == f"fused takes {fused} µs (measured), steps take 12 µs (measured)"


def test_steps_that_run_in_turns_take_as_often_as_long() -> None:
    call = replace(called(heads=4), at_once=2)
    record(call, AttentionImplementation.STEPS, [3.0, 4.0, 5.0])
    record(call, AttentionImplementation.FUSED, [23.0])
    assert decide(call).why.startswith("fused takes 23 µs (measured), steps take 24 µs")


def test_times_of_one_implementation_alone_are_not_held_against_heuristics() -> None:
    call = called()
    record(call, AttentionImplementation.STEPS, [3.0, 4.0, 5.0])
    assert "measured" not in decide(call).why


@pytest.mark.parametrize(
    ("mask", "implementation"),
    [
        (masks.sliding_window(2048, 2048), AttentionImplementation.FUSED),
        (masks.sliding_window(4096, 256, 4), AttentionImplementation.FUSED),
        (masks.blocks(4096, 64, 1, 2), AttentionImplementation.FUSED),
        (masks.band(4096, 128, 0.95), AttentionImplementation.FUSED),
        (random_uniform(4096, 4096, 0.015, seed=0), AttentionImplementation.STEPS),
    ],
    ids=["causal", "window", "blocks", "band and distant", "scattered"],
)
def test_masks_that_waste_few_places_of_tiles_are_for_the_fused_kernel(
    mask: Any, implementation: AttentionImplementation
) -> None:
    decision = decide(called(mask, heads=8, head_dim=128))
    assert (
        decision.on_device is (implementation is AttentionImplementation.FUSED)
        and "predicted" in decision.why
    )


def test_what_the_fused_kernel_cannot_do_is_for_the_steps() -> None:
    for call, words in (
        (called(dtype=DType.FLOAT32), r"elements (float32) have 16 bits"),
        (called(head_dim=12), "head_dim, k (12), is a multiple of 8"),
        (called(random_uniform(2048, 2048, 0.002, seed=0)), "have a nonzero in one place of 128 or more"),
    ):
        decision = decide(call)
        assert not decision.on_device and "cannot run" in decision.why and words in decision.why


def test_nothing_measured_may_be_an_error() -> None:
    with pytest.raises(NoVariantError, match="nothing was measured for sddmm"):
        decide(called(on_miss=OnMiss.ERROR))
    record(called(), AttentionImplementation.FUSED, [5.0])
    decision = decide(called(on_miss=OnMiss.ERROR))
    assert decision.on_device and "steps cannot run" in decision.why


def test_both_implementations_are_tuned_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: list[str] = []
    monkeypatch.setattr(api, "tune", lambda mask, *, operator, **_: tuned.append(operator))
    decide(called(on_miss=OnMiss.TUNE))
    assert tuned == ["sddmm", "sparse_softmax", "spmm", "sparse_attention"]


# --- raced ---


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> list[Called]:
    """Runs races with given times; returns the list of those that were run."""
    monkeypatch.setattr(race, "_unrecorded", {})
    monkeypatch.setattr(race.backends, "driver_version", lambda _: "580.1")
    monkeypatch.setattr(race.backends, "open_executor", lambda _: io.BytesIO())
    run: list[Called] = []

    def timed(enter: Any, executor: Any, called: Called, *_: Any) -> tuple[float, float]:
        run.append(called)
        enter(executor)
        return {Called.HOST: (9.0, 14.0), Called.DEVICE: (8.0, 6.0)}[called]

    monkeypatch.setattr(race, "pair_us", timed)
    return run


def entrants(call: Request) -> Entrants:
    """Both ways without a GPU: nothing runs them."""
    [options] = call.options(AttentionImplementation.FUSED)
    config = api.lookup(call.mask, **options, **call.look_up).config
    return Entrants(Variant(config, "ab" * 32), lambda _: (lambda: None, lambda: None), 1)


def test_what_estimates_leave_open_is_raced_once_for_each_way_of_being_called(raced: list[Called]) -> None:
    call = called(device=H100)
    record(call, AttentionImplementation.STEPS, [1.0, 2.0, 3.0])
    record(call, AttentionImplementation.FUSED, [8.0])
    first = decide_implementation(call, None, lambda: entrants(call))
    assert raced == list(Called) and first.from_host and not first.on_device
    assert decide_implementation(call, None, never) == first, "another process reads it in the database"
    [options] = call.options(AttentionImplementation.FUSED)
    choice = api.lookup(call.mask, **options, **call.look_up)
    assert "attention called from Python: fused 9 µs, steps 14 µs: fused wins" in choice.explain()
    assert [(one["task"], one["called"], one["sparse_us"]) for one in as_data(choice)["raced"]] == [
        ("attention", "host", 9.0),
        ("attention", "device", 8.0),
    ]
    other = replace(call, at_once=1)
    record(other, AttentionImplementation.STEPS, [0.5, 1.0, 1.5])
    decide_implementation(other, None, lambda: entrants(other))
    assert len(raced) == 4, "other steps are raced by themselves"


def test_a_fused_kernel_that_is_faster_on_the_device_is_not_raced() -> None:
    call = called(device=H100)
    record(call, AttentionImplementation.STEPS, [3.0, 4.0, 5.0])
    record(call, AttentionImplementation.FUSED, [8.0])
    assert decide(call).from_host and decide(call).on_device


def test_while_a_graph_is_captured_estimates_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    call = called(device=H100)
    record(call, AttentionImplementation.STEPS, [1.0, 2.0, 3.0])
    record(call, AttentionImplementation.FUSED, [8.0])
    monkeypatch.setattr(decision_module, "is_capturing", lambda: True)
    found = decide(call)
    assert found.is_settled and not found.on_device


@pytest.mark.parametrize("implementation", AttentionImplementation)
def test_the_way_that_is_pinned_runs(
    implementation: AttentionImplementation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = called(device=H100)
    record(call, AttentionImplementation.STEPS, [1.0, 2.0, 3.0])
    record(call, AttentionImplementation.FUSED, [8.0])
    choice = api.lookup(call.mask, **call.options(implementation)[0], **call.look_up)
    pin = Pin(choice.problem, call.mask.fingerprint(), H100.key, choice.config, "a test")
    write_pins(Pins().with_pins([pin]), tmp_path / "pins.json")
    monkeypatch.setenv("SPARSEGEN_PINS", str(tmp_path / "pins.json"))
    found = decide(call)
    assert (
        found.is_settled
        and found.on_device is (implementation is AttentionImplementation.FUSED)
        and "a test" in found.why
    )


# --- prepared ---


def operands(heads: int | None, tokens: int = TOKENS) -> list[Any]:
    rng = np.random.default_rng(0)
    lead = () if heads is None else (heads,)
    return [rng.standard_normal((*lead, tokens, HEAD_DIM)).astype(np.float16) for _ in range(3)]


def test_an_implementation_may_be_named() -> None:
    mask = masks.sliding_window(TOKENS, 20, 2)
    given = operands(HEADS)
    steps, fused = (
        sparsegen.prepare_attention(
            mask, heads=HEADS, head_dim=HEAD_DIM, dtype="float16", implementation=implementation
        )
        for implementation in ("steps", "fused")
    )
    assert isinstance(steps, sparsegen.AttentionOperator) and isinstance(
        fused, sparsegen.FusedAttentionOperator
    )
    np.testing.assert_allclose(steps(*given).astype(float), fused(*given).astype(float), rtol=0, atol=4e-3)
    for op, implementation in (
        (steps, AttentionImplementation.STEPS),
        (fused, AttentionImplementation.FUSED),
    ):
        assert f"{implementation}: named by the caller" in op.explain() and op.decision.on_device is (
            implementation is AttentionImplementation.FUSED
        )
        assert [spec.name for spec in op.operands] == ["q", "k", "v"]
        executor, result = op.executor, np.full_like(given[0], np.nan)
        buffers = [executor.upload(array) for array in (*given, result)]
        op.bound()(0, *(buffer.address for buffer in buffers))
        executor.synchronize()
        executor.download(buffers[-1], result)
        np.testing.assert_array_equal(result, op(*given))
    assert fused.explain().startswith(
        "attention of 2 heads, 96 queries × 96 keys, head_dim 16, float16: 1 launch\n"
    )
    assert list(fused.choices) == ["attention"] and fused.work_bytes == 0
    with pytest.raises(ConfigError, match="implementation = 'flash' is none of steps, fused"):
        sparsegen.prepare_attention(mask, head_dim=HEAD_DIM, implementation="flash")
    with pytest.raises(NoVariantError, match="have 16 bits"):
        sparsegen.prepare_attention(mask, head_dim=HEAD_DIM, implementation="fused")


@pytest.mark.parametrize("heads", [None, 1, HEADS])
def test_the_fused_kernel_takes_arrays_like_the_steps(heads: int | None) -> None:
    mask = masks.sliding_window(TOKENS, 20)
    op = sparsegen.prepare_attention(
        mask, heads=heads, head_dim=HEAD_DIM, dtype="float16", implementation="fused"
    )
    q, k, v = operands(heads)
    out = op(q, k, v)
    assert out.shape == q.shape and out.dtype == q.dtype
    np.testing.assert_array_equal(out[..., 0, :], v[..., 0, :], "the first query sees itself alone")
    again = np.empty_like(out)
    assert op(q, k, v, again) is again and np.array_equal(again, out)
    assert np.array_equal(op(q, k, v, q), out), "over the queries"
    for taken in (k, v):
        with pytest.raises(OperandError, match="another array than k and v"):
            op(q, k, v, taken)
    with pytest.raises(OperandError, match="k: expected shape"):
        op(q, k[..., :8], v)


def test_the_operator_alone() -> None:
    mask = masks.sliding_window(TOKENS, 20)
    given = operands(HEADS)
    op = sparsegen.prepare(mask, operator="sparse_attention", k=HEAD_DIM, batch=HEADS, dtype="float16")
    assert isinstance(op, sparsegen.SparseAttentionOperator)
    same = sparsegen.prepare_attention(
        mask, heads=HEADS, head_dim=HEAD_DIM, dtype="float16", implementation="fused"
    )
    assert np.array_equal(op(*given), same(*given)), "the scale is 1 / √k by default"
    other = sparsegen.prepare(
        mask, operator="sparse_attention", k=HEAD_DIM, batch=HEADS, dtype="float16", scale=-1.0
    )
    assert not np.array_equal(other(*given), op(*given))
    with pytest.raises(OperandError, match="pattern alone"):
        op.update_values(np.ones(mask.nnz, np.float32))
