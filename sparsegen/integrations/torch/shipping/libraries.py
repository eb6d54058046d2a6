"""Shared libraries of launches in this process: compiled against its PyTorch, and loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from sparsegen.errors import PackageMissingError
from sparsegen.plan.shipping.launches import ShippedLaunch
from sparsegen.plan.shipping.library import PyTorchHeaders, build_library, namespace_of

LIBRARY = "kernels.so"
OLDEST = (2, 10)  # PyTorch's release with a stable interface for operators
RELEASE = OLDEST[0] << 56 | OLDEST[1] << 48


def require_stable_interface() -> None:
    """Raises PackageMissingError where this PyTorch has none that a library could be compiled for."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < OLDEST:
        raise PackageMissingError(
            f"this needs PyTorch {OLDEST[0]}.{OLDEST[1]} or later, whose interface for operators is stable; this is "
            f"{torch.__version__}"
        )


def pytorch_headers() -> PyTorchHeaders:
    """Headers and libraries of this process's PyTorch."""
    root = Path(torch.__file__).parent
    return PyTorchHeaders((root / "include",), root / "lib", RELEASE)


def write_library(launches: Sequence[ShippedLaunch], folder: Path) -> Path:
    """Compile a library into a folder, and load it unless one with the same launches is there.

    Raises:
        DeviceUnavailableError, CompileError, MachineError: see `build_library`.
    """
    library = folder / LIBRARY
    with tempfile.TemporaryDirectory(prefix="sparsegen-library-") as build:
        library.write_bytes(build_library(launches, pytorch_headers(), Path(build), LIBRARY).read_bytes())
    if not torch._C._dispatch_has_kernel(f"{namespace_of(launches)}::linear"):
        torch.ops.load_library(library)
    return library


def loaded_library(launches: Sequence[ShippedLaunch]) -> str:
    """The namespace of the operator of a library that this process alone has.

    Raises:
        DeviceUnavailableError, CompileError, MachineError: see `build_library`.
    """
    with tempfile.TemporaryDirectory(prefix="sparsegen-library-") as folder:
        write_library(launches, Path(folder))  # stays loaded without its file
    return namespace_of(launches)
