"""Conversion inside a model: a layer becomes sparse only if the whole model gets faster, and never is it slower."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear, convert, in_situ  # noqa: E402


class Model(nn.Module):
    """Two layers of one shape, a larger one, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.up = nn.Linear(16, 64)
        self.unused = nn.Linear(16, 16)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.up(self.q(x) + self.k(x)) * scale


class FakeClock:
    """A model's time is the sum of its layers'; ``extra_us`` comes on top where any is sparse and all were tried."""

    captured = True

    def __init__(self, model: nn.Module, sparse_us: dict[str, float], extra_us: float = 0.0) -> None:
        self.model, self.sparse_us, self.extra_us = model, sparse_us, extra_us
        self.compared = 0

    def compare(self, run: Any, first: Any, second: Any) -> tuple[float, float]:
        self.compared += 1
        times = []
        for arrange in (first, second):
            arrange()
            run()
            sparse = {n for n, m in self.model.named_modules() if isinstance(m, SparseLinear)}
            times.append(sum(self.sparse_us[n] if n in sparse else 10.0 for n in self.sparse_us))
        extra = self.extra_us if self.compared > 2 else 0.0
        return times[0], times[1] + extra


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def convert_by(monkeypatch: pytest.MonkeyPatch, model: Model, clock: FakeClock, **options: Any) -> Any:
    monkeypatch.setattr(in_situ, "TorchClock", lambda on_gpu: clock)
    given = {"sparsity": 0.75, "example_inputs": torch.randn(3, 16)} | options
    return convert(model, **given)


def test_a_group_becomes_sparse_where_the_model_gets_faster(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(model, {"q": 6.0, "k": 6.0, "up": 14.0})
    report = convert_by(monkeypatch, model, clock)
    assert [layer.name for layer in report.converted] == ["q", "k"]
    assert [step.layers for step in report.in_situ.steps] == [("up",), ("q", "k")], "the largest group first"
    assert (report.in_situ.dense_us, report.in_situ.final_us) == (30.0, 22.0)
    reasons = {layer.name: layer.reason for layer in report.dense}
    assert reasons["up"] == "the model is no faster with it sparse: 34.0 µs, dense 30.0 µs"
    assert reasons["unused"] == "the example inputs do not reach it"
    assert report.summary == "2 sparse, 2 left dense; the model takes 22 µs as a CUDA graph, dense 30 µs"
    assert json.loads(json.dumps(report.to_dict()))["in_situ"]["final_us"] == 22.0
    kinds = {name: type(module) for name, module in model.named_children()}
    assert kinds == {"q": SparseLinear, "k": SparseLinear, "up": nn.Linear, "unused": nn.Linear}


def test_gains_within_the_noise_and_sums_that_do_not_pay_leave_the_model_dense(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    noise = convert_by(monkeypatch, model, FakeClock(model, {"q": 9.99, "k": 9.99, "up": 10.0}))
    assert not noise.converted and noise.in_situ.final_us == noise.in_situ.dense_us == 30.0
    together = convert_by(monkeypatch, model, FakeClock(model, {"q": 6.0, "k": 6.0, "up": 9.0}, 50.0))
    assert not together.converted and not any(step.kept for step in together.in_situ.steps)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_that_fails_is_as_it_was(model: Model) -> None:
    model.train()
    with pytest.raises(TypeError):
        convert(model, sparsity=0.75, example_inputs=(torch.randn(3, 16), 1.0, "too many"))
    assert model.training and all(type(m) is nn.Linear for m in model.children())
    for wrong in (7, (), [torch.randn(3, 16)], {1: 2}):
        with pytest.raises(OperandError, match="example_inputs"):
            convert(model, sparsity=0.75, example_inputs=wrong)
    with pytest.raises(OperandError, match="is decided"):
        convert(model, sparsity=0.75, dense="always", example_inputs=torch.randn(3, 16))


def test_the_clock_of_a_cpu_times_both_arrangements(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.delenv("SPARSEGEN_DEVICE", raising=False)
    model.train()
    inputs = {"x": torch.randn(3, 16), "scale": 2.0}
    report = convert(model, sparsity=0.75, example_inputs=inputs)
    found = report.in_situ
    assert not found.captured and 0 < found.final_us <= found.dense_us and len(found.steps) == 2
    assert model.training and all(module.training for module in model.children())
    assert "called from Python" in report.summary
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.gpu
def test_captured_graphs_decide_on_a_gpu(model: Model) -> None:
    report = convert(model.cuda(), sparsity=0.9, example_inputs=torch.randn(64, 16, device="cuda"))
    assert report.in_situ.captured and report.in_situ.final_us <= report.in_situ.dense_us
