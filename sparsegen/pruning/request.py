"""Request to the pruner, checked: a pattern, a sparsity and its scope."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sparsegen import arguments
from sparsegen.errors import PruningError
from sparsegen.matrix.chosen_columns import CHOSEN
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.patterns import NM, Block, BlockedUniform, Uniform, Unstructured
from sparsegen.pruning.score import Score

E = TypeVar("E", bound=StrEnum)

Pattern = Unstructured | Uniform | Block | BlockedUniform | NM


class PatternName(StrEnum):
    UNIFORM = "uniform"
    UNSTRUCTURED = "unstructured"
    BLOCK = "block"
    BLOCKED_UNIFORM = "blocked-uniform"
    NM = "nm"


BLOCK = (32, 32)  # height and width where none is given
N_OF_M = (2, 4)  # the pattern of sparse tensor cores
N_COLON_M = re.compile(r"(\d+):(\d+)")  # how papers write it

BLOCK_PATTERNS = (PatternName.BLOCK, PatternName.BLOCKED_UNIFORM)
SINGLE_PATTERNS = (PatternName.UNSTRUCTURED, PatternName.NM)  # whose groups are single weights


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """A pattern with the sparsity that is asked for; made by `parse`.

    Attributes:
        sparsity: share of the pruned tensors' weights that become zero, from 0 to below 1.
        scope: over which weights it holds; None for N:M, which is the same everywhere.
        score: what a group of weights is worth.
    """

    pattern: Pattern
    sparsity: float
    scope: Scope | None
    score: Score = Score.L2

    @classmethod
    def parse(
        cls,
        pattern: PatternName | str,
        sparsity: float | None = None,
        *,
        scope: Scope | str | None = None,
        block: tuple[int, int] | None = None,
        nm: tuple[int, ...] | None = None,
        score: Score | str | None = None,
    ) -> PruneRequest:
        """A request from words and numbers.

        Args:
            sparsity: needed for all patterns but N:M, which has its own, 1 - N / M.
            scope: default global, for the patterns that have one.
            block: height and width for the block patterns; default 32 × 32.
            nm: N and M for the N:M pattern; default 2:4. Three numbers are V, N and M: N of M, in four columns of M
                that V rows have in common.
            score: default l2; sum and max for the patterns whose groups have several weights, and taylor for all.

        Raises:
            PruningError: an unknown word, a number out of range, or one that does not belong to the pattern.
        """
        if isinstance(pattern, str) and (found := N_COLON_M.fullmatch(pattern)):
            raise PruningError(f"pattern = {pattern!r} is written pattern='nm', nm=({found[1]}, {found[2]})")
        name = _word(PatternName, pattern, "pattern")
        by = Score.L2 if score is None else _word(Score, score, "score")
        sparsity = None if sparsity is None else arguments.number(sparsity, "sparsity", PruningError)
        block = None if block is None else arguments.pair(block, "block", PruningError)
        nm = None if nm is None else _numbers(nm)
        if block is not None and name not in BLOCK_PATTERNS:
            raise PruningError(f"{name} has no blocks; leave out block, or use {' or '.join(BLOCK_PATTERNS)}")
        if by in (Score.SUM, Score.MAX) and name in SINGLE_PATTERNS:
            raise PruningError(
                f"{name} ranks single weights, of which l2, sum and max are equal; leave out score"
            )
        if nm is not None and name is not PatternName.NM:
            raise PruningError(f"{name} has no N:M; leave out nm, or use the pattern nm")
        if sparsity is not None and not 0 <= sparsity < 1:
            hint = f"; {sparsity / 100:g} is {sparsity:g} %" if 1 < sparsity < 100 else ""
            raise PruningError(f"sparsity = {sparsity:g} is not within [0, 1){hint}")
        if name is PatternName.NM:
            if scope is not None:
                raise PruningError("nm prunes every group alike and has no scope; leave it out")
            n_of_m = _n_of_m(nm or N_OF_M)
            if sparsity is not None and sparsity != n_of_m.sparsity:
                raise PruningError(
                    f"{n_of_m.n}:{n_of_m.m} prunes {n_of_m.sparsity:.4g} of the weights and cannot prune "
                    f"{sparsity:.4g}; leave out sparsity, or choose another N and M"
                )
            return cls(n_of_m, n_of_m.sparsity, None, by)
        if sparsity is None:
            raise PruningError(f"{name} needs a sparsity: the share of weights that become zero, such as 0.9")
        where = Scope.GLOBAL if scope is None else _word(Scope, scope, "scope")
        return cls(_ranked(name, block or BLOCK, by), sparsity, where, by)


def parse_block(text: str) -> tuple[int, int]:
    """``"32x32"`` to height and width.

    Raises:
        PruningError: it is not two numbers with an x between.
    """
    return _pair(text, "x", "block", "32x32")


def parse_nm(text: str) -> tuple[int, ...]:
    """``"2:4"`` to N and M, ``"64:2:8"`` to V, N and M.

    Raises:
        PruningError: it is not two or three numbers with colons between.
    """
    if re.fullmatch(r"\d{1,9}(:\d{1,9}){1,2}", text) is None:
        raise PruningError(f"nm = {text!r} is not of the form 2:4 or 64:2:8")
    return tuple(map(int, text.split(":")))


def _pair(text: str, separator: str, name: str, example: str) -> tuple[int, int]:
    match = re.fullmatch(rf"(\d{{1,9}}){separator}(\d{{1,9}})", text)
    if match is None:
        raise PruningError(f"{name} = {text!r} is not of the form {example}")
    return int(match[1]), int(match[2])


def _word(kind: type[E], value: E | str, name: str) -> E:
    return arguments.word(kind, value, name, PruningError)


def _numbers(nm: tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(nm, tuple | list) and len(nm) == 3:
        first = arguments.whole(nm[0], "nm[0]", PruningError, least=1)
        return first, *arguments.pair(nm[1:], "nm", PruningError)
    return arguments.pair(nm, "nm", PruningError)


def _n_of_m(nm: tuple[int, ...]) -> NM:
    *blocks, n, m = nm
    if not 1 <= n < m:
        raise PruningError(f"nm = {n}:{m} must keep at least 1 and less than all of the {m} weights")
    if blocks and not (n < CHOSEN < m):
        raise PruningError(
            f"nm = {blocks[0]}:{n}:{m} keeps weights in {CHOSEN} of M columns: M must be more, N less than {CHOSEN}"
        )
    return NM(n, m, *blocks)


def _ranked(name: PatternName, block: tuple[int, int], score: Score) -> Pattern:
    if min(block) < 1:
        raise PruningError(f"block = {block[0]}x{block[1]} must be at least 1x1")
    match name:
        case PatternName.BLOCK:
            return Block(*block, score)
        case PatternName.BLOCKED_UNIFORM:
            return BlockedUniform(*block, score)
        case PatternName.UNIFORM:
            return Uniform(score)
        case _:
            return Unstructured()
