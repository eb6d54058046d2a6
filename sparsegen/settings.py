"""Every environment variable that sparsegen reads, in one frozen value."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparsegen.errors import ConfigError
from sparsegen.system.compared import Compared

MOST_EMULATORS = 1024
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def absolute(path: Path) -> Path:
    """The path with the home folder for ``~``, from the root on; as it is where there is no home or working folder."""
    try:
        return path.expanduser().absolute()
    except (RuntimeError, OSError):
        return path


def use_device(name: str) -> None:
    """Make a device, ``cuda:0`` or ``emulator``, the default of this process and of its children."""
    os.environ["SPARSEGEN_DEVICE"] = name


def _users(kind: str, unknown: str) -> str:
    """One of the user's own folders, ``data`` or ``cache``; ``unknown`` where the user has no home folder."""
    import platformdirs  # a job's bundle names both folders, and runs without this package

    folder: Callable[[str], str] = getattr(platformdirs, f"user_{kind}_dir")
    try:
        return folder("sparsegen")
    except RuntimeError:
        return unknown


def _count(text: str, name: str) -> int:
    """
    Raises:
        ConfigError: it is no whole number above 0, or above `MOST_EMULATORS`.
    """
    digits = len(str(MOST_EMULATORS))
    if not (re.fullmatch(f"0*[0-9]{{1,{digits}}}", text) and 1 <= int(text) <= MOST_EMULATORS):
        raise ConfigError(f"{name} is a number of devices, from 1 to {MOST_EMULATORS}, not {text[:40]!r}")
    return int(text)


def _switch(text: str, name: str) -> bool:
    """
    Raises:
        ConfigError: it is no word for on or off.
    """
    word = text.lower()
    if word not in (*ON, *OFF):
        raise ConfigError(f"{name} is {', '.join(ON)}, or {', '.join(filter(None, OFF))}, not {text[:40]!r}")
    return word in ON


