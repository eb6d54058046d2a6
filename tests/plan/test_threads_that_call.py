"""A variant called in threads that opened no executor, such as those of PyTorch's autograd."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.executor import Executor
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import SpmmProblem
from sparsegen.plan.binding import bind_variant
from sparsegen.verify.variants import CheckedCall

PROBLEM, MATRIX = SpmmProblem(48, 64, 32), random_uniform(48, 64, 0.3, 0)


class OfOneThread(EmulatorExecutor):
    """An executor like PyCUDA's: memory is allocated by the thread that opened it, and by others inside of `entered`
    alone.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device=device)
        self._inside = threading.local()
        self._inside.depth = 1

    @contextmanager
    def _enter(self) -> Iterator[None]:
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1

    def entered(self) -> AbstractContextManager[None]:
        return self._enter()

    def allocate(self, nbytes: int) -> Any:
        assert getattr(self._inside, "depth", 0) > 0, "no currently active context"
        return super().allocate(nbytes)


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    device = backends.find_device(request.param)
    opened = OfOneThread(device) if request.param == "emulator" else backends.open_executor(device)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", ["csr_spmm", "segment_spmm"])
def test_scratch_of_another_thread(name: str, executor: Executor) -> None:
    """The thread's first call allocates scratch memory of its own, where the kernel needs any."""
    of = family(name)
    config = of.heuristic(PROBLEM, PROBLEM.features(MATRIX), executor.device)
    variant = bind_variant(config, PROBLEM, MATRIX, executor, backends.toolchain(executor.device))
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(CheckedCall(variant, PROBLEM, MATRIX, np.random.default_rng(0)).worst)
            variant.bound()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert isinstance(found[0], float) and found[0] <= 1, found


def test_a_bound_launch_is_asked_for_outside(executor: Executor) -> None:
    """An operator's call does this: the executor was not entered for the thread."""
    of = family("segment_spmm")
    config = of.heuristic(PROBLEM, PROBLEM.features(MATRIX), executor.device)
    variant = bind_variant(config, PROBLEM, MATRIX, executor, backends.toolchain(executor.device))
    assert variant.packed.scratch
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            variant.bound()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert not failed
