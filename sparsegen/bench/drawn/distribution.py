"""Distributions from which operators' problems are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.patterns import Pattern
from sparsegen.errors import ConfigError
from sparsegen.operators import Problem

MOST_BYTES = 512 << 20  # bytes of operands and result: drawn on the host, written and sent for every baseline
MOST_FLOP = 4e11  # FLOP of the dense computation: some milliseconds on an H100, in float32
MOST_ON_HOST = 3e10  # useful FLOP, where the host computes the reference
MOST_NONZEROS = 1 << 24

Row = tuple[
    Problem, Pattern, str
]  # the problem, the distribution of its sparse input, and words that tell the row apart


class Distribution(ABC):
    """Distribution of one operator's problems.

    Attributes:
        operator: its name.
        words: description of each property's distribution; docs/benchmarks.md has these words, and a test holds rows
            against them.
        most_nonzeros: upper limit of nonzeros in a row's pattern.
    """

    operator: ClassVar[str]
    words: ClassVar[Mapping[str, str]]
    most_nonzeros: ClassVar[int] = MOST_NONZEROS

    def problem(self, draw: Draw) -> Row:
        """A row that fits: problems that cannot be, or take too much memory or time, are drawn again."""
        while True:
            try:
                problem, pattern, what = self.drawn(draw)
            except ConfigError:  # a filter larger than the image, say
                continue
            if self._fits(problem, pattern):
                return problem, pattern, what

    @abstractmethod
    def drawn(self, draw: Draw) -> Row:
        """A row, whatever it takes.

        Raises:
            ConfigError: sizes that do not go together.
        """

    @abstractmethod
    def dense_flop(self, problem: Problem) -> float:
        """FLOP of the same without any sparsity."""

    def nonzeros(self, problem: Problem, pattern: Pattern) -> int:
        """About how many nonzeros the pattern has; 0 where the mask comes with the call."""
        return 0

    def _fits(self, problem: Problem, pattern: Pattern) -> bool:
        nnz = self.nonzeros(problem, pattern)
        if nnz > self.most_nonzeros or self.dense_flop(problem) > MOST_FLOP:
            return False
        if not problem.reference_files and problem.cost(nnz).flop > MOST_ON_HOST:
            return False
        return sum(spec.nbytes for spec in (*problem.operands(nnz), problem.result(nnz))) <= MOST_BYTES
