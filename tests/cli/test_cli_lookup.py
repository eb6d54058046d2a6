"""``sparsegen lookup`` and ``sparsegen verify`` on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy.sparse
from command_line import Command

from sparsegen.backends import emulator
from sparsegen.dispatch.chosen import How
from sparsegen.kernels import family
from sparsegen.matrix.features import Features
from sparsegen.matrix.load import load_matrix
from sparsegen.operators import SpmmProblem
from sparsegen.settings import Settings
from sparsegen.tuning_db.records import Baseline, Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "w.npz"
    scipy.sparse.save_npz(path, scipy.sparse.random(40, 64, 0.2, format="csr", random_state=1))
    return path


def test_lookup_says_what_and_why(run: Command, matrix: Path) -> None:
    assert "heuristic" in run("lookup", "--matrix", matrix, "-n", 32).stdout
    found = run.json("lookup", "--matrix", matrix, "-n", 32)
    assert found["how"] == How.DEFAULT and found["problem"]["m"] == 40 and found["neighbours"] == []
    assert found["config"] == family(found["family"]).config(**found["config"]).to_dict()
    assert not run.db.exists(), "a look-up makes no database"


def test_a_database_that_is_named_and_not_there_is_told(run: Command, matrix: Path, tmp_path: Path) -> None:
    asked = ("--matrix", matrix, "-n", 32)
    told = f"There is no database at {tmp_path / 'no.db'}: what comes with sparsegen is asked alone."
    for command in ("lookup", "source"):
        assert told in run(command, *asked, "--db", tmp_path / "no.db").stderr
        assert "no database" not in run(command, *asked).stderr
    assert run.json("lookup", *asked, "--db", tmp_path / "no.db")["how"] == How.DEFAULT


def test_lookup_refuses_to_guess_when_asked(run: Command, matrix: Path) -> None:
    error = run.json("lookup", "--matrix", matrix, "--on-miss", "error", exit_code=5)["error"]
    assert error["type"] == "NoVariantError" and "sparsegen tune" in error["message"]


def test_verify_passes_what_is_right(run: Command, matrix: Path) -> None:
    found = run.json("verify", "--matrix", matrix, "-n", 24, "--rounds", 2, "--inputs-seed", 5)
    assert found["right"] and 0 < found["worst_error_over_bound"] <= 1 and found["inputs_seed"] == 5
    named = run(
        "verify", "--matrix", matrix, "-n", 24, "--family", "csr_spmm", "--config", "row_order=natural"
    )
    assert "right: largest error" in named.stdout and "row_order=natural" in named.stdout


def test_verify_fails_what_is_wrong(run: Command, matrix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packing that loses a value."""
    csr = family("csr_spmm")
    honest = type(csr).pack

    def losing(self: Any, problem: Any, config: Any, matrix: Any) -> Any:
        packed = honest(self, problem, config, matrix)
        packed.arrays[packed.values][0] = 7
        return packed

    monkeypatch.setattr(type(csr), "pack", losing)
    arguments = ("verify", "--matrix", matrix, "-n", 24, "--family", "csr_spmm")
    assert not run.json(*arguments, exit_code=5)["right"]
    assert "WRONG" in run(*arguments, exit_code=5).stdout


@pytest.mark.parametrize(
    ("operator", "options"),
    [("sddmm", ("-k", 24, "--epilogue", "scale")), ("sparse_softmax", ("--dtype", "float16"))],
)
def test_other_operators(run: Command, matrix: Path, operator: str, options: tuple[Any, ...]) -> None:
    given = ("--matrix", matrix, "--operator", operator, *options)
    assert run.json("verify", *given, "--rounds", 1)["right"]
    found = run.json("lookup", *given)
    assert found["problem"]["operator"] == operator and found["how"] == How.DEFAULT
    assert (
        "nothing was measured for " + operator
        in run("lookup", *given, "--on-miss", "error", exit_code=5).stderr
    )
    assert "dense = always is for spmm" in run("lookup", *given, "--dense", "always", exit_code=3).stderr
    assert f"{operator} takes no layout" in run("lookup", *given, "--layout", "row", exit_code=3).stderr


def test_batches(run: Command, matrix: Path, emulator_settings: Settings) -> None:
    run.environment["SPARSEGEN_CACHE"] = str(
        emulator_settings.cache
    )  # the emulator is built once for many tests
    given = ("--matrix", matrix, "--batch", 3, "--item-values", "own", "-n", 8)
    assert run.json("lookup", *given)["problem"]["batch"] == 3
    softmax = ("--matrix", matrix, "--operator", "sparse_softmax", "--batch", 3)
    verified = run.json("verify", *softmax, "--rounds", 1, "--inputs-seed", 5)
    assert verified["right"] and verified["worst_error_over_bound"] > 0
    assert "blockIdx.z" in run("source", *given).stdout
    assert "--batch" in run("lookup", "--matrix", matrix, "--batch", 0, exit_code=2).stderr
    refused = run.json("lookup", "--matrix", matrix, "--item-values", "own", exit_code=3)["error"]
    assert "a batch of several elements" in refused["message"]


def test_a_transposed_matrix(run: Command, matrix: Path) -> None:
    given = ("--matrix", matrix, "-n", 24)
    plain, turned = (
        run.json("lookup", *given)["problem"],
        run.json("lookup", *given, "--transpose")["problem"],
    )
    assert (turned["m"], turned["k"]) == (plain["k"], plain["m"]) and turned["m"] != turned["k"]
    assert run.json("verify", *given, "--transpose", "--rounds", 1)["right"]
    sizes = ("--m", 8, "--k", 4, "--transpose")
    assert "--transpose needs --matrix" in run("source", *sizes, exit_code=2).stderr


def test_wrong_usage(run: Command, matrix: Path) -> None:
    run("verify", "--matrix", matrix, "--config", "tile_n=32", exit_code=2)
    run("verify", "--matrix", matrix, "--family", "none", exit_code=3)
    run("lookup", "--matrix", matrix.with_name("none.npz"), exit_code=3)


def test_lookup_says_where_dense_wins(run: Command, matrix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records what `tune` records on a GPU."""
    csr = load_matrix(matrix)
    problem = SpmmProblem(*csr.shape, 24)
    workload = Workload(problem, csr.fingerprint(), Features.of(csr))
    heuristic = family("csr_spmm").heuristic(problem, workload.features, emulator.device())
    variant = Variant(heuristic, "ab" * 32)
    ours, dense = (Sample(us, us, us, 9) for us in (15.0, 12.1))
    with Store.open(run.db) as store:
        store.add_measurement(Measurement(workload, emulator.device(), variant, Outcome.OK, ours))
        store.add_baseline(Baseline(workload, emulator.device(), "cublas", "cuBLAS 13", dense))
    arguments = ("lookup", "--matrix", matrix, "-n", 24)
    told = run(*arguments).stdout
    assert "takes 15 µs (measured)" in told and "dense takes 12.1 µs (measured): dense wins, it runs" in told
    assert "but sparse runs (dense=never)" in run(*arguments, "--dense", "never").stdout
    found = run.json(*arguments)
    assert found["use_dense"] and found["dense_is_faster"] and found["dense_us"] == 12.1
    assert (found["sparse_us"], found["sparse_source"], found["faster"]) == (15.0, "measured", "dense")
