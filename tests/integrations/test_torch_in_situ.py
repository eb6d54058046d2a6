"""Conversion inside a model: a layer becomes sparse only if the whole model gets faster, and never is it slower."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from sparsegen import backends, lookup  # noqa: E402
from sparsegen.dispatch.options import Dense  # noqa: E402
from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import SparseLinear, convert  # noqa: E402
from sparsegen.integrations.torch.models import in_situ  # noqa: E402
from sparsegen.integrations.torch.models.model_clock import (  # noqa: E402
    FEW,
    CompiledClock,
    CompileMode,
    TorchClock,
)
from sparsegen.integrations.torch.models.model_facts import ModelFacts  # noqa: E402
from sparsegen.tuning_db.pins import Pin, Pins  # noqa: E402
from sparsegen.tuning_db.pins_file import write_pins  # noqa: E402


class Model(nn.Module):
    """Two layers of one shape, a larger one, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.up = nn.Linear(16, 64)
        self.unused = nn.Linear(16, 16)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.up(self.q(x) + self.k(x)) * scale


class Encoder(nn.Module):
    """Q, K and V of one input, and an activation behind a layer."""

    def __init__(self, merges: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.up, self.act, self.down = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)
        self.merges = merges

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        x = (q * k + v).view(-1, 16)
        if self.merges:  # as no part of a larger result can be
            x = x + q.view(-1).view(-1, 16)
        return self.down(self.act(self.up(x)))


