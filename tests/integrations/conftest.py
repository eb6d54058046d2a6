"""Devices of these tests' layers."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["cpu", "emulator"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> str:
    """PyTorch's own products, and the kernels in the emulator."""
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    if request.param == "emulator":
        monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    else:
        monkeypatch.delenv("SPARSEGEN_DEVICE", raising=False)
    return str(request.param)
