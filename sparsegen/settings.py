"""Every environment variable that sparsegen reads, in one frozen value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from sparsegen.errors import ConfigError


def absolute(path: Path) -> Path:
    """The path with the home folder for ``~``, from the root on; as it is where there is no home or working folder."""
    try:
        return path.expanduser().absolute()
    except (RuntimeError, OSError):
        return path


def _users(folder: Callable[[str], str], unknown: str) -> str:
    """One of the user's own folders; ``unknown`` where the user has no home folder."""
    try:
        return folder("sparsegen")
    except RuntimeError:
        return unknown


def _count(text: str, name: str) -> int:
    """
    Raises:
        ConfigError: it is no whole number above 0.
    """
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ConfigError(f"{name} is a number of devices, 1 or more, not {text!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Settings:
    """Places and defaults.

    Attributes:
        db: ``SPARSEGEN_DB``, a path or SQLAlchemy URL; default below the user's data folder. It begins with ``~`` for
            a user without a home folder, and then nothing can be written there.
        cache: ``SPARSEGEN_CACHE``, the folder of compiled variants, absolute (compilers run in other folders);
            default below the user's cache folder. It is not absolute for a user without a home folder, or where the
            working folder is gone, and then it cannot be used (`sparsegen.system.private.private_folder`).
        locks: ``SPARSEGEN_LOCKS``, the folder of the GPUs' locks, for users and containers to share; default
            ``/run/lock``, ``/dev/shm`` or ``/tmp`` (`sparsegen.system.host_lock`).
        device: ``SPARSEGEN_DEVICE``, ``cuda:0`` or ``emulator``; default the first GPU, else the emulator.
        emulators: ``SPARSEGEN_EMULATORS``, how many devices the emulator passes for; default 1.
        nvcc: ``SPARSEGEN_NVCC``, the CUDA compiler; default the one on PATH, then below ``CUDA_HOME``.
        nvrtc: ``SPARSEGEN_NVRTC``, the NVRTC (``libnvrtc.so.N``) to compile with, or ``off`` for nvcc; default that of
            nvcc's release where one is found (`sparsegen.backends.cuda.toolkit.find_nvrtc`).
        cxx: ``CXX``, the host compiler of the emulator.
        cuda_include: ``SPARSEGEN_CUDA_INCLUDE``, CUDA headers for the emulator.
    """

    db: str
    cache: Path
    locks: Path | None
    device: str | None
    emulators: int
    nvcc: str | None
    nvrtc: str | None
    cxx: str
    cuda_include: Path | None
    cuda_home: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        e = os.environ if environment is None else environment
        home = e.get("CUDA_HOME") or e.get("CUDA_ROOT") or e.get("CUDA_PATH") or "/usr/local/cuda"
        include = e.get("SPARSEGEN_CUDA_INCLUDE")
        return cls(
            db=e.get("SPARSEGEN_DB")
            or f"{_users(platformdirs.user_data_dir, '~/.local/share/sparsegen')}/tuning.db",
            cache=absolute(
                Path(e.get("SPARSEGEN_CACHE") or _users(platformdirs.user_cache_dir, "~/.cache/sparsegen"))
            ),
            locks=absolute(Path(e["SPARSEGEN_LOCKS"])) if e.get("SPARSEGEN_LOCKS") else None,
            device=e.get("SPARSEGEN_DEVICE") or None,
            emulators=_count(e.get("SPARSEGEN_EMULATORS") or "1", "SPARSEGEN_EMULATORS"),
            nvcc=e.get("SPARSEGEN_NVCC") or None,
            nvrtc=e.get("SPARSEGEN_NVRTC") or None,
            cxx=e.get("CXX") or "g++",
            cuda_include=Path(include) if include else None,
            cuda_home=Path(home),
        )
