"""``sparsegen doctor``: every check has a purpose, and a fix where it fails."""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from command_line import Command

from sparsegen.cli import doctor
from sparsegen.system.extras import install_command

CHECKS = (
    "Python",
    "numpy",
    "database",
    "compile cache",
    "NVIDIA driver",
    "pycuda",
    "GPU",
    "nvcc",
    "NVRTC",
    "cuobjdump",
    "NVML",
    "cublas",
    "torch",
    "cupy",
    "C++ compiler",
    "CUDA headers",
)


def by_name(data: Any) -> dict[str, Any]:
    return {check["name"]: check for check in data["checks"]}


def diagnose(run: Command) -> Any:
    """The report, whatever this machine lacks."""
    result = run("doctor", "--json", exit_code=None)
    assert result.exit_code in (0, 1, 4), result.output
    return {**json.loads(result.stdout), "exit_code": result.exit_code}


def test_every_check_says_what_it_is_for_and_how_to_mend_it(run: Command) -> None:
    checks = by_name(diagnose(run))
    assert set(CHECKS) <= set(checks)
    for check in checks.values():
        assert check["found"] and check["purpose"]
        assert bool(check["fix"]) != check["ok"]
    assert checks["Python"]["ok"] and checks["numpy"]["ok"]


def test_the_emulator_without_compiler_or_headers(run: Command, tmp_path: Path) -> None:
    run.environment.update(CXX="no-such-compiler")
    data = diagnose(run)
    check = by_name(data)["C++ compiler"]
    assert not check["ok"] and "apt install g++" in check["fix"]
    assert not data["emulator_usable"]
    assert data["exit_code"] == (0 if data["gpu_usable"] else 4)


def test_nvcc_is_looked_for_where_the_settings_say(run: Command, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho copyright\necho Build cuda_99\n")
    nvcc.chmod(0o755)
    run.environment.update(SPARSEGEN_NVCC=str(nvcc))
    assert by_name(diagnose(run))["nvcc"]["found"] == "Build cuda_99"
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    assert not by_name(diagnose(run))["nvcc"]["ok"]


def test_nvrtc_is_reported_as_it_is_set(run: Command, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 99.1\n")
    nvcc.chmod(0o755)
    for given in ("", str(tmp_path / "missing.so")):
        run.environment.update(SPARSEGEN_NVCC=str(nvcc), SPARSEGEN_NVRTC=given)
        check = by_name(diagnose(run))["NVRTC"]
        assert not check["ok"] and "SPARSEGEN_NVRTC" in check["fix"]
    run.environment.update(SPARSEGEN_COMPILER="nvcc")
    assert by_name(diagnose(run))["NVRTC"]["found"] == "not used: SPARSEGEN_COMPILER=nvcc"
    run.environment.update(SPARSEGEN_COMPILER="clang")
    assert "none of nvrtc, pycuda, nvcc" in by_name(diagnose(run))["NVRTC"]["found"]


def test_a_missing_requirement_fails_everything(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "optuna":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor, "version", version)
    data = diagnose(run)
    assert by_name(data)["optuna"] == {
        "name": "optuna",
        "ok": False,
        "found": "not installed",
        "purpose": "the search",
        "needed_for": "everything",
        "fix": install_command(""),
    }
    assert (data["exit_code"], data["gpu_usable"], data["emulator_usable"]) == (1, False, False)
    assert "optuna: pip install" in run("doctor", exit_code=1).output


def test_cupy_under_the_name_of_one_of_its_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name != "cupy-cuda12x":
            raise PackageNotFoundError(name)
        return "14.0"

    monkeypatch.setattr(doctor, "version", version)
    check = doctor._package("cupy", "arrays", doctor.OPTIONAL, "fix", "cupy-cuda13x", "cupy-cuda12x")
    assert check.ok and check.found == "14.0"


def test_places_that_cannot_be_written(run: Command, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    run.environment.update(SPARSEGEN_CACHE=str(blocked / "cache"), SPARSEGEN_DB=str(tmp_path))
    checks = by_name(diagnose(run))
    assert not checks["compile cache"]["ok"] and "SPARSEGEN_CACHE" in checks["compile cache"]["fix"]
    assert not checks["database"]["ok"] and "SPARSEGEN_DB" in checks["database"]["fix"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_database(run: Command) -> None:
    run.db.touch(mode=0o400)
    assert not by_name(diagnose(run))["database"]["ok"]


def test_a_server_is_named_without_its_password(run: Command) -> None:
    run.environment.update(SPARSEGEN_DB="postgresql://me:secret@host/db")
    found = by_name(diagnose(run))["database"]["found"]
    assert "host/db" in found and "secret" not in found
