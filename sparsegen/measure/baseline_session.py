"""Times other libraries' routines (cuBLAS, cuSPARSE) in a process of their own, while the search pauses.

The libraries take seconds to load: that happens beside the first compiles.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines import Result
from sparsegen.measure.summary import summarize
from sparsegen.measure.supervised import Supervised
from sparsegen.measure.worker import MeasureBaselines, MeasureRates, SetUpBaselines, target_of
from sparsegen.tuning_db.records import Baseline, DeviceRates, Workload

START_SECONDS = 120.0
MEASURE_SECONDS = 60.0
BASELINE_SESSION = "sparsegen.measure.baselines:open_session"


class BaselineSession:
    """The baselines of one workload; the worker imports and uploads in the background.

    Args:
        locks: folder of the devices' lock files.
        session: session that the worker runs, as in `SetUpBaselines`.
    """

    def __init__(
        self,
        workload: Workload,
        matrix: CsrMatrix,
        device: Device,
        *,
        locks: Path,
        session: str = BASELINE_SESSION,
        stop: Event | None = None,
    ) -> None:
        self._workload, self._device, self._locks = workload, device, locks
        set_up = SetUpBaselines(session, matrix, workload.problem, device)
        target, arguments = target_of(device)
        self._child = Supervised(target, set_up, *arguments, start_seconds=START_SECONDS, stop=stop)

    def is_ready(self) -> bool:
        return self._child.is_ready()

    def measure(self) -> list[Baseline]:
        """Wait until the worker is ready, take the device, and time them all.

        Raises:
            SparsegenError: the library failed, or took too long.
        """
        results: list[Result] = self._ask(MeasureBaselines())
        return [
            Baseline(
                self._workload,
                self._device,
                r.baseline,
                f"{r.version} ({r.detail})" if r.detail else r.version,
                summarize([r.timing]),
            )
            for r in results
        ]

    def rates(self) -> DeviceRates | None:
        """Takes the device again after `measure`, and measures its rates; None if not all can be measured.

        Raises:
            SparsegenError: there is not enough memory, or it took too long.
        """
        rates: Rates | None = self._ask(MeasureRates())
        return None if rates is None else DeviceRates(self._device, rates)

    def _ask(self, request: MeasureBaselines | MeasureRates) -> Any:
        self._child.wait_until_ready()
        return self._child.ask_in_turn(
            request,
            device=self._device,
            locks=self._locks,
            prepare_seconds=MEASURE_SECONDS,
            seconds=MEASURE_SECONDS,
        )

    def close(self) -> None:
        self._child.close()
