"""Exported programs: their weights, and models that run and can be converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparsegen.errors import MatrixError  # noqa: E402
from sparsegen.integrations.torch import convert  # noqa: E402
from sparsegen.integrations.torch.models import in_situ  # noqa: E402
from sparsegen.integrations.torch.models.exported_program import ExportedWeights, exported_model  # noqa: E402
from sparsegen.pruning.pruned_layers import matrix_of, pruned_layers  # noqa: E402


def test_pruned_layers_are_found(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).bfloat16()
    with torch.no_grad():
        model[0].weight.masked_fill_(torch.arange(16) % 4 != 0, 0)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (torch.zeros(1, 16, dtype=torch.bfloat16),)), path)
    weights = ExportedWeights(path)
    assert weights.source == str(path)
    found = pruned_layers(weights)
    (layer,) = found.layers
    assert (layer.name, layer.spec.shape, layer.spec.dtype) == ("0.weight", (8, 16), "torch.bfloat16")
    assert {other.name for other in found.others} == {"0.bias", "2.weight", "2.bias"}
    expected = model[0].weight.detach().float().numpy()
    assert np.array_equal(matrix_of(weights, layer).to_scipy().toarray(), expected)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x80\x02no pickle"])
def test_what_is_no_program_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(MatrixError, match=r"model\.pt2"):
        ExportedWeights(path)
    with pytest.raises(MatrixError, match="no such file"):
        ExportedWeights(tmp_path / "other.pt2")
    with pytest.raises(MatrixError, match=r"model\.pt2"):
        exported_model(path)


class Model(torch.nn.Module):
    """Layers with and without a bias and called twice, activations of all kinds, and a weight with two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8, bias=False)
        )
        self.twice = torch.nn.Linear(8, 8)
        self.table = torch.nn.Embedding(8, 8)
        self.tied = torch.nn.Linear(8, 8)
        self.tied.weight = self.table.weight

    def forward(self, x: Any, ids: Any) -> Any:
        x = torch.nn.functional.gelu(self.twice(torch.relu(self.twice(self.first(x)))), approximate="tanh")
        return {"found": self.tied(x + self.table(ids))}


class Prefers:
    """A clock to which every change is a gain."""

    captured = True

    def compare(self, run: Any, first: Any, second: Any) -> tuple[float, float]:
        return 10.0, 5.0


def test_a_model_has_modules_in_the_place_of_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARSEGEN_DEVICE", raising=False)
    torch.manual_seed(0)
    model, x, ids = Model().eval(), torch.randn(3, 8), torch.tensor([1, 0, 1])
    torch.export.save(torch.export.export(model, (x, ids)), tmp_path / "model.pt2")
    loaded = exported_model(tmp_path / "model.pt2").eval()
    linears = {name for name, m in loaded.named_modules() if isinstance(m, torch.nn.Linear)}
    assert linears == {"first.0", "first.2", "twice"}
    assert loaded.state_dict().keys() >= {"first.0.weight", "twice.bias", "table.weight"}
    expected = model(x, ids)["found"]
    torch.testing.assert_close(loaded(x, ids)["found"], expected)

    monkeypatch.setattr(in_situ, "TorchClock", lambda *_: Prefers())
    report = convert(loaded, sparsity=0.5, example_inputs=(x, ids))
    assert {layer.name for layer in report.converted} == linears
    again = exported_model(tmp_path / "model.pt2").train()
    convert(again, sparsity=0.5, dense="never")
    torch.testing.assert_close(loaded(x, ids)["found"], again(x, ids)["found"])
