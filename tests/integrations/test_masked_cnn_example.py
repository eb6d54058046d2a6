"""The example of masked CNNs: it runs, and the edited image is the dense network's."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "masked_cnn.py"


def test_the_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "masked_cnn.png"
    given = ["masked_cnn.py", "--size", "256", "--channels", "4", "--scenes", "1", "--picture", str(picture)]
    monkeypatch.setattr("sys.argv", given)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    told = capsys.readouterr().out
    live = [float(share) for share in re.findall(r"([\d.]+)% of the blocks live", told)]
    errors = [float(error) for error in re.findall(r"relative error (\S+) at", told)]
    assert "7 convolutions follow the mask, 0 are dense" in told
    assert all(0 < share < 100 for share in live) and len(live) == len(errors) == 2
    assert errors[0] < 0.5, "SBNet's way: zeros outside of the mask, where the dense network has its biases"
    assert errors[1] < 1e-3, "what the edit reaches was computed"
    assert picture.read_bytes().startswith(b"\x89PNG")
