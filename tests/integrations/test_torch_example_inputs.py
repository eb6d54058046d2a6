"""Example inputs from files and functions, and what is said of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from sparsegen.errors import MatrixError, OperandError  # noqa: E402
from sparsegen.integrations.torch.calls.example_inputs import (  # noqa: E402
    arguments_of,
    called,
    is_object,
    read_example_inputs,
)

CPU = torch.device("cpu")
HALF = nn.Linear(4, 4).half()


def read(path: Path | str, model: Any = HALF) -> Any:
    return read_example_inputs(str(path), model, CPU)


def test_numpy_files(tmp_path: Path) -> None:
    x, ids = np.ones((2, 4), np.float32), np.arange(3)
    np.save(tmp_path / "one.npy", x)
    one = read(tmp_path / "one.npy")
    assert one.dtype is torch.float16 and one.shape == (2, 4)
    np.savez(tmp_path / "more.npz", x, ids)
    first, second = read(tmp_path / "more.npz")
    assert first.dtype is torch.float16 and second.dtype is torch.int64
    np.savez(tmp_path / "named.npz", x=x, ids=ids)
    assert set(read(tmp_path / "named.npz")) == {"x", "ids"}
    assert read(tmp_path / "one.npy", nn.ReLU()).dtype is torch.float32


@pytest.mark.parametrize(
    "given", [torch.ones(2), (torch.ones(2), 3), {"x": torch.ones(2), "deep": [1, None]}]
)
def test_files_of_pytorch(tmp_path: Path, given: Any) -> None:
    torch.save(given, tmp_path / "inputs.pt")
    found = read(tmp_path / "inputs.pt")
    assert type(found) is type(given) and str(found) == str(given)
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    assert isinstance(read(tmp_path / "list.pt"), tuple)


def test_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_here.py").write_text(
        "import torch\nclass Of:\n    x = staticmethod(lambda: torch.ones(3))\n"
        "def fails():\n    raise LookupError('its own')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_object("made_here:Of.x") and not is_object("C:/file.npz") and not is_object("file.npz")
    assert torch.equal(read("made_here:Of.x"), torch.ones(3))
    with pytest.raises(LookupError, match="its own"):
        called("made_here:fails")
    for text, said in (("nowhere_at_all:f", "PYTHONPATH"), ("made_here:g", "no function 'g'")):
        with pytest.raises(OperandError, match=said):
            called(text)


def test_files_that_hold_none(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="no such file"):
        read(tmp_path / "missing.npz")
    with pytest.raises(OperandError, match=r"\.npz, \.npy, \.pt"):
        read(tmp_path / "inputs.bin")
    for name in ("broken.npz", "broken.npy", "broken.pt"):
        (tmp_path / name).write_bytes(b"PK\3\4 nothing")
        with pytest.raises(MatrixError, match="no example inputs"):
            read(tmp_path / name)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(MatrixError, match="no example inputs"):
        read(tmp_path / "objects.npy")
    torch.save(nn.ReLU(), tmp_path / "code.pt")
    with pytest.raises(MatrixError, match="no example inputs"):
        read(tmp_path / "code.pt")


def test_arguments_of_a_call() -> None:
    x = torch.ones(2)
    assert arguments_of(x) == ((x,), {}) and arguments_of((x, 1)) == ((x, 1), {})
    assert arguments_of({"x": x}) == ((), {"x": x})
    for wrong in (None, (), [x], {1: x}):
        with pytest.raises(OperandError, match="example_inputs"):
            arguments_of(wrong)
