"""Baselines that users would choose instead, timed on the same device in the same session: dense cuBLAS and cuSPARSE.

The libraries are called directly: their wrappers in PyTorch and CuPy fix the algorithm and the layout and add
host work, which would make an unfair peer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsegen.backends.executor import Buffer
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines.libraries import LibraryUnavailableError
from sparsegen.measure.clock import Timing
from sparsegen.operators import FactorType, MaskedProblem, Problem, SpmmProblem

if TYPE_CHECKING:
    from sparsegen.measure.baselines.session import Session


@dataclass(frozen=True, slots=True)
class Call:
    """One implementation of the problem by a library."""

    baseline: str  # "cublas" or "cusparse"
    version: str  # version of the library
    detail: str  # algorithm and layout
    run: Callable[[], None]
    result: Buffer
    columns: bool  # the result is column-major
    memory_bytes: int = 0  # bytes of the matrix and of work space on the device


@dataclass(frozen=True, slots=True)
class Result:
    """The fastest of a library's implementations, checked against the reference; ``detail`` says which it was."""

    baseline: str
    version: str
    detail: str
    timing: Timing


def unavailable(device: Device, problem: Problem) -> str | None:
    """Explains why nothing can be compared with the problem on this device, in one line; None if something can."""
    if not isinstance(problem, SpmmProblem | MaskedProblem):
        return (
            f"dense and vendor baselines are skipped: tuning times none for {problem.operator}; "
            "`sparsegen bench` compares where there is one"
        )
    if isinstance(problem, MaskedProblem) and problem.factor_type is not FactorType.SAME:
        return (
            "dense and vendor baselines are skipped: cublasGemmEx has no 8-bit factors; `sparsegen bench` compares "
            "with torch._scaled_mm"
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


def open_session(matrix: CsrMatrix, problem: Problem, device: Device) -> Session:
    """Opens the baselines of a problem on a CUDA device; `unavailable` must have returned None."""
    from sparsegen.measure.baselines.session import MaskedSession, SpmmSession

    if isinstance(problem, MaskedProblem):
        return MaskedSession(problem, device)
    assert isinstance(problem, SpmmProblem)
    return SpmmSession(matrix, problem, device)