class FormClock:
    """A model's time by what is sparse in it and in what form, in microseconds."""

    captured = True

    def __init__(self, model: nn.Module, shared_us: float, fused_us: float) -> None:
        self.model, self.shared_us, self.fused_us = model, shared_us, fused_us

    def compare(self, run: Any, first: Any, second: Any) -> tuple[float, float]:
        return self._time(run, first), self._time(run, second)

    def _time(self, run: Any, arrange: Any) -> float:
        arrange()
        run()
        sparse = [m for m in self.model.modules() if isinstance(m, SparseLinear)]
        us = 100.0 - 2 * len(sparse)
        us += self.shared_us * any(m.one_launch_with for m in sparse)
        return us + self.fused_us * any(m.activation != "none" for m in sparse)


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
    monkeypatch.setattr(in_situ, "TorchClock", lambda *_: clock)
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
    reasons = {layer.name: layer.reason for layer in together.dense}
    assert reasons["up"].endswith(
        "sparse: it seemed to pay (29.0 µs, dense 30.0 µs), but all that did were not faster together"
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("compiled_us", [5.0, 12.0])
def test_a_model_that_is_slower_once_compiled_stays_dense(
    monkeypatch: pytest.MonkeyPatch, on_emulator: Path, compiled_us: float
) -> None:
    torch.manual_seed(0)
    model = Model()
    compiled = FakeClock(model, {"q": compiled_us, "k": compiled_us, "up": 8.0})
    compiled.captured = False
    modes: list[str] = []
    monkeypatch.setattr(in_situ, "CompiledClock", lambda _, mode: modes.append(mode) or compiled)
    clock = FakeClock(model, {"q": 6.0, "k": 6.0, "up": 14.0})
    report = convert_by(monkeypatch, model, clock, compile_mode="reduce-overhead")
    assert [layer.name for layer in report.converted] == (["q", "k"] if compiled_us < 10 else [])
    assert compiled.compared == 1 and modes == ["reduce-overhead"]
    took = "20 µs compiled in mode reduce-overhead, dense 30 µs" if compiled_us < 10 else "30 µs compiled"
    assert took in report.summary
    _, compared = converted(monkeypatch, {"q": 6.0, "k": 6.0, "up": 14.0})
    assert compared == 1, "the model as a graph, which is another question"


def test_the_clock_of_compiled_models_calls_each_arrangement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compiled once, whatever was arranged in between."""
    layer, seen = nn.Linear(4, 4), list[int]()

    def backend(module: Any, _: Any) -> Any:
        seen.append(len(seen))
        return module.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, mode: real(call, backend=backend))
    holder, x = nn.Sequential(layer), torch.ones(2, 4)

    def put(module: Any) -> Any:
        return lambda: holder.__setitem__(0, module)

    clock = CompiledClock(backends.find_device("emulator"), CompileMode.DEFAULT)
    with torch.no_grad():
        one, other = clock.compare(lambda: holder(x), put(layer), put(nn.GELU()))
    assert one > 0 and other > 0 and seen == [0, 1]


def test_modes_that_are_none(model: Model) -> None:
    for mode, given, said in (
        ("fast", torch.randn(3, 16), "reduce-overhead"),
        ("default", None, "example_inputs"),
    ):
        with pytest.raises(OperandError, match=said):
            convert(model, sparsity=0.75, example_inputs=given, compile_mode=mode)


def test_a_model_that_fails_is_as_it_was(model: Model) -> None:
    model.train()
    with pytest.raises(TypeError):
        convert(model, sparsity=0.75, example_inputs=(torch.randn(3, 16), 1.0, "too many"))
    assert model.training and all(type(m) is nn.Linear for m in model.children())
    for wrong in (7, (), [torch.randn(3, 16)], {1: 2}):
        with pytest.raises(OperandError, match="example_inputs"):
            convert(model, sparsity=0.75, example_inputs=wrong)
    for decided in ("always", "never"):
        with pytest.raises(OperandError, match=f"dense = {decided} is decided"):
            convert(model, sparsity=0.75, dense=decided, example_inputs=torch.randn(3, 16))


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
    assert "called from Python" in report.summary and not report.assumes_tokens
    assert all(parameter.requires_grad for parameter in model.parameters())


def converted(
    monkeypatch: pytest.MonkeyPatch, sparse_us: dict[str, float], rows: int = 3, **options: Any
) -> tuple[Any, int]:
    """The report and the number of comparisons of converting an equal model anew."""
    torch.manual_seed(0)
    model = Model()
    clock = FakeClock(model, sparse_us)
    report = convert_by(monkeypatch, model, clock, example_inputs=torch.ones(rows, 16), **options)
    return report, clock.compared


def test_what_was_raced_outlives_the_process_and_is_told(
    monkeypatch: pytest.MonkeyPatch, on_emulator: Path
) -> None:
    times = {"q": 6.0, "k": 6.0, "up": 14.0}
    first, compared = converted(monkeypatch, times)
    again, compared_again = converted(monkeypatch, dict.fromkeys(times, 1.0))
    assert compared > 2 and compared_again == 0, "whatever a clock would say now"
    assert (
        [layer.name for layer in again.converted] == [layer.name for layer in first.converted] == ["q", "k"]
    )
    assert (again.in_situ.dense_us, again.in_situ.final_us, again.in_situ.captured) == (30.0, 22.0, True)
    assert {step.why for step in again.in_situ.steps} == {"raced before"}
    matrix = pruned("q")
    said = lookup(matrix, n=3, layout="column", epilogue="bias", device="emulator").explain()
    assert "model called in a graph or behind a busy queue: sparse 22 µs, dense 30 µs: sparse wins" in said


def pruned(name: str) -> Any:
    """The pruned weight of a layer of `converted`."""
    torch.manual_seed(0)
    model = Model()
    convert(model, sparsity=0.75, dense="never")
    return model.get_submodule(name).pattern.matrix


@pytest.mark.parametrize(
    "change", [{"sparsity": 0.5}, {"capture": False}, {"rows": 5}], ids=["pattern", "capture", "inputs"]
)
def test_another_model_or_way_of_calling_is_raced_by_itself(
    monkeypatch: pytest.MonkeyPatch, on_emulator: Path, change: dict[str, Any]
) -> None:
    times = {"q": 6.0, "k": 6.0, "up": 14.0}
    _, compared = converted(monkeypatch, times)
    assert converted(monkeypatch, times, **change)[1] == compared


def test_pinned_layers_become_sparse_whatever_is_measured(
    monkeypatch: pytest.MonkeyPatch, on_emulator: Path
) -> None:
    slow = {"q": 90.0, "k": 90.0, "up": 90.0}
    report, _ = converted(monkeypatch, slow)
    assert not report.converted
    matrix = pruned("up")
    choice = lookup(matrix, n=3, layout="column", epilogue="bias", device="emulator")
    pin = Pin(choice.problem, matrix.fingerprint(), backends.emulator_device().key, choice.config, "a test")
    write_pins(Pins().with_pins([pin]), on_emulator.with_name("pins.json"))
    monkeypatch.setenv("SPARSEGEN_PINS", str(on_emulator.with_name("pins.json")))
    report, _ = converted(monkeypatch, slow)
    assert [layer.name for layer in report.converted] == ["up"]
    assert "a test" in report.in_situ.steps[0].why and report.in_situ.final_us == 110.0


@pytest.mark.parametrize(
    ("shared_us", "fused_us", "shares", "fuses"),
    [(-5.0, -5.0, True, True), (5.0, -5.0, False, True), (-5.0, 5.0, True, False), (0.0, 0.0, False, False)],
)
def test_forms_are_kept_where_the_model_is_faster(
    monkeypatch: pytest.MonkeyPatch, shared_us: float, fused_us: float, shares: bool, fuses: bool
) -> None:
    torch.manual_seed(0)
    model = Encoder()
    names = set(model.state_dict())
    x = torch.randn(3, 16)
    report = convert_by(monkeypatch, model, FormClock(model, shared_us, fused_us), example_inputs=x)
    assert len(report.converted) == 5
    assert report.shared_launches == ((("q", "k", "v"),) if shares else ())
    assert [layer.name for layer in report.converted if layer.activation == "gelu"] == ["up"] * fuses
    assert type(model.act) is (nn.Identity if fuses else nn.GELU)
    assert ("q, k, v read one tensor: one launch" in str(report)) is shares
    assert "not measured" not in str(report), "the model was timed, and not each of its layers"
    assert ("1 with their activation" in report.summary) is fuses
    assert ("3 in 1 shared launch;" in report.summary) is shares
    told = {layer["name"]: layer for layer in json.loads(json.dumps(report.to_dict()))["converted"]}
    assert told["k"]["one_launch"] == (["q", "k", "v"] if shares else [])
    sparse = {name for name in model.state_dict() if not name.endswith(("offsets", "indices"))}
    assert {name.replace("values", "weight") for name in sparse} == names, "no name but the values' changes"

    again = Encoder()
    convert(again, sparsity=0.75, dense="never", fuse=False)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(x), again(x))
    for trained in (model, again):
        trained(x).square().sum().backward()
    for name, parameter in again.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad)


def test_forms_that_change_results_or_do_not_run_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    merging = Encoder(merges=True)
    x = torch.randn(3, 16)
    report = convert_by(monkeypatch, merging, FormClock(merging, -5.0, -5.0), example_inputs=x)
    assert not report.shared_launches and len(report.converted) == 5
    twice = Encoder()
    twice.hidden = [twice.act]  # another way to the same module, which is no name of it
    real = Encoder.forward

    def forward(self: Any, x: Any) -> Any:
        self.act = self.hidden[0]
        return real(self, x)

    monkeypatch.setattr(Encoder, "forward", forward)
    report = convert_by(monkeypatch, twice, FormClock(twice, 0.0, -5.0), example_inputs=x)
    assert not any(layer.activation == "gelu" for layer in report.converted)


def test_nothing_is_fused_without_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Encoder()
    clock = FormClock(model, -5.0, -5.0)
    report = convert_by(monkeypatch, model, clock, example_inputs=torch.randn(3, 16), fuse=False)
    assert len(report.converted) == 5 and not report.shared_launches
    assert {layer.activation for layer in report.converted} == {"none"}


@pytest.mark.gpu
def test_an_encoder_on_a_gpu_gives_the_same_in_its_forms() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Encoder() for _ in range(2))).cuda().half().eval()
    x = torch.randn(64, 16, device="cuda", dtype=torch.float16)
    report = convert(model, sparsity=0.5, example_inputs=x)
    plain = nn.Sequential(*(Encoder() for _ in range(2))).cuda().half().eval()
    convert(plain, sparsity=0.5, dense="never", fuse=False, exclude=[layer.name for layer in report.dense])
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x), rtol=3e-2, atol=3e-2)


def test_graphs_are_captured_unless_calls_are_to_be_timed() -> None:
    gpu, host = SimpleNamespace(backend="cuda"), backends.emulator_device()
    assert in_situ.TorchClock(gpu).captured
    assert not in_situ.TorchClock(gpu, captures=False).captured
    assert not in_situ.TorchClock(host).captured


@pytest.mark.parametrize(
    ("first", "second", "rounds"),
    [pytest.param(1, 5, FEW, id="lost, which ends it"), pytest.param(5, 1, in_situ.ROUNDS, id="won")],
)
def test_calls_on_the_host_are_timed_by_the_clock_that_times_all(
    first: int, second: int, rounds: int
) -> None:
    arranged: list[int] = []
    found = in_situ.TorchClock(backends.emulator_device()).compare(
        lambda: time.sleep(0.002 * arranged[-1]),
        lambda: arranged.append(first),
        lambda: arranged.append(second),
    )
    assert min(found) >= 2e3 and (found[0] < found[1]) == (first < second)
    assert len(arranged) == 2 * (rounds + 1)


def test_what_the_race_before_captured_is_not_captured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[str] = []

    def graph(_: Any, arrange: Any) -> Any:
        captured.append(arrange)
        return partial(time.sleep, 0.001)

    monkeypatch.setattr(TorchClock, "_graph", staticmethod(graph))
    clock = TorchClock(backends.emulator_device())
    clock.captured = True
    for pair in (("dense", "up"), ("dense", "q"), ("q", "q and k"), ("q and k", "dense")):
        clock.compare(lambda: None, *pair)
    assert captured == ["dense", "up", "q", "q and k", "dense"], "of the race before, and of none earlier"


@pytest.mark.gpu
def test_calls_from_python_decide_where_that_is_asked(model: Model) -> None:
    x = torch.randn(64, 16, device="cuda")
    report = convert(model.cuda(), sparsity=0.9, example_inputs=x, capture=False)
    assert not report.in_situ.captured and report.in_situ.final_us <= report.in_situ.dense_us


@pytest.mark.gpu
def test_captured_graphs_decide_on_a_gpu(model: Model) -> None:
    report = convert(model.cuda(), sparsity=0.9, example_inputs=torch.randn(64, 16, device="cuda"))
    assert report.in_situ.captured and report.in_situ.final_us <= report.in_situ.dense_us


def test_layers_run_no_dense_products_while_they_are_tried(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = FakeClock(model, {"q": 5.0, "k": 5.0, "up": 5.0}), set()

    def compare(run: Any, first: Any, second: Any) -> tuple[float, float]:
        times = FakeClock.compare(clock, run, first, second)
        seen.update(m.pattern.run_dense for m in model.modules() if isinstance(m, SparseLinear))
        return times

    monkeypatch.setattr(clock, "compare", compare)
    convert_by(monkeypatch, model, clock)
    assert seen == {Dense.NEVER} and model.q.pattern.run_dense is Dense.AUTO


def test_groups_that_are_surely_slower_are_not_tried(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelFacts, "is_slower", lambda self, names: names == ("up",))
    clock = FakeClock(model, {"q": 5.0, "k": 5.0, "up": 5.0})
    report = convert_by(monkeypatch, model, clock)
    assert report.in_situ.slower == ("up",) and set(report.in_situ.kept) == {"q", "k"}
    reasons = {layer.name: layer.reason for layer in report.dense}
    assert reasons["up"].startswith("dense is faster") and type(model.up) is nn.Linear
    monkeypatch.setattr(ModelFacts, "is_slower", lambda self, names: True)
    again = Model()
    report = convert_by(monkeypatch, again, FakeClock(again, {}), fuse=False)
    assert report.in_situ.steps == () and "the model takes" not in report.summary
    assert "3 because dense is faster" in report.summary
