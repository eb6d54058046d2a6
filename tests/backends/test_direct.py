"""The driver without PyCUDA: held against a made-up driver, and against a GPU where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_host import make_driver
from patience import LONG

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    make_driver(folder)
    return folder


def use(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {
        "PYTHONPATH": str(ROOT),
        "SPARSEGEN_DRIVER": "direct",
        "SPARSEGEN_CACHE": str(folder),
        "SPARSEGEN_DB": str(folder / "tuning.db"),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-P", HERE / "use_direct.py", folder, *words],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=LONG,
    )


def test_memory_events_and_launches(fake_driver: Path, tmp_path: Path) -> None:
    done = use(tmp_path, "launches", LD_LIBRARY_PATH=str(fake_driver))
    assert done.returncode == 0, done.stderr
    assert "key='fake-gpu-sm90'" in done.stdout and "multiprocessors=4" in done.stdout
    assert "memory_bytes_per_us=128000.0" in done.stdout


def test_a_driver_that_fails_is_no_device(fake_driver: Path, tmp_path: Path) -> None:
    done = use(tmp_path, LD_LIBRARY_PATH=str(fake_driver), FAKE_CUDA_BROKEN="1")
    assert "DeviceUnavailableError: no CUDA device can be used" in done.stderr


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    done = use(tmp_path, SPARSEGEN_DRIVER="opencl")
    assert "SPARSEGEN_DRIVER=opencl is neither pycuda nor direct" in done.stderr


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    done = use(tmp_path)
    assert done.returncode == 0, done.stderr
