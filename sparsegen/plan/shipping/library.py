"""Compiles a shared library of launches with the host's C++ compiler: no CUDA toolkit, and none of PyTorch's objects.

It registers its operators with PyTorch's stable interface (torch/csrc/stable, PyTorch 2.10 and later), has cubins of
every architecture in it, and finds NVIDIA's driver and the current stream when it is first called.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsegen.backends import emulator
from sparsegen.backends.compiler_process import run_compiler
from sparsegen.backends.emulator.host_compiler import host_compiler
from sparsegen.operators import DType, WordType
from sparsegen.plan.shipping.launches import ShippedLaunch
from sparsegen.render.sources import environment
from sparsegen.settings import Settings

NATIVE = Path(__file__).parent / "native"
SOURCES = ("cpu.cpp", "driver.cpp", "gpu.cpp", "operators.cpp")
OPTIONS = ("-std=c++20", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-shared")
TABLE = "launches.cpp"
SECONDS = 300.0  # most that the compiler may take
SCALAR_TYPES: dict[
    object, int
] = {  # c10/core/ScalarType.h; words of masks come as int64, which all of PyTorch takes
    DType.FLOAT16: 5,
    DType.FLOAT32: 6,
    DType.BFLOAT16: 15,
    WordType.INT32: 3,
    WordType.UINT64: 4,
}


@dataclass(frozen=True, slots=True)
class _Code:
    """A binary, and the file from which the assembler takes it."""

    entry: str
    digest: str
    file: str


@dataclass(frozen=True, slots=True)
class PyTorchHeaders:
    """Folders of PyTorch's headers and libraries, and the release whose interface the library keeps to.

    Attributes:
        release: such as ``0x020a000000000000`` for 2.10.
    """

    include: tuple[Path, ...]
    libraries: Path
    release: int


def namespace_of(launches: Sequence[ShippedLaunch]) -> str:
    """The namespace of a library's operators, which tells them from those of all other models."""
    digest = hashlib.sha256()
    for launch in launches:
        facts = (launch.problem, launch.family, launch.config, launch.operands, launch.arguments, launch.maps)
        digest.update(repr((facts, [(t.capability, t.digest, t.launch) for t in launch.targets])).encode())
        digest.update(launch.packed.data)
    for source in sorted(NATIVE.iterdir()):
        digest.update(source.read_bytes())
    return f"sparsegen_shipped_{digest.hexdigest()[:16]}"


def build_library(
    launches: Sequence[ShippedLaunch], headers: PyTorchHeaders, folder: Path, name: str
) -> Path:
    """Write and compile the library of some launches.

    Args:
        folder: an empty one for what is compiled; the library is all of it that is needed afterwards.
        name: of the library's file.

    Returns:
        The library.

    Raises:
        DeviceUnavailableError: there is no C++ compiler.
        CompileError, MachineError: it failed.
    """
    codes: dict[str, _Code] = {}
    for launch in launches:
        for target in launch.targets:
            if target.digest not in codes:
                file = f"code_{len(codes)}.bin"
                (folder / file).write_bytes(target.binary)
                codes[target.digest] = _Code(launch.entry, target.digest, file)
    values = {
        "codes": list(codes.values()),
        "numbers": {digest: number for number, digest in enumerate(codes)},
        "launches": launches,
        "scalar_types": SCALAR_TYPES,
    }
    table = environment().get_template(f"shipping/{TABLE}.j2").render(values)
    (folder / TABLE).write_text(table, encoding="utf-8")
    command = [
        *host_compiler(Settings.from_environment()),
        *OPTIONS,
        f"-DSHIPPED_NAMESPACE={namespace_of(launches)}",
        f"-DTORCH_TARGET_VERSION={headers.release:#018x}",
        *(option for folder in headers.include for option in ("-isystem", str(folder))),
        f"-I{NATIVE}",  # first: the emulator has a launch.h too
        f"-I{Path(emulator.__file__).parent}",
        *(str(NATIVE / source) for source in SOURCES),
        TABLE,
        f"-L{headers.libraries}",
        *("-ltorch_cpu", "-lc10", "-ldl"),
        *("-o", name),
    ]
    run_compiler(command, folder, SECONDS)
    return folder / name
