"""What the CUDA compiler made of a source: PTX from nvcc, SASS from cuobjdump. No device is needed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from sparsegen.compiler import CudaToolchain, find_nvcc
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.settings import Settings


def ptx(toolchain: CudaToolchain, source: str, *, timeout: float = 60.0) -> str:
    """A source's PTX for the toolchain's architecture.

    Raises:
        CompileError: with nvcc's messages.
    """
    with tempfile.TemporaryDirectory(prefix="sparsegen-") as folder:
        (Path(folder) / "kernel.cu").write_text(source)
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
        return (Path(folder) / "kernel.ptx").read_text()


def sass(cubin: Path, settings: Settings, *, timeout: float = 60.0) -> str:
    """The machine code of a compiled variant.

    Raises:
        DeviceUnavailableError: cuobjdump is not installed.
        CompileError: cuobjdump failed.
    """
    return _run([str(find_cuobjdump(settings)), "-sass", str(cubin)], timeout)


def find_cuobjdump(settings: Settings) -> Path:
    """cuobjdump: on PATH, beside nvcc, or below CUDA_HOME.

    Raises:
        DeviceUnavailableError: it is in none of these places; the message says how to get it.
    """
    candidates = [shutil.which("cuobjdump"), settings.cuda_home / "bin" / "cuobjdump"]
    try:
        candidates.append(find_nvcc(settings).resolve().parent / "cuobjdump")
    except DeviceUnavailableError:
        pass
    for candidate in candidates:
        if candidate is not None and Path(candidate).is_file():
            return Path(candidate)
    raise DeviceUnavailableError(
        "cuobjdump was found neither on PATH, nor beside nvcc, nor below CUDA_HOME: install the CUDA toolkit "
        "(package cuda-cuobjdump), or set CUDA_HOME"
    )


def _run(command: list[str], timeout: float, folder: str | None = None) -> str:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CompileError(f"{name} did not end within {timeout:g} s") from None
    except OSError as error:
        raise DeviceUnavailableError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise CompileError(f"{name} ended with status {done.returncode}", log=done.stderr.strip())
    return done.stdout
