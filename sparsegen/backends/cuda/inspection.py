"""Compiled forms of a source: PTX from the CUDA compiler itself, SASS from cuobjdump or nvdisasm."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from sparsegen.backends.cuda.compiler import CudaToolchain, compile_with_nvrtc, find_nvcc
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.settings import Settings

# Tools that print a cubin's machine code, the preferred one first, and their options.
_DISASSEMBLERS = {"cuobjdump": ("-sass",), "nvdisasm": ()}


def ptx(toolchain: CudaToolchain, source: str, *, timeout: float = 60.0) -> str:
    """A source's PTX for the toolchain's architecture, from the compiler that the toolchain compiles with.

    Raises:
        CompileError: with the compiler's messages.
    """
    if toolchain.nvrtc is not None:
        virtual = toolchain.architecture.replace("sm_", "compute_")
        return compile_with_nvrtc(
            toolchain.nvrtc, source, "kernel.cu", virtual, timeout=timeout
        ).image.decode()
    with tempfile.TemporaryDirectory(prefix="sparsegen-") as folder:
        (Path(folder) / "kernel.cu").write_text(source, encoding="utf-8")
        command = [
            str(toolchain.nvcc),
            "-O3",
            "-std=c++17",
            f"-arch={toolchain.architecture}",
            "-ptx",
            "-o",
            "kernel.ptx",
            "kernel.cu",
        ]
        _run(command, timeout, folder)
        return (Path(folder) / "kernel.ptx").read_text(encoding="utf-8")


def sass(cubin: Path, settings: Settings, *, timeout: float = 60.0) -> str:
    """The machine code of a compiled variant.

    Raises:
        DeviceUnavailableError: no disassembler is installed.
        CompileError: the disassembler failed.
    """
    tool = find_disassembler(settings)
    return _run([str(tool), *_DISASSEMBLERS[tool.stem], str(cubin)], timeout)


def find_disassembler(settings: Settings) -> Path:
    """cuobjdump or nvdisasm: on PATH, below CUDA_HOME, or beside nvcc.

    Raises:
        DeviceUnavailableError: neither is in any of these places; the message says how to get them.
    """
    folders = [settings.cuda_home / "bin"]
    with contextlib.suppress(DeviceUnavailableError):
        folders.append(find_nvcc(settings).resolve().parent)
    for name in _DISASSEMBLERS:
        for candidate in (shutil.which(name), *(folder / name for folder in folders)):
            if candidate is not None and Path(candidate).is_file():
                return Path(candidate)
    raise DeviceUnavailableError(
        "cuobjdump and nvdisasm were found neither on PATH, nor below CUDA_HOME, nor beside nvcc: "
        "apt install cuda-cuobjdump, or set CUDA_HOME to a CUDA toolkit"
    )


def _run(command: list[str], timeout: float, folder: str | None = None) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"{name} did not end within {timeout:g} s") from None
    except OSError as error:
        raise DeviceUnavailableError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise CompileError(f"{name} ended with status {done.returncode}", log=done.stderr.strip())
    return done.stdout
