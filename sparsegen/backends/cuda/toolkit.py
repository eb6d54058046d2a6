"""Parts of the CUDA toolkit of an nvcc: its release, its headers, and the NVRTC of the same release.

Nothing is loaded here. An NVRTC in this process would answer to the same name as PyTorch's own, so its release is read
off the builtins library that lies beside it.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from sparsegen.backends.cuda.nvrtc import Installation
from sparsegen.errors import ConfigError, DeviceUnavailableError
from sparsegen.settings import Settings

logger = logging.getLogger(__name__)

Release = tuple[int, int]  # major, minor
HEADER_HEAD = 16384  # characters of cuda_runtime_api.h, in which its version stands


class Compiler(StrEnum):
    """Compilers that make machine code; the last two run nvcc."""

    NVRTC = "nvrtc"
    PYCUDA = "pycuda"
    NVCC = "nvcc"


def wanted_compiler(settings: Settings) -> Compiler | None:
    """Returns the compiler that ``SPARSEGEN_COMPILER`` names; None if it is not set: then NVRTC of nvcc's release, else
    nvcc.

    Raises:
        ConfigError: it names none of them.
    """
    if settings.compiler is None:
        return None
    try:
        return Compiler(settings.compiler)
    except ValueError:
        raise ConfigError(
            f"SPARSEGEN_COMPILER={settings.compiler} is none of {', '.join(Compiler)}"
        ) from None


@dataclass(frozen=True, slots=True)
class NvccVersion:
    """Output of ``nvcc --version``.

    Attributes:
        build: its last line, which names release and build.
        release: None if no line names one.
    """

    build: str
    release: Release | None


@dataclass(frozen=True, slots=True)
class FoundNvrtc:
    """An NVRTC, and the folder of the toolkit's headers."""

    installation: Installation
    include: Path


@cache
def nvcc_version(nvcc: Path) -> NvccVersion:
    """The version that nvcc tells of itself.

    Raises:
        DeviceUnavailableError: nvcc cannot be run, or fails.
    """
    try:
        done = subprocess.run(
            [nvcc, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceUnavailableError(
            f"{nvcc} cannot be run ({error}): set SPARSEGEN_NVCC to another"
        ) from error
    if done.returncode != 0:
        raise DeviceUnavailableError(
            f"{nvcc} --version ended with status {done.returncode} ({done.stderr.strip()}): "
            "reinstall the CUDA toolkit, or set SPARSEGEN_NVCC to another nvcc"
        )
    said = done.stdout.strip()
    release = re.search(r"release (\d+)\.(\d+)", said)
    return NvccVersion(said.splitlines()[-1] if said else "", release and (int(release[1]), int(release[2])))


@cache
def find_nvrtc(settings: Settings, nvcc: Path) -> FoundNvrtc | None:
    """The NVRTC to compile with, or None where nvcc has to.

    The first that is found in the toolkit's folders of libraries and the wheel ``nvidia-cuda-nvrtc``, unless
    ``SPARSEGEN_NVRTC`` names the library; none where ``SPARSEGEN_COMPILER`` names another compiler. Only one of nvcc's
    own major.minor counts, with headers of that version; patch releases are not told apart.

    Raises:
        DeviceUnavailableError: the library that ``SPARSEGEN_NVRTC`` names cannot be used, or ``SPARSEGEN_COMPILER``
            is ``nvrtc`` and there is none; the message says why.
        ConfigError: ``SPARSEGEN_COMPILER`` names no compiler.
    """
    wanted = wanted_compiler(settings)
    if wanted not in (None, Compiler.NVRTC):
        return None
    release = nvcc_version(nvcc).release
    include = None if release is None else _find_headers(settings, nvcc, release)
    if release is None or include is None:
        why = f"{nvcc} names no release" if release is None else "no CUDA headers of its release were found"
        if settings.nvrtc is None and wanted is None:
            logger.info("compiling with nvcc, and not with NVRTC: %s", why)
            return None
        raise DeviceUnavailableError(
            f"NVRTC cannot be used: {why}; set CUDA_HOME to nvcc's toolkit, or SPARSEGEN_COMPILER=nvcc"
        )
    if settings.nvrtc is None:
        libraries = (
            folder / f"libnvrtc.so.{release[0]}" for folder in _library_folders(settings, nvcc, release)
        )
        found = next(filter(None, (_installation(library, release) for library in libraries)), None)
        if found is None and wanted is Compiler.NVRTC:
            raise DeviceUnavailableError(
                f"SPARSEGEN_COMPILER=nvrtc cannot be used: there is no NVRTC of nvcc's release {_dotted(release)}; pip "
                "install nvidia-cuda-nvrtc of that release, or set SPARSEGEN_COMPILER=nvcc"
            )
        if found is None:
            logger.info("compiling with nvcc: no NVRTC of its release %s was found", _dotted(release))
            return None
    else:
        found = _installation(Path(settings.nvrtc).absolute(), release)
        if found is None:
            raise DeviceUnavailableError(
                f"SPARSEGEN_NVRTC={settings.nvrtc} cannot be used: it has to be a libnvrtc.so with "
                f"libnvrtc-builtins.so.{_dotted(release)} of nvcc's release beside it; correct it, or unset it, or set "
                "SPARSEGEN_COMPILER=nvcc"
            )
    logger.info("compiling with NVRTC: %s has nvcc's release %s", found.library, _dotted(release))
    return FoundNvrtc(found, include)


def _roots(settings: Settings, nvcc: Path) -> list[Path]:
    """The toolkit around nvcc, where links point and where they stand; and CUDA_HOME, as nvcc may be a script."""
    return [nvcc.resolve().parent.parent, nvcc.absolute().parent.parent, settings.cuda_home]


def _find_headers(settings: Settings, nvcc: Path, release: Release) -> Path | None:
    for root in _roots(settings, nvcc):
        for folder in (root / "include", *sorted(root.glob("targets/*/include"))):
            if (folder / "cuda_fp16.h").is_file() and _header_release(folder) == release:
                return folder
    return None


def _header_release(folder: Path) -> Release | None:
    try:
        with (folder / "cuda_runtime_api.h").open(encoding="utf-8", errors="replace") as file:
            found = re.search(r"#define CUDART_VERSION\s+(\d+)", file.read(HEADER_HEAD))
    except OSError:
        return None
    return found and (int(found[1]) // 1000, int(found[1]) % 1000 // 10)


def _library_folders(settings: Settings, nvcc: Path, release: Release) -> Iterator[Path]:
    for root in _roots(settings, nvcc):
        for pattern in ("lib64", "targets/*/lib", "lib", "lib/*-linux-gnu"):
            yield from sorted(root.glob(pattern))
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels and wheels.submodule_search_locations) or ():
        yield Path(folder) / f"cu{release[0]}" / "lib"
        yield Path(folder) / "cuda_nvrtc" / "lib"


def _installation(library: Path, release: Release) -> Installation | None:
    """A library that is there, if the builtins beside it are of this release."""
    builtins = library.parent / f"libnvrtc-builtins.so.{_dotted(release)}"
    return Installation(library, builtins, release) if library.is_file() and builtins.is_file() else None


def _dotted(release: Release) -> str:
    return f"{release[0]}.{release[1]}"
