"""Weights of exported programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparsegen.errors import MatrixError  # noqa: E402
from sparsegen.integrations.torch.exported_program import ExportedWeights  # noqa: E402
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
