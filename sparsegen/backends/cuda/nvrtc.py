"""NVRTC, NVIDIA's compiler as a library, through ctypes; and the process that serves it.

It runs in child processes alone (`compile_servers`): a compile inside a process cannot be stopped, and a
crash of the compiler would take the process along.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from sparsegen.backends.compiler_process import give_way
from sparsegen.errors import CompileError, DeviceUnavailableError
from sparsegen.system.child import answer, requests

COMPILATION_FAILED = 6  # NVRTC_ERROR_COMPILATION


@dataclass(frozen=True, slots=True)
class Source:
    """Source and options of a compile.

    Attributes:
        name: the file that messages and line information name; it need not exist.
        options: an architecture ``sm_NN`` gives machine code, ``compute_NN`` PTX.
        folder: folder for files of a compiler that needs some; None for the system's folder of temporary files.
    """

    text: str
    name: str
    options: tuple[str, ...]
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compiled source.

    Attributes:
        image: a cubin; PTX (ASCII) if the architecture is virtual.
        log: warnings, and what ptxas says.
    """

    image: bytes
    log: str


@dataclass(frozen=True, slots=True)
class Installation:
    """NVRTC on disk.

    Attributes:
        library: ``libnvrtc.so.N``.
        builtins: ``libnvrtc-builtins.so.N.M``. NVRTC asks the loader for it by name, and the loader does not look
            beside NVRTC: it has to be loaded first.
        release: major, minor of both.
    """

    library: Path
    builtins: Path
    release: tuple[int, int]

    def read_ahead(self) -> None:
        """Have the kernel read the libraries from one end to the other, in the background.

        Compilers that start at once would fetch them page by page, each waiting for the disk, if they were not used
        since the machine started.
        """
        for path in (self.library, self.builtins):
            with suppress(OSError, AttributeError), path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


class Nvrtc:
    """The library.

    Raises:
        DeviceUnavailableError: it does not load, or is of another release than the installation says.
    """

    def __init__(self, found: Installation) -> None:
        library, release = found.library, found.release
        try:
            ctypes.CDLL(str(found.builtins), mode=ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(library))
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise DeviceUnavailableError(
                f"{library} does not load as NVRTC ({error}): mend it, or set SPARSEGEN_COMPILER=nvcc"
            ) from error
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        if (major.value, minor.value) != release:
            raise DeviceUnavailableError(
                f"{library} is NVRTC {major.value}.{minor.value} beside the builtins of {release[0]}.{release[1]}: "
                "set SPARSEGEN_NVRTC to the library of nvcc's release, or SPARSEGEN_COMPILER=nvcc"
            )

    def compile(self, source: Source) -> Compilation:
        """Compile a source in this process.

        Raises:
            CompileError: the source has errors, or NVRTC failed; with its log.
        """
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.text.encode(),
            os.fsencode(source.name),
            0,  # headers held in memory: none
            None,
            None,
        )
        try:
            options = [os.fsencode(option) for option in source.options]
            array = (ctypes.c_char_p * len(options))(*options)
            status = self._library.nvrtcCompileProgram(program, len(options), array)
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                what = "errors in the source" if status == COMPILATION_FAILED else self._message(status)
                raise CompileError(f"NVRTC failed: {what}", log=log.strip())
            if _is_virtual(source.options):
                return Compilation(self._read(program, "PTX").rstrip(b"\0"), log)
            return Compilation(self._read(program, "CUBIN"), log)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise CompileError(f"{function} failed: {self._message(status)}")

    def _message(self, status: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(status)
        return text.decode(errors="replace")


def _is_virtual(options: Sequence[str]) -> bool:
    return any(option.startswith("--gpu-architecture=compute_") for option in options)


def serve(connection: Connection) -> None:
    """Runs in the child: answers pairs of `Installation` and `Source` with a `Compilation` each.

    None in the place of a source asks for no answer: only the library is loaded, ahead of the first source.
    """
    give_way()
    load = cache(Nvrtc)
    for installation, source in requests(connection):
        if source is None:
            with suppress(CompileError, DeviceUnavailableError):  # then the first source is answered with it
                load(installation)
            continue
        answer(connection, lambda: load(installation).compile(source))  # noqa: B023 - called at once
