"""Compiles generated sources for the CPU with the host's C++ compiler.

The runtime and a precompiled header are built once for each flavour (plain, sanitized) and kept in the cache;
a variant then takes a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparsegen.backends.emulator.cuda_headers import CudaHeaders, find_cuda_headers
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.settings import Settings
from sparsegen.system.publish import publish_folder

FOLDER = Path(__file__).parent
SOURCE_NAME, META_NAME = "kernel.cu", "meta.json"
COMMON_OPTIONS = (
    "-std=c++20",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",  # nvcc does not assume it, and kernels load halves as words
    "-fdiagnostics-color=never",
)
RUNTIME_BUILD_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Flavour:
    """A way to build: what the output is called, the compiler's options, the runtime's sources."""

    output: str
    options: tuple[str, ...]
    link_options: tuple[str, ...]
    runtime: tuple[str, ...]


RUNTIME = (
    "async_copy.cpp",
    "barriers.cpp",
    "block.cpp",
    "cluster.cpp",
    "fiber.cpp",
    "launch.cpp",
    "shared_memory.cpp",
    "stacks.cpp",
    "tensor_map.cpp",
)
PLAIN = Flavour("kernel.so", ("-O2",), ("-shared",), RUNTIME)
SANITIZED = Flavour(
    "kernel",
    (
        "-O1",
        "-g1",  # line numbers, which is all that a report shows; a third less time than -g
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ),
    (),
    (*RUNTIME, "runner.cpp"),
)


class EmulatorToolchain:
    """The emulator's `sparsegen.backends.executor.Toolchain`.

    Args:
        settings: the compiler (``cxx``), where to look for CUDA's headers, and the cache's folder.
        options: more options for every compilation.
    """

    def __init__(self, settings: Settings | None = None, *, options: Sequence[str] = ()) -> None:
        self._settings = settings or Settings.from_environment()
        self._extra_options = tuple(options)
        self._folder = self._settings.cache / "emulator"
        self._runtime_lock = threading.Lock()

    @cached_property
    def fingerprint(self) -> str:
        """Compiler, options, CUDA headers, the emulator's own sources and the architecture.

        Raises:
            DeviceUnavailableError: no C++ compiler, or no CUDA headers.
        """
        return self._fingerprint(PLAIN)

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        """A shared object for `EmulatorExecutor`; see `sparsegen.backends.executor.Toolchain.compile`."""
        folder = self._variant(PLAIN, family, entry, source, timeout)
        return CompiledKernel(entry=entry, source=folder / SOURCE_NAME, binary=folder / PLAIN.output)

    def compile_sanitized(
        self, family: str, entry: str, source: str, *, timeout: float = 60.0
    ) -> CompiledKernel:
        """An executable for `run_sanitized`, with the sanitizers' checks; raises what `compile` does."""
        folder = self._variant(SANITIZED, family, entry, source, timeout)
        return CompiledKernel(entry=entry, source=folder / SOURCE_NAME, binary=folder / SANITIZED.output)

    # --- the parts ---

    @cached_property
    def _compiler(self) -> list[str]:
        words = shlex.split(self._settings.cxx)
        if not words or shutil.which(words[0]) is None:
            raise DeviceUnavailableError(
                f"the emulator needs a C++ compiler and {self._settings.cxx!r} is not there: "
                "`apt install g++` (12 or newer), or set CXX to one"
            )
        return words

    @cached_property
    def _compiler_version(self) -> str:
        found = subprocess.run([*self._compiler, "--version"], capture_output=True, text=True, check=False)
        return found.stdout.partition("\n")[0]

    @cached_property
    def _headers(self) -> CudaHeaders:
        return find_cuda_headers(self._settings)

    def _options(self, flavour: Flavour) -> list[str]:
        return [*COMMON_OPTIONS, *flavour.options, *self._extra_options]

    def _fingerprint(self, flavour: Flavour) -> str:
        parts = [
            self._compiler_version,
            " ".join(self._options(flavour)),
            f"CUDA headers {self._headers.version}",
            f"emulator {_own_digest()}",
            platform.machine(),
        ]
        return "; ".join(parts)

    def _variant(self, flavour: Flavour, family: str, entry: str, source: str, timeout: float) -> Path:
        key = _digest(self._fingerprint(flavour), str(self._headers.include), entry, source)
        folder = self._folder / f"{family}-{key}"
        if (folder / flavour.output).exists():
            return folder
        runtime = self._runtime(flavour)
        command = [
            *self._compiler,
            *self._options(flavour),
            "-include",
            str(runtime / "precompiled.h"),
            *self._include_options,
            "-I.",
            "-DSPARSEGEN_EMULATOR",
            f'-DSPARSEGEN_EMULATOR_SOURCE="{SOURCE_NAME}"',
            f"-DSPARSEGEN_EMULATOR_ENTRY={entry}",
            str(FOLDER / "entry.cpp"),
            *(str(runtime / f"{Path(name).stem}.o") for name in flavour.runtime),
            *flavour.link_options,
            "-o",
            flavour.output,
        ]
        with publish_folder(folder) as work:
            (work / SOURCE_NAME).write_text(source)
            started = time.perf_counter()
            _run_compiler(command, work, timeout, what=f"{family} for the emulator")
            meta = {
                "entry": entry,
                "fingerprint": self._fingerprint(flavour),
                "compile_seconds": round(time.perf_counter() - started, 3),
            }
            (work / META_NAME).write_text(json.dumps(meta, indent=1) + "\n")
        return folder

    @property
    def _include_options(self) -> list[str]:
        return [f"-I{FOLDER}", *self._headers.options]

    def _runtime(self, flavour: Flavour) -> Path:
        """The folder with the flavour's precompiled header and the runtime's objects."""
        key = _digest(self._fingerprint(flavour), str(self._headers.include))
        folder = self._folder / f"runtime-{key}"
        with self._runtime_lock:
            if not folder.is_dir():
                with publish_folder(folder) as work:
                    self._build_runtime(flavour, work)
        return folder

    def _build_runtime(self, flavour: Flavour, work: Path) -> None:
        compiler = [*self._compiler, *self._options(flavour), *self._include_options]
        # Of another name than sparsegen_emulator.h, whose precompiled form kernels would not find again.
        (work / "precompiled.h").write_text('#include "sparsegen_emulator.h"\n')
        commands = [[*compiler, "-x", "c++-header", "precompiled.h", "-o", "precompiled.h.gch"]]
        for name in flavour.runtime:
            commands.append([*compiler, "-c", str(FOLDER / name), "-o", f"{Path(name).stem}.o"])
        with ThreadPoolExecutor(min(len(commands), os.cpu_count() or 1)) as pool:
            for _ in pool.map(
                lambda command: _run_compiler(command, work, RUNTIME_BUILD_SECONDS, what="the emulator"),
                commands,
            ):
                pass


def _run_compiler(command: list[str], folder: Path, timeout: float, *, what: str) -> None:
    """Run in ``folder``; the compiler's children are killed with it.

    Raises:
        CompileError: it failed or took too long.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        log, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise CompileError(f"compiling {what} took longer than {timeout:g} s") from None
    if process.returncode != 0:
        raise CompileError(f"compiling {what} failed", log=log)


def _own_digest() -> str:
    """Of the emulator's C++ files."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in (".h", ".cpp"))
    return _digest(*(part for path in files for part in (path.name, path.read_text())))[:12]


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]
