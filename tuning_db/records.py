"""Records of the database, as plain frozen values; no SQLAlchemy here."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.system.compared import Compared
from sparsegen.system.quantities import microseconds


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceRates(Compared):
    """Measured throughputs of a device, per microsecond."""

    device: Device
    rates: Rates
    measured_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Outcome(StrEnum):
    """Outcome of a variant. Only ``OK`` is ever dispatched."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    COMPILE_FAILED = "compile_failed"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Workload(Compared):
    """Subject of tuning: a problem on one sparsity pattern, or with masks of one density that change with every call.

    Attributes:
        fingerprint: `Problem.fingerprint`, which names the pattern or the masks.
    """

    problem: Problem
    fingerprint: str
    features: Features

    @classmethod
    def of(cls, problem: Problem, matrix: CsrMatrix) -> Workload:
        """A problem on a matrix, or on what takes its place (`Problem.without_pattern`)."""
        return cls(problem, problem.fingerprint(matrix), problem.features(matrix))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Variant(Compared):
    """A config, and the source that it made.

    Attributes:
        config: config of an installed family, or an `UnknownConfig`.
        source_digest: SHA-256 of the source and the toolchain's fingerprint.
    """

    config: Config
    source_digest: str

    def __hash__(self) -> int:
        return hash(self.source_digest)  # Python keeps a text's hash, and works a config's out each time

    @property
    def family(self) -> str:
        """The family's name."""
        return self.config.family_name


class MeasuredAs(StrEnum):
    """State of the second-level cache that a timed call found, and its launch; times of different kinds differ."""

    COLD = "cold"  # lines to write back, and nothing of its own
    CLEAN = "clean"  # lines that can go, and nothing of its own
    WARM = "warm"  # the lines that the call before it left
    GRAPH = "graph"  # launched by a CUDA graph, one call after the other


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sample(Compared):
    """The times of one run of measurements, in microseconds."""

    median_us: float
    low_us: float  # 10th percentile
    high_us: float  # 90th percentile
    count: int
    measured_as: MeasuredAs = MeasuredAs.COLD
    clock_mhz: int | None = None
    throttle_reasons: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measurement(Compared):
    """One variant on one workload and device, whatever became of it.

    ``sample`` is there exactly when the outcome is OK; ``reason`` says why it is not.
    ``final`` marks a finalist's time, taken in turn with those of the other finalists. ``driver`` is the version of the
    device's driver; empty where it is not known.
    """

    workload: Workload
    device: Device
    variant: Variant
    outcome: Outcome
    sample: Sample | None = None
    reason: str = ""
    worst_error: float | None = None  # over its bound; at most 1
    registers: int | None = None
    spill_bytes: int | None = None
    compile_seconds: float | None = None
    prepare_seconds: float | None = None
    packed_bytes: int | None = None
    final: bool = False
    measured_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    driver: str = ""


class Basis(StrEnum):
    """Basis of a predicted time."""

    MODEL = "model"  # the cost model alone
    SCALED = "scaled"  # a time measured on a like device, by the ratio of the model's times on both


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prediction(Compared):
    """Predicted time of a variant on a device that it never ran on: no measurement, and kept apart from them.

    Attributes:
        predicted_us: microseconds, with a cold L2.
        model: the digest of the cost model's coefficients.
        registers, spill_bytes: for each thread, as compiled for the device.
    """

    workload: Workload
    device: Device
    variant: Variant
    predicted_us: float
    basis: Basis
    model: str
    registers: int | None = None
    spill_bytes: int | None = None
    predicted_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Baseline(Compared):
    """Time of another library's routine for the same workload on the same device."""

    workload: Workload
    device: Device
    name: str  # "cublas" or "cusparse"
    version: str  # version of the library that ran it, e.g. "torch 2.11.0+cu130"
    sample: Sample
    measured_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Called(StrEnum):
    """Origin of calls, on which their time depends."""

    HOST = "host"  # from Python, on an idle device: the host's time counts where the device waits for it
    DEVICE = "device"  # behind a busy queue or in a CUDA graph: the device's time alone


NOISE = 1.02  # factor within which two times of a race do not tell


class Task(StrEnum):
    """Task of a probe: what is timed with our kernel, and without it."""

    PRODUCT = "product"  # the workload's operator alone
    CONVOLUTION = "convolution"  # a masked convolution of PyTorch's tensors, or its gradient by the weights
    DROPOUT = "dropout"  # a step of a layer behind structured dropout, forward and backward
    SEEDED_DROPOUT = "seeded-dropout"  # such a step with a seed of the layer's own
    ATTENTION = "attention"  # sparse attention by the fused kernel, or in three steps
    MODEL = "model"  # a call of a whole model, with layers of this workload sparse or as they were before

    @property
    def implementations(self) -> tuple[str, str]:
        """The names of ours and of the other way."""
        return ("fused", "steps") if self is Task.ATTENTION else ("sparse", "dense")

    def is_won(self, ours_us: float, other_us: float) -> bool:
        """True if ours take less time; in a model by half a percent, for less is its noise."""
        return ours_us < other_us * (0.995 if self is Task.MODEL else 1.0)

    def is_held(self, ours_us: float, other_us: float) -> bool:
        """True if ours lose no more than a race's noise to a dense way; to others of ours they may."""
        return self is Task.ATTENTION or ours_us <= other_us * NOISE


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Probe(Compared):
    """Ours and the other way, timed in turn where they were first needed; it stays where it was measured.

    The other way is a dense one, or for attention the three steps in place of the fused kernel.

    Attributes:
        variant: our variant; with several launches that of the first.
        sparse_us, dense_us: medians of ours and of the other way in microseconds.
        count: samples of each.
        driver: see `Measurement`.
        context: digest of what else the times depend on: for attention the variants of the steps, for a model all of
            it; empty for other tasks.
    """

    workload: Workload
    device: Device
    variant: Variant
    sparse_us: float
    dense_us: float
    count: int
    measured_as: MeasuredAs = MeasuredAs.COLD
    driver: str = ""
    measured_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    called: Called = Called.DEVICE
    task: Task = Task.PRODUCT
    context: str = ""

    @property
    def ours_wins(self) -> bool:
        """True if ours took less time; see `Task.is_won`."""
        return self.task.is_won(self.sparse_us, self.dense_us)

    @property
    def ours_hold(self) -> bool:
        """True if ours lost at most by the race's noise; see `Task.is_held`."""
        return self.task.is_held(self.sparse_us, self.dense_us)

    def __str__(self) -> str:
        how = "from Python" if self.called is Called.HOST else "in a graph or behind a busy queue"
        ours, other = self.task.implementations
        return (
            f"{self.task} called {how}: {ours} {microseconds(self.sparse_us)}, {other} "
            f"{microseconds(self.dense_us)}: {ours if self.ours_wins else other} wins"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Check(Compared):
    """A variant's result held against the reference where it first ran; it stays where it was made.

    Attributes:
        outcome: OK, WRONG or CRASHED; ``reason`` says why it is not OK.
        worst_error: over its bound; None where nothing could be compared.
        seconds: time that the check took.
        driver: see `Measurement`.
    """

    workload: Workload
    device: Device
    variant: Variant
    driver: str
    outcome: Outcome
    seconds: float
    reason: str = ""
    worst_error: float | None = None
    measured_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Tuned(NamedTuple):
    """A workload on a device, and how much is known about it."""

    workload: Workload
    device: Device
    measurements: int
    ok: int
    last_measured_at: datetime
