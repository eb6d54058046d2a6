"""A device as plain kernels see it: memory, and the kernels of ``sparsegen/backends/plain``."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy.typing as npt

from sparsegen.system.numpy_types import Array

WARP = 32  # threads


class Buffer(Protocol):
    """Device memory; freed when the object goes."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Address(NamedTuple):
    """Memory owned elsewhere, in the form of a `Buffer`."""

    address: int
    nbytes: int = 0


class PlainDevice(Protocol):
    """Interface to a device that packs matrices and computes references. What is started here runs in the order of the
    calls.
    """

    def upload(self, array: Array) -> Buffer:
        """An empty array becomes one zero, so that addresses are never null."""

    def filled(self, nbytes: int, byte: int = 0) -> Buffer:
        """New memory, at least one byte, with every byte set.

        Raises:
            LaunchError: there is not enough memory.
        """

    def download(self, buffer: Buffer, count: int, dtype: npt.DTypeLike) -> Array:
        """The first elements of a buffer of exactly this size; waits for the kernels before."""

    def run(self, entry: str, warps: int, *arguments: Buffer | int) -> None:
        """Start a kernel with a number of warps; the last block's surplus warps have nothing to do.

        Args:
            entry: ``"file:kernel"``; the kernel finds its warp's number in ``blockIdx.x * blockDim.x + threadIdx.x``.
            arguments: pointers for buffers, 32-bit integers for ints.
        """
