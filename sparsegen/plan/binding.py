"""A compiled variant bound to a packed matrix: a launch that waits only for its addresses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sparsegen.backends.executor import Executor, LoadedKernel, Toolchain
from sparsegen.errors import CacheEntryError, OperandError
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.kernels.launch import ArgumentKind
from sparsegen.kernels.packed import M, Packed, empty_as_one
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.packing import Gather, pack, value_source
from sparsegen.plan.variants import CompiledVariant, compile_variant
from sparsegen.system.device_memory import Buffer
from sparsegen.system.numpy_types import Array

log = logging.getLogger(__name__)


def launch_arguments(
    family: AnyFamily, problem: Problem, config: Config, packed: Packed[M], given: Mapping[str, M]
) -> list[M | int | TensorMap | None]:
    """The kernel's parameters in the order of its signature, on the host or on a device.

    Args:
        given: scratch memory, operands and result by name; None stands in the list for what is not there.
    """

    def value(kind: ArgumentKind, name: str) -> M | int | TensorMap | None:
        if kind is ArgumentKind.TENSOR_MAP:
            return family.tensor_map(problem, config, name)
        if kind is ArgumentKind.SIZE:
            return packed.sizes[name] if name in packed.sizes else int(getattr(problem, name))
        return packed.arrays[name] if kind is ArgumentKind.PACKED else given.get(name)

    return [value(argument.kind, argument.name) for argument in family.arguments(problem)]


def bind_launch(
    family: AnyFamily,
    problem: Problem,
    config: Config,
    packed: Packed[Buffer],
    kernel: LoadedKernel,
    executor: Executor,
    scratch: Mapping[str, Buffer],
) -> Bound:
    """Fix all of a launch but its addresses: ``bound(stream, *operands in call order, result)`` queues it."""
    launch = family.launch(problem, config, packed.sizes, executor.device)
    if launch.is_empty:  # arrays may be empty too, and have no maps
        return _nothing
    arguments = launch_arguments(family, problem, config, packed, scratch)
    bound = executor.bind(kernel, launch, arguments)
    nnz = packed.nnz
    called_with = [*(spec.name for spec in problem.operands(nnz)), problem.result(nnz).name]
    names = [argument.name for argument in family.arguments(problem)]
    order = [called_with.index(name) for name in names if name in called_with]
    if order == sorted(order):
        return bound
    return lambda stream, *addresses: bound(stream, *(addresses[i] for i in order))


class BoundVariant(OwnLaunch):
    """A variant compiled, loaded, and bound to one packed matrix on one device.

    A thread's own launch, ``bound(stream, *operands in call order, result)``, has scratch memory of its own too.

    Attributes:
        compiled: the compiled variant.
        packed: the packed matrix.
        operands, result: operands of a launch, in call order, and its result.
        launching: held while a launch is queued, so that new values come between two launches and never into one.
    """

    def __init__(
        self,
        compiled: CompiledVariant,
        packed: Packed[Buffer],
        executor: Executor,
        *,
        kernel: LoadedKernel | None = None,
    ) -> None:
        """Load the kernel and fix its launch.

        Args:
            kernel: the variant's, where it was loaded before.

        Raises:
            LaunchError: the kernel cannot be loaded.
        """
        super().__init__(executor)
        self.compiled, self.packed = compiled, packed
        rendered = compiled.rendered
        self._problem = problem = rendered.problem
        if kernel is None:
            with executor.entered():
                kernel = executor.load(compiled.kernel)
        self._kernel = kernel
        self.operands = problem.operands(packed.nnz)
        self.result = problem.result(packed.nnz)
        self.launching = threading.Lock()
        self._gather: Gather | None = None  # made with the first new values
        self._kept: list[Buffer] = []  # scratch of all threads: a graph may outlive the one that captured it

    @property
    def source(self) -> str:
        """The CUDA source that runs."""
        return self.compiled.rendered.source

    @property
    def digest(self) -> str:
        """The binary's name in the database."""
        return self.compiled.rendered.digest

    def _bind(self) -> Bound:
        scratch: dict[str, Buffer] = {}
        if self.packed.scratch:
            with self.executor.entered():  # threads of autograd have not opened it
                scratch = {
                    name: zeroed(self.executor, nbytes) for name, nbytes in self.packed.scratch.items()
                }
        self._kept += scratch.values()
        rendered = self.compiled.rendered
        family, config = rendered.family, rendered.config
        return bind_launch(family, self._problem, config, self.packed, self._kernel, self.executor, scratch)

    def overwrite_values(self, encoded: Array) -> None:
        """New values on the same pattern: what was launched before, on any stream, has the old ones, all else the new.

        Args:
            encoded: nnz values in CSR order (or that of ``value_order``), in the problem's storage dtype; where the
                elements of a batch have their own, batch × nnz.

        Raises:
            OperandError: the variant packs no values.
        """
        with self.executor.entered():
            gather = self._value_gather()
            values = self.executor.upload(empty_as_one(encoded))
            with self.launching:
                self.executor.synchronize()
                gather(values, 0)
                self.executor.synchronize()

    def gather_values(self, values: Buffer, stream: int) -> None:
        """The same of values in device memory, in the order of a stream: launches on others may find some of both."""
        self.gather_from(values.address, stream)

    def gather_from(self, address: int, stream: int) -> None:
        """The same of values at an address, of the problem's dtype and complete."""
        launch = self.gather_launch()
        with self.launching:
            launch(stream, address)

    def gather_launch(self) -> Bound:
        """The calling thread's launch that gathers values, ``bound(stream, address)``, for `launching` to be held."""
        gather = self._gather
        if gather is None:
            with self.executor.entered():
                gather = self._value_gather()
        return gather.bound()

    def downloaded(self) -> dict[str, Array]:
        """The bytes of the packed arrays as they lie on the device, behind all values that are on their way."""
        with self.executor.entered(), self.launching:
            self.executor.synchronize()
            return {name: self._bytes(buffer) for name, buffer in self.packed.arrays.items()}

    def downloaded_source(self) -> Array:
        """The same numbers on the host; see `value_source`."""
        source = self.value_source()
        with self.executor.entered():
            return self._bytes(source).view(np.int32)

    def _bytes(self, buffer: Buffer) -> Array:
        found = np.empty(buffer.nbytes, dtype=np.uint8)
        self.executor.download(buffer, found)
        return found

    def _value_gather(self) -> Gather:
        if self.packed.values is None:
            raise OperandError(
                "the result depends on the matrix's pattern alone: there are no values to replace"
            )
        if self._gather is None:
            self._gather = Gather(self.packed, self._problem, self.executor)
        return self._gather

    def value_source(self) -> Buffer:
        """int32 on the device: of each packed value the nonzero's number in CSR order, or -1.

        Raises:
            OperandError: these numbers were not kept.
        """
        with self.executor.entered():
            return value_source(self.packed) if self._gather is None else self._gather.source


