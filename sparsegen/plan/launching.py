"""From a chosen variant to a launch that waits only for its addresses: compile, pack, upload, bind."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sparsegen.backends.executor import Buffer, CompiledKernel, Executor, Toolchain
from sparsegen.errors import OperandError
from sparsegen.kernels.base import (
    Argument,
    ArgumentKind,
    Array,
    Device,
    Family,
    PackedOnDevice,
    empty_as_one,
    size_value,
)
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.packing import Gather, pack, value_source
from sparsegen.render import render

Bound = Callable[..., None]  # (stream, *addresses of the open slots)
_executors: dict[tuple[Device, int], Executor] = {}  # by device and ordinal: equal GPUs compare equal
_executors_lock = threading.Lock()


def shared_executor(device: Device) -> Executor:
    """This process's executor of a device; operators share it, and it lives as long as the process."""
    from sparsegen import backends

    with _executors_lock:
        key = (device, device.index)
        if key not in _executors:
            _executors[key] = backends.open_executor(device)
        return _executors[key]


def source_digest(source: str, toolchain: Toolchain) -> str:
    """The digest that names a variant's binary in the database; see `records.Variant`."""
    return hashlib.sha256(source.encode() + b"\0" + toolchain.fingerprint.encode()).hexdigest()


def zeroed(executor: Executor, nbytes: int) -> Buffer:
    """New scratch memory, as a kernel finds it before its first launch."""
    buffer = executor.allocate(max(1, nbytes))
    executor.fill(buffer, 0)
    executor.synchronize()  # the first launch may be on another stream
    return buffer


def _reordered(packed: PackedOnDevice, value_order: Array | None, executor: Executor) -> PackedOnDevice:
    """The same buffers, whose new values come from others' places."""
    if value_order is None or not value_order.size or packed.source is None:
        return packed
    make_source, order = packed.source, value_order.astype(np.int32)

    def source() -> Buffer:
        made = make_source()
        numbers = np.empty(made.nbytes // order.itemsize, dtype=order.dtype)
        executor.synchronize()
        executor.download(made, numbers)
        return executor.upload(np.where(numbers >= 0, order[numbers], numbers))

    return replace(packed, source=source)


class PreparedVariant:
    """A variant compiled, loaded, and bound to one packed matrix on one device.

    `bound` gives each thread a launch of its own, since a bound launch is not to be shared, nor is scratch memory.

    Attributes:
        operands, result: what a launch takes, in call order, and what it writes.
    """

    def __init__(
        self,
        family: Family[Any, Any],
        problem: Problem,
        config: Any,
        matrix: CsrMatrix | PackedOnDevice,
        executor: Executor,
        toolchain: Toolchain,
        value_order: Array | None = None,
    ) -> None:
        """Compile (or find), pack, upload.

        Args:
            matrix: packed already, or to be packed.
            value_order: for each of the matrix's nonzeros its number among the values that `overwrite_values` gets; by
                default these are in the matrix's own order.
        """
        self.source = render(family, problem, config)
        self.compiled: CompiledKernel = toolchain.compile(family.name, family.entry, self.source)
        self.digest = source_digest(self.source, toolchain)
        if isinstance(matrix, CsrMatrix):
            matrix = pack(family, problem, config, matrix, executor)
        self.packed: PackedOnDevice = _reordered(matrix, value_order, executor)
        self.buffers: Mapping[str, Buffer] = self.packed.buffers
        self.executor = executor
        self._launch = family.launch(problem, config, self.packed.sizes, executor.device)
        with executor.entered():
            self._kernel = executor.load(self.compiled)
        self._problem = problem
        self._gather: Gather | None = None  # made with the first new values
        arguments = family.arguments(problem)
        self._arguments = [self._argument(problem, a) for a in arguments]
        self._scratch = {
            place: self.packed.scratch[a.name]
            for place, a in enumerate(arguments)
            if a.kind is ArgumentKind.SCRATCH
        }
        self.operands = problem.operands(matrix.nnz)
        self.result = problem.result(matrix.nnz)
        called_with = [*(spec.name for spec in self.operands), self.result.name]
        self._order = [called_with.index(a.name) for a in arguments if a.name in called_with]
        self._mine = threading.local()
        self._kept: list[Buffer] = []  # scratch of all threads: a graph may outlive the one that captured it

    def _argument(self, problem: Problem, argument: Argument) -> Buffer | int | None:
        if argument.kind is ArgumentKind.PACKED:
            return self.buffers[argument.name]
        if argument.kind is ArgumentKind.SIZE:
            return size_value(problem, self.packed.sizes, argument.name)
        return None

    def bound(self) -> Bound:
        """The calling thread's launch: ``bound(stream, *operands in call order, result)``."""
        try:
            return self._mine.bound  # type: ignore[no-any-return]
        except AttributeError:
            return self._bind_here()

    def _bind_here(self) -> Bound:
        self.executor.activate()
        arguments = list(self._arguments)
        for place, nbytes in self._scratch.items():
            arguments[place] = buffer = zeroed(self.executor, nbytes)
            self._kept.append(buffer)
        bound = self.executor.bind(self._kernel, self._launch, arguments)
        order = self._order
        if order == sorted(order):
            self._mine.bound = bound
        else:
            self._mine.bound = lambda stream, *addresses: bound(stream, *(addresses[i] for i in order))
        return self._mine.bound  # type: ignore[no-any-return]

    def overwrite_values(self, encoded: Array) -> None:
        """New values on the same pattern.

        Args:
            encoded: nnz values in CSR order (or that of ``value_order``), in the problem's storage dtype; where the
                items of a batch have their own, batch × nnz.

        Raises:
            OperandError: the variant packs no values.
        """
        with self.executor.entered():
            values = self.executor.upload(empty_as_one(encoded))
            self.gather_values(values, 0)
            self.executor.synchronize()

    def gather_values(self, values: Buffer, stream: int) -> None:
        """The same of values in device memory, on a stream."""
        if self.packed.values is None:
            raise OperandError(
                "the result depends on the matrix's pattern alone: there are no values to replace"
            )
        with self.executor.entered():
            if self._gather is None:
                self._gather = Gather(self.packed, self._problem, self.executor)
            self._gather(values, stream)

    def value_source(self) -> Buffer:
        """int32 on the device: of each packed value the nonzero's number in CSR order, or -1.

        Raises:
            OperandError: these numbers were not kept.
        """
        with self.executor.entered():
            return value_source(self.packed) if self._gather is None else self._gather.source
