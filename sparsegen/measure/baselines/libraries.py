"""Finds and opens NVIDIA's libraries: from the toolkit, the loader's path, or the wheels that PyTorch brings."""

from __future__ import annotations

import ctypes
import ctypes.util
import site
import sys
from functools import cache
from pathlib import Path

from sparsegen.errors import SparsegenError
from sparsegen.settings import Settings


class LibraryUnavailableError(SparsegenError):
    """A vendor library is not installed; a comparison is skipped with this line."""


def _candidates(name: str) -> list[str]:
    home = Settings.from_environment().cuda_home
    folders = [home / "lib64", home / "targets" / "x86_64-linux" / "lib"]
    for packages in {*site.getsitepackages(), *sys.path}:
        folders += sorted(Path(packages).glob("nvidia/*/lib"))
    found = [str(path) for folder in folders for path in sorted(folder.glob(f"lib{name}.so*"), reverse=True)]
    by_loader = ctypes.util.find_library(name)
    return [*([by_loader] if by_loader else []), *found]


@cache
def find_library(name: str) -> ctypes.CDLL:
    """The shared library lib<name>.so.

    Raises:
        LibraryUnavailableError: it is nowhere to be found, or does not load.
    """
    for candidate in _candidates(name):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise LibraryUnavailableError(
        f"lib{name} is not installed (it comes with the CUDA toolkit, and with PyTorch)"
    )


def checked(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function that returns a status.

    Raises:
        VendorError: the status is not zero.
    """
    status = getattr(library, function)(*arguments)
    if status:
        raise VendorError(f"{function} returned status {status}")


class Handle:
    """A library's handle, or another object of it, destroyed with this one.

    Args:
        create, destroy: names of the library's functions.
        arguments: further arguments of ``create``, after the address of the handle.

    Raises:
        VendorError: the library refused.
    """

    def __init__(self, library: ctypes.CDLL, create: str, destroy: str, *arguments: object) -> None:
        self.library, self._destroy = library, destroy
        self.value = ctypes.c_void_p()
        checked(library, create, ctypes.byref(self.value), *arguments)

    def __del__(self) -> None:
        if self.value:
            getattr(self.library, self._destroy)(self.value)

    def version(self, function: str) -> str:
        """The library's version as one number, as this function of it says."""
        number = ctypes.c_int()
        checked(self.library, function, self.value, ctypes.byref(number))
        return str(number.value)


class VendorError(SparsegenError):
    """A vendor library refused a call, for example an algorithm that does not support a layout."""
