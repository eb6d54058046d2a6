"""``sparsegen job`` and the import of its results."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command
from job_samples import head, record, sources_alone, write_result

from sparsegen import backends
from sparsegen.errors import BundleError, ConfigError, DeviceUnavailableError
from sparsegen.kernels.base import Device
from sparsegen.matrix.load import load_matrix
from sparsegen.tuning.jobs.bundle import open_bundle


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sources_alone(tmp_path / "b.pyz", monkeypatch)
    return tmp_path / "b.pyz"


def test_verify(run: Command, bundle: Path) -> None:
    told = run.json("job", "verify", bundle)
    assert told["tasks"] == 2 and told["files"] > 100
    assert "all are what the manifest says" in run("job", "verify", bundle).output
    bundle.write_bytes(bundle.read_bytes()[:-100])
    run("job", "verify", bundle, exit_code=BundleError.exit_code)


def test_a_result_is_imported_with_its_bundle(run: Command, bundle: Path, tmp_path: Path) -> None:
    with open_bundle(bundle) as opened:
        result = write_result(tmp_path / "r", head(opened), record(opened), record(opened, 1))
        bad = write_result(tmp_path / "bad", head(opened), record(opened, source_digest="ab" * 32))
    assert "name its bundle with --bundle" in run("db", "import", result, exit_code=2).output
    assert run.json("db", "import", result, "--bundle", bundle)["measurements"] == 2
    with result.open("a") as file:
        file.write('{"meas')
    assert "was cut off" in run("db", "import", result, "--bundle", bundle).output
    assert "notes" in run.json("db", "import", result, "--bundle", bundle)
    new = tmp_path / "new.db"
    for refused in (bad, "--bundle", bundle), (result, "--bundle", tmp_path / "missing.pyz"):
        run("db", "import", *refused, "--db", new, exit_code=BundleError.exit_code)
        assert not new.exists()


def test_targets_and_matrices_are_asked_for(run: Command, tmp_path: Path) -> None:
    run("job", "export", "-n", "8", "--for", "emulator", "--out", tmp_path / "b.pyz", exit_code=2)
    run("job", "export", "-n", "8", "--out", tmp_path / "b.pyz", exit_code=2)
    matrix = tmp_path / "matrix.npz"
    matrix.write_bytes(b"precious")
    given = "--matrix", matrix, "-n", "8", "--for", "emulator"
    told = run("job", "export", *given, "--out", matrix, exit_code=2).stderr
    assert "does not end in .pyz" in told and matrix.read_bytes() == b"precious"
    bundle = tmp_path / "awaited.pyz"
    bundle.write_bytes(b"precious")
    told = run("job", "export", *given, "--out", bundle, exit_code=3).stderr
    assert "--force" in told and bundle.read_bytes() == b"precious"
    for budget in ("nan", "inf"):
        run("job", "export", *given, "--budget", budget, "--out", tmp_path / "b.pyz", exit_code=2)
    sizes = ("--operator", "dsd", "--m", "64", "-k", "64", "-n", "64", "--block", "64x64", "--density", "0.5")
    told = run(
        "job",
        "export",
        *sizes,
        "--for",
        "sm_20",
        "--out",
        tmp_path / "b.pyz",
        exit_code=ConfigError.exit_code,
    )
    assert "sm_90" in told.output


def test_what_is_printed_to_go_on_can_be_pasted(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "toolchain", no_toolchain)
    np.savez(tmp_path / "w.npz", w=np.eye(16))
    bundle = tmp_path / "it's my job.pyz"
    asked = (
        "--matrix",
        tmp_path / "w.npz",
        "-n",
        "8",
        "--for",
        "sm_90",
        "--candidates",
        "1",
        "--out",
        bundle,
    )
    there, here = (shlex.split(line) for line in run("job", "export", *asked).stdout.splitlines()[-3::2])
    assert there == ["python", bundle.name, "run", "--out", "it's my job.result"]
    assert here == ["sparsegen", "db", "import", "it's my job.result", "--bundle", str(bundle)]


def no_toolchain(device: Device) -> Any:
    raise DeviceUnavailableError("no compiler here")


def test_every_combination_of_repeated_options_is_a_workload(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "toolchain", no_toolchain)
    np.savez(tmp_path / "w.npz", w=np.eye(16))
    problems = ("-n", "8", "-n", "4", "--dtype", "float32", "--dtype", "float16")
    to = ("--for", "sm_90", "--candidates", "1", "--out", tmp_path / "b.pyz")
    told = run.json("job", "export", "--matrix", tmp_path / "w.npz", *problems, *to)
    made = [(task["problem"]["n"], task["problem"]["dtype"]) for task in told["tasks"]]
    assert sorted(made) == [(4, "float16"), (4, "float32"), (8, "float16"), (8, "float32")]


def test_stored_zeros_can_be_left_out(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "toolchain", no_toolchain)
    matrix = tmp_path / "w.mtx"
    matrix.write_text("%%MatrixMarket matrix coordinate real general\n2 3 2\n1 1 0\n2 3 1\n")
    to = ("-n", "8", "--for", "sm_90", "--candidates", "1", "--out", tmp_path / "b.pyz")
    told = run.json("job", "export", "--matrix", matrix, "--drop-zeros", *to)
    assert told["tasks"][0]["fingerprint"] == load_matrix(matrix, drop_zeros=True).fingerprint()


def test_the_pruned_layers_of_a_model(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    layers = {
        name: rng.random((96, 64)) * (rng.random((96, 64)) < share)
        for name, share in (("a", 0.1), ("b", 0.4))
    }
    np.savez(tmp_path / "model.npz", dense=np.ones((8, 8)), **layers)

    monkeypatch.setattr(backends, "toolchain", no_toolchain)
    path = tmp_path / "m.pyz"
    options = ("--tokens", "8,16", "--for", "sm_90", "--candidates", "3", "--out", path)
    told = run.json("job", "export-model", tmp_path / "model.npz", *options)
    assert told["not_compiled_because"] == "no compiler here" and told["seconds"] == 120
    assert [(t["problem"]["n"], t["candidates"]) for t in told["tasks"]] == [(8, 3), (8, 3), (16, 3), (16, 3)]
    with open_bundle(path) as opened:
        opened.verify()
        assert len([name for name in opened.files if name.startswith("patterns/")]) == 2, "each pattern once"
    text = run("job", "export-model", tmp_path / "model.npz", *options, "--with-values", "--force").output
    assert "12 candidates for 4 workloads" in text and "needs nvcc where it runs" in text
