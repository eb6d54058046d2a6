"""Baselines of one problem in one process: checked, and the fastest of each library timed.

Of ``spmm`` these are dense cuBLAS and cuSPARSE. Of products with masks it is cuBLAS's product of the same dense
matrices, nothing of it masked: making the mask and applying it is not in its time, as it is not in ours.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.kernels.base import Device
from sparsegen.kernels.masked.side import Side
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.block_mask import BlockMask
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines import Call, Result, cublas, cusparse
from sparsegen.measure.baselines.libraries import LibraryUnavailableError
from sparsegen.measure.clock import Clock
from sparsegen.measure.ranking import rough_us
from sparsegen.operators import DsdProblem, DType, Epilogue, Layout, MaskedProblem, Problem, SpmmProblem
from sparsegen.verify.bounds import ErrorBound
from sparsegen.verify.variants import UNWRITTEN
from sparsegen.verify.verifier import Verifier, verifier

logger = logging.getLogger(__name__)

SAMPLES = 30


class Session(ABC):
    """Baselines of one batch element of a problem. Makes a CUDA context: use it in a process of its own."""

    def __init__(self, problem: Problem, device: Device) -> None:
        """Open the device."""
        self._problem = problem
        self.executor = CudaExecutor(device)
        self.clock = Clock(self.executor)

    @abstractmethod
    def calls(self) -> Iterator[Call]:
        """Every implementation of every library that is there."""

    @abstractmethod
    def verifier_of(self, call: Call) -> Verifier:
        """Returns the verifier of a call's result."""

    def load(self) -> None:
        """Run each implementation once: libraries and their kernels take up to two seconds to load.

        That is done before anybody waits for it, and needs no device to itself.
        """
        for call in self.calls():
            self.is_right(call)

    def fastest(self) -> list[Call]:
        """The fastest right implementation of each library; without epilogues, which their products do not have."""
        best: dict[str, tuple[float, Call]] = {}
        for call in self.calls():
            if not self.is_right(call):
                logger.warning("%s (%s) gives a wrong result and is left out", call.baseline, call.detail)
                continue
            fastest_us, _ = best.get(call.baseline, (math.inf, None))
            us = rough_us(call.run, self.executor, self.clock, fastest_us=fastest_us)
            if us < fastest_us:
                best[call.baseline] = us, call
        return [call for _, call in best.values()]

    def measure(self) -> list[Result]:
        """Times of the fastest right implementation of each library."""
        return [
            Result(call.baseline, call.version, call.detail, self.clock.time(call.run, samples=SAMPLES))
            for call in self.fastest()
        ]

    def rates(self) -> Rates | None:
        """Measures the device's rates; None if cuBLAS does not give all of them.

        Raises:
            LaunchError: the device has not the memory for it.
        """
        from sparsegen.measure.rates import measure_rates

        return measure_rates(self.executor).complete(self.executor.device)

    def is_right(self, call: Call) -> bool:
        """True if every element of a call's result is within the bound for vendors' libraries."""
        self.executor.fill(call.result, UNWRITTEN)
        call.run()
        self.executor.synchronize()
        bound = ErrorBound.vendors(self._problem.dtype)
        return self.verifier_of(call).worst_error(call.result, bound) <= 1

    def close(self) -> None:
        """Give the device back."""
        self.executor.close()


class MaskedSession(Session):
    """See `Session`."""

    def __init__(self, problem: MaskedProblem, device: Device) -> None:
        """Open the device and draw the operands; every block of the mask is live."""
        plain = replace(problem, epilogue=Epilogue.NONE) if isinstance(problem, DsdProblem) else problem
        Session.__init__(self, plain, device)
        self._side = Side.of(plain)
        layout, block = plain.mask_layout, (plain.block.rows, plain.block.columns)
        live = BlockMask.from_blocks(
            np.ones((layout.rows, layout.columns), np.bool_), block, plain.matrix_shape
        )
        drawn = plain.random_operands(np.random.default_rng(0), 0)
        self._operands = drawn | {"mask": live.words, "scale": np.ones(1, np.float32)}
        self._names = [spec.name for spec in plain.dense_operands()]
        self._dtype = plain.dtype
        self._written = plain.result(0)
        self._verifier = verifier(plain, plain.without_pattern, self._operands, self.executor)

    def calls(self) -> Iterator[Call]:
        """The dense product by cublasGemmEx, of float32 in TF32 as ours."""
        handle = cublas.open_handle()
        left, right = (self.executor.upload(self._operands[name]) for name in self._names)
        result = self.executor.allocate(self._written.nbytes)
        compute = cublas.Compute.TF32 if self._dtype is DType.FLOAT32 else cublas.Compute.FLOAT32
        whole = cublas.ByColumns.of(self._side, left, right, result)
        run = cublas.product_of(handle, self._dtype, whole, compute)
        detail = f"dense {self._dtype}, nothing masked"
        yield Call("cublas", f"cuBLAS {cublas.version(handle)}", detail, run, result, self._side.by_columns)

    def verifier_of(self, call: Call) -> Verifier:
        """The verifier of the product with every block live."""
        return self._verifier


class SpmmSession(Session):
    """See `Session`."""

    def __init__(self, matrix: CsrMatrix, problem: SpmmProblem, device: Device) -> None:
        """Open the device and draw B.

        Args:
            matrix: A; its values are rounded to the problem's dtype.
        """
        Session.__init__(self, problem, device)
        self.problem = problem
        self.stored = problem.random_operands(np.random.default_rng(0), matrix.nnz)["b"]
        self.matrix = matrix
        self._verifiers: dict[Layout, Verifier] = {}

    def calls(self) -> Iterator[Call]:
        """See `Session.calls`."""
        for module in (cublas, cusparse):
            try:
                yield from module.calls(self.executor, self.matrix, self.problem, self.stored)
            except LibraryUnavailableError as error:
                logger.warning("%s", error)

    def verifier_of(self, call: Call) -> Verifier:
        """The verifier of the bare product, with its result in the call's layout."""
        layout = Layout.COLUMN if call.columns else Layout.ROW
        if layout not in self._verifiers:
            p = self.problem
            plain = SpmmProblem(p.m, p.k, p.n, p.dtype, layout)
            b = self.stored if layout is p.layout else np.ascontiguousarray(self.stored.T)
            self._verifiers[layout] = verifier(plain, self.matrix, {"b": b}, self.executor)
        return self._verifiers[layout]
