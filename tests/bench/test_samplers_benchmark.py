"""`python -m benchmarks.samplers`: recorded on a fake device, resumed, made up, and compared."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tuning_fakes
from click.testing import CliRunner
from tuning_fakes import DEVICE, PROBLEM, backend

from sparsegen.tuning import recording
from sparsegen.tuning_db.records import Outcome

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package
pytest.importorskip("matplotlib")
from benchmarks import samplers
from benchmarks.samplers import H100, PAIRS, Pair

TOY = Pair("toy", PROBLEM, ("toy",), density=0.25)


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path / "cache"))
    tuning_fakes.install(monkeypatch.setattr)
    yield
    tuning_fakes.uninstall()


@pytest.mark.usefixtures("_toy")
def test_a_recording_goes_on_until_it_is_complete(tmp_path: Path) -> None:
    db, output = tmp_path / "recorded.db", tmp_path / "recorded.json.xz"

    def go_on(seconds: float) -> list[str]:
        return samplers.record_all([TOY], DEVICE, db, output, seconds, backend(tmp_path, jobs=1))

    assert go_on(0.01) == ["toy"] and not output.exists()  # three are tried whatever the time
    assert go_on(60.0) == []
    (recorded,) = recording.read(output)
    assert len(recorded.tried) == 12 and recorded.best_us == 10.0 and not recorded.is_modelled
    assert all(t.outcome is Outcome.OK and t.registers == 32 for t in recorded.tried)
    before = output.read_bytes()
    assert go_on(60.0) == [] and output.read_bytes() == before


def test_eight_spaces_are_recorded_in_a_few_minutes() -> None:
    sizes = [len(samplers.space_of(pair, pair.matrix(), H100).candidates) for pair in PAIRS]
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 8 and min(sizes) > 100
    assert sum(sizes) / samplers.VARIANTS_PER_SECOND < 400


@pytest.mark.usefixtures("_toy")
def test_made_up_times_are_compared_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, picture = tmp_path / "made.json.xz", tmp_path / "plot.svg"
    pair = next(p for p in PAIRS if p.name == "panel_spmm fp32 n=256")
    monkeypatch.setattr(samplers, "PAIRS", (pair,))
    run = CliRunner().invoke
    assert run(samplers.main, ["model", "-o", str(file)], catch_exceptions=False).exit_code == 0
    (made,) = recording.read(file)
    assert made.is_modelled and len(made.tried) > 100 and 0.0 < made.best_us < math.inf
    options = ["--seeds", "2", "--most", "60", "--sampler", "candidates", "--sampler", "random"]
    shown = run(samplers.main, ["compare", str(file), *options, "--plot", str(picture), "--json"])
    found = json.loads(shown.stdout)
    assert found["times"] == "made-up times" and "of the trials of random" in found["verdict"]
    assert {len(counts) for counts in found["trials"][pair.name].values()} == {2}
    assert picture.read_text().startswith("<?xml")
    text = run(samplers.main, ["compare", str(file), *options]).stdout
    assert "geometric mean" in text and "made-up times, 2 starts: candidates needs" in text.replace("\n", " ")
