"""The engine of this host: one supervised process for each device, or for each search that runs beside others on it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from sparsegen import backends
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import Device
from sparsegen.system.child import ChildDiedError, ChildProcess, ChildTimeoutError
from sparsegen.tuning.engines.engine import Assignment, End, Found, SetUp
from sparsegen.tuning.engines.worker import Alive, Failure, Logged, Serve, Stop, end_of
from sparsegen.tuning.report import Status

log = logging.getLogger(__name__)

# Searches that a device may lose in a row. Fewer than a search may be lost (`dealing.ATTEMPTS`), so that no search
# fails for a single broken device; the last one has to lose two searches for good, since the first may be to blame.
MOST_LOSSES, MOST_LOSSES_OF_LAST = 2, 6
RECEIVE_SECONDS = 60.0  # time limit for the rest of a message
SILENT_SECONDS = 180.0  # a living process reports every other second


class LocalEngine:
    """Devices of this host.

    A process that dies or falls silent is replaced. A device that loses its searches again and again is left out, and
    the others go on.

    Args:
        devices: each once.
        searches: number of searches side by side on each device; they take turns measuring, and one compiles meanwhile.

    Raises:
        ConfigError: there is no device.
    """

    patience = 0.0

    def __init__(self, devices: Sequence[Device], set_up: SetUp, *, searches: int = 1) -> None:
        if not devices:
            raise ConfigError("expected at least one device to search on")
        self._set_up = set_up
        self._free = [_Worker(set_up, device) for _ in range(searches) for device in devices]
        self._workers = list(self._free)
        self._losses: Counter[tuple[str, int]] = Counter()  # in a row
        self._out: set[tuple[str, int]] = set()
        self.models: Sequence[Device] = tuple({d.key: d for d in reversed(devices)}.values())[::-1]

    def capacity(self, model: Device) -> int:
        """See `Engine.capacity`."""
        return sum(w.device.key == model.key and not self._is_out(w.device) for w in self._workers)

    def begin(self, model: Device, assignment: Assignment) -> LocalSearch:
        """See `Engine.begin`."""
        worker = next(w for w in self._free if w.device.key == model.key and not self._is_out(w.device))
        self._free.remove(worker)
        return LocalSearch(self, worker, assignment)

    def close(self) -> None:
        """See `Engine.close`."""
        for worker in self._workers:
            worker.close()

    def _is_out(self, device: Device) -> bool:
        return _key(device) in self._out

    def _ended(self, worker: _Worker, was_lost: bool) -> None:
        """A worker is free again, and its device left out if it lost too much."""
        self._free.append(worker)
        device = worker.device
        self._losses[_key(device)] = self._losses[_key(device)] + 1 if was_lost else 0
        others = (
            {_key(w.device) for w in self._workers if w.device.key == device.key} - self._out - {_key(device)}
        )
        losses = self._losses[_key(device)]
        if losses >= (MOST_LOSSES if others else MOST_LOSSES_OF_LAST) and not self._is_out(device):
            self._out.add(_key(device))
            log.warning(
                "%s is left out: it lost its search %d times in a row", backends.device_name(device), losses
            )


def _key(device: Device) -> tuple[str, int]:
    return device.backend, device.index


class LocalSearch:
    """A search in a process of this host; see `Running`."""

    def __init__(self, engine: LocalEngine, worker: _Worker, assignment: Assignment) -> None:
        self._engine, self._worker = engine, worker
        self._has_ended = False
        worker.begin(assignment)

    @property
    def where(self) -> str:
        return backends.device_name(self._worker.device)

    def news(self) -> Sequence[Status | End]:
        """See `Running.news`."""
        if self._has_ended:
            return ()
        heard: list[Status | End] = []
        try:
            for message in self._worker.messages():
                if isinstance(message, Found | Failure):
                    end = End(message) if isinstance(message, Found) else end_of(message)
                    self._end(end.was_lost)
                    return [*heard, end]
                heard.append(message)
        except (ChildDiedError, ChildTimeoutError) as error:
            self._worker.close()
            self._end(True)
            heard.append(End(error=error, was_lost=True))
        return heard

    def stop(self) -> None:
        """See `Running.stop`."""
        self._worker.ask_to_stop()

    def kill(self) -> None:
        """See `Running.kill`."""
        if not self._has_ended:
            self._worker.close()
            self._end(False)

    def _end(self, was_lost: bool) -> None:
        self._has_ended = True
        self._engine._ended(self._worker, was_lost)


class _Worker:
    """The process of one device; started at once, and again where it was closed."""

    def __init__(self, set_up: SetUp, device: Device) -> None:
        self._set_up, self.device = set_up, device
        self._child: ChildProcess | None = self._started()
        self._heard = time.monotonic()

    def _started(self) -> ChildProcess:
        child = ChildProcess("sparsegen.tuning.engines.worker:serve")
        level = logging.getLogger("sparsegen").getEffectiveLevel()
        child.send(Serve(self._set_up, self.device, level))  # it is small: it fits without a reader
        return child

    @property
    def pid(self) -> int | None:
        """Process ID, while there is a process."""
        return None if self._child is None else self._child.pid

    def begin(self, assignment: Assignment) -> None:
        """Give it a search; that the process has gone shows in its `messages`."""
        if self._child is None:
            self._child = self._started()
        self._heard = time.monotonic()
        self._child.send_in_background(assignment)

    def messages(self) -> list[Status | Found | Failure]:
        """Returns its messages since the last call; lines for the log are logged here.

        Raises:
            ChildDiedError, ChildTimeoutError: the process has gone, or says nothing any more.
        """
        assert self._child is not None
        found: list[Status | Found | Failure] = []
        while self._child.has_answer():
            message = self._child.receive(RECEIVE_SECONDS)
            self._heard = time.monotonic()
            if isinstance(message, Logged):
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            elif not isinstance(message, Alive):
                found.append(message)
            if isinstance(message, Found | Failure):
                break
        if not found and time.monotonic() - self._heard > SILENT_SECONDS:
            raise ChildTimeoutError(
                f"the process that searches on {self.device.name} has said nothing for {SILENT_SECONDS:g} s"
            )
        return found

    def ask_to_stop(self) -> None:
        if self._child is not None:
            self._child.send_in_background(Stop())

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
