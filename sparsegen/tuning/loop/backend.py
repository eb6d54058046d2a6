"""The means of a search: what compiles, what runs, and what is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.backends.executor import Toolchain
from sparsegen.kernels.base import Device
from sparsegen.measure.baseline_session import BASELINE_SESSION
from sparsegen.measure.session import OPEN_EXECUTOR
from sparsegen.operators import Problem
from sparsegen.tuning.loop.pipeline import cores


@dataclass(frozen=True)
class Backend:
    """Parts that compile, run, and time baselines; child processes import the latter two by name.

    Attributes:
        open_executor: a function of the device, as ``"module:function"``.
        baseline_session: a function like `sparsegen.measure.baselines.open_session`, as ``"module:function"``; None to
            skip baselines, and then ``baselines_skipped`` says why.
        variant_seconds: time limit of one variant; None for the device's usual one.
        jobs: variants compiled at once; None for one on each core.
    """

    toolchain: Toolchain
    open_executor: str = OPEN_EXECUTOR
    baseline_session: str | None = BASELINE_SESSION
    baselines_skipped: str = ""
    variant_seconds: float | None = None
    jobs: int | None = None

    @classmethod
    def of(cls, device: Device, problem: Problem, *, baselines: bool = True, searches: int = 1) -> Backend:
        """The device's own, for this problem.

        Args:
            searches: number of searches side by side on this machine, which share its cores for compiling.

        Raises:
            DeviceUnavailableError: its compiler is missing.
        """
        from sparsegen import backends
        from sparsegen.measure.baselines import unavailable

        reason = (
            unavailable(device, problem) if baselines else "dense and vendor baselines were not asked for"
        )
        session = BASELINE_SESSION if reason is None else None
        jobs = None if searches == 1 else max(1, cores() // searches)
        return cls(
            backends.toolchain(device), baseline_session=session, baselines_skipped=reason or "", jobs=jobs
        )
