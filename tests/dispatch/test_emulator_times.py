"""The emulator's times: what was measured there, and no prediction for a GPU in its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparsegen
from sparsegen.matrix.generators import random_rows

MATRIX = random_rows(64, 96, 0.2, 0.3, 1)
CASES: list[tuple[Any, dict[str, Any]]] = [
    (MATRIX, {"n": 8}),
    (MATRIX, {"operator": "sddmm", "k": 8}),
    (MATRIX, {"operator": "sparse_softmax"}),
    (
        None,
        {"operator": "dsd", "m": 64, "k": 64, "n": 32, "block": "16x16", "density": 0.5, "dtype": "float16"},
    ),
]


@pytest.mark.parametrize(("matrix", "options"), CASES, ids=lambda case: str(case)[:12])
def test_nothing_is_predicted_for_the_emulator(
    tmp_path: Path, matrix: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "new.db"))
    choice = sparsegen.lookup(matrix, device="emulator", **options)
    assert choice.predicted_us is None and choice.sparse is None and not choice.is_open
    said = sparsegen.prepare(matrix, device="emulator", **options).explain()
    assert "takes" not in said and "predicted" not in said


def test_nor_does_a_network_say_so() -> None:
    net = sparsegen.SparseNetwork([random_rows(32, 32, 0.2, 0.3, 1)], bias=-0.1, device="emulator")
    assert "µs" not in net.explain(8)
