"""Standalone programs without a GPU: their hosts compiled by g++, over the emulator's kernels."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from sparsegen.backends.executor import CompiledKernel

CUDA_OF_HOST = Path(__file__).with_name("cuda_of_host")
OPTIONS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{CUDA_OF_HOST}")
HEADERS = "headers.h"


def host_part(source: str, entry: str) -> str:
    """The part of a program that the host compiles; a launch does not look at the kernel's address."""
    return f'extern "C" void {entry}() {{}}\n' + source[source.index("// ===== The host") :]


def built(text: str, folder: Path, *, level: str = "-O1") -> Path:
    """The program of a C++ source, whose headers are parsed once for all that include the same ones."""
    (folder / "program.cpp").write_text(text, encoding="utf-8")
    headers = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#include <"))
    parsed = Path(precompiled(headers, level).name) / HEADERS
    gxx("-include", parsed, folder / "program.cpp", "-ldl", "-o", folder / "program", level=level)
    return folder / "program"


@cache
def precompiled(headers: str, level: str) -> tempfile.TemporaryDirectory[str]:
    """A folder, for as long as this process, with headers and their precompiled form."""
    folder = tempfile.TemporaryDirectory(prefix="sparsegen-headers-")
    file = Path(folder.name) / HEADERS
    file.write_text(headers, encoding="utf-8")
    gxx("-x", "c++-header", file, "-o", file.with_suffix(".h.gch"), level=level)
    return folder


def gxx(*words: str | Path, level: str) -> None:
    compiled = subprocess.run(["g++", *OPTIONS, level, *words], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr


def ran(program: Path, *words: str, kernel: CompiledKernel) -> subprocess.CompletedProcess[str]:
    """The output of a program whose launches go to the emulator."""
    environment = {**os.environ, "SPARSEGEN_KERNEL": str(kernel.binary)}
    command = [str(program), *words]
    return subprocess.run(
        command, cwd=program.parent, env=environment, capture_output=True, text=True, check=False
    )
