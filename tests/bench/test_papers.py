"""The papers' studies: each runs small on the emulator, goes on where it stopped, and makes its section of the page."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_samples
import numpy as np
import pytest
from click import ClickException
from click.testing import CliRunner

from sparsegen.errors import SparsegenError
from sparsegen.kernels import family
from sparsegen.kernels.network.staged_network import StagedNetworkConfig
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.operators import DType, SparseNetworkProblem
from sparsegen.settings import Settings
from sparsegen.system.publish import publish_text

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")
STUDIES = (
    "uniform_accuracy",
    "uniform_kernels",
    "sputnik_kernels",
    "sputnik_matrices",
    "mobilenet",
    "sparse_transformer",
    "sparsedrop_layer",
    "sparsedrop_training",
    "sparse_dnn",
    "sparse_dnn_kernels",
    "sparse_dnn_padding",
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


def minute() -> Any:
    return module("budget").Budget.of(60)


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
        assert f"Not measured yet: `{study.invocation}`." in text
        assert study.invocation.startswith(f"python -m benchmarks.papers.{study.name} --")


def test_rows_of_times_say_what_is_behind(papers: Path) -> None:
    """Each table of a study that times ours beside others says so in a column of its own."""
    untimed = {"uniform_accuracy", "sparse_dnn_padding", "sparsedrop_training"}
    for study in module("page").studies():
        for document in module("page").documents(study, ROOT / "benchmarks" / "results").values():
            head, _, *rows = (line.split(" | ") for line in study.table(document).splitlines() if line)
            columns = [number for number, name in enumerate(head) if "beside" in name]
            assert columns or study.name in untimed
            words = {row[number].strip(" |") for row in rows if len(row) == len(head) for number in columns}
            assert words <= {"ahead", "equal", "**behind**", "not measured yet", "–"}, study.name


def test_everything_behind_says_why(papers: Path) -> None:
    """Each row and result that is behind stands once more, with a cause that its study finds in the raw file."""
    page, reasons = module("page"), module("reasons")
    causes = 0
    for study in page.studies():
        for file, document in page.documents(study, ROOT / "benchmarks" / "results").items():
            told = reasons.reasons(study, document)
            section = page.section(study, {file: document})
            for name in reasons.names_behind(study, document):
                (cause,) = (one for one in told if f"{name};" in one or f"{name}: " in one)
                assert f"- Behind, {cause}" in section and cause.endswith(".")
                assert study.why(document, name) in cause
            assert (reasons.BEHIND in section) == bool(told), study.name
            causes += len(told)
    assert causes >= 5


def test_causes_are_told_by_the_rows_that_dense_wins() -> None:
    reasons = module("reasons")

    def row(ours: float, dense: float, name: str) -> Any:
        made = bench_samples.row(ours=ours, dense=dense)
        first = replace(made.cells[0], variant=family(name).config())
        return replace(made, cells=(first, *made.cells[1:]))

    short, tiled, gathered = (row(9, 8, "mma_spmm"), row(40, 30, "bitmap_spmm"), row(90, 80, "csr_spmm"))
    ahead = row(5, 10, "mma_spmm")
    assert reasons.why_dense_wins([ahead], "cublas") == "by little in each row"
    only = reasons.why_dense_wins([short, ahead], "cublas")
    assert only == "it is launch-bound: dense takes 8.0 µs, ours 9.0, an empty kernel some 4"
    found = reasons.why_dense_wins([short, tiled, gathered, ahead], "cublas").split(", and ")
    kinds = ("launch-bound: dense", "unpacked to tiles", "gathered through")
    for one, kind in zip(found, kinds, strict=True):
        assert one.startswith(f"1 of 3 rows that dense wins are {kind}")


def test_what_was_measured_before_stands_with_its_outcome(papers: Path) -> None:
    earlier = module("earlier")
    raw = papers.parent / "other" / "times.json.xz"
    raw.parent.mkdir()
    rows = [
        {"size": 1, "theirs": 8, "ours": 2},
        {"size": 1, "theirs": 1, "ours": 1},
        {"size": 2, "theirs": 1, "ours": 9},
    ]
    publish_text(raw, json.dumps({"rows": rows}))

    def line(name: str, size: int) -> Any:
        return earlier.Earlier(
            "ours", "2 ×", name, earlier.of_rows("theirs", "ours", size=size), "lidar_network"
        )

    lines = (line("other/times", 1), line("other/times", 2), line("other/none", 1))
    found, _, told = earlier.earlier_table(lines, papers.parent).partition("\n\n")
    assert told == "- Behind, ours: why was not looked into yet."
    found = found.splitlines()[2:]
    assert [one.split(" | ")[2:4] for one in found] == [
        ["2.00 ×", "ahead"], ["0.11 ×", "**behind**"], ["–", "not measured yet"],
    ]  # fmt: skip
    assert {one.study for paper in module("page").PAPERS for one in paper.before} <= set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs_small_and_makes_its_section(name: str, papers: Path, tmp_path: Path) -> None:
    done = run(name)
    assert done.exit_code == 0 and "complete" in done.output, done.output
    study, page = module(name).STUDY, module("page")
    [(file, document)] = page.documents(study, papers.parent).items()
    assert file == papers / f"papers_{name}.json.xz"
    section = page.section(study, {file: document})
    assert study.title in section and "Not measured yet" not in section
    for held in range(1, len(document["rows"])):
        some = {**document, "rows": document["rows"][:held]}
        assert f"\n{held} row" in page.section(study, {file: some})
    [turn] = module("study").read_document(papers / "papers_turns.json.xz")["rows"]
    assert (turn["study"], turn["left"], turn["expected_left_seconds"]) == (name, 0, 0)
    assert turn["rows"] >= 1 and turn["seconds"] > 0 and turn["expected_seconds"] > module("budget").START
    pytest.importorskip("matplotlib")
    picture = tmp_path / "figure.svg"
    assert study.draw(document, picture) == picture.is_file()


@pytest.mark.parametrize("limit", [("--limit", "-1"), ("--within", "1")])
def test_a_study_goes_on_where_it_stopped(limit: tuple[str, str], papers: Path) -> None:
    first = run("lidar_network", *limit)
    assert first.exit_code == module("study").INCOMPLETE and "time is up" in first.output
    assert not list(papers.iterdir())
    second = run("lidar_network")
    assert second.exit_code == 0 and "difference" in second.output
    third = run("lidar_network", "--limit", "-1")  # nothing is left to measure
    assert third.exit_code == 0 and "difference" not in third.output
    rows = module("study").read_document(papers / "papers_lidar_network.json.xz")["rows"]
    assert len(rows) == 1
    assert {"point", "seconds", "expected_seconds", "state", "measured"} <= rows[0].keys()


def test_a_point_that_should_end_too_late_is_passed_over(
    papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, one = module("study"), module("lidar_network").LidarNetwork()
    points = [study.Point(str(seconds), lambda: {"value": 1}, seconds) for seconds in (500.0, 2.0, 400.0)]
    monkeypatch.setattr(one, "points", lambda setting: points)
    setting = study.Setting(study.device_of("emulator"), module("data").Data(None), True)
    budget = module("budget").Budget
    assert not one.run(setting, budget.of(60, 300), again=False)
    assert one.progress(setting) == study.Progress(1, 2, 900.0)
    assert not one.run(setting, budget.of(60), again=False), "the first one may outlast its turn, no other"
    assert one.progress(setting) == study.Progress(2, 1, 400.0)
    assert one.run(setting, budget.of(60), again=False)
    assert one.progress(setting) == study.Progress(3, 0, 0.0)


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "sparse_dnn_padding"])
def test_what_is_expected_needs_no_gpu(name: str, papers: Path) -> None:
    """The first rows of each study, the process's start with them, should take a minute or little more."""
    every = importlib.import_module("benchmarks.papers.__main__")
    setting, study = every._setting("cuda", None, False), module(name).STUDY
    progress = study.progress(setting)
    assert progress.held == 0 and progress.left > 5 and progress.expected > progress.left
    points = [*study.points(setting)]
    assert len({point.name for point in points}) == len(points)
    assert not points or points[0].expected < 60


