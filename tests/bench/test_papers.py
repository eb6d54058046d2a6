"""The papers' studies: each runs small on the emulator, goes on where it stopped, and makes its section of the page."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sparsegen.errors import SparsegenError
from sparsegen.settings import Settings

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")
STUDIES = (
    "uniform_accuracy",
    "uniform_kernels",
    "sputnik_kernels",
    "mobilenet",
    "sparse_transformer",
    "sparsedrop_layer",
    "sparsedrop_training",
    "sparse_dnn",
    "block_convolution",
    "lidar_network",
)


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulator_settings: Settings) -> Path:
    """The place of raw files: the folder of a device in one of results."""
    monkeypatch.syspath_prepend(str(ROOT))
    folder = tmp_path / "results" / "some-device"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SPARSEGEN_RESULTS", str(folder))
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuned.db"))
    return folder


def module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.papers.{name}")


def run(name: str, *arguments: str) -> Any:
    """A study by its command line, small."""
    return CliRunner().invoke(
        module(name).main, ["--device", "emulator", "--tiny", *arguments], catch_exceptions=False
    )


def test_the_page_names_every_study(papers: Path) -> None:
    assert module("page").STUDIES == STUDIES
    for study in module("page").studies():
        assert (study.title, study.claims, study.differs) > ("", (), ()) and study.gpu and study.paper
        assert all(claim.what and claim.value and claim.where for claim in study.claims)


def test_the_page_is_what_the_raw_files_make(papers: Path) -> None:
    done = CliRunner().invoke(module("page").main, ["--check"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_what_was_not_measured_is_said(papers: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    text = module("page").page(tmp_path / "none")
    for study in module("page").studies():
        assert f"Not measured yet: `python -m benchmarks.papers.{study.name} --data DATA`." in text


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_small_and_makes_its_section(name: str, papers: Path, tmp_path: Path) -> None:
    done = run(name)
    assert done.exit_code == 0 and "complete" in done.output, done.output
    study, page = module(name).STUDY, module("page")
    [(file, document)] = page.documents(study, papers.parent).items()
    assert file == papers / f"papers_{name}.json.xz"
    section = page.section(study, {file: document})
    assert study.title in section and "Not measured yet" not in section
    pytest.importorskip("matplotlib")
    picture = tmp_path / "figure.svg"
    assert study.draw(document, picture) == picture.is_file()


def test_a_study_goes_on_where_it_stopped(papers: Path) -> None:
    first = run("lidar_network", "--limit", "-1")
    assert first.exit_code == module("study").INCOMPLETE and "time is up" in first.output
    assert not list(papers.iterdir())
    second = run("lidar_network")
    assert second.exit_code == 0 and "difference" in second.output
    third = run("lidar_network", "--limit", "-1")  # nothing is left to measure
    assert third.exit_code == 0 and "difference" not in third.output
    rows = module("study").read_document(papers / "papers_lidar_network.json.xz")["rows"]
    assert len(rows) == 1 and {"point", "seconds", "state", "measured"} <= rows[0].keys()


def test_data_that_are_missing_are_said(papers: Path, tmp_path: Path) -> None:
    study = module("study")
    setting = study.Setting(study.device_of("cpu"), module("data").Data(tmp_path), True)
    assert setting.device.key == "cpu" and not setting.is_timed
    with pytest.raises(SparsegenError, match=r"no mnist/mnist\.npz in the folder"):
        setting.data.digits(4, 4)


@pytest.mark.parametrize(
    ("ratio", "word"), [(1.2, "ahead"), (1.04, "equal"), (0.97, "equal"), (0.8, "behind")]
)
def test_results_are_named_by_a_rule(ratio: float, word: str, papers: Path) -> None:
    assert word in module("study").result("ours", ratio)
    assert "not measured" in module("study").result("ours", None)


def test_generated_data_have_the_shapes_of_real_ones(papers: Path) -> None:
    data = module("data").Data(None)
    learnt, unseen, what = data.digits(30, 20)
    assert learnt.images.shape == (30, 28, 28) and unseen.labels.shape == (20,) and what == "generated digits"
    assert (
        learnt.images.min() >= 0 and learnt.images.max() <= 1 and (learnt.images[0] != unseen.images[0]).any()
    )
    text, rest, _ = data.text()
    assert len(text) > 8 * len(rest) and text.max() < 128
    points, _ = data.sweep()
    assert points.shape[1] == 3 and len(points) > 1000
