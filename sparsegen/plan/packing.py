"""Matrices into the form that a variant wants, in its device's memory: by the device itself where that pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import THREADS, PlainKernels
from sparsegen.errors import OperandError
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import Buffer
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

LARGE = 1 << 22  # nonzeros from which the device packs; below the host takes some 0.05 s
SETS = 8  # sets of values for each thread, as in gather.cu


def pack(
    family: AnyFamily, problem: Problem, config: Config, matrix: CsrMatrix, executor: Executor
) -> Packed[Buffer]:
    """The packed matrix, on the device.

    A CUDA device packs large matrices itself, if the family can have it do so. It needs memory for the matrix in
    compressed sparse rows beside the packed one then.

    Raises:
        MatrixError: the matrix is too large for the family's numbers.
        LaunchError: the device has not enough memory.
        CompileError, DeviceUnavailableError: the packing kernels cannot be compiled.
    """
    with executor.entered():
        if executor.device.backend == "cuda" and matrix.nnz >= LARGE:
            packed = by_device(family, problem, config, matrix, executor)
            if packed is not None:
                return packed
        return by_host(family, problem, config, matrix, executor)


def by_device(
    family: AnyFamily, problem: Problem, config: Config, matrix: CsrMatrix, executor: Executor
) -> Packed[Buffer] | None:
    """Packed by the device; None where the family's packer is on the host alone."""
    packer = PlainKernels(executor)
    packed = family.pack_on(problem, config, matrix, packer)
    if packed is None:
        return None
    packer.finish()
    make_source = packed.value_source
    if make_source is None:
        return packed

    def source() -> Buffer:
        made = make_source()
        packer.finish()
        return made

    return replace(packed, value_source=source)


def by_host(
    family: AnyFamily, problem: Problem, config: Config, matrix: CsrMatrix, executor: Executor
) -> Packed[Buffer]:
    """Packed by the host, and sent."""
    packed = family.pack(problem, config, matrix)
    arrays = with_all_values(problem, packed)
    buffers = {name: executor.upload(empty_as_one(array)) for name, array in arrays.items()}
    if buffers:
        executor.synchronize()  # launches may come on other streams than the uploads
    make_source = packed.value_source

    def source() -> Buffer:
        assert make_source is not None
        numbers = make_source().astype(np.int32, copy=False)
        return executor.upload(numbers if numbers.size else np.full(1, -1, dtype=np.int32))

    return Packed(
        arrays=buffers,
        sizes=packed.sizes,
        nnz=packed.nnz,
        values=packed.values,
        value_source=None if make_source is None else source,
        scratch=packed.scratch,
    )


def with_all_values(problem: Problem, packed: Packed[Array]) -> Mapping[str, Array]:
    """The packed arrays as a launch takes them: elements of a batch with own values all begin with the matrix's."""
    if problem.value_sets == 1:
        return packed.arrays
    assert packed.values is not None
    return {**packed.arrays, packed.values: np.tile(packed.arrays[packed.values].ravel(), problem.value_sets)}


def value_source(packed: Packed[Buffer]) -> Buffer:
    """int32: of each packed value the nonzero's number in CSR order, or -1.

    Raises:
        OperandError: these numbers were not kept.
    """
    if packed.value_source is None:
        raise OperandError(
            "where each packed value came from was not kept: the operator was saved with updatable=False; "
            "prepare it again for new values"
        )
    return packed.value_source()


class Gather(OwnLaunch):
    """Puts new values into packed ones, on the device: ``bound(stream, address of the values)``.

    The values are those of all nonzeros in CSR order, in storage form; for one batch element after another where each
    has its own. The numbers of their nonzeros, 4 bytes for each packed value of an element of the batch, stay on the
    device from the first time on.

    Raises:
        OperandError: these numbers were not kept.
    """

    def __init__(self, packed: Packed[Buffer], problem: Problem, executor: Executor) -> None:
        assert packed.values is not None
        itemsize = problem.dtype.itemsize
        super().__init__(executor)
        self._target = packed.arrays[packed.values]
        self.source = value_source(packed)
        (self._kernel,) = plain_launchers(executor, "gather.cu", f"gather_{8 * itemsize}")
        self._sets, self._nnz = problem.value_sets, packed.nnz
        self._count = self._target.nbytes // (itemsize * self._sets)
        executor.synchronize()  # calls may come on other streams than the upload

    def __call__(self, values: Buffer, stream: int = 0) -> None:
        """Start it on a stream."""
        self.bound()(stream, values.address)

    def _bind(self) -> Bound:
        launch = Launch((ceil_div(self._count, THREADS), ceil_div(self._sets, SETS), 1), (THREADS, 1, 1))
        sizes = (self._count, self._nnz, self._sets)
        return self._kernel.bind(launch, *sizes, self.source, None, self._target)
