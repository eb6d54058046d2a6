"""Search for CUDA's headers: the emulator takes half and bfloat16, vector types and qualifiers from them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsegen.errors import DeviceUnavailableError
from sparsegen.settings import Settings
from sparsegen.system.extras import install_command

# One of each wheel: nvidia-cuda-runtime, nvidia-cuda-crt, nvidia-cuda-cccl.
NEEDED = (
    "cuda_runtime.h",
    "cuda_runtime_api.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "crt/host_defines.h",
    "nv/target",
)


@dataclass(frozen=True, slots=True)
class CudaHeaders:
    """A folder with all of `NEEDED`, and its CUDART_VERSION (``"13000"``)."""

    include: Path
    version: str

    @property
    def options(self) -> list[str]:
        """Options for the compiler that name them as system headers, so that they raise no warnings."""
        return [option for folder in _search_path(self.include) for option in ("-isystem", str(folder))]


def find_cuda_headers(settings: Settings) -> CudaHeaders:
    """``SPARSEGEN_CUDA_INCLUDE`` where it is set, else the first complete folder of NVIDIA's wheels and the toolkit.

    Raises:
        DeviceUnavailableError: none is complete, or not the one that is set.
    """
    for folder in _candidates(settings):
        missing = [name for name in NEEDED if not any((p / name).is_file() for p in _search_path(folder))]
        if not missing:
            return CudaHeaders(folder, _version(folder))
        if folder == settings.cuda_include:
            raise DeviceUnavailableError(
                f"SPARSEGEN_CUDA_INCLUDE is {folder}, which has no {missing[0]}: set it to a folder with all of CUDA's "
                "header files, or leave it out to have them found"
            )
    raise DeviceUnavailableError(
        "the emulator needs CUDA's header files (no GPU, no driver): "
        f"`{install_command('emulator')}`, or set SPARSEGEN_CUDA_INCLUDE to the folder of cuda_runtime.h"
    )


def _candidates(settings: Settings) -> Iterator[Path]:
    if settings.cuda_include:
        yield settings.cuda_include
    # The wheels share the namespace package `nvidia`: nvidia/cu13/include.
    wheels = importlib.util.find_spec("nvidia")
    for root in (wheels.submodule_search_locations or ()) if wheels else ():
        yield from sorted(Path(root).glob("*/include"), reverse=True)
    yield settings.cuda_home / "include"


def _search_path(include: Path) -> list[Path]:
    """The folder itself and, where it has one, that of the CUDA C++ core libraries (nv/target)."""
    return [folder for folder in (include, include / "cccl") if folder.is_dir()]


def _version(include: Path) -> str:
    text = (include / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return found.group(1) if found else "unknown"
