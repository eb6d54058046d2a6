"""`tune_model`: what is searched for a call of a model, and what the model is then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from sparsegen.errors import OperandError, PruningError  # noqa: E402
from sparsegen.integrations.torch import InSituTuning, SparseLinear, tune_model  # noqa: E402
from sparsegen.integrations.torch.models import in_situ  # noqa: E402
from sparsegen.integrations.torch.models.model_tuning import ModelPlan  # noqa: E402
from sparsegen.operators import Quantization, ValueType  # noqa: E402
from sparsegen.tuning.model import SearchState  # noqa: E402


class Encoder(nn.Module):
    """Layers of one input, one that is not pruned, and one that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.unused = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.act, self.down = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16, bias=False)
        self.full = nn.Linear(16, 16)
        with torch.no_grad():
            for name, layer in self.named_children():
                if isinstance(layer, nn.Linear) and name != "full":
                    keep = torch.arange(layer.weight.numel()) % 4 == 0
                    layer.weight.mul_(keep.view_as(layer.weight))

    def forward(self, x: Any) -> Any:
        x = self.q(x) * self.k(x) + self.v(x)
        return self.full(self.down(self.act(self.up(x))))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    torch.manual_seed(0)
    return Encoder().eval()


class Prefers:
    """A clock to which every change is a gain."""

    captured = True

    def compare(self, run: Any, first: Any, second: Any) -> tuple[float, float]:
        first()
        run()
        second()
        run()
        return 10.0, 5.0


def products(plan: ModelPlan) -> set[tuple[str, int, str]]:
    return {
        (layer.name, search.problem.n, str(search.problem.epilogue))
        for search in plan.searches
        for layer in search.layers
    }


def test_what_is_searched(model: Encoder) -> None:
    plan = ModelPlan(model, torch.randn(2, 3, 16))
    assert products(plan) == {
        *((name, 6, "bias") for name in ("q", "k", "v", "q + k + v", "up")),
        ("up", 6, "bias_gelu"),
        ("down", 6, "none"),
    }
    shapes = {layer.name: layer.spec.shape for layer in plan.layers}
    assert shapes["q + k + v"] == (48, 16) and "full" not in shapes
    rounded = ModelPlan(model.half(), torch.randn(6, 16).half(), rounding=Quantization(ValueType.INT8))
    assert products(rounded) == {product for product in products(plan) if "+" not in product[0]}
    assert {search.problem.value_type for search in rounded.searches} == {ValueType.INT8}
    assert "zeros, int8, a scale a row, 6 tokens" in rounded.searches[0].in_words
    model.float()
    alone = ModelPlan(model, torch.randn(6, 16), fuse=False, exclude=["q"])
    assert products(alone) == {
        *((name, 6, "bias") for name in ("k", "v", "up")),
        ("down", 6, "none"),
    }
    assert model.act is not None and type(model.q) is nn.Linear, "a plan changes nothing"


def test_it_tunes_decides_and_goes_on(
    model: Encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "another.db"))
    monkeypatch.setattr(in_situ, "TorchClock", lambda *_: Prefers())
    given: dict[str, Any] = {"trials": 1, "baselines": False, "db": tmp_path / "tuning.db"}
    x = torch.randn(6, 16)
    expected = model(x).detach()
    found = tune_model(model, x, exclude=["down", "up"], **given)
    assert [o.state for o in found.searches] == [SearchState.SEARCHED] * 2 and not found.failed
    assert found.report is not None and not found.was_interrupted
    assert [layer.name for layer in found.report.converted] == ["q", "k", "v"]
    reasons = {layer.name: layer.reason for layer in found.report.dense}
    assert reasons["unused"] == "the example inputs do not reach it" and "not pruned" in reasons["full"]
    assert isinstance(model.q, SparseLinear) and model.q.pattern.db == str(tmp_path / "tuning.db")
    assert found.report.converted[0].times[0].sparse_us is not None and "exact" in str(found)
    torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-4)
    assert not (tmp_path / "another.db").exists()

    torch.manual_seed(0)
    again = tune_model(Encoder(), x, exclude=["down", "up"], **given)
    assert {o.state for o in again.searches} == {SearchState.KNOWN}
    assert again.to_dict()["model"]["summary"] == again.report.summary


def test_models_that_cannot_be_tuned(model: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 16)
    with pytest.raises(PruningError, match="no pruned layer"):
        tune_model(model, x, min_sparsity=0.9)
    with pytest.raises(PruningError, match="no linear layer"):
        tune_model(nn.Sequential(nn.ReLU()), x)
    with pytest.raises(PruningError):
        tune_model(7, x)
    with pytest.raises(OperandError, match="example_inputs"):
        tune_model(model, [x])
    with pytest.raises(OperandError, match="float64"):
        tune_model(model.double(), x.double())
    monkeypatch.delenv("SPARSEGEN_DEVICE")
    with pytest.raises(OperandError, match="SPARSEGEN_DEVICE"):
        tune_model(model.float(), x)


def test_ctrl_c_is_an_exception_once_all_is_recorded(
    model: Encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ModelPlan, "tune", lambda *_, **__: InSituTuning((), None))
    with pytest.raises(KeyboardInterrupt):
        tune_model(model, torch.randn(6, 16), db=tmp_path / "tuning.db")
