"""`python -m benchmarks.samplers`: recorded on a fake device, resumed, made up, and compared."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest
import tuning_fakes
from click.testing import CliRunner
from tuning_fakes import DEVICE, PROBLEM, backend

from benchmarks import fitting, recording
from benchmarks.recording import Recording, Tried
from benchmarks.replay import Comparison
from sparsegen.tuning.prediction.model import CostModel
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning_db.records import Outcome, Workload

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package
pytest.importorskip("matplotlib")
from benchmarks import cost_model, samplers
from benchmarks.sampler_counts import Count, Counts, Key
from benchmarks.samplers import H100, PAIRS, Pair

TOY = Pair("toy", PROBLEM, ("toy",), density=0.25)


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    yield from tuning_fakes.toy_installed(monkeypatch, tmp_path)


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
    with pytest.raises(click.ClickException, match=f"is of {DEVICE.name}, not of {H100.name}"):
        samplers.record_all([TOY], H100, db, output, 60.0)


@pytest.mark.usefixtures("_toy")
def test_one_space_is_recorded_into_a_file_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, other = tmp_path / "recorded.json.xz", Pair("other", PROBLEM, ("toy",), density=0.5)
    made = partial(backend, tmp_path, jobs=1)
    assert samplers.record_all([TOY], DEVICE, tmp_path / "a.db", output, 60.0, made()) == []
    (before,) = recording.read(output)
    assert samplers.record_all([other], DEVICE, tmp_path / "b.db", output, 60.0, made()) == []
    assert [r.name for r in recording.read(output)] == ["toy", "other"]
    assert recording.read(output)[0] == before
    asked: list[list[str]] = []
    monkeypatch.setattr(samplers, "find_device", lambda _: H100)
    monkeypatch.setattr(
        samplers, "record_all", lambda pairs, *_: asked.append([p.name for p in pairs]) or ["that"]
    )
    options = ["record", "--db", "x.db", "-o", str(output), "--space", "row_softmax fp16"]
    told = CliRunner().invoke(samplers.main, options)
    assert asked == [["row_softmax fp16"]] and "not complete: that" in told.output


@pytest.mark.usefixtures("_toy")
def test_a_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    output, file = tmp_path / "recorded.json.xz", tmp_path / "kept.json"
    assert (
        samplers.record_all([TOY], DEVICE, tmp_path / "a.db", output, 60.0, backend(tmp_path, jobs=1)) == []
    )
    recordings = recording.read(output)

    def compared(seeds: int, most: int, expected: dict[str, list[float]]) -> tuple[Comparison, set[Key]]:
        counts = Counts(file)
        known = set(counts.found)
        names = (SamplerName.CANDIDATES, SamplerName.RANDOM)
        found = samplers.compare_all(recordings, names, seeds, most, counts, expected)
        return found, set(counts.found) - known

    first, made = compared(2, 12, {})
    assert len(made) == 4 and {key[2] for key in made} == {"candidates unaided", "random"}
    again, made = compared(2, 12, {})
    assert again == first and not made
    less, made = compared(2, 1, {})
    assert not made and less.median("toy", SamplerName.RANDOM) == 1
    times = [t.time_us or math.inf for t in recordings[0].tried]
    aided, made = compared(3, 12, {"toy": times})
    assert {key[2] for key in made} == {"candidates", "random"} and len(made) == 4
    assert aided.median("toy", SamplerName.CANDIDATES) <= 2  # the start, and what is known to be the best


def test_a_search_that_was_given_up_is_made_again_with_more_trials() -> None:
    key, counts = ("space", "digest", "random", 0), Counts()
    assert counts.is_missing(key, 10)
    counts.add(Count(*key, most=10, trials=None, seconds=1.0))
    assert not counts.is_missing(key, 10) and not counts.is_missing(key, 5) and counts.is_missing(key, 11)
    counts.add(Count(*key, most=20, trials=15, seconds=1.0))
    assert not counts.is_missing(key, 400)
    assert counts.found[key].within(14) == math.inf and counts.found[key].within(15) == 15


def test_what_is_expected_is_fitted_to_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    packaged, usual = cost_model.packaged_evidence()
    pair = next(p for p in PAIRS if p.name == "panel_spmm fp32 n=256")
    assert any(v.workload.problem.matrix_shape == pair.problem.matrix_shape for v in packaged)
    some = [v for v in packaged if v.config.family_name == "panel_spmm"][::4]
    monkeypatch.setattr(cost_model, "evidence", lambda: (some, usual))
    used: list[fitting.Known] = []

    def fit(variants: list[fitting.Known], registers: int) -> CostModel:
        used.extend(variants)
        return real(variants, registers)

    real = fitting.fit
    monkeypatch.setattr(fitting, "fit", fit)
    config = some[0].config
    made = Recording("one", Workload.of(pair.problem, pair.matrix()), H100, (Tried(config, Outcome.OK, 5.0),))
    (found,) = samplers.held_out_times([made])["one"]
    assert 0.0 < found < math.inf
    assert used and all(v.workload.problem.matrix_shape != pair.problem.matrix_shape for v in used)


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
    options = ["--seeds", "2", "--most", "60", "--sampler", "candidates", "--sampler", "random", "--unaided"]
    shown = run(samplers.main, ["compare", str(file), *options, "--plot", str(picture), "--json"])
    found = json.loads(shown.stdout)
    assert found["times"] == "made-up times" and "of the trials of random" in found["conclusion"]
    assert {len(counts) for counts in found["trials"][pair.name].values()} == {2}
    assert picture.read_text().startswith("<?xml")
    text = run(samplers.main, ["compare", str(file), *options]).stdout
    assert "geometric mean" in text and "made-up times, 2 starts: candidates needs" in text.replace("\n", " ")
