"""Standalone programs without a GPU: their hosts compiled by g++, over the emulator's kernels."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sparsegen.backends.executor import CompiledKernel

CUDA_OF_HOST = Path(__file__).with_name("cuda_of_host")
OPTIONS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{CUDA_OF_HOST}")


def host_part(source: str, entry: str) -> str:
    """The part of a program that the host compiles; a launch does not look at the kernel's address."""
    return f'extern "C" void {entry}() {{}}\n' + source[source.index("// ===== The host") :]


def built(text: str, folder: Path) -> Path:
    """The program of a C++ source."""
    (folder / "program.cpp").write_text(text, encoding="utf-8")
    command = ["g++", *OPTIONS, str(folder / "program.cpp"), "-ldl", "-o", str(folder / "program")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return folder / "program"


def ran(program: Path, *words: str, kernel: CompiledKernel) -> subprocess.CompletedProcess[str]:
    """The output of a program whose launches go to the emulator."""
    environment = {**os.environ, "SPARSEGEN_KERNEL": str(kernel.binary)}
    command = [str(program), *words]
    return subprocess.run(
        command, cwd=program.parent, env=environment, capture_output=True, text=True, check=False
    )
