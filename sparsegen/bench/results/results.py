"""Results of ``sparsegen bench``, as plain frozen values: conditions, and one row for each workload.

`result_file` reads and writes them, `merging` makes one of several, `summary` takes means, `compare` holds two runs
against each other. All times are microseconds and all rates are per second unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from sparsegen.bench.results.problem_facts import HasProblem, in_order, layout_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.rates import FLOAT8_GAIN
from sparsegen.matrix.features import Features
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import Arithmetic, MeasuredRates
from sparsegen.operators import DType, Float8, ImageLayout, Layout, Problem

TUNED, UNTUNED = "sparsegen", "sparsegen-untuned"  # our baselines: the recorded winner, plain dispatch
DEFAULT, IN_GRAPH = "sparsegen-default", "sparsegen-graph"  # called as users call us: dense if that is faster
WITHOUT = "sparsegen-without-"  # and what the packaged results were taken without (`bench.unseen`)
DIGITS = 16  # of the digest of what ran
TOOLCHAIN = "toolchain"  # key of our kernels' compiler among the versions


class Kind(StrEnum):
    """Kind of a baseline: ours, a dense product, or an external sparse routine.

    ``OTHER`` computes something else that users hold against the row: a copy of the same bytes, dense attention. It
    is in no mean.
    """

    OURS = "ours"
    DENSE = "dense"
    SPARSE = "sparse"
    OTHER = "other"


class Status(StrEnum):
    """Outcome of a baseline on a workload. Only ``OK`` has a time."""

    OK = "ok"
    MISSING = "missing"  # the baseline, or what it needs, is not on this machine
    UNSUPPORTED = "unsupported"  # it cannot compute this workload
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class BenchDevice:
    """The device that was measured. ``driver`` is its driver's version; empty for the emulator."""

    key: str
    name: str
    backend: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    driver: str

    @classmethod
    def of(cls, device: Device, driver: str) -> BenchDevice:
        return cls(
            device.key,
            device.name,
            device.backend,
            device.compute_capability,
            device.multiprocessors,
            device.l2_bytes,
            driver,
        )


@dataclass(frozen=True, slots=True)
class Protocol:
    """Protocol of the measurements.

    Attributes:
        rounds: number of rounds in which the baselines took turns.
        samples: number of timed calls of a baseline in one round.
        tune: ``off``, an effort, or a number of seconds or of variants, as given to ``--tune``.
    """

    l2: L2
    rounds: int
    samples: int
    tune: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of the device in this very run.

    Attributes:
        copy_bytes_per_s: bytes read + bytes written of a device-to-device copy.
        flop_per_s: rate of a large dense product, for each measured arithmetic.
        empty_kernel_us: time of a kernel that does nothing.
    """

    copy_bytes_per_s: float
    flop_per_s: Mapping[Arithmetic, float]
    empty_kernel_us: float

    @classmethod
    def of(cls, measured: MeasuredRates) -> Rates:
        """The same in a result file's units."""
        return cls(
            copy_bytes_per_s=measured.copy_bytes_per_us * 1e6,
            flop_per_s={kind: rate * 1e6 for kind, rate in measured.flop_per_us.items()},
            empty_kernel_us=measured.launch_us,
        )

    def flop_per_s_of(self, factors: DType | Float8) -> float | None:
        """The rate of large dense products of numbers of a type; None where it was not measured.

        That of 8-bit numbers is a multiple of that of float16.
        """
        if isinstance(factors, Float8):
            half = self.flop_per_s.get(Arithmetic.FLOAT16)
            return None if half is None else FLOAT8_GAIN * half
        return self.flop_per_s.get(Arithmetic(factors.value))


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command line that added to the file, when it started (with its zone) and how long it took."""

    command: str
    started: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a baseline on a workload: median, 10th and 90th percentile over all samples.

    ``rounds_us`` are the medians of the rounds; ``throttle_reasons`` is NVML's bit mask.
    """

    us: float
    low_us: float
    high_us: float
    samples: int
    rounds_us: tuple[float, ...] = ()
    clock_mhz: int | None = None
    throttle_reasons: int | None = None


@dataclass(frozen=True, slots=True)
class ImplementationTime:
    """One of the implementations of a baseline that has several.

    Attributes:
        us: median of a short measurement; None where it failed.
        reason: why there is no time; empty exactly when there is one.
        variant: our variant that ran.
    """

    detail: str
    us: float | None
    reason: str = ""
    variant: Config | None = None

    def __post_init__(self) -> None:
        if (self.us is None) != bool(self.reason):
            raise ValueError(f"{self.detail}: either a time or a reason")


