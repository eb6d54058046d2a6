"""A bundle runs where sparsegen is not installed, survives being killed, and its result comes home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import venv
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from job_samples import NOTHING_KNOWN, import_result, sources_alone
from patience import LONG

from sparsegen import backends
from sparsegen.backends.cuda import direct
from sparsegen.backends.precompiled import PrecompiledToolchain
from sparsegen.errors import CacheEntryError, CompileError, DeviceUnavailableError
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import SddmmProblem, SpmmProblem
from sparsegen.settings import Settings
from sparsegen.tuning.jobs import bootstrap
from sparsegen.tuning.jobs.bundle import open_bundle
from sparsegen.tuning.jobs.export import Wanted, export_job
from sparsegen.tuning.jobs.results import read_result
from sparsegen.tuning_db.store import Store

MATRIX = random_uniform(64, 48, 0.2, seed=3)
CANDIDATES = 4


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has NumPy and SciPy, and nothing else."""
    folder = tmp_path_factory.mktemp("far")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in ("numpy", "scipy"):
        found = find_spec(name)
        assert found is not None and found.origin is not None
        home = Path(found.origin).parent
        for part in (home, home.with_name(f"{name}.libs")):
            if part.is_dir():
                (packages / part.name).symlink_to(part)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, emulator_settings: Settings) -> Iterator[Path]:
    """For the emulator, compiled beforehand."""
    path = tmp_path_factory.mktemp("bundle") / "b.pyz"
    wanted = [
        Wanted(MATRIX, SpmmProblem(64, 48, 16)),
        Wanted(MATRIX, SddmmProblem(64, 48, 16), with_values=True),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
        made = export_job(
            wanted,
            path,
            target=backends.emulator_device(),
            known=NOTHING_KNOWN,
            candidates=CANDIDATES,
            seconds=600,
        )
    assert made.failed == 0 and made.nbytes < 8 << 20
    yield path


def environment(cache: Path) -> dict[str, str]:
    """Without anything of sparsegen's, and without a compiler."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARSEGEN", "PYTHON"))}
    return {**kept, "SPARSEGEN_CACHE": str(cache), "CXX": "/nowhere/compiler", "CUDA_HOME": "/nowhere"}


def run(python: Path, bundle: Path, cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, bundle.name, *words],
        cwd=bundle.parent,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=LONG,
    )


def test_there_is_no_sparsegen(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [python, "-c", "import sparsegen"], cwd=tmp_path, env=environment(tmp_path), capture_output=True
    )
    assert b"No module named 'sparsegen'" in done.stderr


def test_info_and_verify(python: Path, bundle: Path, tmp_path: Path) -> None:
    told = json.loads(run(python, bundle, tmp_path, "info", "--json").stdout)
    assert told["backend"] == "emulator" and told["compiled_by"]
    assert [t["candidates"] for t in told["tasks"]] == [CANDIDATES] * 2
    assert "8 candidates, 600 s" in run(python, bundle, tmp_path, "info").stdout
    assert "all are what the manifest says" in run(python, bundle, tmp_path, "verify").stdout


def test_a_killed_run_goes_on_and_its_result_comes_home(python: Path, bundle: Path, tmp_path: Path) -> None:
    result, cache = tmp_path / "r.jsonl", tmp_path / "cache"
    command = [python, bundle.name, "run", "--out", result]
    began = subprocess.Popen(command, cwd=bundle.parent, env=environment(cache), stderr=subprocess.DEVNULL)
    ends = time.monotonic() + LONG
    while (not result.exists() or result.read_text().count("\n") < 3) and time.monotonic() < ends:
        time.sleep(0.02)
    began.send_signal(signal.SIGKILL)
    began.wait()
    before = result.read_text()
    before = before[: before.rindex("\n") + 1]
    done = run(python, bundle, cache, "run", "--out", str(result))
    assert done.returncode == 0, done.stderr
    assert result.read_text().startswith(before) and before.count("\n") >= 3
    assert "[1/2] spmm" in done.stderr and "[2/2] sddmm" in done.stderr and "trials" in done.stderr
    assert list((cache / "jobs").iterdir()) == []

    with open_bundle(bundle) as opened:
        found = read_result(result, opened)
        for task in opened.job.tasks:
            tried = [m for m in found.content.measurements if m.workload == task.workload and not m.final]
            assert sorted(map(str, (m.variant.config for m in tried))) == sorted(
                str(c.config) for c in task.candidates
            ), "each once: what was measured before the kill is not measured again"
            assert any(m.final for m in found.content.measurements if m.workload == task.workload)

    again = json.loads(run(python, bundle, cache, "run", "--out", str(result), "--json").stdout)
    assert again["is_whole"] and {t["outcome"] for t in again["tasks"]} == {"known from before"}

    with Store.open(tmp_path / "home.db") as store:
        assert import_result(store, result, bundle).measurements == len(found.content.measurements)
        assert store.winner(opened.job.tasks[0].workload, backends.emulator_device()) is not None


def test_a_budget_ends_it(python: Path, bundle: Path, tmp_path: Path) -> None:
    done = run(
        python, bundle, tmp_path / "cache", "run", "--out", str(tmp_path / "r"), "--budget", "1e-6", "--json"
    )
    assert done.returncode == 75, done.stderr
    told = json.loads(done.stdout)
    assert not told["is_whole"] and told["tasks"][1]["outcome"] == "not reached"


def test_it_says_what_it_lacks(bundle: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    done = run(tmp_path / "bare" / "bin" / "python", bundle, tmp_path, "info")
    assert done.returncode == 1 and "this bundle needs numpy and scipy:" in done.stderr


def test_a_damaged_bundle_is_not_run(python: Path, bundle: Path, tmp_path: Path) -> None:
    content = bytearray(bundle.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 100)  # more than a header, whose date nobody checks
    content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
    damaged = tmp_path / "b.pyz"
    damaged.write_bytes(content)
    done = run(python, damaged, tmp_path, "info")
    assert done.returncode == 1 and "is damaged, and is not run" in done.stderr and not done.stdout


def test_no_damage_ends_in_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a byte differs: in compressed data, a digest, a flag, a name."""
    sources_alone(tmp_path / "whole.pyz", monkeypatch)
    content, damaged = (tmp_path / "whole.pyz").read_bytes(), tmp_path / "damaged.pyz"
    checked = bootstrap.checked(tmp_path / "whole.pyz")
    raised = set()
    for place in range(0, len(content), len(content) // 30):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            assert bootstrap.checked(damaged) == checked, "a date or an attribute"
        except bootstrap.DAMAGE as error:
            raised.add(type(error))
    assert zlib.error in raised


def test_it_does_not_run_elsewhere(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    sources_alone(tmp_path / "gpu.pyz", monkeypatch)
    refused = run(python, bundle, tmp_path, "run", "--device", "0")
    assert refused.returncode == 3 and "runs on the emulator" in refused.stderr
    refused = run(python, tmp_path / "gpu.pyz", tmp_path, "run", "--device", "63")
    assert refused.returncode == DeviceUnavailableError.exit_code, refused.stderr


def test_compiled_beforehand(bundle: Path, tmp_path: Path) -> None:
    with open_bundle(bundle) as opened:
        opened.unpack_kernels(tmp_path)
        job, source = opened.job, opened.source(opened.job.tasks[0].candidates[0].source)
    toolchain = PrecompiledToolchain(tmp_path)
    toolchain.warm_up(2)
    toolchain.make_ready()
    assert toolchain.fingerprint == job.compiler
    kernel = toolchain.compile("csr_spmm", "entry", source)
    assert len(kernel.read()) > 1000
    with pytest.raises(CompileError, match="not among the kernels"):
        toolchain.compile("csr_spmm", "entry", source + " ")
    kernel.binary.write_bytes(b"another")
    with pytest.raises(CacheEntryError):
        kernel.read()
    with pytest.raises(DeviceUnavailableError, match="SPARSEGEN_KERNELS"):
        PrecompiledToolchain(tmp_path / "nowhere")


@pytest.mark.gpu
def test_on_a_gpu(python: Path, tmp_path: Path) -> None:
    """Without PyCUDA and without a compiler there: cubins, and the driver through ctypes."""
    direct.init()
    device = backends.gpu_devices()[0]
    path, problem = tmp_path / "g.pyz", SpmmProblem(1024, 1024, 256)
    wanted: list[Any] = [Wanted(random_uniform(1024, 1024, 0.1, seed=3), problem)]
    export_job(wanted, path, target=device.typical, known=NOTHING_KNOWN, candidates=20)
    done = run(python, path, tmp_path / "cache", "run", "--out", str(tmp_path / "r"))
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "home.db") as store:
        assert import_result(store, tmp_path / "r", path).measurements >= 20
        (tuned,) = store.list_workloads()
        assert tuned.ok >= 15 and tuned.device.key == device.key
