"""Code of the README for PyTorch runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sparsegen  # noqa: E402

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_lines_for_pytorch_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (code,) = (block for block in blocks if "convert(model)" in block)
    assert len(code.splitlines()) <= 8
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64))
    with torch.no_grad():
        model[0].weight[torch.rand(64, 64) < 0.9] = 0
    q, k, v = (torch.randn(1, 2, 512, 64, requires_grad=True) for _ in range(3))
    weight = sparsegen.as_csr(model[0].weight.detach().numpy())
    names: dict[str, Any] = {"model": model, "weight": weight, "q": q, "k": k, "v": v}
    names["x"] = torch.randn(256, 64).numpy()  # the emulator takes NumPy arrays
    exec(compile(code, "README.md", "exec"), names)
    assert "1 sparse, 0 left dense" in capsys.readouterr().out
    expected = names["x"] @ weight.to_scipy().toarray().T
    assert abs(names["y"] - expected).max() < 1e-4
    names["out"].sum().backward()
    assert q.grad is not None and q.grad.abs().sum() > 0
