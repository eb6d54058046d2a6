"""Request and progress of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparsegen.bench.baseline.baseline import Baseline
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results.results import Protocol, Row, RowKey
from sparsegen.bench.run.maker import Pair
from sparsegen.bench.run.runner import Limits
from sparsegen.kernels.base import Device
from sparsegen.operators import DType


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a run.

    Attributes:
        baselines: baselines in the order in which they take turns.
        output: the result file; None to keep none. Rows that are in it stay unless ``remeasure`` says so.
        seconds: time after which no row is begun; None for no limit.
        devices: more of the same model, on which rows are tuned before any is measured; rows are measured on
            ``device``, all of them.
        jobs: rows that are tuned side by side on each device before any is measured, or with ``seconds`` some rows
            before these are; with 1 on one device, each just before its turn.
        command: the command line, for the record.
    """

    cases: Sequence[Case]
    baselines: Sequence[Baseline]
    device: Device
    protocol: Protocol
    db: str | None = None
    output: Path | None = None
    remeasure: bool = False
    seconds: float | None = None
    devices: Sequence[Device] = ()
    jobs: int = 1
    command: str = ""
    limits: Limits = field(default_factory=Limits)


TUNED_AHEAD = "tuned ahead"  # a row's step when its search, side by side with others', has ended


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a run: a row that is being worked on, or (``row`` given) done."""

    index: int
    total: int
    key: RowKey
    doing: str
    row: Row | None = None


Progress = Callable[[Step], None]


def planned(cases: Iterable[Case]) -> list[Pair]:
    """Every case in every dtype; those of one pattern next to each other, so that it is made once."""
    patterns: dict[object, list[Pair]] = {}
    for case in cases:
        patterns.setdefault(case.pattern, []).extend((case, dtype) for dtype in case.dtypes)
    by_dtype = list(DType)
    return [
        pair
        for pairs in patterns.values()
        for pair in sorted(pairs, key=lambda pair: by_dtype.index(pair[1]))
    ]
