"""Search for NVRTC: the right one is found, and none of another release than nvcc's is taken."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sparsegen.backends.cuda.toolkit import find_nvrtc, nvcc_version
from sparsegen.errors import ConfigError, DeviceUnavailableError
from sparsegen.settings import Settings

NVCC = """#!/bin/sh
echo "Cuda compilation tools, release 13.0, V13.0.88"
echo "Build cuda_13.0"
"""


def put_nvcc(folder: Path, script: str = NVCC) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    nvcc = folder / "nvcc"
    nvcc.write_text(script)
    nvcc.chmod(0o755)
    return nvcc


def put_headers(folder: Path, version: int = 13000) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda_fp16.h").touch()
    (folder / "cuda_runtime_api.h").write_text(f"// ...\n#define CUDART_VERSION  {version}\n")
    return folder


def put_nvrtc(folder: Path, release: str = "13.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"libnvrtc-builtins.so.{release}").touch()
    library = folder / f"libnvrtc.so.{release.partition('.')[0]}"
    library.touch()
    return library


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """No toolkit at CUDA_HOME, and no wheels."""
    monkeypatch.setattr(sys, "path", [])
    return Settings.from_environment({"CUDA_HOME": str(tmp_path / "no-toolkit")})


@pytest.fixture
def nvcc(tmp_path: Path) -> Path:
    """Makes a toolkit's nvcc, with headers and without NVRTC."""
    put_headers(tmp_path / "cuda" / "include")
    return put_nvcc(tmp_path / "cuda" / "bin")


def test_nvcc_says_what_it_is(nvcc: Path, tmp_path: Path) -> None:
    said = nvcc_version(nvcc)
    assert (said.build, said.release) == ("Build cuda_13.0", (13, 0))
    assert nvcc_version(put_nvcc(tmp_path / "silent", "#!/bin/sh\n")).release is None
    with pytest.raises(DeviceUnavailableError, match="SPARSEGEN_NVCC"):
        nvcc_version(put_nvcc(tmp_path / "broken", "#!/bin/sh\nexit 1\n"))


@pytest.mark.parametrize("folder", ("lib64", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"))
def test_the_toolkits_own(settings: Settings, nvcc: Path, folder: str) -> None:
    library = put_nvrtc(nvcc.parents[1] / folder)
    found = find_nvrtc(settings, nvcc)
    assert found is not None
    assert found.installation.library == library and found.installation.release == (13, 0)
    assert found.installation.builtins == library.with_name("libnvrtc-builtins.so.13.0")
    assert found.include == nvcc.parents[1] / "include"


def test_a_wheels(settings: Settings, nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    library = put_nvrtc(tmp_path / "nvidia" / "cu13" / "lib")
    found = find_nvrtc(settings, nvcc)
    assert found is not None and found.installation.library == library


def test_nvcc_in_the_guise_of_a_script_elsewhere(settings: Settings, nvcc: Path, tmp_path: Path) -> None:
    put_nvrtc(nvcc.parents[1] / "lib64")
    script = put_nvcc(tmp_path / "elsewhere" / "bin")
    assert find_nvrtc(settings, script) is None
    found = find_nvrtc(replace(settings, cuda_home=nvcc.parents[1]), script)
    assert found is not None and found.include == nvcc.parents[1] / "include"


def test_another_release_is_not_used(settings: Settings, nvcc: Path) -> None:
    put_nvrtc(nvcc.parents[1] / "lib64", "13.1")
    assert find_nvrtc(settings, nvcc) is None


def test_headers_of_another_release_are_not_used(settings: Settings, tmp_path: Path) -> None:
    put_headers(tmp_path / "cuda" / "include", 12080)
    put_nvrtc(tmp_path / "cuda" / "lib64")
    assert find_nvrtc(settings, put_nvcc(tmp_path / "cuda" / "bin")) is None


def test_a_library_by_name_comes_first(settings: Settings, nvcc: Path, tmp_path: Path) -> None:
    put_nvrtc(nvcc.parents[1] / "lib64")
    library = put_nvrtc(tmp_path / "mine")
    found = find_nvrtc(replace(settings, nvrtc=str(library)), nvcc)
    assert found is not None and found.installation.library == library


@pytest.mark.parametrize("compiler", ["nvcc", "pycuda"])
def test_there_is_none_where_another_compiler_is_named(compiler: str, settings: Settings, nvcc: Path) -> None:
    put_nvrtc(nvcc.parents[1] / "lib64")
    assert find_nvrtc(replace(settings, compiler=compiler), nvcc) is None


def test_nothing_else_compiles_where_it_is_named(settings: Settings, nvcc: Path, tmp_path: Path) -> None:
    named = replace(settings, compiler="nvrtc")
    with pytest.raises(
        DeviceUnavailableError, match=r"no NVRTC of nvcc's release 13\.0.*SPARSEGEN_COMPILER=nvcc"
    ):
        find_nvrtc(named, nvcc)
    with pytest.raises(DeviceUnavailableError, match="names no release"):
        find_nvrtc(named, put_nvcc(tmp_path / "bin", "#!/bin/sh\n"))
    library = put_nvrtc(nvcc.parents[1] / "lib64")
    find_nvrtc.cache_clear()
    found = find_nvrtc(named, nvcc)
    assert found is not None and found.installation.library == library


def test_an_unknown_compiler_is_refused(settings: Settings, nvcc: Path) -> None:
    with pytest.raises(ConfigError, match="SPARSEGEN_COMPILER=clang is none of nvrtc, pycuda, nvcc"):
        find_nvrtc(replace(settings, compiler="clang"), nvcc)


def test_nvcc_compiles_where_there_is_none(settings: Settings, nvcc: Path) -> None:
    assert find_nvrtc(settings, nvcc) is None


def test_an_nvcc_that_names_no_release_compiles_itself(settings: Settings, tmp_path: Path) -> None:
    put_nvrtc(tmp_path / "lib64")
    assert find_nvrtc(settings, put_nvcc(tmp_path / "bin", "#!/bin/sh\n")) is None


def test_a_setting_that_cannot_be_used_is_an_error(settings: Settings, nvcc: Path, tmp_path: Path) -> None:
    put_nvrtc(nvcc.parents[1] / "lib64")
    other = put_nvrtc(tmp_path / "other", "13.2")
    for wrong in (tmp_path / "missing.so", other):
        with pytest.raises(DeviceUnavailableError, match=r"libnvrtc-builtins\.so\.13\.0.*unset"):
            find_nvrtc(replace(settings, nvrtc=str(wrong)), nvcc)


def test_a_setting_without_headers_is_an_error(settings: Settings, tmp_path: Path) -> None:
    library = put_nvrtc(tmp_path / "mine")
    with pytest.raises(DeviceUnavailableError, match="no CUDA headers"):
        find_nvrtc(replace(settings, nvrtc=str(library)), put_nvcc(tmp_path / "bare" / "bin"))
