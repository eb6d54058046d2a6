"""`CudaToolchain`: the cache, fingerprints and errors with a stand-in for nvcc; and with the real compilers."""

from __future__ import annotations

import importlib.util
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from goldens import FIRST, named
from patience import LONG, is_running, wait_until

from sparsegen.backends.cuda import inspection
from sparsegen.backends.cuda.compile_servers import compile_servers
from sparsegen.backends.cuda.compiler import NVRTC_OPTIONS, CudaToolchain, Resources, find_nvcc
from sparsegen.backends.cuda.nvrtc import Compilation, Installation, Source
from sparsegen.backends.cuda.toolkit import FoundNvrtc, find_nvrtc
from sparsegen.backends.emulator.cuda_headers import find_cuda_headers
from sparsegen.backends.plain import plain_source
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.settings import Settings

PLAIN = sorted((Path(__file__).parents[2] / "sparsegen" / "backends" / "plain").glob("*.cu"))
SOURCE = 'extern "C" __global__ void twice(float* x) {\n  x[threadIdx.x] *= 2;\n}\n'
QUICKLY = "--Ofast-compile=max"  # hardly optimised
OPTIMISED = "spmm/lane_stream_spmm.cu.j2"  # which the compiler refuses else: "unsupported operation"
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


@pytest.fixture
def any_nvrtc() -> FoundNvrtc:
    """The product's, else the one of NVIDIA's wheels, with the headers of their release."""
    settings = Settings.from_environment()
    with suppress(DeviceUnavailableError):
        if (found := find_nvrtc(settings, find_nvcc(settings))) is not None:
            return found
    wheels = importlib.util.find_spec("nvidia")
    folders = (Path(root) for root in (wheels and wheels.submodule_search_locations) or ())
    libraries = [path for folder in folders for path in folder.glob("*/lib/libnvrtc-builtins.so.[0-9]*")]
    if not libraries:
        pytest.skip("nvidia-cuda-nvrtc is not installed: make test-long")
    builtins, headers = max(libraries), find_cuda_headers(settings)
    major, minor = map(int, builtins.name.split(".")[-2:])
    assert headers.version == str(1000 * major + 10 * minor), f"headers {headers.version} beside {builtins}"
    library = builtins.with_name(f"libnvrtc.so.{major}")
    return FoundNvrtc(Installation(library, builtins, (major, minor)), headers.include)


@pytest.mark.long
def test_nvrtc_compiles_every_golden_source(any_nvrtc: FoundNvrtc) -> None:
    sources = {template: golden.source() for template, golden in FIRST.items()}
    sources |= {path.name: plain_source(path.name) for path in PLAIN}
    headers = [f"-I{folder}" for folder in (any_nvrtc.include, any_nvrtc.include / "cccl")]
    options = ("--gpu-architecture=sm_90a", *NVRTC_OPTIONS, *headers)
    servers = compile_servers(any_nvrtc.installation)

    def compiled(name: str) -> Compilation:
        words = options if name == OPTIMISED else (*options, QUICKLY)
        return servers.compile(Source(sources[name], name, words), timeout=LONG)

    with ThreadPoolExecutor(2) as pool:
        for made in pool.map(compiled, sources):
            assert made.image.startswith(b"\x7fELF")
            assert Resources.from_log(made.log).registers


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
