"""The process that works ahead of the measuring: matrices, operands and the compiling of our variants.

It touches no device, so that it can go on beside the measuring of earlier rows, on other cores.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from sparsegen.bench.baseline.baseline import Baseline
from sparsegen.bench.baseline.inputs import Inputs, InputsMaker
from sparsegen.bench.patterns.case import Case
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.operators import DType
from sparsegen.system.child import ChildDiedError, ChildProcess, answer, requests

logger = logging.getLogger(__name__)

ROWS_AHEAD = 8
BYTES_AHEAD = 4 << 30  # bytes of files that wait for their rows
INPUTS_SECONDS = 600.0
NICENESS = 10  # compilers must not take the cores that measuring processes want


@dataclass(frozen=True, slots=True)
class SetUp:
    """The first message: where files go, and for whom to work ahead."""

    folder: Path
    device: Device
    baselines: Sequence[Baseline]
    db: str | None


@dataclass(frozen=True, slots=True)
class MakeInputs:
    case: Case
    dtype: DType


def serve(connection: Connection) -> None:
    """Runs in the child."""
    set_up: SetUp = connection.recv()
    os.nice(NICENESS)
    maker = InputsMaker(set_up.folder)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2 - 1)) as pool:

        def make(request: MakeInputs) -> Inputs:
            inputs = maker.make(request.case, request.dtype)
            for baseline in set_up.baselines:
                pool.submit(_foresee, baseline, inputs, set_up)
            return inputs

        for request in requests(connection):
            answer(connection, partial(make, request))


def _foresee(baseline: Baseline, inputs: Inputs, set_up: SetUp) -> None:
    if baseline.refusal(inputs.problem, inputs.features) is None:
        try:
            baseline.foresee(inputs, set_up.device, set_up.db)
        except Exception as error:  # its own process meets it again, and says so in the row
            logger.info("%s, ahead of time: %s", baseline.name, error)


Pair = tuple[Case, DType]


class InputsQueue:
    """Inputs of these rows in their order, some of them made ahead."""

    def __init__(self, rows: Sequence[Pair], set_up: SetUp) -> None:
        self._rows = rows
        self._ordered = 0
        self._made: deque[Inputs | SparsegenError] = deque()
        self._sizes: dict[Path, int] = {}  # bytes of each folder
        self._child = ChildProcess("sparsegen.bench.run.maker:serve")
        self._child.send(set_up)
        self._is_waiting = False
        self._order()

    def pump(self) -> None:
        """Take what is made, and order more; never waits."""
        while self._is_waiting and self._child.has_answer():
            self._take()
        self._order()

    def next(self) -> Inputs:
        """The next row's inputs.

        Raises:
            MatrixError, SuiteError: its matrix cannot be had; the one after it may.
            ChildDiedError: nothing more can be had.
        """
        self.pump()
        while not self._made:
            self._take()
            self._order()
        made = self._made.popleft()
        if isinstance(made, SparsegenError):
            raise made
        return made

    def discard(self, index: int, inputs: Inputs) -> None:
        """The row is done: delete its files, and the matrix's if the next row has another one."""
        is_last = (
            index + 1 == len(self._rows) or self._rows[index + 1][0].pattern != self._rows[index][0].pattern
        )
        self._sizes.pop(inputs.folder, None)
        if is_last:
            self._sizes.pop(inputs.pattern, None)
        inputs.discard(with_pattern=is_last)
        self.pump()

    def close(self) -> None:
        self._child.close()

    def _order(self) -> None:
        has_room = len(self._made) < ROWS_AHEAD and sum(self._sizes.values()) < BYTES_AHEAD
        if not self._is_waiting and self._ordered < len(self._rows) and (has_room or not self._made):
            case, dtype = self._rows[self._ordered]
            self._child.send(MakeInputs(case, dtype))
            self._ordered += 1
            self._is_waiting = True

    def _take(self) -> None:
        self._is_waiting = False
        try:
            inputs: Inputs = self._child.receive(INPUTS_SECONDS)
        except ChildDiedError:
            raise
        except SparsegenError as error:
            self._made.append(error)
            return
        for folder in (inputs.folder, inputs.pattern):
            self._sizes[folder] = sum(file.stat().st_size for file in folder.iterdir())
        self._made.append(inputs)
