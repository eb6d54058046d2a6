"""A new operator costs its module, a family and a template, and a suite where it is to be benchmarked.

These files are put beside a copy of the package.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.bench.results import result_file
from sparsegen.errors import ResultsError
from sparsegen.settings import Settings

NEW = Path(__file__).parent / "new_operator"
FILES = (
    "operators/dense_sparse_add.py",
    "kernels/dense_sparse_add/__init__.py",
    "kernels/dense_sparse_add/csr_dense_add.py",
    "templates/dense_sparse_add/csr_dense_add.cu.j2",
    "bench/suites/dense-sparse-add.json",
)
OPERATOR = ("--operator", "dense_sparse_add", "--sign", "minus")

CALLED = """
import sys
import numpy as np
import sparsegen
from sparsegen.operators import operator_named

dense = np.load("a.npy")
alpha, b = 0.5, np.random.default_rng(0).standard_normal(dense.shape).astype(np.float32)
kind = operator_named("dense_sparse_add")
found = (
    sparsegen.prepare(dense, operator="dense_sparse_add", sign="minus", alpha=alpha),
    sparsegen.prepare(dense, kind(*dense.shape, sign=kind.of(dense.shape, sign="minus").sign), alpha=alpha),
)
for op in found:
    assert op.choice.how == "exact", op.explain()
    np.testing.assert_allclose(op(b), b - alpha * dense, rtol=1e-6)
    op.update_values(2 * dense[dense != 0])
    np.testing.assert_allclose(op(b), b - 2 * alpha * dense, rtol=1e-6)
"""


class Installation:
    """A copy of the package with the new files, and commands that run on it alone."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        home = Path(sparsegen.__file__).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(home, folder / "sparsegen", ignore=ignored)
        for name in ("templates", "tuning_db", "cli"):  # which pyproject.toml maps into the package
            module = sys.modules.get(f"sparsegen.{name}") or __import__(f"sparsegen.{name}", fromlist=[""])
            shutil.copytree(
                Path(str(module.__file__)).parent,
                folder / "sparsegen" / name,
                dirs_exist_ok=True,
                ignore=ignored,
            )
        for name in FILES:
            target = folder / "sparsegen" / name
            assert not target.exists()
            target.parent.mkdir(exist_ok=True)
            shutil.copy(NEW / name, target)
        self.environment = os.environ | {
            "PYTHONPATH": str(folder),
            "SPARSEGEN_CACHE": str(cache),
            "SPARSEGEN_DB": str(folder / "tuning.db"),
            "SPARSEGEN_DEVICE": "emulator",
        }

    def python(self, *arguments: str) -> str:
        run = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def __call__(self, *arguments: str) -> str:
        return self.python("-m", "sparsegen", *arguments)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, emulator_settings: Settings) -> Installation:
    """An installation with a matrix that the new operator was tuned for."""
    installed = Installation(tmp_path_factory.mktemp("installed"), emulator_settings.cache)
    rng = np.random.default_rng(1)
    dense = rng.standard_normal((24, 50)).astype(np.float32) * (rng.random((24, 50)) < 0.3)
    np.save(installed.folder / "a.npy", dense)
    tuned = installed.json("tune", "--matrix", "a.npy", *OPERATOR, "--trials", "3")
    assert tuned["problem"] == {
        "operator": "dense_sparse_add", "m": 24, "k": 50, "dtype": "float32", "sign": "minus", "batch": 1,
    }  # fmt: skip
    assert tuned["winner"]["family"] == "csr_dense_add" and tuned["winner"]["worst_error"] <= 1
    assert "dense and vendor baselines are skipped" in tuned["baselines_skipped"]
    assert "--operator dense_sparse_add --sign minus" in tuned["lookup"]
    return installed


def test_these_are_all_files() -> None:
    assert {p.relative_to(NEW).as_posix() for p in NEW.rglob("*.*") if p.suffix != ".pyc"} == set(FILES)