def test_a_list_of_what_is_left(papers: Path) -> None:
    every = importlib.import_module("benchmarks.papers.__main__")
    words = ["--list", "--study", "lidar_network", "--device", "emulator", "--tiny"]
    found = json.loads(CliRunner().invoke(every.main, [*words, "--json"], catch_exceptions=False).output)
    [told] = found["studies"]
    assert (told["study"], told["held"], told["left"]) == ("lidar_network", 0, 1)
    assert found["whole"]["expected"] == told["expected"] > 0
    assert run("lidar_network").exit_code == 0
    assert "| lidar_network | 1 | 0 | 0 |" in CliRunner().invoke(every.main, words).output
    wrong = CliRunner().invoke(every.main, ["--list", "--study", "sparse_dnn_padding"])
    assert wrong.exit_code == 2 and "no studies that run on cuda" in wrong.output


def test_points_that_fail_are_left_for_last(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, wrong = module("study"), {"first", "third"}

    def measured(name: str) -> dict[str, Any]:
        if name in wrong:
            raise SparsegenError(f"{name} is wrong")
        return {"value": name}

    names = ("first", "second", "third")
    one = module("lidar_network").LidarNetwork()
    monkeypatch.setattr(
        one, "points", lambda setting: [study.Point(n, lambda n=n: measured(n), 1.0) for n in names]
    )
    setting = study.Setting(study.device_of("emulator"), module("data").Data(None), True)
    assert not one.run(setting, minute(), again=False)  # the process ends: its device may be in any state
    assert not one.run(setting, minute(), again=False)  # the second point, and the third fails
    document = study.read_document(papers / "papers_lidar_network.json.xz")
    assert [row["point"] for row in document["rows"]] == ["second"]
    assert document["failed"] == {n: f"SparsegenError: {n} is wrong" for n in ("first", "third")}
    page = module("page")
    ((file, found),) = page.documents(one, papers.parent).items()
    monkeypatch.setattr(one, "table", lambda document: "")
    monkeypatch.setattr(one, "results", lambda document: ())
    assert "- **Failed**: third: SparsegenError: third is wrong" in page.section(one, {file: found})
    wrong.remove("first")
    with pytest.raises(ClickException, match="1 points failed: third: SparsegenError: third is wrong"):
        one.run(setting, minute(), again=False)
    wrong.clear()
    assert one.run(setting, minute(), again=False)
    document = study.read_document(papers / "papers_lidar_network.json.xz")
    assert [row["point"] for row in document["rows"]] == list(names) and "failed" not in document


def test_a_killed_process_leaves_its_point_for_last(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """An end that no study catches, like a signal."""

    study, one = module("study"), module("lidar_network").LidarNetwork()
    done: list[str] = []

    def measured(name: str) -> dict[str, Any]:
        done.append(name)
        if done == ["first"]:
            raise Killed
        return {"value": name}

    points = [study.Point(n, lambda n=n: measured(n), 1.0) for n in ("first", "second")]
    monkeypatch.setattr(one, "points", lambda setting: points)
    setting = study.Setting(study.device_of("emulator"), module("data").Data(None), True)
    with pytest.raises(Killed):
        one.run(setting, minute(), again=False)
    document = study.read_document(papers / "papers_lidar_network.json.xz")
    assert document["failed"] == {"first": study.BROKEN_OFF} and not document["rows"]
    assert not module("page").documents(one, papers.parent)
    assert one.run(setting, minute(), again=False) and done == ["first", "second", "first"]


SIDED = """
import os, signal, time
from benchmarks.papers import lidar_network
from benchmarks.papers.study import Point


def measured(name):
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "wrong":
        raise ValueError("it is wrong")
    if name == "endless":
        time.sleep(600)
    return {"value": name, "process": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}


class Sided(lidar_network.LidarNetwork):
    module = "sided"
    names = ("one", "killed", "two", "wrong", "three", "timed")

    def points(self, setting):
        for name in self.names:
            yield Point(name, lambda name=name: measured(name), 1.0, name == "timed", name[0])


class Endless(Sided):
    module = "endless"
    names = ("one", "endless")


STUDY = Sided()
"""


@pytest.fixture
def sided(papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that other processes find, too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sided", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (tmp_path / "sided.py").write_text(SIDED)
    (tmp_path / "endless.py").write_text("import sided\n\nSTUDY = sided.Endless()\n")
    return importlib.import_module("sided")


def test_points_that_time_nothing_are_measured_side_by_side(sided: Any, papers: Path) -> None:
    """A killed process and a failure cost a point each; what is timed waits until no other runs."""
    study, one = module("study"), sided.Sided()
    setting = study.Setting(study.device_of("emulator"), module("data").Data(None), True)
    assert not one.run(setting, minute(), again=False, together=2)
    document = study.read_document(papers / "papers_lidar_network.json.xz")
    rows = {row["point"]: row for row in document["rows"]}
    assert list(rows) == ["one", "two", "three"]
    assert document["failed"] == {"killed": study.BROKEN_OFF, "wrong": "ValueError: it is wrong"}
    assert {row["threads"] for row in rows.values()} == {"1"} and os.environ["OMP_NUM_THREADS"] == "2"
    assert os.getpid() not in {row["process"] for row in rows.values()}
    assert one.run(setting, minute(), again=False, part="timed")
    document = study.read_document(papers / "papers_lidar_network.json.xz")
    assert document["rows"][-1]["process"] == os.getpid() and document["rows"][-1]["point"] == "timed"


def test_what_is_half_done_when_time_is_up_was_never_begun(sided: Any, papers: Path) -> None:
    study, one = module("study"), sided.Endless()
    setting = study.Setting(study.device_of("emulator"), module("data").Data(None), True)
    while one.progress(setting).held == 0:  # as long as a process needs to begin here
        assert not one.run(setting, module("budget").Budget.of(60, 10), again=False, together=2)
    document = study.read_document(papers / "papers_lidar_network.json.xz")
    assert [row["point"] for row in document["rows"]] == ["one"] and "failed" not in document


@pytest.mark.parametrize("name", ["uniform_accuracy", "sparsedrop_training"])
def test_side_by_side_rows_are_those_of_one_process(
    name: str, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever process measures a point first, its result is the same."""
    study = module("study")
    found = []
    for words in (("--part", "untimed"), ("--together", "2", "--part", "untimed")):
        monkeypatch.setenv("SPARSEGEN_RESULTS", str(papers / words[-2]))
        done = run(name, *words)
        assert done.exit_code == 0 and "what is untimed" in done.output, done.output
        rows = study.read_document(papers / words[-2] / f"papers_{name}.json.xz")["rows"]
        told = ("point", "error", "loss", "accuracy", "curve")
        found.append([{key: row.get(key) for key in told} for row in rows])
    assert found[0] == found[1] and len(found[0]) >= 10


def test_the_time_to_the_best_loss_is_steps_times_that_of_one(papers: Path) -> None:
    """A step of dense products is timed with one p, of masked ones with each."""
    training = module("sparsedrop_training")

    def trained(method: str, p: float, seed: int, loss: float, to_best: int) -> dict[str, Any]:
        named = {"network": "gpt", "method": method, "p": p, "seed": seed}
        return named | {"loss": loss, "accuracy": 0.5, "steps": 900, "steps_to_best": to_best}

    def timed(method: str, p: float, ms: float) -> dict[str, Any]:
        return {"network": "gpt", "method": method, "p": p, "ms_per_step": ms, "tried": 2, "masked": 1}

    rows = [
        trained("dropout", 0.2, 0, 1.6, 500), trained("dropout", 0.4, 0, 1.4, 600),
        trained("dropout", 0.4, 1, 1.5, 800),
        trained("structured dropout", 0.2, 0, 1.5, 400), trained("structured dropout", 0.6, 0, 1.7, 100),
        timed("dropout", 0.5, 4.0), timed("structured dropout", 0.2, 5.0), timed("structured dropout", 0.6, 2.0),
    ]  # fmt: skip
    cells = [line.strip("| ").split(" | ") for line in training.STUDY.table({"rows": rows}).splitlines()[2:]]
    assert [(line[1], line[2], line[5], line[6], line[7], line[8]) for line in cells] == [
        ("0.4", "2", "700 ± 141", "4.00", "2.80", "–"), ("0.2", "1", "400", "5.00", "2.00", "1 of 2"),
    ]  # fmt: skip
    told = training.STUDY.results({"rows": rows})
    assert "GPT: time to the best loss: ahead (1.40 ×)." in told
    assert "GPT: a step is faster than dropout and dense layers from p = 0.6 on." in told


def test_speed_stands_at_the_highest_sparsity_near_dense(papers: Path) -> None:
    study = module("uniform_accuracy")

    def error(pattern: str, sparsity: float, value: float) -> dict[str, Any]:
        return {"network": "resnet", "pattern": pattern, "sparsity": sparsity, "error": value}

    rows = [
        error(study.AGAIN, 0.0, 2.0),
        *(error("uniform", p, e) for p, e in ((0.6, 2.1), (0.7, 2.4), (0.8, 9.0))),
        error("unstructured", 0.9, 8.0),
        *(
            {"layer": "uniform", "sparsity": p, "us": {"ours": us, "cuSPARSE": 40.0, "dense": 20.0}}
            for p, us in ((0.6, 15.0), (0.7, 10.0), (0.8, 5.0))
        ),
    ]
    second = study.STUDY.table({"rows": rows}).split("\n\n")[1]
    lines = [line.strip("| ").split(" | ") for line in second.splitlines()[2:]]
    assert lines == [
        ["resnet, uniform", "70%", "10.00", "40.00", "20.00", "4.00 ×", "2.00 ×", "ahead"],
        ["resnet, unstructured", "–", "–", "–", "–", "–", "–", "–"],
    ]
    assert (
        "resnet: highest uniform sparsity within 0.5 percentage points of dense: 70%."
        in study.STUDY.results({"rows": rows})
    )


def test_a_network_has_one_line_with_its_times_and_categories(papers: Path) -> None:
    study = module("sparse_dnn").STUDY
    of = {"neurons": 1024, "layers": 120, "inputs": 60000, "devices": 1}
    held = of | {"living": 12515, "checked": 60000}
    times = of | {"ms": 5.0, "tera_edges_per_second": 47.2, "seconds_to_prepare": 9.0}
    only = study.table({"rows": [held, times]}).splitlines()[2:]
    assert len(only) == 1 and "12,515 of 60,000" in only[0] and "47.2" in only[0]
    assert study.table({"rows": [held | times]}).splitlines()[2:] == only
    assert len(study.table({"rows": [held, times | {"layers": 480}]}).splitlines()[2:]) == 2


def test_efficiency_is_time_of_one_over_time_of_all_and_their_number(papers: Path) -> None:
    study = module("sparse_dnn").STUDY
    wide = {"neurons": 65536, "layers": 120, "inputs": 60000, "seconds_to_prepare": 9.0}

    def row(devices: int, ms: float, totals: str, **other: Any) -> dict[str, Any]:
        return (
            wide
            | {"devices": devices, "ms": ms, "tera_edges_per_second": 9000.0 / ms, "totals": totals}
            | other
        )

    rows = [row(1, 300.0, "a"), row(2, 160.0, "a"), row(4, 100.0, "b"), row(2, 9.0, "a", layers=480)]
    told = [one for one in study.results({"rows": rows}) if "efficiency" in one]
    assert told == [
        "65536 × 120 on 2 GPUs: efficiency 94%, with the totals of one, over the paper's of 6: ahead (1.07 ×).",
        "65536 × 120 on 4 GPUs: efficiency 75%, **with other totals than one**, over the paper's of 6: "
        "**behind** (0.86 ×).",
    ]
    [cause] = module("reasons").reasons(study, {"rows": rows})
    assert cause.startswith("65536 × 120 on 4 GPUs: efficiency 75%") and "one host sends" in cause
    older = [{**one, "neurons": 1024} for one in rows[:2]]
    older[0].pop("totals")
    assert "1024 × 120 on 2 GPUs: efficiency 94%." in study.results({"rows": older})
    besides = [line.split(" | ")[5] for line in study.table({"rows": rows[:2]}).splitlines()[2:]]
    assert besides == ["ahead", "–"], "two GPUs do not stand beside the paper's one"


def test_networks_run_on_two_devices(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of a machine are found and used, and give the totals of one."""
    networks, study = module("sparse_dnn"), module("study")
    first = study.device_of("emulator")
    both = [first, replace(first, index=1)]
    monkeypatch.setattr(study, "find_devices", lambda names: {"all": both}[names])
    monkeypatch.setattr(networks, "find_devices", lambda names: {"all": both}[names])
    monkeypatch.setattr(study.Setting, "is_timed", property(lambda setting: True))
    monkeypatch.setattr(networks, "_networks", lambda setting: [(256, 6, 48)])
    setting = study.Setting(first, module("data").Data(None), True, len(study.find_devices("all")))
    points = {point.name: point for point in networks.STUDY.points(setting)}
    assert list(points) == ["256 x 6, categories", "256 x 6, 1 devices", "256 x 6, 2 devices"]
    one, two = (points[f"256 x 6, {count} devices"].measure() for count in (1, 2))
    assert (one["devices"], two["devices"]) == (1, 2) and two["ms"] > 0 and one["totals"] == two["totals"]


def test_a_schedule_is_that_of_the_whole_whichever_epochs_remain(papers: Path) -> None:
    """Batches are those that one draw after the other would take; a step moves weights by its own rate."""
    import torch

    steps = module("steps")
    whole = steps.rates(range(4), 5, 4)
    assert whole[0] == steps.RATE and len(whole) == 20 and whole == sorted(whole, reverse=True)
    assert steps.rates(range(2, 4), 5, 4) == whole[10:]
    generator = torch.Generator().manual_seed(3)
    for row in steps.drawn(100, 7, 4, 3):
        assert row.tolist() == torch.randint(100, (7,), generator=generator).tolist()
    model, seen = torch.nn.Linear(2, 1), []

    def loss(one: Any, row: Any) -> Any:
        seen.append((row.tolist(), one.weight.detach().clone()))
        return one(row.float()[None]).sum()

    steps.train(model, loss, torch.ones(3, 2), [1e-2, 1e-4, 0.0])
    moved = [float((b - a).abs().max()) for (_, a), (_, b) in itertools.pairwise(seen)]
    assert moved[0] == pytest.approx(1e-2, rel=0.05) and moved[1] == pytest.approx(1e-4, rel=0.05)
    assert torch.equal(seen[-1][1], model.weight)


def test_a_bench_goes_on_where_it_stopped(papers: Path) -> None:
    first = run("sputnik_kernels", "--limit", "0.001")
    assert first.exit_code == module("study").INCOMPLETE and "complete" not in first.output, first.output
    assert run("sputnik_kernels").exit_code == 0
    again = run("sputnik_kernels")
    assert again.exit_code == 0 and again.output == "sputnik_kernels: complete\n"


def test_padding_is_that_of_packed_networks(papers: Path) -> None:
    network, warps, buffer = radixnet(256, 3), 4, 128
    problem = SparseNetworkProblem(256, 256 + 3, 1, DType.FLOAT32)
    found = module("sparse_dnn_padding").padding(problem, network.layers, warps, buffer)
    by_warp = by_tile = by_layer = 0
    for layer in network.layers:
        tiles = []
        for rows in np.arange(256).reshape(-1, 32 * warps):
            columns = [layer.column_indices[layer.row_offsets[r] : layer.row_offsets[r + 1]] for r in rows]
            staged = np.unique(np.concatenate(columns))
            buffers = [np.searchsorted(staged, of_row) // buffer for of_row in columns]
            for number in range(-(-staged.size // buffer)):
                tiles.append([int((of_row == number).sum()) for of_row in buffers])
        by_warp += sum(32 * max(tile[i : i + 32]) for tile in tiles for i in range(0, len(tile), 32))
        by_tile += sum(len(tile) * max(tile) for tile in tiles)
        by_layer += sum(map(len, tiles)) * max(map(max, tiles))
    weights = sum(layer.nnz for layer in network.layers)
    for name, stored in (("warp", by_warp), ("tile", by_tile), ("layer", by_layer)):
        assert found[name] == pytest.approx(stored / weights - 1, abs=1e-5), name
    config = StagedNetworkConfig(minibatch=4, vector=1, buffer=buffer, warps=warps, order="columns")
    whole = SparseNetworkProblem(3 * 256, 256 + 3, 1, DType.FLOAT32)
    packed = family("staged_network").pack(whole, config, network.stacked(DType.FLOAT32))
    assert packed.arrays["index"].size == by_warp


def test_all_of_them_go_on_until_they_are_complete(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = importlib.import_module("benchmarks.papers.__main__")
    incomplete, killed = module("study").INCOMPLETE, -9
    statuses = {"mobilenet": [incomplete, killed, 0], "lidar_network": [1], "sparse_dnn": [killed] * 9}
    begun: list[list[str]] = []

    def run(words: list[str], check: bool) -> Any:
        begun.append(words[2:])
        left = statuses.get(words[2].rpartition(".")[2], [0])
        return subprocess.CompletedProcess(words, left.pop(0) if left else 0)

    monkeypatch.setattr(every.subprocess, "run", run)
    words = ["--hours", "1", "--data", str(papers)]
    done = CliRunner().invoke(every.main, words, catch_exceptions=False)
    assert done.exit_code == 1 and done.output.endswith("failed: lidar_network, sparse_dnn\n")
    counts = Counter(words[0].rpartition(".")[2] for words in begun)
    again = {"mobilenet": 3, "sparse_dnn": every.MOST_DEATHS}
    assert counts == dict.fromkeys(set(STUDIES) - {"sparse_dnn_padding"}, 1) | again
    assert all(words[1:5] == ["--device", "cuda", "--data", str(papers)] for words in begun)
    turns = [words[6] for words in begun if words[0].endswith("mobilenet")]
    assert turns == ["40", "80", "160"] and begun[0][5::2] == ["--limit", "--within"]
    begun.clear()
    assert CliRunner().invoke(every.main, ["--device", "cpu", "--minutes", "5"]).exit_code == 0
    assert [words[0].rpartition(".")[2] for words in begun] == ["uniform_accuracy", "sparse_dnn_padding"]


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
