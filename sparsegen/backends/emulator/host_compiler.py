"""The C++ compiler of the host, with which the emulator compiles kernels."""

from __future__ import annotations

import shlex
import shutil

from sparsegen.errors import DeviceUnavailableError
from sparsegen.settings import Settings


def host_compiler(settings: Settings) -> list[str]:
    """The compiler and its first options, as ``CXX`` has them in a shell's words.

    Raises:
        DeviceUnavailableError: it is not there, or its quotes do not close.
    """
    advice = "`apt install g++` (12 or newer), or set CXX to one"
    try:
        words = shlex.split(settings.cxx)
    except ValueError as error:
        raise DeviceUnavailableError(
            f"CXX = {settings.cxx!r} is no command of a C++ compiler for the emulator: {error}; {advice}"
        ) from None
    if not words or shutil.which(words[0]) is None:
        raise DeviceUnavailableError(
            f"the emulator needs a C++ compiler and {settings.cxx!r} is not there: {advice}"
        )
    return words
