"""The emulator's toolchain: cache, errors, and where CUDA's headers come from."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sparsegen.backends.emulator import cuda_headers
from sparsegen.backends.emulator.cuda_headers import NEEDED, find_cuda_headers
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import CompileError, DeviceUnavailableError, MachineError
from sparsegen.settings import Settings

SOURCE = """#include "sparsegen_emulator.h"
extern "C" __global__ void set(int* out) { out[threadIdx.x] = threadIdx.x; }
"""


def test_a_variant_is_one_private_folder(emulator_toolchain: EmulatorToolchain) -> None:
    compiled = emulator_toolchain.compile("some_family", "set", SOURCE)
    folder = compiled.binary.parent
    assert folder.name.startswith("some_family-")
    assert {path.name for path in folder.iterdir()} == {"kernel.cu", "kernel.so", "meta.json"}
    assert compiled.source.read_text() == SOURCE
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["fingerprint"] == emulator_toolchain.fingerprint


def test_building_the_runtime_is_announced_once(
    emulator_toolchain: EmulatorToolchain, caplog: pytest.LogCaptureFixture
) -> None:
    """A search's first variant, a first `prepare` and `sparsegen verify` would else wait in silence."""
    emulator_toolchain.make_ready()
    caplog.clear()
    emulator_toolchain.make_ready()
    emulator_toolchain.compile("some_family", "set", SOURCE)
    assert not caplog.records
    broken = EmulatorToolchain(emulator_toolchain._settings, options=["-no-such-option"])
    with pytest.raises(MachineError):
        broken.make_ready()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "building the emulator's runtime in" in record.getMessage()


def test_what_is_cached_is_not_compiled_again(emulator_toolchain: EmulatorToolchain) -> None:
    first = emulator_toolchain.compile("some_family", "set", SOURCE)
    made = first.binary.stat().st_mtime_ns
    assert emulator_toolchain.compile("some_family", "set", SOURCE) == first
    assert first.binary.stat().st_mtime_ns == made


def test_the_key_covers_source_flavour_and_options(
    emulator_toolchain: EmulatorToolchain, emulator_settings: Settings
) -> None:
    plain = emulator_toolchain.compile("f", "set", SOURCE)
    other_options = EmulatorToolchain(emulator_settings, options=["-DSPARSEGEN_EMULATOR_UCONTEXT"])
    others = [
        emulator_toolchain.compile("f", "set", SOURCE + "// changed\n"),
        emulator_toolchain.compile_sanitized("f", "set", SOURCE),
        other_options.compile("f", "set", SOURCE),
    ]
    assert len({compiled.binary.parent for compiled in (plain, *others)}) == 4
    assert other_options.fingerprint != emulator_toolchain.fingerprint


def test_rivals_end_with_the_same_variant(emulator_settings: Settings) -> None:
    rivals = [EmulatorToolchain(emulator_settings) for _ in range(4)]
    source = SOURCE + "// rivals\n"
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda toolchain: toolchain.compile("f", "set", source), rivals))
    assert len(set(found)) == 1
    made = found[0].binary.parent
    leftovers = [path for path in made.parent.iterdir() if path.name.startswith(f".{made.name}")]
    assert not leftovers


def test_a_compile_error_carries_the_log(emulator_toolchain: EmulatorToolchain) -> None:
    with pytest.raises(CompileError) as caught:
        emulator_toolchain.compile("f", "set", SOURCE.replace("threadIdx.x;", "nonsense;"))
    assert "nonsense" in caught.value.log
    assert "kernel.cu:2" in caught.value.log


def test_a_compile_has_a_time_limit(emulator_toolchain: EmulatorToolchain) -> None:
    emulator_toolchain.compile("f", "set", SOURCE)  # the runtime is there
    with pytest.raises(CompileError, match=r"g\+\+ did not end within 0\.01 s"):
        emulator_toolchain.compile("f", "set", SOURCE + "// slow\n", timeout=0.01)


def test_a_missing_compiler_is_named_with_its_fix(emulator_settings: Settings) -> None:
    toolchain = EmulatorToolchain(replace(emulator_settings, cxx="no-such-compiler"))
    with pytest.raises(DeviceUnavailableError, match=r"no-such-compiler.*apt install g\+\+"):
        toolchain.compile("f", "set", SOURCE)


def test_missing_headers_are_named_with_their_fix(
    emulator_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_headers.importlib.util, "find_spec", lambda name: None)
    settings = replace(emulator_settings, cuda_include=None, cuda_home=tmp_path)
    with pytest.raises(DeviceUnavailableError, match="pip install 'nvidia-cuda-runtime"):
        find_cuda_headers(settings)


def test_headers_are_taken_from_the_first_complete_folder(
    emulator_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def headers(folder: Path, version: int, names: tuple[str, ...] = NEEDED) -> Path:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"#define CUDART_VERSION  {version}\n")
        return folder

    wheels = tmp_path / "nvidia"
    monkeypatch.setattr(
        cuda_headers.importlib.util,
        "find_spec",
        lambda name: type("Spec", (), {"submodule_search_locations": [str(wheels)]}),
    )
    toolkit = headers(tmp_path / "toolkit" / "include", 13000)
    settings = replace(emulator_settings, cuda_include=None, cuda_home=toolkit.parent)
    headers(wheels / "cu14" / "include", 14000, NEEDED[:-1])
    assert find_cuda_headers(settings).include == toolkit
    in_wheel = headers(wheels / "cu13" / "include", 13050)
    assert find_cuda_headers(settings) == cuda_headers.CudaHeaders(in_wheel, "13050")
    chosen = headers(tmp_path / "chosen", 12090)
    assert find_cuda_headers(replace(settings, cuda_include=chosen)).include == chosen


def test_a_compiler_whose_quotes_do_not_close_is_named(emulator_settings: Settings) -> None:
    toolchain = EmulatorToolchain(replace(emulator_settings, cxx="g++ '"))
    with pytest.raises(DeviceUnavailableError, match=r"CXX = .*No closing quotation.*set CXX"):
        toolchain.compile("csr_spmm", "kernel", "", timeout=1)


def test_headers_that_are_asked_for_are_not_passed_over(emulator_settings: Settings, tmp_path: Path) -> None:
    settings = replace(emulator_settings, cuda_include=tmp_path / "nope")
    with pytest.raises(
        DeviceUnavailableError, match=r"SPARSEGEN_CUDA_INCLUDE is .*nope.*has no cuda_runtime\.h"
    ):
        find_cuda_headers(settings)