@dataclass(frozen=True, slots=True)
class Cell:
    """A baseline on a workload.

    Attributes:
        detail: the implementation that stands for it: algorithm and layout; for ours, the source of the choice.
        variant: our variant that ran.
        digest: the first `DIGITS` or more of the SHA-256 of our source and compiler.
        reason: why there is no time; empty exactly when the status is OK.
        timing: there exactly when the status is OK.
        preparation_ms: conversion, packing and upload, once for a matrix; not part of the time.
        memory_bytes: device memory of the prepared matrix and of work space.
        worst_error: the largest error over its bound; above 1 is wrong.
        tried: variants measured on the workload beforehand, for our tuned one; older files do not say.
        implementations: all implementations of a baseline with several, the fastest first.
    """

    baseline: str
    kind: Kind
    arithmetic: Arithmetic
    status: Status
    detail: str = ""
    variant: Config | None = None
    digest: str = ""
    reason: str = ""
    timing: Timing | None = None
    preparation_ms: float | None = None
    memory_bytes: int | None = None
    worst_error: float | None = None
    tried: int | None = None
    implementations: tuple[ImplementationTime, ...] = ()

    def __post_init__(self) -> None:
        is_ok = self.status is Status.OK
        if is_ok != (self.timing is not None) or is_ok == bool(self.reason):
            raise ValueError(f"{self.baseline}: a time if and only if ok, a reason if and only if not")


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time that the device allows.

    Attributes:
        bytes, flop: fewest bytes moved (each operand once) and useful operations (`operators.Cost`).
        computed: fraction of the problem's operations that is useful with these operands; below 1 if inputs of a
            network die, and below or above it if a mask is drawn. Older files do not say, and count all.
        memory_us, compute_us: those over the measured rates; None where no rate was measured (the emulator).
    """

    bytes: int
    flop: int
    memory_us: float | None = None
    compute_us: float | None = None
    computed: float = 1.0

    @property
    def us(self) -> float | None:
        """The larger of the two."""
        known = [us for us in (self.memory_us, self.compute_us) if us is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True, order=True)
class RowKey:
    """Identity of a row."""

    suite: str
    case: str
    dtype: DType
    layout: Layout | ImageLayout

    @classmethod
    def of(cls, suite: str, case: str, problem: Problem) -> RowKey:
        return cls(suite, case, problem.dtype, layout_of(problem))

    def __str__(self) -> str:
        return f"{self.suite}: {self.case}, {self.dtype}, {in_order(self.layout)}"


@dataclass(frozen=True, slots=True)
class Row(HasProblem):
    """A workload and what every baseline took for it.

    Attributes:
        source: source of the matrix.
        fingerprint: fingerprint of the pattern, see `CsrMatrix.fingerprint`.
        features: features of the sparse matrix.
        reference: the reference of the results, if it is not a float64 reference on the CPU.
        state: state of the source that measured it (`sparsegen.bench.run.state`); empty if an older file does not say.
        measured: when, with its zone; None where an older file does not say.
    """

    suite: str
    case: str
    problem: Problem
    source: str
    nnz: int
    fingerprint: str
    features: Features
    floor: Floor
    cells: tuple[Cell, ...]
    reference: str = ""
    state: str = ""
    measured: datetime | None = None

    @property
    def key(self) -> RowKey:
        return RowKey.of(self.suite, self.case, self.problem)

    @property
    def sparsity(self) -> float:
        """Share of zeros in the sparse matrix; 1 for one without entries."""
        return 1.0 - self.features.density

    def cell(self, baseline: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.baseline == baseline), None)

    def us(self, baseline: str) -> float | None:
        """A baseline's median; None if it has no time."""
        cell = self.cell(baseline)
        return None if cell is None or cell.timing is None else cell.timing.us

    def preparation_ms(self) -> float | None:
        """Milliseconds that packing and upload of the tuned winner take; None if that was not measured."""
        cell = self.cell(TUNED)
        return None if cell is None else cell.preparation_ms

    def tried(self) -> int | None:
        """Number of variants that were measured on the workload before the tuned winner was named; None if not
        known.
        """
        cell = self.cell(TUNED)
        return None if cell is None else cell.tried

    def break_even_calls(self) -> int | None:
        """Calls from which the tuned winner, packed once, has taken less time than dense; None: never, or not known."""
        tuned, dense, packing = self.us(TUNED), self.dense(), self.preparation_ms()
        if tuned is None or dense is None or dense.timing is None or packing is None:
            return None
        gain = dense.timing.us - tuned
        return None if gain <= 0 else max(1, math.ceil(packing * 1e3 / gain))

    def dense(self) -> Cell | None:
        """The fastest dense product in the row's own type (TF32 is not float32)."""
        return self._fastest(Kind.DENSE)

    def best_sparse(self) -> Cell | None:
        """The fastest of the other sparse routines, in the row's own type."""
        return self._fastest(Kind.SPARSE)

    def _fastest(self, kind: Kind) -> Cell | None:
        timed = [
            (cell.timing.us, cell)
            for cell in self.cells
            if cell.timing is not None and cell.kind is kind and cell.arithmetic.value == self.dtype.value
        ]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None


@dataclass(frozen=True, slots=True)
class Results:
    """A result file. ``versions`` has only what took part: sparsegen, toolchain, cublas, cusparse, torch, ..."""

    device: BenchDevice
    versions: Mapping[str, str]
    protocol: Protocol
    rates: Rates | None = None
    invocations: tuple[Invocation, ...] = ()
    rows: tuple[Row, ...] = field(default=())

    @property
    def suites(self) -> frozenset[str]:
        """The suites that the rows are of."""
        return frozenset(row.suite for row in self.rows)

    def row(self, key: RowKey) -> Row | None:
        return next((row for row in self.rows if row.key == key), None)

    def with_row(self, row: Row) -> Results:
        """Returns the results with the row added, or in the place of the one with its key."""
        if self.row(row.key) is None:
            return replace(self, rows=(*self.rows, row))
        return replace(self, rows=tuple(row if old.key == row.key else old for old in self.rows))
