"""Compiling ahead: what was proposed first is measured first."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Any

from patience import LONG

from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import SparsegenError
from sparsegen.kernels import family
from sparsegen.operators import SpmmProblem
from sparsegen.tuning.loop.pipeline import CompileAhead


class Waiting:
    """A toolchain whose compiles all wait for a signal, and end in any order."""

    fingerprint = "waiting"

    def warm_up(self, jobs: int) -> None: ...

    def __init__(self) -> None:
        self.go = threading.Event()

    def make_ready(self) -> None:
        pass

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        self.go.wait()
        return CompiledKernel(entry, source=None, binary=None, digest="")  # type: ignore[arg-type]


def test_results_come_in_the_order_of_proposals() -> None:
    csr, toolchain = family("csr_spmm"), Waiting()
    ahead = CompileAhead(toolchain, SpmmProblem(64, 64, 64), jobs=4)
    candidates = [csr.config(tile_k=k) for k in (32, 4, 16, 8)]
    for candidate in candidates:
        ahead.submit(candidate)
    toolchain.go.set()
    deadline = time.monotonic() + LONG
    while ahead.ready < len(candidates) and time.monotonic() < deadline:
        time.sleep(0.01)
    got: list[Any] = [ahead.next(LONG) for _ in candidates]
    assert [compiled.candidate for compiled in got] == candidates
    assert ahead.next(0.0) is None
    ahead.close()


class Broken:
    """A toolchain with a bug."""

    fingerprint = "broken"

    def warm_up(self, jobs: int) -> None: ...

    def make_ready(self) -> None:
        pass

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        raise ZeroDivisionError("a bug")


def test_a_bug_of_a_compiling_thread_keeps_its_traceback() -> None:
    csr = family("csr_spmm")
    ahead = CompileAhead(Broken(), SpmmProblem(64, 64, 64), jobs=1)
    ahead.submit(csr.config())
    compiled: Any = ahead.next(10.0)
    ahead.close()
    assert isinstance(compiled.error, SparsegenError) and "ZeroDivisionError: a bug" in str(compiled.error)
    assert "in compile" in "".join(traceback.format_exception(compiled.error.__cause__))
