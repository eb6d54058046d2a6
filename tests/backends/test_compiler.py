"""`CudaToolchain`: the cache, fingerprints and errors with a stand-in for nvcc; and with the real compilers."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from goldens import FIRST, named
from patience import is_running, wait_until

from sparsegen.backends.cuda import inspection
from sparsegen.backends.cuda.compile_servers import compile_servers
from sparsegen.backends.cuda.compiler import CudaToolchain
from sparsegen.backends.plain import plain_source
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.settings import Settings

PLAIN = sorted((Path(__file__).parents[2] / "sparsegen" / "backends" / "plain").glob("*.cu"))
SOURCE = 'extern "C" __global__ void twice(float* x) {\n  x[threadIdx.x] *= 2;\n}\n'
NVCC = """#!/bin/sh
case "$*" in
  *--version*) echo "release 13.0"; echo "Build cuda_13.0" ;;
  *) case "$(tail -n +2 compile.cu)" in
       hang*) exec sleep 60 ;;
       wrong*) echo "kernel.cu(1): error: wrong" >&2; exit 2 ;;
     esac
     head -1 compile.cu > kernel.cubin
     echo "ptxas info : 0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads" >&2
     echo "ptxas info : Used 40 registers, 96 bytes smem" >&2 ;;
esac
"""


@pytest.fixture
def faked(tmp_path: Path) -> CudaToolchain:
    """A toolchain of a stand-in for nvcc."""
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    names = {"SPARSEGEN_NVCC": nvcc, "CUDA_HOME": tmp_path / "cuda", "SPARSEGEN_CACHE": tmp_path / "cache"}
    return CudaToolchain((9, 0), Settings.from_environment({name: str(path) for name, path in names.items()}))


def test_nvcc_compiles(faked: CudaToolchain) -> None:
    assert faked.nvrtc is None and faked.fingerprint.startswith("Build cuda_13.0 sm_90a ")
    compiled = faked.compile("family", "twice", SOURCE)
    assert (compiled.registers, compiled.spill_bytes, compiled.static_shared_bytes) == (40, 12, 96)
    assert compiled.source.read_text() == SOURCE
    assert compiled.binary.read_text() == f'#line 1 "{compiled.source}"\n'
    assert sorted(path.name for path in compiled.source.parent.iterdir()) == [
        "kernel.cu",
        "kernel.cubin",
        "meta.json",
    ]
    os.utime(compiled.binary, ns=(1, 1))
    assert faked.compile("family", "twice", SOURCE) == compiled
    assert compiled.binary.stat().st_mtime_ns == 1


def test_failures_leave_nothing_in_the_cache(faked: CudaToolchain) -> None:
    with pytest.raises(CompileError, match=r"status 2\nkernel\.cu\(1\): error: wrong"):
        faked.compile("family", "twice", "wrong")
    with pytest.raises(CompileError, match=r"did not end within 0\.1 s"):
        faked.compile("family", "twice", "hang", timeout=0.1)
    assert not list((faked.settings.cache / "cuda").iterdir())


# --- the real ones ---


@pytest.fixture
def real(tmp_path: Path) -> CudaToolchain:
    """One of NVRTC, where it is."""
    try:
        toolchain = CudaToolchain((9, 0), replace(Settings.from_environment(), cache=tmp_path / "cache"))
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    if toolchain.nvrtc is None:
        pytest.skip("there is no NVRTC of nvcc's release")
    return toolchain


@pytest.fixture
def with_nvcc(real: CudaToolchain) -> CudaToolchain:
    return CudaToolchain((9, 0), replace(real.settings, compiler="nvcc"))


def test_nvrtc_compiles_every_golden_source(real: CudaToolchain) -> None:
    sources = [*(golden.source() for golden in FIRST.values()), *(plain_source(path.name) for path in PLAIN)]
    with ThreadPoolExecutor(2) as pool:
        for compiled in pool.map(lambda source: real.compile("golden", "golden", source), sources):
            assert compiled.binary.read_bytes().startswith(b"\x7fELF")
            assert compiled.registers and compiled.spill_bytes is not None


@pytest.mark.parametrize("name", ("uspmm-fp32", "row_softmax-softmax-bf16"))
def test_nvrtc_and_nvcc_count_alike(name: str, real: CudaToolchain, with_nvcc: CudaToolchain) -> None:
    source = named(name).source()
    ours, theirs = (each.compile("golden", "golden", source) for each in (real, with_nvcc))
    assert replace(ours, source=theirs.source, binary=theirs.binary, digest=theirs.digest) == theirs
    assert ours.binary != theirs.binary, "their code differs elsewhere, so one must not stand for the other"


def test_errors_and_line_information_name_the_cached_source(real: CudaToolchain) -> None:
    compiled = real.compile("family", "twice", SOURCE)
    binary = compiled.binary.read_bytes()
    assert str(compiled.source.parent).encode() in binary and compiled.source.name.encode() in binary
    with pytest.raises(CompileError) as caught:
        real.compile("family", "twice", SOURCE.replace("2;", "nonsense;"))
    assert 'kernel.cu(2): error: identifier "nonsense" is undefined' in caught.value.log
    assert str(real.settings.cache) in caught.value.log
    assert len(list((real.settings.cache / "cuda").iterdir())) == 1


def test_ptx_comes_from_the_compiler_that_compiles(real: CudaToolchain) -> None:
    text = inspection.ptx(real, SOURCE)
    assert ".target sm_90a" in text and ".entry twice" in text


def test_a_compile_that_takes_too_long_ends(real: CudaToolchain) -> None:
    with pytest.raises(CompileError, match=r"did not end within 0\.01 s"):
        real.compile("golden", "golden", named("uspmm-fp32").source(), timeout=0.01)
    assert real.compile("family", "twice", SOURCE).registers


def test_a_killed_server_is_replaced(real: CudaToolchain) -> None:
    assert real.nvrtc is not None
    real.compile("family", "twice", SOURCE)
    servers = compile_servers(real.nvrtc.installation)
    for server, _ in servers._idle:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda pid=server.pid: not is_running(pid))  # type: ignore[misc]
    assert real.compile("family", "twice", SOURCE + "// again\n").registers