def driver_environment() -> dict[str, str]:
    """The variables that NVIDIA's driver, or the loader that finds its library, may go by in showing GPUs."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in ("LD_LIBRARY_PATH", "LD_PRELOAD")
        or (name.startswith(("CUDA_", "NVIDIA_")) and not name.startswith("CUDA_CACHE_"))
    }


FAMILIES = "SPARSEGEN_FAMILIES"


def family_modules() -> tuple[str, ...]:
    """The modules that ``SPARSEGEN_FAMILIES`` names, separated by commas: each has a kernel family (`FAMILY`)."""
    return tuple(name for part in os.environ.get(FAMILIES, "").split(",") if (name := part.strip()))


def add_family_module(name: str) -> None:
    """Name one more in this process's environment, which its children inherit."""
    os.environ[FAMILIES] = ",".join(dict.fromkeys((*family_modules(), name)))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Settings(Compared):
    """Places and defaults.

    Attributes:
        db: ``SPARSEGEN_DB``, a path or SQLAlchemy URL; default below the user's data folder. It begins with ``~`` for
            a user without a home folder, and then nothing can be written there.
        cache: ``SPARSEGEN_CACHE``, the folder of compiled variants, and of what the driver said of GPUs; absolute, as
            compilers run in other folders;
            default below the user's cache folder. It is not absolute for a user without a home folder, or where the
            working folder is gone, and then it cannot be used (`sparsegen.system.private.private_folder`).
        locks: ``SPARSEGEN_LOCKS``, the folder of the GPUs' locks, for users and containers to share; default
            ``/run/lock``, ``/dev/shm`` or ``/tmp`` (`sparsegen.system.host_lock`).
        device: ``SPARSEGEN_DEVICE``, ``cuda:0`` or ``emulator``; default the first GPU, else the emulator.
        emulators: ``SPARSEGEN_EMULATORS``, how many devices the emulator passes for: default 1, at most
            `MOST_EMULATORS`.
        nvcc: ``SPARSEGEN_NVCC``, the CUDA compiler; default the one on PATH, then below ``CUDA_HOME``.
        compiler: ``SPARSEGEN_COMPILER``: ``nvrtc``, ``pycuda`` or ``nvcc``; default NVRTC where there is one of nvcc's
            release, else nvcc.
        nvrtc: ``SPARSEGEN_NVRTC``, the NVRTC (``libnvrtc.so.N``) to compile with; default that of nvcc's release
            (`sparsegen.backends.cuda.toolkit.find_nvrtc`).
        driver: ``SPARSEGEN_DRIVER``, how NVIDIA's driver is called: ``pycuda`` (default), or ``direct``, by ctypes and
            without PyCUDA.
        kernels: ``SPARSEGEN_KERNELS``, a folder of kernels that were compiled beforehand, as a job's bundle brings them
            (docs/bundles.md); then nothing is compiled here.
        layers: ``SPARSEGEN_LAYERS``, published layers of tuning results, separated like the entries of PATH; they lie
            below the project's database and over the packaged results (docs/tuning.md).
        pins: ``SPARSEGEN_PINS``, the file of pinned choices; default the project's, ``.sparsegen/pins.json``.
        deterministic: ``SPARSEGEN_DETERMINISTIC=1``: only variants that give equal bits on every call.
        cxx: ``CXX``, the host compiler of the emulator.
        cuda_include: ``SPARSEGEN_CUDA_INCLUDE``, the folder of CUDA's headers for the emulator; default one of NVIDIA's
            wheels, then the CUDA toolkit's.
        commit: ``SPARSEGEN_COMMIT``, what result files name as the state of the source; default that of its checkout
            (`sparsegen.bench.run.state`).
    """

    db: str
    cache: Path
    locks: Path | None
    device: str | None
    emulators: int
    nvcc: str | None
    compiler: str | None
    nvrtc: str | None
    driver: str
    kernels: Path | None
    layers: tuple[Path, ...]
    pins: Path | None
    deterministic: bool
    cxx: str
    cuda_include: Path | None
    cuda_home: Path
    commit: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        e = os.environ if environment is None else environment
        home = e.get("CUDA_HOME") or e.get("CUDA_ROOT") or e.get("CUDA_PATH") or "/usr/local/cuda"
        include, kernels = e.get("SPARSEGEN_CUDA_INCLUDE"), e.get("SPARSEGEN_KERNELS")
        pins = e.get("SPARSEGEN_PINS")
        return cls(
            db=e.get("SPARSEGEN_DB") or f"{_users('data', '~/.local/share/sparsegen')}/tuning.db",
            cache=absolute(Path(e.get("SPARSEGEN_CACHE") or _users("cache", "~/.cache/sparsegen"))),
            locks=absolute(Path(e["SPARSEGEN_LOCKS"])) if e.get("SPARSEGEN_LOCKS") else None,
            device=e.get("SPARSEGEN_DEVICE") or None,
            emulators=_count(e.get("SPARSEGEN_EMULATORS") or "1", "SPARSEGEN_EMULATORS"),
            nvcc=e.get("SPARSEGEN_NVCC") or None,
            compiler=e.get("SPARSEGEN_COMPILER") or None,
            nvrtc=e.get("SPARSEGEN_NVRTC") or None,
            driver=e.get("SPARSEGEN_DRIVER") or "pycuda",
            kernels=absolute(Path(kernels)) if kernels else None,
            layers=tuple(absolute(Path(p)) for p in e.get("SPARSEGEN_LAYERS", "").split(os.pathsep) if p),
            pins=absolute(Path(pins)) if pins else None,
            deterministic=_switch(e.get("SPARSEGEN_DETERMINISTIC", ""), "SPARSEGEN_DETERMINISTIC"),
            cxx=e.get("CXX") or "g++",
            cuda_include=Path(include) if include else None,
            cuda_home=Path(home),
            commit=e.get("SPARSEGEN_COMMIT") or None,
        )
