"""Compiles generated sources for the CPU with the host's C++ compiler.

The runtime and a precompiled header are built once for each flavour (plain, sanitized) and kept in the cache;
a variant then takes a fraction of a second.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from sparsegen.backends.cache import CompileCache, Entry
from sparsegen.backends.compiler_process import run_compiler
from sparsegen.backends.emulator.cuda_headers import CudaHeaders, find_cuda_headers
from sparsegen.backends.emulator.host_compiler import host_compiler
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import CompileError, MachineError
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCE_NAME = "kernel.cu"
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
    "checked_memory.cpp",
    "cluster.cpp",
    "fiber.cpp",
    "launch.cpp",
    "shared_memory.cpp",
    "stacks.cpp",
    "tensor_core.cpp",
    "tensor_map.cpp",
)
# Of the kernel's memory these touch what threads hand out alone: to check that would take most of a kernel's time.
UNCHECKED = ("block.cpp", "tensor_core.cpp")
PLAIN = Flavour(
    "kernel.so",
    ("-Og",),  # half the time of -O2 to compile, an eighth more to run
    ("-shared",),
    RUNTIME,
)
SANITIZED = Flavour(
    "kernel",
    (
        "-fPIE",  # variables of a thread are found without a call
        "-Og",  # the level with the least total time for compiling a kernel and running it
        "-g1",  # line numbers, which is all that a report shows; a third less time than -g
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        # AddressSanitizer reports uses of such pointers; without these checks a compile takes 0.7 of the time.
        "-fno-sanitize=null,object-size,pointer-overflow",
        "-fno-sanitize-recover=all",
        # Checks as calls, and registers of a function as one region: a fifth less to compile, a quarter more to run,
        # of which there is less.
        "--param=asan-instrumentation-with-call-threshold=0",
        "-fira-region=one",
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
        self._cache = CompileCache(self._settings.cache, "emulator")
        self._runtime_lock = threading.Lock()
        self._runtimes: set[str] = set()  # names of those that this process found whole, or made

    def warm_up(self, jobs: int) -> None:
        """See `Toolchain.warm_up`: nothing; each compile is a process of its own."""

    @cached_property
    def fingerprint(self) -> str:
        """Compiler, options, CUDA headers, the emulator's own sources and the architecture.

        Raises:
            DeviceUnavailableError: no C++ compiler, or no CUDA headers.
        """
        return self._fingerprint(PLAIN)

    def make_ready(self) -> None:
        """Build the runtime, once for a compiler and a cache: it takes as long as several kernels."""
        self._runtime(PLAIN)

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        """A shared object for `EmulatorExecutor`; see `sparsegen.backends.executor.Toolchain.compile`."""
        return self._compiled(PLAIN, family, entry, source, timeout)

    def compile_sanitized(
        self, family: str, entry: str, source: str, *, timeout: float = 600.0
    ) -> CompiledKernel:
        """An executable for `run_sanitized`, with the sanitizers' checks; raises what `compile` does."""
        return self._compiled(SANITIZED, family, entry, source, timeout)

    # --- the parts ---

    @cached_property
    def _compiler(self) -> list[str]:
        return host_compiler(self._settings)

    @cached_property
    def _compiler_version(self) -> str:
        command = [*self._compiler, "--version"]
        found = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        return found.stdout.partition("\n")[0]

    @cached_property
    def _headers(self) -> CudaHeaders:
        return find_cuda_headers(self._settings)

    @cached_property
    def _linker(self) -> list[str]:
        """GNU gold where it is installed: it takes half the time, a fifth of what a small kernel takes in all."""
        return ["-fuse-ld=gold"] if shutil.which("ld.gold") else []

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

    def _compiled(
        self, flavour: Flavour, family: str, entry: str, source: str, timeout: float
    ) -> CompiledKernel:
        made = self._variant(flavour, family, entry, source, timeout)
        return CompiledKernel(
            entry=entry,
            source=made.folder / SOURCE_NAME,
            binary=made.folder / flavour.output,
            digest=made.digests[flavour.output],
        )

    def _variant(self, flavour: Flavour, family: str, entry: str, source: str, timeout: float) -> Entry:
        key = _digest(self._fingerprint(flavour), str(self._headers.include), entry, source)
        name = f"{family}-{key}"

        def build(work: Path) -> Json:
            (work / SOURCE_NAME).write_text(source, encoding="utf-8")
            started = time.perf_counter()
            run_compiler(self._command(flavour, entry, runtime), work, timeout)
            return {
                "entry": entry,
                "fingerprint": self._fingerprint(flavour),
                "compile_seconds": round(time.perf_counter() - started, 3),
            }

        found = self._cache.find(name)
        if found is not None:
            return found
        runtime = self._runtime(flavour)
        try:
            return self._cache.make(name, build)
        except CompileError:
            if self._cache.find(runtime.name) is not None:
                raise
        runtime = self._runtime(flavour)  # it was damaged, or the cache was cleared
        return self._cache.make(name, build)

    def _command(self, flavour: Flavour, entry: str, runtime: Path) -> list[str]:
        return [
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
            *self._linker,
            "-o",
            flavour.output,
        ]

    @property
    def _include_options(self) -> list[str]:
        return [f"-I{FOLDER}", *self._headers.options]

    def _runtime(self, flavour: Flavour) -> Path:
        """The folder with the flavour's precompiled header and the runtime's objects.

        Raises:
            MachineError: it cannot be built.
        """
        name = f"runtime-{_digest(self._fingerprint(flavour), str(self._headers.include))}"
        folder = self._cache.folder / name
        with self._runtime_lock:
            if name not in self._runtimes or not folder.is_dir():  # looked at as a whole once in this process
                if self._cache.find(name) is None:
                    with self._cache.turn(name):
                        _ = self._cache.find(name) or self._cache.make(
                            name, partial(self._build_runtime, flavour)
                        )
                self._runtimes.add(name)
        return folder

    def _build_runtime(self, flavour: Flavour, work: Path) -> Json:
        log.warning("building the emulator's runtime in %s: once, some 20 s", self._cache.folder)
        compiler = [*self._compiler, *self._options(flavour), *self._include_options]
        # The name differs from sparsegen_emulator.h, whose precompiled form kernels would not find again.
        (work / "precompiled.h").write_text('#include "sparsegen_emulator.h"\n', encoding="utf-8")
        commands = [[*compiler, "-x", "c++-header", "precompiled.h", "-o", "precompiled.h.gch"]]
        for name in flavour.runtime:
            unchecked = ["-fno-sanitize=all"] if name in UNCHECKED else []
            made = f"{Path(name).stem}.o"
            commands.append([*compiler, "-O3", *unchecked, "-c", str(FOLDER / name), "-o", made])
        with ThreadPoolExecutor(min(len(commands), os.cpu_count() or 1)) as pool:
            built = [pool.submit(run_compiler, command, work, RUNTIME_BUILD_SECONDS) for command in commands]
        try:
            for one in built:
                one.result()
        except CompileError as error:
            if not work.exists():
                raise
            raise MachineError(
                f"the emulator's runtime cannot be built, without which no variant compiles: {error}"
            ) from error
        return {"fingerprint": self._fingerprint(flavour)}


def _own_digest() -> str:
    """Digest of the emulator's C++ files."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in (".h", ".cpp"))
    return _digest(*(part for path in files for part in (path.name, path.read_text(encoding="utf-8"))))[:12]


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogateescape"))  # names of folders are among them
        digest.update(b"\0")
    return digest.hexdigest()[:16]
