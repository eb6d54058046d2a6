"""``sparsegen doctor``: what is there, what is missing, what it is for, and the command that gets it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from rich.table import Column, Table
from rich.text import Text

from sparsegen import backends
from sparsegen.backends.cuda.compiler import find_nvcc
from sparsegen.backends.cuda.inspection import find_disassembler
from sparsegen.backends.cuda.toolkit import Compiler, find_nvrtc, wanted_compiler
from sparsegen.backends.emulator.cuda_headers import find_cuda_headers
from sparsegen.backends.emulator.host_compiler import host_compiler
from sparsegen.cli.parts.common import emit, json_option
from sparsegen.errors import CacheError, DeviceUnavailableError, SparsegenError
from sparsegen.measure.baselines.libraries import find_library
from sparsegen.settings import Settings
from sparsegen.system.extras import install_command
from sparsegen.system.private import private_folder
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.project import is_there

NEEDED, GPU, EMULATOR, OPTIONAL = "everything", "a GPU", "the emulator", "optional"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one look.

    Attributes:
        found: the version or place, or what went wrong.
        purpose: its purpose.
        needed_for: ``everything``, ``a GPU``, ``the emulator`` or ``optional``.
        fix: the exact command or change that gets it; empty if it is there.
    """

    name: str
    ok: bool
    found: str
    purpose: str
    needed_for: str
    fix: str = ""


