"""Baselines of one problem in one process: checked, and the fastest of each library timed."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.measure.baselines import Call, Result
from sparsegen.measure.clock import Clock
from sparsegen.measure.ranking import rough_us
from sparsegen.operators import Problem
from sparsegen.verify.bounds import ErrorBound
from sparsegen.verify.variants import UNWRITTEN
from sparsegen.verify.verifier import Verifier

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
