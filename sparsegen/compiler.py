"""CUDA source -> cubin with nvcc, in an atomic on-disk cache; many variants compile at once.

PyCUDA's own compiler module calls nvcc too, but keeps neither the source nor the resource usage, and knows no
time limit; so nvcc is called directly, and PyCUDA loads what it made.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from sparsegen.cache import publish_folder
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.executor import CompiledKernel
from sparsegen.settings import Settings

logger = logging.getLogger(__name__)

OPTIONS = ("-O3", "-std=c++17", "-lineinfo", "-Xptxas=-v", "-diag-suppress=177")
SOURCE_NAME, CUBIN_NAME, META_NAME = "kernel.cu", "kernel.cubin", "meta.json"


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas says of a kernel: registers per thread, bytes spilled per thread, static shared bytes per block."""

    registers: int | None
    spill_bytes: int | None
    static_shared_bytes: int | None

    @classmethod
    def from_log(cls, log: str) -> Resources:
        registers = re.search(r"Used (\d+) registers", log)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
        shared = re.search(r"(\d+) bytes smem", log)
        return cls(
            registers=int(registers[1]) if registers else None,
            spill_bytes=int(spills[1]) + int(spills[2]) if spills else None,
            static_shared_bytes=int(shared[1]) if shared else 0 if registers else None,
        )


def find_nvcc(settings: Settings) -> Path:
    """The CUDA compiler.

    Raises:
        DeviceUnavailableError: there is none; the message says where it was looked for.
    """
    candidates = [settings.nvcc, shutil.which("nvcc"), str(settings.cuda_home / "bin" / "nvcc")]
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    raise DeviceUnavailableError(
        "nvcc was found neither on PATH nor below CUDA_HOME: install the CUDA toolkit, or set SPARSEGEN_NVCC to it; "
        "without a GPU use --device emulator"
    )


class CudaToolchain:
    """nvcc for one architecture. Safe to use from many threads; every compile is a process of its own.

    Args:
        compute_capability: (major, minor) of the device.
    """

    def __init__(self, compute_capability: tuple[int, int], settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environment()
        self.nvcc = find_nvcc(self.settings)
        major, minor = compute_capability
        # From Hopper on, the architecture's own instructions need the "a" target.
        self.architecture = f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    @cached_property
    def version(self) -> str:
        """nvcc's release and build."""
        done = subprocess.run(
            [self.nvcc, "--version"], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.strip().splitlines()[-1]

    @cached_property
    def fingerprint(self) -> str:
        return " ".join((self.version, self.architecture, *OPTIONS))

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        """See `Toolchain.compile`."""
        digest = hashlib.sha256((self.fingerprint + "\0" + source).encode()).hexdigest()
        folder = self.settings.cache / "cuda" / f"{family}-{digest[:24]}"
        found = self._read(folder, entry)
        if found is not None:
            return found
        with publish_folder(folder) as work:
            # #line keeps profilers and compiler messages on the source that stays in the cache.
            (work / SOURCE_NAME).write_text(source)
            (work / "compile.cu").write_text(f'#line 1 "{folder / SOURCE_NAME}"\n{source}')
            started = time.perf_counter()
            log = self._run_nvcc(work, timeout)
            (work / "compile.cu").unlink()
            meta = {
                "entry": entry,
                "fingerprint": self.fingerprint,
                "compile_seconds": round(time.perf_counter() - started, 3),
                **asdict(Resources.from_log(log)),
            }
            (work / META_NAME).write_text(json.dumps(meta, indent=1) + "\n")
        found = self._read(folder, entry)
        if found is None:
            raise CompileError(f"the compiled variant vanished from the cache at {folder}")
        return found

    def _run_nvcc(self, work: Path, timeout: float) -> str:
        command = [
            str(self.nvcc),
            *OPTIONS,
            f"-arch={self.architecture}",
            "-cubin",
            "-o",
            CUBIN_NAME,
            "compile.cu",
        ]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise CompileError(f"nvcc did not end within {timeout:g} s") from None
        if done.returncode != 0:
            raise CompileError(f"nvcc ended with status {done.returncode}", log=done.stderr.strip())
        return done.stderr

    @staticmethod
    def _read(folder: Path, entry: str) -> CompiledKernel | None:
        try:
            meta = json.loads((folder / META_NAME).read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            logger.warning("ignoring a damaged cache entry at %s", folder)
            return None
        return CompiledKernel(
            entry=entry,
            source=folder / SOURCE_NAME,
            binary=folder / CUBIN_NAME,
            registers=meta.get("registers"),
            spill_bytes=meta.get("spill_bytes"),
            static_shared_bytes=meta.get("static_shared_bytes"),
        )