@click.command()
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Say what is missing on this machine, what it is for, and the exact fix.

    Ends with status 1 if something that everything needs is missing, and with 4 if neither a GPU nor the
    emulator can be used.
    """
    checks = run_checks(Settings.from_environment())
    missing = {check.needed_for for check in checks if not check.ok}
    usable = {word: NEEDED not in missing and word not in missing for word in (GPU, EMULATOR)}
    data = {
        "checks": [asdict(check) for check in checks],
        "gpu_usable": usable[GPU],
        "emulator_usable": usable[EMULATOR],
    }
    table = Table("", "", Column("found", overflow="fold"), "for", box=None, padding=(0, 2, 0, 0))
    for check in checks:
        mark = (
            Text("ok", "green")
            if check.ok
            else Text("missing", "red" if check.needed_for == NEEDED else "yellow")
        )
        table.add_row(mark, check.name, check.found, f"{check.purpose} ({check.needed_for})")
    fixes = [f"{check.name}: {check.fix}" for check in checks if not check.ok]
    words = [f"{word} can{'' if ok else 'not'} be used" for word, ok in usable.items()]
    lines = [*(["", "To get what is missing:", *fixes] if fixes else []), "", "; ".join(words)]
    emit(as_json, data, table, Text("\n".join(lines)))
    if NEEDED in missing:
        ctx.exit(1)
    if not any(usable.values()):
        ctx.exit(DeviceUnavailableError.exit_code)


def run_checks(settings: Settings) -> list[Check]:
    """Every check, in the order in which one would mend things."""
    return [
        *_for_everything(settings),
        *_for_a_gpu(settings),
        *_optional(settings),
        *_for_the_emulator(settings),
    ]


def _for_everything(settings: Settings) -> Iterator[Check]:
    yield _python()
    for name, purpose in (
        ("numpy", "arrays"),
        ("scipy", "sparse matrices"),
        ("jinja2", "code generation"),
        ("optuna", "the search"),
        ("sqlalchemy", "the database"),
        ("alembic", "database migrations"),
    ):
        yield _package(name, purpose, NEEDED, install_command(""))
    yield _database(settings)
    yield _cache(settings)


def _for_a_gpu(settings: Settings) -> Iterator[Check]:
    def nvcc() -> str:
        return _first_line([str(find_nvcc(settings)), "--version"], last=True)

    def nvrtc() -> str:
        return _nvrtc(settings)

    driver = "install NVIDIA's driver (apt install nvidia-driver)"
    no_gpu = "nvidia-smi should list one; in a container, pass --gpus all"
    no_nvcc = "install the CUDA toolkit (apt install cuda-toolkit), or set SPARSEGEN_NVCC or CUDA_HOME"
    no_nvrtc = (
        "pip install nvidia-cuda-nvrtc of nvcc's release, or correct SPARSEGEN_NVRTC and SPARSEGEN_COMPILER"
    )
    yield _look("NVIDIA driver", _driver, "running on a GPU", GPU, driver)
    yield _package("pycuda", "running on a GPU", GPU, install_command("cuda"))
    yield _look("GPU", _gpus, "running on a GPU", GPU, no_gpu)
    yield _look("nvcc", nvcc, "compiling for a GPU", GPU, no_nvcc)
    yield _look("NVRTC", nvrtc, "compiling for a GPU in half of nvcc's time", OPTIONAL, no_nvrtc)


def _optional(settings: Settings) -> Iterator[Check]:
    def cuobjdump() -> str:
        return str(find_disassembler(settings))

    no_cuobjdump = "install the CUDA toolkit (apt install cuda-cuobjdump), or set CUDA_HOME"
    no_nvml = "pip install nvidia-ml-py, beside NVIDIA's driver"
    yield _look("cuobjdump", cuobjdump, "sparsegen source --sass", OPTIONAL, no_cuobjdump)
    yield _look("NVML", _nvml, "clocks and throttling in measurements", OPTIONAL, no_nvml)
    for library, products in (("cublas", "dense products"), ("cusparse", "NVIDIA's sparse products")):
        fix = f"pip install nvidia-{library}, or the CUDA toolkit"
        yield _look(library, partial(_library, library), f"timing {products} beside", OPTIONAL, fix)
    yield _package("torch", "PyTorch tensors", OPTIONAL, "pip install torch")
    cupy = "cupy-cuda13x", "cupy-cuda12x"
    yield _package("cupy", "CuPy arrays", OPTIONAL, f"pip install {cupy[0]}", *cupy)


def _for_the_emulator(settings: Settings) -> Iterator[Check]:
    def compiler() -> str:
        return _first_line(_compiler(settings))

    def headers() -> str:
        return str(find_cuda_headers(settings).include)

    no_headers = f"{install_command('emulator')}, or set SPARSEGEN_CUDA_INCLUDE"
    yield _look("C++ compiler", compiler, "compiling for the CPU", EMULATOR, "apt install g++, or set CXX")
    yield _look("CUDA headers", headers, "compiling for the CPU", EMULATOR, no_headers)


def _look(name: str, find: Callable[[], str], purpose: str, needed_for: str, fix: str) -> Check:
    """``find`` gives what was found, or raises with why not."""
    try:
        return Check(name, True, find(), purpose, needed_for)
    except (SparsegenError, OSError, ImportError, subprocess.SubprocessError) as error:
        return Check(name, False, str(error).partition("\n")[0], purpose, needed_for, fix)


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 11)
    return Check("Python", ok, found, "all of it", NEEDED, "" if ok else "install Python 3.11 or newer")


def _package(name: str, purpose: str, needed_for: str, fix: str, *other_names: str) -> Check:
    """An installed distribution, by its name or one of those under which builds of it are published."""
    for distribution in (name, *other_names):
        try:
            return Check(name, True, version(distribution), purpose, needed_for)
        except PackageNotFoundError:
            continue
    return Check(name, False, "not installed", purpose, needed_for, fix)


def _database(settings: Settings) -> Check:
    location = Location.parse(settings.db)
    if location.path is None:
        return Check("database", True, str(location), "tuning results", NEEDED)
    if is_there(location.path):
        ok = location.path.is_file() and os.access(location.path, os.R_OK | os.W_OK)
        found = str(location.path) if ok else f"{location.path} cannot be written"
        return Check(
            "database",
            ok,
            found,
            "tuning results",
            NEEDED,
            "" if ok else "make it writable, or set SPARSEGEN_DB",
        )
    return _folder("database", location.path.parent, "tuning results", "SPARSEGEN_DB")


def _cache(settings: Settings) -> Check:
    found = _folder("compile cache", settings.cache, "compiled variants", "SPARSEGEN_CACHE")
    if not found.ok or not settings.cache.exists():
        return found
    try:
        private_folder(settings.cache)
    except CacheError as error:
        fix = f"chmod go-w {settings.cache}, or set SPARSEGEN_CACHE to a folder of your own"
        return replace(found, ok=False, found=str(error).partition(", and could")[0], fix=fix)
    return found


def _folder(name: str, folder: Path, purpose: str, variable: str) -> Check:
    """A folder in which a file can be made; the nearest one that exists stands for one that does not yet."""
    if not folder.is_absolute():
        why = f"{folder}: this user has no home folder, or the working folder is gone"
        return Check(name, False, why, purpose, NEEDED, f"set {variable} to a place that you may write")
    nearest = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))  # noqa: PTH110 no error
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return Check(name, True, str(folder), purpose, NEEDED)
    except OSError as error:
        fix = f"set {variable} to a place that you may write, or mend {nearest}"
        return Check(name, False, f"{folder}: {error.strerror}", purpose, NEEDED, fix)


def _driver() -> str:
    number = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
        raise DeviceUnavailableError("libcuda.so.1 is there but does not answer")
    return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"


def _gpus() -> str:
    gpus = backends.gpu_devices()
    if not gpus:
        raise DeviceUnavailableError("none found")
    return ", ".join(gpu.name for gpu in gpus)


def _nvrtc(settings: Settings) -> str:
    wanted = wanted_compiler(settings)
    if wanted not in (None, Compiler.NVRTC):
        return f"not used: SPARSEGEN_COMPILER={wanted}"
    found = find_nvrtc(settings, find_nvcc(settings))
    if found is None:
        raise DeviceUnavailableError("there is none of nvcc's release: nvcc compiles")
    return str(found.installation.library)


def _library(name: str) -> str:
    """Returns the path from which one of NVIDIA's libraries was loaded."""
    return str(find_library(name)._name)


def _nvml() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        raise DeviceUnavailableError(str(error)) from error
    return f"driver {driver}"


def _compiler(settings: Settings) -> list[str]:
    return [*host_compiler(settings), "--version"]


def _first_line(command: list[str], *, last: bool = False) -> str:
    """The first (or last) line of what a program prints."""
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=30
    )
    return done.stdout.strip().splitlines()[-1 if last else 0]
