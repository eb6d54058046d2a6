"""PyCUDA's compiler behind the toolchain: a stand-in for PyCUDA everywhere, PyCUDA itself where there is a GPU."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from goldens import named
from patience import is_running, patience, wait_until

from sparsegen.backends.cuda.compiler import CudaToolchain
from sparsegen.backends.cuda.toolkit import Compiler
from sparsegen.errors import CompileError, DeviceUnavailableError, MachineError
from sparsegen.settings import Settings

SOURCE = 'extern "C" __global__ void twice(float* x) {\n  x[threadIdx.x] *= 2;\n}\n'
DRIVER = """
class CompileError(Exception):
    def __init__(self, message, command_line, stdout, stderr):
        super().__init__(message)
        self.stdout, self.stderr = stdout, stderr
"""
COMPILER = '''
"""What PyCUDA 2026.1 does with these arguments."""
import os, subprocess, tempfile, warnings
from pycuda.driver import CompileError

def compile(source, nvcc="nvcc", options=None, keep=False, no_extern_c=False, arch=None, code=None, cache_dir=None):
    assert no_extern_c and cache_dir is False, "or PyCUDA's own cache answers, without a log"
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "kernel.cu"), "w") as file:
        file.write(source)
    command = [nvcc, "--cubin", *options, "-arch", arch, "kernel.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise CompileError("nvcc compilation failed", command, done.stdout, done.stderr)
    warnings.warn("The CUDA compiler succeeded, but said the following:\\n" + done.stdout + done.stderr)
    with open(os.path.join(folder, "kernel.cubin"), "rb") as file:
        return file.read()
'''
NVCC = """#!/bin/sh
case "$*" in
  *--version*) echo "release 13.0"; echo "Build cuda_13.0"; exit ;;
esac
case "$(tail -n +2 kernel.cu)" in
  hang*) exec sleep 60 ;;
  wrong*) echo "kernel.cu(1): error: wrong" >&2; exit 2 ;;
  full*) echo "kernel.cu: No space left on device" >&2; exit 2 ;;
  killed*) kill -9 $$ ;;
esac
(head -1 kernel.cu; echo "$*"; pwd) > kernel.cubin
echo "ptxas info : 0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads" >&2
echo "ptxas info : Used 40 registers, 96 bytes smem" >&2
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    names = {"SPARSEGEN_NVCC": nvcc, "CUDA_HOME": tmp_path / "cuda", "SPARSEGEN_CACHE": tmp_path / "cache"}
    return Settings.from_environment(
        {name: str(path) for name, path in names.items()} | {"SPARSEGEN_COMPILER": "pycuda"}
    )


@pytest.fixture
def faked(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaToolchain]:
    """A toolchain whose processes find a stand-in for PyCUDA, which runs one for nvcc."""
    package = tmp_path / "site" / "pycuda"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("driver", DRIVER), ("compiler", COMPILER)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    toolchain = CudaToolchain((9, 0), settings)
    yield toolchain
    toolchain._servers.close()


def test_pycuda_compiles_and_its_log_is_kept(faked: CudaToolchain) -> None:
    assert faked.compiler is Compiler.PYCUDA and faked.nvrtc is None
    faked.warm_up(1)
    compiled = faked.compile("family", "twice", SOURCE)
    assert (compiled.registers, compiled.spill_bytes, compiled.static_shared_bytes) == (40, 12, 96)
    assert compiled.source.read_text() == SOURCE
    line, command, folder = compiled.binary.read_text().splitlines()
    assert line == f'#line 1 "{compiled.source}"'
    assert command.startswith("--cubin -O3 -std=c++17 -lineinfo") and command.endswith(
        "-arch sm_90a kernel.cu"
    )
    assert Path(folder).is_relative_to(faked.settings.cache), (
        "killed compiles leave nothing outside the cache"
    )
    assert faked.compile("family", "twice", SOURCE) == compiled


def test_it_has_nvccs_fingerprint(faked: CudaToolchain) -> None:
    assert faked.fingerprint == CudaToolchain((9, 0), replace(faked.settings, compiler="nvcc")).fingerprint


def test_errors_are_the_sources(faked: CudaToolchain) -> None:
    with pytest.raises(CompileError) as caught:
        faked.compile("family", "wrong", "wrong")
    assert caught.value.log == "kernel.cu(1): error: wrong"
    assert faked.compile("family", "twice", SOURCE).registers == 40


@pytest.mark.parametrize("source", ["full", "killed"])
def test_trouble_of_the_machine_is_not(faked: CudaToolchain, source: str) -> None:
    with pytest.raises(MachineError):
        faked.compile("family", source, source)


def test_a_compile_that_takes_too_long_ends_with_its_nvcc(faked: CudaToolchain) -> None:
    faked.compile("family", "twice", SOURCE)
    began = time.monotonic()
    with pytest.raises(CompileError, match=r"PyCUDA did not end within 0\.5 s"):
        faked.compile("family", "hang", "hang", timeout=0.5)
    assert time.monotonic() - began < patience(30)


def test_a_killed_process_is_replaced(faked: CudaToolchain) -> None:
    faked.compile("family", "twice", SOURCE)
    for server, _ in faked._servers._idle:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda pid=server.pid: not is_running(pid))  # type: ignore[misc]
    assert faked.compile("family", "twice", SOURCE + "// again\n").registers


def test_nothing_else_compiles_where_it_is_missing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "pycuda").is_dir()])
    toolchain = CudaToolchain((9, 0), settings)
    with pytest.raises(
        DeviceUnavailableError, match=r"SPARSEGEN_COMPILER=pycuda cannot be used.*pip install 'pycuda"
    ):
        toolchain.compile("family", "twice", SOURCE)
    toolchain._servers.close()


@pytest.mark.gpu
def test_pycuda_itself_makes_what_nvcc_makes(tmp_path: Path) -> None:
    pytest.importorskip("pycuda")
    from sparsegen.backends import find_device

    settings = replace(Settings.from_environment(), cache=tmp_path / "cache")
    capability = find_device("cuda").compute_capability
    source = named("uspmm-fp32").source()
    ours = CudaToolchain(capability, replace(settings, compiler="pycuda")).compile("golden", "golden", source)
    direct = replace(settings, compiler="nvcc", cache=tmp_path / "direct")
    theirs = CudaToolchain(capability, direct).compile("golden", "golden", source)
    assert ours.binary.read_bytes().startswith(b"\x7fELF")
    assert (ours.registers, ours.spill_bytes, ours.static_shared_bytes) == (
        theirs.registers,
        theirs.spill_bytes,
        theirs.static_shared_bytes,
    )
    with pytest.raises(CompileError) as caught:
        CudaToolchain(capability, replace(settings, compiler="pycuda")).compile(
            "golden", "golden", "nonsense"
        )
    assert "nonsense" in caught.value.log or "error" in caught.value.log
