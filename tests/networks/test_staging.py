"""Pinned pieces whose copies end late, and writers that raise."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from sparsegen.backends.emulator.copies import HostPinnedMemory
from sparsegen.errors import OperandError
from sparsegen.networks.model.chunks import Chunk
from sparsegen.networks.run import staging
from sparsegen.networks.run.staging import Staging, Writers

WIDTH, ROWS = 4, 16  # of inputs, in bytes, and how many a piece holds


class LateStream:
    """Makes its copies only when their end is waited for."""

    def __init__(self) -> None:
        self._copies: list[Callable[[], object]] = []

    def send(self, array: Any, target: Any) -> None:
        self._copies.append(lambda: ctypes.memmove(target.address, array.ctypes.data, array.nbytes))

    def moment(self) -> Any:
        return LateMoment(self, len(self._copies))

    def make(self, count: int) -> None:
        for i in range(count):
            self._copies[i]()
            self._copies[i] = int  # made once


class LateMoment:
    def __init__(self, stream: LateStream, count: int) -> None:
        self._stream, self._count = stream, count

    def wait(self) -> None:
        self._stream.make(self._count)


class Host:
    """The part of an executor that staging uses."""

    def pinned(self, nbytes: int) -> HostPinnedMemory:
        return HostPinnedMemory(nbytes)

    def entered(self) -> Any:
        return nullcontext()


class Rows:
    """Inputs that equal their numbers; those from ``bad`` on cannot be written."""

    row_bytes = WIDTH

    def __init__(self, bad: int) -> None:
        self._bad = bad

    def write(self, part: Chunk, rows: Any) -> None:
        if part.first + part.count > self._bad:
            raise OperandError("no such number")
        rows[:] = 100 + part.numbers[:, None]


@pytest.fixture
def several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LEAST_BYTES", ROWS * WIDTH // 4)  # 5 for a piece
    monkeypatch.setattr(staging, "PIECE_BYTES", ROWS * WIDTH)


def test_a_piece_is_not_written_before_its_copies_end(several_threads: None) -> None:
    """Data that was sent before a writer raised arrives unchanged, though the piece is filled again."""
    stream, given = LateStream(), np.arange(5 * ROWS * WIDTH, dtype=np.uint8)
    sender = Staging(Host(), stream, Writers(), given.nbytes, WIDTH)  # type: ignore[arg-type]
    failed, whole = np.zeros((ROWS, WIDTH), np.uint8), np.zeros_like(given)
    with pytest.raises(OperandError, match="no such number"):
        sender.send_inputs(Rows(bad=12), Chunk(0, ROWS, ROWS, ROWS), failed.ctypes.data)  # type: ignore[arg-type]
    sender.send(given, whole.ctypes.data)
    stream.moment().wait()
    np.testing.assert_array_equal(whole, given)
    written = failed.any(axis=1)
    assert written[:3].all() and not written[12:].any()
    np.testing.assert_array_equal(failed[written], np.arange(100, 116)[written, None].repeat(WIDTH, axis=1))


@pytest.mark.parametrize("raises", [0, 3])
def test_no_writer_is_at_work_when_one_has_raised(several_threads: None, raises: int) -> None:
    """The first part is that of the calling thread, the others are those of the pool's."""
    gate, left = threading.Event(), []

    def copy(begin: int, end: int) -> None:
        if begin <= raises < end:
            raise ValueError("no such part")
        if begin > 0:  # a thread of the pool
            gate.wait()
        left.append((begin, end))

    threading.Timer(0.3, gate.set).start()
    with pytest.raises(ValueError, match="no such part"):
        Writers().copy(ROWS, WIDTH, copy)
    assert len(left) == 4
