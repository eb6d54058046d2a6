"""``sparsegen tune``: on the emulator, from a file to a recorded variant; and what its display says."""

from __future__ import annotations

import json
import shlex
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from click.testing import CliRunner, Result
from rich.console import Console
from toy_searches import WORKLOAD, timed
from tuning_fakes import DEVICE, MATRIX, PROBLEM

import sparsegen
from sparsegen.cli.main import cli
from sparsegen.cli.parts import progress
from sparsegen.matrix.generators import random_uniform
from sparsegen.settings import Settings
from sparsegen.tuning.report import Counts, Phase, Status
from sparsegen.tuning_db.records import Baseline, Sample


@pytest.fixture(autouse=True)
def shared_cache(monkeypatch: pytest.MonkeyPatch, emulator_settings: Settings) -> None:
    """The emulator's runtime is compiled once for all tests."""
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))


@pytest.fixture
def tune(tmp_path: Path):  # type: ignore[no-untyped-def]
    path = tmp_path / "w.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(random_uniform(32, 48, 0.2, seed=0).to_scipy()))

    def run(*options: str) -> Result:
        fixed = ["tune", "--matrix", str(path), "-n", "8", "--device", "emulator", "--trials", "2"]
        return CliRunner().invoke(cli, [*fixed, "--db", str(tmp_path / "t.db"), *options])

    return run


