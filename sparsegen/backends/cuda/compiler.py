"""CUDA source -> cubin with NVRTC, PyCUDA's compiler or nvcc, in an atomic on-disk cache; many compile at once.

NVRTC takes half of nvcc's time or less, and makes other code, as fast. PyCUDA's compiler module runs nvcc, as we do
where neither is asked for; it knows no time limit, and so runs in a process of its own like NVRTC.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from sparsegen.backends.cache import CompileCache
from sparsegen.backends.compiler_process import run_compiler
from sparsegen.backends.cuda.compile_servers import CompileServers, compile_servers
from sparsegen.backends.cuda.nvrtc import Compilation, Source
from sparsegen.backends.cuda.pycuda_compiler import SERVES, NvccOfPycuda
from sparsegen.backends.cuda.toolkit import Compiler, FoundNvrtc, find_nvrtc, nvcc_version, wanted_compiler
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import DeviceUnavailableError
from sparsegen.kernels.base import cuda_architecture
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json

NVCC_OPTIONS = ("-O3", "-std=c++17", "-lineinfo", "-Xptxas=-v", "-diag-suppress=177")
NVRTC_OPTIONS = (
    "-std=c++17",
    "-lineinfo",
    "--ptxas-options=-v",
    "-diag-suppress=177",
    "-default-device",  # constexpr functions without __device__ are the host's, which NVRTC refuses
    "-DINFINITY=__builtin_bit_cast(float,0x7f800000)",  # defined in <math.h>, a header of the host
)
SOURCE_NAME, CUBIN_NAME = "kernel.cu", "kernel.cubin"


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a kernel by ptxas: registers per thread, bytes spilled per thread, static shared bytes per block."""

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


def compile_with_nvrtc(
    found: FoundNvrtc, source: str, name: str, architecture: str, *, timeout: float
) -> Compilation:
    """Compile a source with NVRTC, in a compile server.

    Args:
        name: the file that messages and line information name.
        architecture: ``sm_NN`` for a cubin, ``compute_NN`` for PTX.

    Raises:
        CompileError: with NVRTC's log; also after ``timeout`` seconds.
        DeviceUnavailableError: the library does not load.
    """
    options = (f"--gpu-architecture={architecture}", *NVRTC_OPTIONS, f"-I{found.include}")
    return compile_servers(found.installation).compile(Source(source, name, options), timeout=timeout)


class CudaToolchain:
    """NVRTC, or nvcc where there is none of its release, for one architecture; or what ``SPARSEGEN_COMPILER`` names.

    Safe to use from many threads; no compile runs in this process.

    NVRTC's release and headers are nvcc's. Still the two make different code of most
    kernels that use shared memory, which nvcc addresses with 32 bits and NVRTC with 64: of the 34 golden sources, 13.0
    of both makes equal instructions for 10 and takes equal registers for 28 (sm_90a). Times are the same in the mean
    (docs/performance.md), but not of every variant. So each has a fingerprint of its own, with nvcc's build in it.
    PyCUDA runs nvcc with the same options, and so has nvcc's fingerprint.

    Args:
        compute_capability: (major, minor) of the device.
    """

    def __init__(self, compute_capability: tuple[int, int], settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environment()
        self.nvcc = find_nvcc(self.settings)
        self.architecture = cuda_architecture(compute_capability)

    @cached_property
    def nvrtc(self) -> FoundNvrtc | None:
        """The NVRTC that compiles; None if nvcc does, by itself or through PyCUDA."""
        return find_nvrtc(self.settings, self.nvcc)

    @property
    def compiler(self) -> Compiler:
        """The compiler in use."""
        if self.nvrtc is not None:
            return Compiler.NVRTC
        return wanted_compiler(self.settings) or Compiler.NVCC

    @cached_property
    def _servers(self) -> CompileServers:
        """The processes that compile, where it is not nvcc alone."""
        if self.nvrtc is not None:
            return compile_servers(self.nvrtc.installation)
        return compile_servers(NvccOfPycuda(self.nvcc), SERVES, "PyCUDA")

    @cached_property
    def fingerprint(self) -> str:
        build = nvcc_version(self.nvcc).build
        if self.nvrtc is None:
            return " ".join((build, self.architecture, *NVCC_OPTIONS))
        return " ".join(("NVRTC", build, self.architecture, *NVRTC_OPTIONS))

    def warm_up(self, jobs: int) -> None:
        """See `Toolchain.warm_up`: compile servers, which take longer to start than many a kernel to compile."""
        if self.compiler is not Compiler.NVCC:
            self._servers.start(jobs)

    def make_ready(self) -> None:
        """Does nothing: compiles share nothing that takes long."""

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        """See `Toolchain.compile`."""
        digest = hashlib.sha256((self.fingerprint + "\0" + source).encode()).hexdigest()
        name = f"{family}-{digest[:24]}"
        cache = CompileCache(self.settings.cache, "cuda")

        def build(work: Path) -> Json:
            (work / SOURCE_NAME).write_text(source, encoding="utf-8")
            started = time.perf_counter()
            log = self._compile_into(work, source, cache.folder / name / SOURCE_NAME, timeout)
            return {
                "entry": entry,
                "fingerprint": self.fingerprint,
                "compile_seconds": round(time.perf_counter() - started, 3),
                **asdict(Resources.from_log(log)),
            }

        made = cache.find(name) or cache.make(name, build)
        return CompiledKernel(
            entry=entry,
            source=made.folder / SOURCE_NAME,
            binary=made.folder / CUBIN_NAME,
            digest=made.digests[CUBIN_NAME],
            registers=made.facts.get("registers"),
            spill_bytes=made.facts.get("spill_bytes"),
            static_shared_bytes=made.facts.get("static_shared_bytes"),
        )

    def _compile_into(self, work: Path, source: str, shown: Path, timeout: float) -> str:
        """Writes the cubin; the compiler's log. Messages and profilers find ``shown``, which stays in the cache."""
        if self.compiler is Compiler.NVCC:
            return self._run_nvcc(work, source, shown, timeout)
        if self.nvrtc is not None:
            made = compile_with_nvrtc(self.nvrtc, source, str(shown), self.architecture, timeout=timeout)
        else:
            options = (f"-arch={self.architecture}", *NVCC_OPTIONS)
            made = self._servers.compile(Source(source, str(shown), options, work), timeout=timeout)
        (work / CUBIN_NAME).write_bytes(made.image)
        return made.log

    def _run_nvcc(self, work: Path, source: str, shown: Path, timeout: float) -> str:
        unit = work / "compile.cu"
        unit.write_text(f'#line 1 "{shown}"\n{source}', encoding="utf-8", errors="surrogateescape")
        command = [
            str(self.nvcc),
            *NVCC_OPTIONS,
            f"-arch={self.architecture}",
            "-cubin",
            "-o",
            CUBIN_NAME,
            unit.name,
        ]
        log = run_compiler(command, work, timeout)
        unit.unlink()
        return log
