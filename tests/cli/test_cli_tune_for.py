"""``sparsegen tune --for``: predicts without a GPU, says so, and is refused in words where it cannot."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import scipy.sparse
from click.testing import CliRunner, Result

from sparsegen import backends
from sparsegen.backends.executor import CompiledKernel
from sparsegen.cli.main import cli
from sparsegen.kernels.base import Device
from sparsegen.matrix.generators import random_uniform


class Compiler:
    fingerprint = "fake"

    def warm_up(self, jobs: int) -> None: ...

    def make_ready(self) -> None: ...

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        digest = hashlib.sha256(source.encode()).hexdigest()
        return CompiledKernel(entry, Path("kernel.cu"), Path("kernel.cubin"), digest, 40, 0, 0)


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    path = tmp_path / "w.npz"
    scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(random_uniform(96, 128, 0.2, seed=0).to_scipy()))
    monkeypatch.setenv("PATH", "/nonexistent")  # no compiler, no disassembler
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    monkeypatch.delenv("SPARSEGEN_NVCC", raising=False)
    asked: list[Device] = []

    def run(*options: str, compiler: bool = True) -> Result:
        if compiler:
            monkeypatch.setattr(backends, "toolchain", lambda device: asked.append(device) or Compiler())
        fixed = ["tune", "--matrix", str(path), "-n", "8", "--trials", "3", "--db", str(tmp_path / "t.db")]
        return CliRunner().invoke(cli, [*fixed, *options])

    run.asked = asked  # type: ignore[attr-defined]
    return run


def test_it_predicts_says_so_and_goes_on(tune, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = tune("--for", "nvidia-h200")
    assert result.exit_code == 0, result.output
    assert "NVIDIA H200, as nvidia-h200 describes it" in result.stdout
    assert "Predicted, not measured" in " ".join(result.stdout.split())
    assert "3 compiled, 0 failed, 0 known from before" in result.stdout
    assert "no disassembler" in result.stdout
    assert "predicting: " in result.stderr and "of 3 compiled" in result.stderr
    assert [d.name for d in tune.asked] == ["NVIDIA H200"]

    again = tune("--for", "h200", "--json")
    assert again.exit_code == 0 and again.stderr == ""
    data = json.loads(again.stdout)
    assert data["measured"] is False and data["device"] == "nvidia-h200-sm90"
    assert data["trials"] == {"compiled": 0, "failed": 0, "resumed": 3}
    times = [p["predicted_us"] for p in data["predictions"]]
    assert len(times) == 3 and times == sorted(times) and data["predictions"][0]["registers"] == 40
    db = ["--db", str(tmp_path / "t.db")]
    exported = CliRunner().invoke(cli, ["db", "export", *db])
    assert len(json.loads(exported.stdout)["predictions"]) == 3
    forgotten = CliRunner().invoke(
        cli, ["db", "forget", "--device", "nvidia-h200-sm90", "--yes", "--db", str(tmp_path / "t.db")]
    )
    assert "and 3 predictions" in forgotten.stdout, forgotten.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--for", "voodoo"], "no description of a device 'voodoo': there are nvidia-a100"),
        (["--for", "h200", "--device", "emulator"], "give no --device"),
        (["--for", "h200", "--devices", "all"], "give no --device"),
        (["--for", "h200", "--engine", "ray"], "give no --device"),
        (["--for", "h200", "--deterministic"], "give no --deterministic"),
        (["--for", "h200", "--sampler", "random"], "give no --deterministic or --sampler"),
        (["--for", "h200", "--family", "csr_sddmm"], "computes sddmm"),
    ],
)
def test_what_cannot_be_is_refused(tune, options: list[str], words: str) -> None:  # type: ignore[no-untyped-def]
    result = tune(*options)
    assert result.exit_code not in (0, 1) and words in " ".join(result.stderr.split())


def test_without_a_compiler_it_says_what_to_install(tune) -> None:  # type: ignore[no-untyped-def]
    result = tune("--for", "h200", compiler=False)
    assert result.exit_code not in (0, 1)
    assert "nvcc was found neither on PATH" in " ".join(result.stderr.split())
