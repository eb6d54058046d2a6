"""What users would pick instead, timed on the same device in the same session: dense cuBLAS and cuSPARSE.

The libraries are called directly: their wrappers in PyTorch and CuPy fix the algorithm and the layout and add
host work, which would make an unfair peer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sparsegen.backends.executor import Buffer
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines.libraries import LibraryUnavailableError
from sparsegen.measure.clock import Clock, Timing
from sparsegen.measure.ranking import rough_us
from sparsegen.operators import Layout, Problem, SpmmProblem
from sparsegen.verify.bounds import ErrorBound
from sparsegen.verify.variants import UNWRITTEN
from sparsegen.verify.verifier import Verifier, verifier

logger = logging.getLogger(__name__)

SAMPLES = 30


@dataclass(frozen=True, slots=True)
class Call:
    """One implementation of the problem by a library."""

    contender: str  # "cublas" or "cusparse"
    version: str  # of the library
    detail: str  # algorithm and layout
    run: Callable[[], None]
    result: Buffer
    columns: bool  # the result is column-major
    memory_bytes: int = 0  # of the matrix and of work space on the device


@dataclass(frozen=True, slots=True)
class Result:
    """The fastest of a library's implementations, checked against the reference; ``detail`` says which it was."""

    contender: str
    version: str
    detail: str
    timing: Timing


def unavailable(device: Device, problem: Problem) -> str | None:
    """Why nothing can be compared with the problem on this device, in one line; None if something can."""
    if not isinstance(problem, Session.problem_type):
        return (
            f"dense and vendor baselines are skipped: tuning times none for {problem.operator}; "
            "`sparsegen bench` compares where there is one"
        )
    if problem.batch > 1:
        return "dense and vendor baselines are skipped: tuning times none for a batch"
    if device.backend != "cuda":
        return "dense and vendor baselines are skipped: they need a CUDA device"
    from sparsegen.measure.baselines.libraries import find_library

    for name in ("cublas", "cusparse"):
        try:
            find_library(name)
        except LibraryUnavailableError as error:
            return f"dense and vendor baselines are skipped: {error}"
    return None


class Session:
    """Baselines of one problem on one device. Makes a CUDA context: use it in a process of its own.

    Args:
        matrix: A; its values are rounded to the problem's dtype.
        device: a CUDA device.

    Attributes:
        problem_type: what the libraries' calls here compute, one item of it.
    """

    problem_type = SpmmProblem

    def __init__(self, matrix: CsrMatrix, problem: SpmmProblem, device: Device) -> None:
        from sparsegen.backends.cuda.runtime import CudaExecutor

        self.problem = problem
        self.executor = CudaExecutor(device)
        self.clock = Clock(self.executor)
        operands = problem.random_operands(np.random.default_rng(0), matrix.nnz)
        self.stored = operands["b"]
        self.matrix = matrix
        self._verifiers: dict[Layout, Verifier] = {}

    def calls(self) -> Iterator[Call]:
        """Every implementation of every library that is there."""
        from sparsegen.measure.baselines import cublas, cusparse

        for module in (cublas, cusparse):
            try:
                yield from module.calls(self.executor, self.matrix, self.problem, self.stored)
            except LibraryUnavailableError as error:
                logger.warning("%s", error)

    def fastest(self) -> list[Call]:
        """The fastest right implementation of each library; without epilogues, which their products do not have."""
        best: dict[str, tuple[float, Call]] = {}
        for call in self.calls():
            if not self.is_right(call):
                logger.warning("%s (%s) gives a wrong result and is left out", call.contender, call.detail)
                continue
            fastest_us, _ = best.get(call.contender, (math.inf, None))
            us = rough_us(call.run, self.executor, self.clock, fastest_us=fastest_us)
            if us < fastest_us:
                best[call.contender] = us, call
        return [call for _, call in best.values()]

    def measure(self) -> list[Result]:
        """Times of the fastest right implementation of each library."""
        return [
            Result(call.contender, call.version, call.detail, self.clock.time(call.run, samples=SAMPLES))
            for call in self.fastest()
        ]

    def rates(self) -> Rates | None:
        """What the device does in a microsecond; None where cuBLAS does not say all of it.

        Raises:
            LaunchError: the device has not the memory for it.
        """
        from sparsegen.measure.rates import measure_rates

        return measure_rates(self.executor).complete(self.executor.device)

    def is_right(self, call: Call) -> bool:
        """Whether every element of a call's result is within the bound for vendors' libraries."""
        self.executor.fill(call.result, UNWRITTEN)
        call.run()
        self.executor.synchronize()
        written = self._verifier(Layout.COLUMN if call.columns else Layout.ROW)
        return written.worst_error(call.result, ErrorBound.vendors(self.problem.dtype)) <= 1

    def _verifier(self, layout: Layout) -> Verifier:
        """Of the bare product with its result in a layout."""
        if layout not in self._verifiers:
            p = self.problem
            plain = SpmmProblem(p.m, p.k, p.n, p.dtype, layout)
            b = self.stored if layout is p.layout else np.ascontiguousarray(self.stored.T)
            self._verifiers[layout] = verifier(plain, self.matrix, {"b": b}, self.executor)
        return self._verifiers[layout]

    def close(self) -> None:
        self.executor.close()
