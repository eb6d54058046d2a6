"""Inputs that wait on the host before a segment, until there are enough of them for a batch."""

from __future__ import annotations

import numpy as np

from sparsegen.system.numpy_types import Array, NumpyType


class Parked:
    """Their numbers and neurons, in memory that is used again: fresh memory costs more than copying to it."""

    def __init__(self, neurons: int, dtype: NumpyType) -> None:
        """
        Args:
            neurons: neurons of a row.
            dtype: type of the rows, in storage form.
        """
        self._numbers: Array = np.zeros(0, np.int64)
        self._rows: Array = np.zeros((0, neurons), dtype)
        self._begin = self._end = 0

    @property
    def count(self) -> int:
        """Number of waiting inputs."""
        return self._end - self._begin

    def put(self, numbers: Array) -> Array:
        """Let some more wait.

        Returns:
            The rows that their neurons are to be written to, behind those of the others.
        """
        if self._end + numbers.size > self._numbers.size:
            self._make_room(numbers.size)
        some = slice(self._end, self._end + numbers.size)
        self._numbers[some], self._end = numbers, some.stop
        return self._rows[some]

    def take(self, most: int) -> tuple[Array, Array]:
        """Removes up to ``most`` inputs, the first ones first.

        Returns:
            Their numbers, and their rows, which the next `put` may overwrite.
        """
        some = slice(self._begin, min(self._end, self._begin + most))
        self._begin = some.stop
        return self._numbers[some].copy(), self._rows[some]

    def _make_room(self, size: int) -> None:
        """Moves the waiting inputs to the front, in larger memory if that is not enough."""
        waiting, here = self.count, slice(self._begin, self._end)
        numbers, rows = self._numbers, self._rows
        if waiting + size > numbers.size:
            room = max(2 * numbers.size, waiting + size)
            self._numbers = np.empty(room, numbers.dtype)
            self._rows = np.empty((room, rows.shape[1]), rows.dtype)
        self._numbers[:waiting], self._rows[:waiting] = numbers[here], rows[here]
        self._begin, self._end = 0, waiting
