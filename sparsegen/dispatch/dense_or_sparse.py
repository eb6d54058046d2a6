"""Dense or sparse, or any two ways: which takes less time, and whether what is known of both is enough to say so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, cast

from sparsegen.dispatch.dense_time import (
    Known,
    chunk_of,
    dense_time_us,
    is_modelled,
    is_near,
    modelled_us,
)
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import Device
from sparsegen.operators import OPERATORS, DType, HasDense, Problem, SpmmProblem
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db.ranking import preference
from sparsegen.tuning_db.records import Baseline, MeasuredAs

if TYPE_CHECKING:  # a look-up of spmm imports no masks
    from sparsegen.operators import MaskedProblem

DENSE = "cublas"  # the baseline that a dense product is


class Source(StrEnum):
    """The source of a time, the surest first."""

    MEASURED = "measured"
    SAME_SIZES = "measured on equal sizes"
    ALIKE = "measured on a matrix that is much alike"
    NEAR = "estimated from measurements that are near"
    PREDICTED = "predicted from the device's rates"


# Nine of ten times are within such a factor. On the packaged results with a workload's own pattern left out: sparse
# times of the same bucket 1.05, by neighbours 1.17, and 1.23 where all shapes of a suite are left out; dense ones of
# equal sizes 1.05, with the shape left out 1.2. Nothing is known of devices without measurements: there the factors of
# predictions are guesses.
SPARSE_WITHIN = {Source.MEASURED: 1.02, Source.ALIKE: 1.05, Source.NEAR: 1.25, Source.PREDICTED: 1.5}
# Of whole matrices with dead blocks set to zero: predictions of drawn ones were off by so much, and of dense gradients
# of convolutions by their weights.
MASKED_WITHIN = 2.0
DENSE_WITHIN = {Source.MEASURED: 1.02, Source.SAME_SIZES: 1.05, Source.NEAR: 1.2, Source.PREDICTED: 1.35}


class Time(NamedTuple):
    """A time in microseconds, and its source.

    Attributes:
        within: error factor that nine of ten such times do not exceed.
    """

    us: float
    source: Source
    within: float

    @classmethod
    def of_sparse(cls, us: float, source: Source) -> Time:
        return cls(us, source, SPARSE_WITHIN[source])

    @classmethod
    def of_dense(cls, us: float, source: Source) -> Time:
        return cls(us, source, DENSE_WITHIN[source])

    @classmethod
    def of_all(cls, times: Sequence[Time], repeats: int = 1) -> Time:
        """The time of several kernels one after the other, as sure as the least sure of theirs."""
        least_sure = max(times, key=lambda time: time.within)
        return cls(repeats * sum(time.us for time in times), least_sure.source, least_sure.within)

    @classmethod
    def least(cls, times: Iterable[Time]) -> Time:
        """The shortest of some times."""
        return min(times, key=lambda time: time.us)

    @property
    def is_measured(self) -> bool:
        return self.source is Source.MEASURED

    def is_at_most(self, other: Time) -> bool:
        """True if it is no longer than another one, as far as both are known."""
        return self.us <= other.us

    def __str__(self) -> str:
        off = "" if self.is_measured else f", within {self.within:g} ×"
        return f"{microseconds(self.us)} ({self.source}{off})"


class Faster(StrEnum):
    """The faster of a sparse and a dense product, as far as two times tell."""

    SPARSE = "sparse"
    DENSE = "dense"
    OPEN = "open"  # estimates that overlap


def has_dense(problem: Problem) -> bool:
    """True if a dense product computes the problem."""
    return problem.dense_product is not None


def require_dense(problem: Problem) -> None:
    """Raises ConfigError where no dense product computes it."""
    if not isinstance(problem, HasDense):
        able = ", ".join(kind.operator for kind in OPERATORS.values() if issubclass(kind, HasDense))
        raise ConfigError(
            f"dense = always is for {able}: there is no dense {problem.operator} to run instead"
        )
    if problem.batch > 1:
        raise ConfigError(
            f"dense = always runs one batch element; prepare them without it (batch = {problem.batch})"
        )
    if problem.dense_product is None:
        raise ConfigError(
            f"dense = always: PyTorch has no dense product in the place of this one ({problem})"
        )


def compare(sparse: Time | None, dense: Time | None) -> Faster:
    """Returns the faster one, if the times differ by more than their errors; two measured times always tell."""
    if dense is None:
        return Faster.SPARSE
    if sparse is None:
        return Faster.OPEN
    if sparse.is_measured and dense.is_measured:
        return Faster.SPARSE if sparse.is_at_most(dense) else Faster.DENSE
    if dense.us * dense.within < sparse.us / sparse.within:
        return Faster.DENSE
    if sparse.us * sparse.within < dense.us / dense.within:
        return Faster.SPARSE
    return Faster.OPEN


def measured_dense_us(baselines: Iterable[Baseline], wanted: MeasuredAs | None) -> float | None:
    """The latest time of the dense product, of the kind that is asked for or most like it; None without any."""
    times = {b.sample.measured_as: b.sample.median_us for b in baselines if b.name == DENSE}
    return next((times[kind] for kind in preference(wanted) if kind in times), None)


def probed_as(wanted: MeasuredAs | None) -> MeasuredAs:
    """Returns how a probe is measured whose times are to count as ``wanted``: a graph's launches find the L2 warm."""
    return MeasuredAs.WARM if wanted is MeasuredAs.GRAPH else wanted or MeasuredAs.COLD


def zeroing_us(problem: Problem, device: Device) -> float:
    """Microseconds of the launch beside a dense product that makes dead blocks zeros, for masks of the call."""
    if problem.has_pattern or problem.dense_product is None:
        return 0.0
    rates = device.expected_rates
    return rates.launch_us + problem.zeroing_bytes / rates.copy_bytes_per_us


def estimated_dense(problem: Problem, device: Device, known: Sequence[Known]) -> Time | None:
    """The time by the model of dense products, corrected by the nearest measured one; None where it has none.

    Products with masks are in TF32, as our kernels multiply them (`sparsegen.plan.tf32`).
    """
    if not problem.has_pattern and problem.dense_product is not None and device.backend == "cuda":
        whole, is_product = (
            SpmmProblem(*problem.dense_product, problem.dtype),
            problem.dense_over_product == 1.0,
        )
        specs = (*cast("MaskedProblem", problem).dense_operands(), problem.result(0)) if is_product else ()
        chunk = chunk_of(spec.shape[-1] * spec.dtype.itemsize for spec in specs)
        us = modelled_us(whole, device, loaded_bytes=chunk, in_tf32=problem.dtype is DType.FLOAT32)
        us = problem.dense_over_product * us + zeroing_us(problem, device)
        return Time(us, Source.PREDICTED, MASKED_WITHIN)
    if not (isinstance(problem, SpmmProblem) and is_modelled(problem, device)):
        return None
    us = dense_time_us(problem, device, known)
    sizes = (problem.m, problem.k, problem.n, problem.layout)
    if any((k.problem.m, k.problem.k, k.problem.n, k.problem.layout) == sizes for k in known):
        return Time.of_dense(us, Source.SAME_SIZES)
    return Time.of_dense(us, Source.NEAR if is_near(problem, known) else Source.PREDICTED)