def test_it_tunes_and_resumes_on_the_emulator(tune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = tune("--family", "csr_spmm")
    assert result.exit_code == 0, result.output
    assert "proves that a variant is correct" in result.stderr
    assert "searching" in result.stderr  # plain lines, as stderr is no terminal
    assert "csr_spmm: tile_n=" in result.stdout and "worst error" in result.stdout
    assert "2 measured" in result.stdout and "they need a CUDA device" in result.stdout
    assert "sparsegen lookup --matrix" in result.stdout and "sparsegen source --matrix" in result.stdout

    again = tune("--family", "csr_spmm", "--json")
    assert again.exit_code == 0 and again.stderr == ""
    data = json.loads(again.stdout)
    assert data["trials"]["resumed"] == 2 and data["trials"]["done"] == 0
    assert data["winner"]["family"] == "csr_spmm" and data["winner"]["worst_error"] <= 1.0
    assert data["winner"]["gflops"] > 0 and data["database"] == str(tmp_path / "t.db")


def test_each_combination_is_a_search_on_some_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_EMULATORS", "2")
    path = tmp_path / "w.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(random_uniform(32, 48, 0.2, seed=0).to_scipy()))
    options = ["tune", "--matrix", str(path), "-n", "8", "-n", "16", "--trials", "1", "--family", "csr_spmm"]
    options += ["--devices", "emulator,emulator:1", "--db", str(tmp_path / "t.db")]
    found = json.loads(CliRunner().invoke(cli, [*options, "--json"]).stdout)
    assert [search["problem"]["n"] for search in found["searches"]] == [8, 16]
    assert found["unfinished"] == [] and found["interrupted"] is False
    assert all(search["trials"]["done"] == 1 for search in found["searches"])

    text = CliRunner().invoke(cli, options)
    assert text.exit_code == 0 and text.stdout.count("1 known from before") == 2
    assert "[2 of 2]" in text.stderr and "on emulator:1" in text.stderr
    assert "proves that a variant is correct" in text.stderr and "-n 16" in text.stdout

    wrong = CliRunner().invoke(cli, [*options, "--family", "nonesuch", "--json"])
    assert wrong.exit_code == 3 and "nonesuch" in wrong.stdout


OPTIONS = {
    "sddmm": [],
    "sparse_softmax": [],
    "sparse_softmax_backward": [],
    "sparse_attention": ["--dtype", "float16", "-k", "16", "--heads", "2"],
    "sparse_network": ["--dtype", "float16", "-n", "20"],
}


@pytest.mark.parametrize("operator", OPTIONS)
def test_other_operators_are_tuned_and_found(tmp_path: Path, operator: str) -> None:
    path = tmp_path / "w.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(random_uniform(32, 48, 0.2, seed=0).to_scipy()))
    place = ["--device", "emulator", "--db", str(tmp_path / "t.db")]
    options = ["tune", "--matrix", str(path), "--operator", operator, *place, "--trials", "2", "--json"]
    options += OPTIONS[operator]
    result = CliRunner().invoke(cli, options)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["problem"]["operator"] == operator and data["winner"]["worst_error"] <= 1.0
    assert f"tuning times none for {operator}" in data["baselines_skipped"]
    found = CliRunner().invoke(cli, [*shlex.split(data["lookup"])[1:], "--json"])
    assert json.loads(found.stdout)["how"] == "exact", found.output
    listed = CliRunner().invoke(cli, ["db", "list", "--db", str(tmp_path / "t.db")])
    assert operator in listed.stdout


def test_batches_are_tuned_and_found(  # type: ignore[no-untyped-def]
    tune, tmp_path: Path, emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    result = tune("--batch", "3", "--item-values", "own", "--family", "csr_spmm", "--trials", "1", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["problem"]["batch"] == 3 and data["winner"]["worst_error"] <= 1.0
    assert "--item-values own --batch 3" in data["lookup"]
    found = json.loads(CliRunner().invoke(cli, [*shlex.split(data["lookup"])[1:], "--json"]).stdout)
    assert found["how"] == "exact" and found["problem"]["item_values"] == "own"
    listed = CliRunner().invoke(cli, ["db", "list", "--db", str(tmp_path / "t.db")], env={"COLUMNS": "300"})
    assert "batch=3" in listed.stdout and "item_values=own" in listed.stdout


def test_what_was_made_of_the_file_is_found_and_computed_again(tmp_path: Path) -> None:
    square = random_uniform(32, 32, 0.2, seed=0).to_scipy().copy()
    square.data[::7] = 0.0
    path = tmp_path / "w.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(square))
    options = ["tune", "--matrix", str(path), "-n", "8", "--device", "emulator", "--trials", "1"]
    options += [
        "--drop-zeros",
        "--transpose",
        "--family",
        "csr_spmm",
        "--db",
        str(tmp_path / "t.db"),
        "--json",
    ]
    data = json.loads(CliRunner().invoke(cli, options).stdout)
    found = json.loads(CliRunner().invoke(cli, [*shlex.split(data["lookup"])[1:], "--json"]).stdout)
    assert found["how"] == "exact"
    operator = eval(data["prepare"], {"sparsegen": sparsegen, "matrix": sparsegen.load_matrix(path)})
    b = np.random.default_rng(0).standard_normal((32, 8), dtype=np.float32)
    np.testing.assert_allclose(operator(b), square.T @ b, rtol=1e-4, atol=1e-5)


def test_an_unknown_family_is_bad_input(tune) -> None:  # type: ignore[no-untyped-def]
    result = tune("--family", "nonesuch", "--json")
    assert result.exit_code == 3
    assert "nonesuch" in json.loads(result.stdout)["error"]["message"]


def test_a_budget_of_nothing_is_wrong_usage(tune) -> None:  # type: ignore[no-untyped-def]
    assert tune("--budget", "0").exit_code == 2


def status(**changes: object) -> Status:
    baselines = (
        Baseline(WORKLOAD, DEVICE, "cublas", "1", Sample(5.0, 5.0, 5.0, 30)),
        Baseline(WORKLOAD, DEVICE, "cusparse", "1", Sample(30.0, 30.0, 30.0, 30)),
    )
    fields = {
        "workload": WORKLOAD,
        "phase": Phase.SEARCHING,
        "counts": Counts(done=7, failed=2, resumed=1, pruned=40),
        "planned": 50,
        "best": timed(10.0, 8),
        "baselines": baselines,
        "seconds": 3.0,
        "seconds_left": 12.0,
    }
    return Status(**(fields | changes))  # type: ignore[arg-type]


def test_the_display_says_how_far_and_how_fast() -> None:
    assert dict(progress.facts(status())) == {
        "best": "10 µs",
        "GFLOP/s": f"{2 * MATRIX.nnz * 8 / 10e3:.3g}",
        "GB/s": f"{PROBLEM.cost(MATRIX.nnz).bytes / 10e3:.3g}",
        "× dense": "0.50",
        "× cuSPARSE": "3.00",
        "trials": "10 of 50",
        "failed": "2",
        "resumed": "1",
        "pruned": "40",
        "time left": "12 s",
    }
    out = StringIO()
    Console(file=out, width=120).print(progress.panel(status()))
    assert "searching" in out.getvalue() and "toy size=8" in out.getvalue()
    Console(file=out, width=120).print(progress.panel(status(best=None, seconds_left=float("inf"))))


def test_plain_lines_come_with_news_and_else_once_a_second() -> None:
    lines: list[str] = []
    show = progress.plain_lines(lines.append)
    show(status(seconds=1.0))
    show(status(seconds=1.5))  # nothing new
    assert len(lines) == 1
    show(status(seconds=1.6, best=timed(9.0, 8)))
    show(status(seconds=2.7, best=timed(9.0, 8)))
    show(status(seconds=2.8, best=timed(9.0, 8), phase=Phase.FINALISTS))
    assert len(lines) == 4 and "finalists" in lines[-1]