def test_it_is_listed(installed: Installation) -> None:
    [told] = installed.json("families", "--operator", "dense_sparse_add")["families"]
    assert (told["name"], told["operator"]) == ("csr_dense_add", "dense_sparse_add")
    [told] = installed.json("families", "--sign", "minus")["families"]
    assert told["problem"]["sign"] == "minus"
    text = " ".join(installed("tune", *OPERATOR[:2], "--help").split())
    assert "dense_sparse_add: C = B ± alpha · A." in text and "--sign [plus|minus]" in text


def test_it_is_looked_up_verified_and_read(installed: Installation) -> None:
    given = ("--matrix", "a.npy", *OPERATOR)
    found = installed.json("lookup", *given)
    assert (found["how"], found["family"]) == ("exact", "csr_dense_add")
    assert installed.json("verify", *given, "--rounds", "2")["right"] is True
    assert "kSign = -1.0f;" in installed("source", *given)
    sizes = ("--operator", "dense_sparse_add", "--m", "8", "-k", "9", "--dtype", "bfloat16")
    assert installed.json("source", *sizes)["problem"]["dtype"] == "bfloat16"


def test_it_is_in_databases_and_files(installed: Installation) -> None:
    [kept] = installed.json("db", "list")["workloads"]
    assert kept["problem"]["operator"] == "dense_sparse_add" and kept["winner"]["family"] == "csr_dense_add"
    installed("db", "export", "-o", "export.json")
    added = installed.json("db", "import", "export.json", "--db", "other.db")
    assert added["measurements"] > 0
    assert installed.json("lookup", "--matrix", "a.npy", *OPERATOR, "--db", "other.db")["how"] == "exact"
    assert "no problem found" in installed("db", "check")


def test_it_is_benchmarked(installed: Installation) -> None:
    """Its own suite is measured; others' baselines say that they compute something else."""
    command = ("bench", "--suite", "dense-sparse-add", "--db", "bench.db", "--rounds", "1", "--samples", "2")
    command += ("--only", "sparsegen", "--only", "sparsegen-untuned", "--only", "cublas")
    found = installed.json(*command, "--tune", "1", "-o", "bench.json")
    rows = found["results"]["rows"]
    assert [
        (row["case"], row["problem"].get("sign", "plus"), row["problem"].get("dtype", "float32"))
        for row in rows
    ] == [
        ("24x50 .70", "plus", "float32"),
        ("24x50 .70 sign=minus", "minus", "float32"),
    ]
    for row in rows:
        tuned, untuned, cublas = row["cells"]
        for ours in (tuned, untuned):
            assert ours["status"] == "ok" and ours["worst_error"] <= 1 and ours["us"] > 0, ours
            assert ours["variant"]["family"] == "csr_dense_add"
        assert (cublas["status"], cublas["reason"]) == (
            "unsupported",
            "it computes spmm, sddmm and products with masks",
        )
    single = ("--matrix", "a.npy", *OPERATOR, "--only", "sparsegen", "--samples", "1")
    [row] = installed.json("bench", *single)["results"]["rows"]
    assert row["case"] == "a.npy dense_sparse_add sign=minus" and row["cells"][0]["status"] == "ok"
    installed("report", "--bench", "bench.json", "-o", "report.html")
    with pytest.raises(ResultsError, match=r"operator: expected one of .*, found .dense_sparse_add."):
        result_file.read(installed.folder / "bench.json")  # by this sparsegen, which does not have it


def test_it_is_called_from_python(installed: Installation) -> None:
    installed.python("-c", CALLED)
    assert Path(installed.python("-c", "import sparsegen; print(sparsegen.__file__)").strip()).is_relative_to(
        installed.folder
    )


def test_a_sparsegen_without_it_passes_its_records_over(installed: Installation) -> None:
    """The present one is an example."""
    command = [sys.executable, "-m", "sparsegen", "db"]
    environment = installed.environment | {"PYTHONPATH": ""}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], cwd=installed.folder / "..", env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    listed = run("list", "--json")
    assert json.loads(listed.stdout)["workloads"] == []
    assert "problem 1 is passed over: no operator 'dense_sparse_add'" in listed.stderr
    checked = run("check")
    assert checked.returncode == 6 and "no operator 'dense_sparse_add'" in checked.stdout
