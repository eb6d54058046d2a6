"""`Nvrtc` over a library that is not there; the real one is in test_compiler.py."""

from __future__ import annotations

import ctypes
import os
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from sparsegen.backends.compiler_process import NICENESS
from sparsegen.backends.cuda import nvrtc, pycuda_compiler
from sparsegen.backends.cuda.nvrtc import COMPILATION_FAILED, Installation, Nvrtc, Source
from sparsegen.errors import CompileError, DeviceUnavailableError

FOUND = Installation(Path("/nvrtc/libnvrtc.so.13"), Path("/nvrtc/libnvrtc-builtins.so.13.0"), (13, 0))
TEXTS = {"ProgramLog": b"a warning\0", "CUBIN": b"\x7fELF\0\0", "PTX": b".version 9.0\0"}


class FakeLibrary:
    """NVRTC's functions, on texts that are given."""

    def __init__(self, status: int = 0, minor: int = 0) -> None:
        self.status, self.minor = status, minor
        self.programs = 0
        self.options: list[bytes] = []
        self.nvrtcGetErrorString = lambda status: f"status {status}".encode()

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("nvrtcGet")
        if what.removesuffix("Size") not in TEXTS:
            raise AttributeError(name)
        text = TEXTS[what.removesuffix("Size")]

        def give(program: Any, out: Any) -> int:
            if what.endswith("Size"):
                out._obj.value = len(text)
            else:
                out.raw = text
            return 0

        return give

    def nvrtcVersion(self, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 13, self.minor
        return 0

    def nvrtcCreateProgram(self, *arguments: Any) -> int:  # noqa: N802
        self.programs += 1
        return 0

    def nvrtcDestroyProgram(self, program: Any) -> int:  # noqa: N802
        self.programs -= 1
        return 0

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:  # noqa: N802
        self.options = list(options)
        return self.status


def load(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary) -> Nvrtc:
    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode=0: library)
    return Nvrtc(FOUND)


@pytest.mark.parametrize(
    ("architecture", "image"), (("sm_90a", b"\x7fELF\0\0"), ("compute_90a", b".version 9.0"))
)
def test_the_architecture_says_what_is_made(
    monkeypatch: pytest.MonkeyPatch, architecture: str, image: bytes
) -> None:
    library = FakeLibrary()
    source = Source("int x;", "kernel.cu", (f"--gpu-architecture={architecture}", "-std=c++17"))
    compilation = load(monkeypatch, library).compile(source)
    assert (compilation.image, compilation.log) == (image, "a warning")
    assert library.options == [option.encode() for option in source.options]
    assert library.programs == 0


@pytest.mark.parametrize(
    ("status", "what"), ((COMPILATION_FAILED, "errors in the source"), (11, "status 11"))
)
def test_a_failure_has_the_log_and_leaks_no_program(
    monkeypatch: pytest.MonkeyPatch, status: int, what: str
) -> None:
    library = FakeLibrary(status)
    with pytest.raises(CompileError, match=what) as caught:
        load(monkeypatch, library).compile(Source("int x", "kernel.cu", ()))
    assert caught.value.log == "a warning" and library.programs == 0


def test_a_library_under_a_false_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"is NVRTC 13\.2 .* 13\.0.*SPARSEGEN_NVRTC"):
        load(monkeypatch, FakeLibrary(minor=2))


def test_libraries_are_read_ahead_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvrtc.so").write_bytes(b"code")
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr("os.posix_fadvise", lambda file, *what: asked.append(what))
    Installation(tmp_path / "libnvrtc.so", tmp_path / "missing.so", (13, 0)).read_ahead()
    assert asked == [(0, 0, os.POSIX_FADV_WILLNEED)]


@pytest.mark.parametrize("serve", [nvrtc.serve, pycuda_compiler.serve])
def test_compilers_give_way(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()
    ours.close()
    given: list[int] = []
    monkeypatch.setattr("os.nice", given.append)
    serve(theirs)
    assert given == [NICENESS]
