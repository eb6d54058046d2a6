"""Progress of a search as one line that is written over: for scripts on a terminal, and for notebooks."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from sparsegen.system.quantities import microseconds
from sparsegen.tuning.report import Status
from sparsegen.tuning_db.records import Measurement

WIDTH = 79  # characters; what a terminal has at least
EVERY = 0.2  # seconds between two lines


class StatusLine:
    """A progress of `sparsegen.tune`, and a block at whose end the line is gone."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream that obeys carriage returns."""
        self._stream, self._next, self._is_shown = stream, 0.0, False

    @classmethod
    def of_standard_error(cls) -> StatusLine | None:
        """Make one on standard error, where that is a terminal's or a notebook's; else None."""
        is_notebook = type(sys.stderr).__module__.partition(".")[0] == "ipykernel"
        return cls(sys.stderr) if sys.stderr is not None and (is_notebook or sys.stderr.isatty()) else None

    def __call__(self, status: Status, measurement: Measurement | None = None) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        best = status.best
        found = "" if best is None or best.sample is None else f", best {microseconds(best.sample.median_us)}"
        self._write(
            f"sparsegen: {status.phase.value}, {status.counts.tried} tried{found}, {status.seconds:.0f} s"
        )
        self._is_shown = True

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        told = text[:WIDTH].encode(encoding, "replace").decode(encoding)
        self._stream.write(f"\r{told:<{WIDTH}}")
        self._stream.flush()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()
