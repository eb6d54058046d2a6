"""PyCUDA's compiler module, which runs nvcc; and the process that serves it (`compile_servers`).

PyCUDA keeps neither what nvcc prints nor a time limit. Here its warning is the log, and its process can be killed.
"""

from __future__ import annotations

import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from sparsegen.backends.compiler_process import give_way
from sparsegen.backends.cuda.nvrtc import Compilation, Source
from sparsegen.errors import CompileError, DeviceUnavailableError, MachineError
from sparsegen.system.child import answer, requests
from sparsegen.system.extras import install_command

SERVES = "sparsegen.backends.cuda.pycuda_compiler:serve"
ARCHITECTURE = "-arch="  # an option of the source, which PyCUDA takes apart from the others
SAID = "The CUDA compiler succeeded, but said the following:\n"  # PyCUDA's warning before nvcc's output


@dataclass(frozen=True, slots=True)
class NvccOfPycuda:
    """The nvcc that PyCUDA is to run."""

    nvcc: Path


def load() -> ModuleType:
    """PyCUDA's compiler module.

    Raises:
        DeviceUnavailableError: it is not installed, or needs a driver that is missing.
    """
    try:
        import pycuda.compiler
        import pycuda.driver  # the compiler module imports it in the middle of a compile

    except ImportError as error:
        raise DeviceUnavailableError(
            f"SPARSEGEN_COMPILER=pycuda cannot be used ({error}): {install_command('cuda')} on a machine with an "
            "NVIDIA driver, or set SPARSEGEN_COMPILER to nvrtc or nvcc"
        ) from error
    module: ModuleType = pycuda.compiler
    return module


def compile_source(found: NvccOfPycuda, source: Source) -> Compilation:
    """Compile to a cubin. PyCUDA's own cache is off: ours keeps log and source too.

    Raises:
        CompileError: the source has errors; with nvcc's output.
        MachineError: nvcc ended without a word, as one that was killed does.
        DeviceUnavailableError: see `load`.
    """
    compiler = load()
    from pycuda.driver import CompileError as PycudaError

    architecture = next(o for o in source.options if o.startswith(ARCHITECTURE)).removeprefix(ARCHITECTURE)
    with (
        tempfile.TemporaryDirectory(dir=source.folder) as folder,
        warnings.catch_warnings(record=True) as said,
    ):
        tempfile.tempdir = folder  # PyCUDA's files are gone with it, whatever becomes of the compile
        warnings.simplefilter("always")
        try:
            image = compiler.compile(
                f'#line 1 "{source.name}"\n{source.text}',
                nvcc=str(found.nvcc),
                options=[o for o in source.options if not o.startswith(ARCHITECTURE)],
                no_extern_c=True,
                arch=architecture,
                cache_dir=False,
            )
        except PycudaError as error:
            log = f"{error.stdout or ''}{error.stderr or ''}".strip()
            if not log:
                raise MachineError(
                    "nvcc ended without a word under PyCUDA: it was killed; run the command again, which goes on"
                ) from error
            raise CompileError("nvcc failed under PyCUDA", log=log) from error
    return Compilation(image, "".join(str(w.message).removeprefix(SAID) for w in said))


def serve(connection: Connection) -> None:
    """Runs in the child: answers pairs of `NvccOfPycuda` and `Source` with a `Compilation` each.

    None in the place of a source asks for no answer: only PyCUDA is imported, ahead of the first source.
    """
    give_way()
    for found, source in requests(connection):
        if source is None:
            with suppress(DeviceUnavailableError):  # then the first source is answered with it
                load()
            continue
        answer(connection, lambda: compile_source(found, source))  # noqa: B023 - called at once
