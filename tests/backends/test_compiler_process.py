"""A source that does not compile, and a machine that cannot compile, told apart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sparsegen.backends.compiler_process import run_compiler
from sparsegen.errors import CompileError, MachineError


def shell(script: str, folder: Path, timeout: float = 60.0) -> str:
    return run_compiler(["sh", "-c", script], folder, timeout)


def test_what_it_prints_is_the_log(tmp_path: Path) -> None:
    assert shell("echo one; echo two >&2; pwd", tmp_path) == f"one\ntwo\n{tmp_path}\n"


# What g++, ld, as, nvcc, cicc and ptxas print.
MACHINE = (
    "/tmp/cc1.s: error writing to /tmp/cc1.s: No space left on device",
    "/usr/bin/ld: final link failed: Disk quota exceeded",
    "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
    "virtual memory exhausted: Cannot allocate memory",
    "g++: fatal error: Killed signal terminated program cc1plus",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    "nvcc error   : 'ptxas' died due to signal 15 (Software termination signal)",
    "Cannot create temporary file in /tmp/: Read-only file system",
    "g++: fatal error: vfork: Resource temporarily unavailable",
    "nvcc fatal   : Unsupported gpu architecture 'sm_70'",
    "nvrtc: error: invalid value for --gpu-architecture (-arch)",
)
SOURCE = (
    "kernel.cu:2:1: error: 'nonsense' was not declared in this scope",
    "g++: internal compiler error: Segmentation fault signal terminated program cc1plus",
    "nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)",
)


@pytest.mark.parametrize("line", MACHINE)
def test_the_machine_is_to_blame(line: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError) as caught:
        shell(f'echo "{line}" >&2; exit 1', tmp_path)
    assert line in str(caught.value)


@pytest.mark.parametrize("line", SOURCE)
def test_the_source_is_to_blame(line: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        shell(f'echo "{line}" >&2; exit 1', tmp_path)
    assert caught.value.log == line


@pytest.mark.parametrize("signal", ("KILL", "TERM", "XCPU"))
def test_somebody_killed_it(signal: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=f"ended by SIG{signal}"):
        shell(f"kill -{signal} $$", tmp_path)


@pytest.mark.parametrize("signal", ("SEGV", "ABRT"))
def test_it_crashed(signal: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="ended with status -"):
        shell(f"kill -{signal} $$", tmp_path)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be started"):
        run_compiler(["/no/such/compiler"], tmp_path, 60)


def test_its_children_are_killed_with_it(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"did not end within 0\.5 s"):
        shell("(while :; do touch alive; sleep 0.1; done) & wait", tmp_path, timeout=0.5)
    (tmp_path / "alive").unlink(missing_ok=True)
    time.sleep(0.5)
    assert not (tmp_path / "alive").exists()


def test_messages_are_in_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert shell("echo $LC_ALL", tmp_path) == "C\n"
