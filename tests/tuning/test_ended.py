"""`sparsegen.tune` in Python: at once where a search had ended before, with a line on terminals, and Ctrl-C as ever."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.errors import ConfigError
from sparsegen.matrix.generators import random_rows
from sparsegen.settings import Settings
from sparsegen.tuning import tuner
from sparsegen.tuning.loop.ended import Asked
from sparsegen.tuning.loop.status_line import StatusLine
from sparsegen.tuning.report import Budget, Effort
from sparsegen.tuning.search import parts

MATRIX = random_rows(48, 40, 0.2, 0.3, 1)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "t.db"))
    return tmp_path


def _tune(**options: Any) -> Any:
    given = {"n": 8, "trials": 2, "families": ["csr_spmm"], "device": "emulator", "baselines": False}
    return sparsegen.tune(MATRIX, **given | options)


class _Sessions:
    """Counts the searches that begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        real = parts.Session

        def session(*given: Any, **options: Any) -> Any:
            self.begun += 1
            return real(*given, **options)

        monkeypatch.setattr(parts, "Session", session)


def test_a_search_that_ended_is_not_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = _Sessions(monkeypatch)
    first = _tune()
    assert sessions.begun == 1 and "csr_spmm" in repr(first) and len(repr(first)) < 200
    again = _tune()
    assert sessions.begun == 1
    assert again.winner == first.winner and again.counts.resumed and again.space_size == first.space_size
    assert dict(again.pruned) == dict(first.pruned)
    _tune(trials=1)
    assert sessions.begun == 1, "a longer one had ended"
    _tune(trials=3)
    assert sessions.begun == 2, "more is asked for"
    _tune(again=True)
    assert sessions.begun == 3
    html = first._repr_html_()
    assert "<table>" in html and "csr_spmm" in html


def test_notes_are_worth_nothing_without_measurements(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = _Sessions(monkeypatch)
    _tune()
    notes = (Settings.from_environment().cache / "searches").glob("*.json")
    note = max(notes, key=lambda path: path.stat().st_mtime_ns)
    whole = note.read_text()
    for damaged in ("", "[]", "{}", whole[:-5], json.dumps(json.loads(whole) | {"space_size": "x"})):
        note.write_text(damaged)
        before = sessions.begun
        _tune()
        assert sessions.begun == before + 1
    for file in place.glob("t.db*"):
        file.unlink()
    before = sessions.begun
    _tune()
    assert sessions.begun == before + 1, "the measurements are gone"


def test_what_covers_what() -> None:
    options: dict[str, Any] = {"deterministic": False, "sampler": "candidates", "seed": 0, "baselines": True}
    normal = Asked.of(Budget(), None, **options)
    quick = Asked.of(Budget(effort=Effort.QUICK), None, **options)
    assert normal.covers(normal) and normal.covers(quick) and not quick.covers(normal)
    for change in ({"families": ("csr_spmm",)}, {"deterministic": True}, {"seed": 1}, {"baselines": False}):
        assert not normal.covers(replace(normal, **change))


def test_ctrl_c_is_a_keyboard_interrupt_after_all_is_recorded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tuner.tune

    def interrupted(*given: Any, **options: Any) -> Any:
        return replace(real(*given, **options), was_interrupted=True)

    monkeypatch.setattr(tuner, "tune", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _tune()
    choice = sparsegen.lookup(MATRIX, n=8, device="emulator")
    assert "measured" in choice.explain() or choice.expected_us is not None


def test_progress_is_a_line_on_terminals_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "ascii"

        def isatty(self) -> bool:
            return True

    shown, piped = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    _tune()
    assert (
        "\rsparsegen: " in shown.getvalue()
        and shown.getvalue().endswith("\r")
        and "tried" in shown.getvalue()
    )
    monkeypatch.setattr("sys.stderr", piped)
    _tune(trials=3)
    assert "sparsegen:" not in piped.getvalue()
    assert StatusLine.of_standard_error() is None
    with pytest.raises(ConfigError, match="is no function"):
        _tune(progress=3)
    told: list[Any] = []
    _tune(trials=4, progress=lambda status, measurement=None: told.append(status))
    assert told


def test_reprs_are_lines() -> None:
    op = sparsegen.prepare(MATRIX, n=8, device="emulator", family="csr_spmm")
    network = sparsegen.SparseNetwork([MATRIX], bias=-0.1)
    pruned = sparsegen.prune(np.random.default_rng(0).random((64, 64)), sparsity=0.5)
    attention = [
        sparsegen.prepare_attention(
            MATRIX,
            head_dim=16,
            heads=heads,
            dtype="float16",
            implementation=implementation,
            device="emulator",
        )
        for heads, implementation in ((None, "steps"), (2, "fused"))
    ]
    lines = (MATRIX, op, op.choice, network, network.network, pruned, pruned.report, *attention)
    for made in lines:
        said = repr(made)
        assert said.startswith(f"<{type(made).__name__}: ") and "\n" not in said and len(said) < 250
    assert "csr_spmm" in repr(op) and "48 × 40" in repr(MATRIX) and "csr_spmm (named)" in repr(op.choice)
    assert "50.0% of 4096 weights" in repr(pruned) and "2 heads, head_dim 16, float16" in repr(attention[1])


def test_reprs_of_models_are_lines() -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.integrations import torch as integration

    report = integration.convert(
        torch.nn.Sequential(torch.nn.Linear(64, 64)), "unstructured", 0.9, dense="never"
    )
    assert repr(report).startswith("<ConversionReport: 1 ") and "\n" not in repr(report)
    tuned = integration.InSituTuning((), report)
    assert repr(tuned).startswith("<InSituTuning: 0 searches, 1 ")
    mask = integration.draw_block_mask((64, 64), 32, 0.5)
    assert repr(mask) == "<BlockMaskTensor: a mask of 64 × 64 places in blocks of 32 × 32, on cpu>"
    assert repr(integration.MaskSource(block=8)) == "MaskSource(block=8x8, margin=0)"