def bind_variant(
    config: Config,
    problem: Problem,
    matrix: CsrMatrix | Packed[Buffer],
    executor: Executor,
    toolchain: Toolchain,
    *,
    value_order: Array | None = None,
) -> BoundVariant:
    """Compile a config for a problem (or find it in the cache), pack the matrix, upload it and bind them.

    Args:
        matrix: packed already, or to be packed.
        value_order: for each of the matrix's nonzeros its number among the values that `overwrite_values` gets; by
            default these are in the matrix's own order.

    Raises:
        CompileError, DeviceUnavailableError: see `Toolchain.compile`.
        MatrixError, LaunchError: see `sparsegen.plan.packing.pack`.
    """
    compiled = compile_variant(config, problem, toolchain)
    if isinstance(matrix, CsrMatrix):
        matrix = pack(compiled.rendered.family, problem, config, matrix, executor)
    packed = reordered(matrix, value_order, executor)
    try:
        return BoundVariant(compiled, packed, executor)
    except CacheEntryError as error:  # the cache was cleared while the matrix was packed
        log.warning("%s; it is compiled again", error)
        return BoundVariant(compile_variant(config, problem, toolchain), packed, executor)


def reordered(packed: Packed[Buffer], value_order: Array | None, executor: Executor) -> Packed[Buffer]:
    """The same arrays, whose new values come from others' places."""
    if value_order is None or not value_order.size or packed.value_source is None:
        return packed
    make_source, order = packed.value_source, value_order.astype(np.int32)

    def source() -> Buffer:
        made = make_source()
        numbers = np.empty(made.nbytes // order.itemsize, dtype=order.dtype)
        executor.synchronize()
        executor.download(made, numbers)
        return executor.upload(np.where(numbers >= 0, order[numbers], numbers))

    return replace(packed, value_source=source)


def _nothing(stream: int, *addresses: int) -> None:
    """A launch without blocks."""


def zeroed(executor: Executor, nbytes: int) -> Buffer:
    """New scratch memory, as a kernel finds it before its first launch."""
    buffer = executor.allocate(max(1, nbytes))
    executor.fill(buffer, 0)
    executor.synchronize()  # the first launch may be on another stream
    return buffer
