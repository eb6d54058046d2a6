"""Dispatch's answer: the variant to run, or the dense product in its place, with what is known of the times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.dense_or_sparse import Faster, Source, Time, compare
from sparsegen.dispatch.options import Dense
from sparsegen.dispatch.places import Neighbour
from sparsegen.kernels import family_of
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.system.compared import Compared
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db.records import Probe


class How(StrEnum):
    """The source of a choice, the best one first."""

    PINNED = "pinned"
    EXACT = "exact"
    BUCKET = "bucket"
    PREDICTED = "predicted"
    NEAREST = "nearest"
    DEFAULT = "default"
    NAMED = "named"  # named by the caller; nothing was looked up


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Choice(Compared):
    """The variant to run, or the dense product in its place, and why.

    Attributes:
        how, why: source of the variant, as a word and in a sentence.
        expected_us: measured (EXACT), or estimated from the neighbours; None where nothing is known.
        predicted_us: time by the family's heuristic and the device's rates (DEFAULT), or by `sparsegen tune --for` for
            the variant (PREDICTED, and EXACT if it did so before); None if neither is known.
        dense: the time of a dense product; None where none computes this.
        probed_us: time of the variant beside the dense product, measured when it was first prepared; None if it was
            not.
        policy: the requested permission of dense products.
        obstacle: why the dense product does not run though it should; else empty.
        neighbours: the measured workloads that were asked.
        raced: for tasks that run the variant, such as calls on tensors, their times with it and in the other way, for
            each way of being called.
    """

    problem: Problem
    config: Config
    how: How
    why: str
    expected_us: float | None = None
    predicted_us: float | None = None
    dense: Time | None = None
    probed_us: float | None = None
    policy: Dense = Dense.AUTO
    obstacle: str = ""
    neighbours: tuple[Neighbour, ...] = ()
    raced: tuple[Probe, ...] = ()

    def __repr__(self) -> str:
        return f"<Choice: {self.config.family_name} ({self.how}), {self.why}, for {self.problem}>"

    @property
    def family(self) -> AnyFamily:
        """The family of the config."""
        return family_of(self.config)

    @property
    def is_hit(self) -> bool:
        """True if it is pinned, or rests on measurements of this workload or its bucket."""
        return self.how in (How.PINNED, How.EXACT, How.BUCKET)

    @property
    def sparse(self) -> Time | None:
        """The variant's time; None where nothing is known."""
        if self.probed_us is not None:
            return Time.of_sparse(self.probed_us, Source.MEASURED)
        if self.expected_us is not None:
            source = {How.EXACT: Source.MEASURED, How.PINNED: Source.MEASURED, How.BUCKET: Source.ALIKE}.get(
                self.how, Source.NEAR
            )
            return Time.of_sparse(self.expected_us, source)
        if self.predicted_us is not None and math.isfinite(self.predicted_us):
            return Time.of_sparse(self.predicted_us, Source.PREDICTED)
        return None

    @property
    def dense_us(self) -> float | None:
        """Microseconds of the dense product, measured or estimated; None where none computes this."""
        return None if self.dense is None else self.dense.us

    @property
    def dense_is_faster(self) -> bool:
        """True if a dense product is measured or estimated to take less time."""
        return self.dense is not None and self.sparse is not None and not self.sparse.is_at_most(self.dense)

    @property
    def faster(self) -> Faster:
        """The faster one of dense and sparse; OPEN if estimates overlap or the variant's time is not known."""
        return compare(self.sparse, self.dense)

    @property
    def is_open(self) -> bool:
        """True if estimates overlap, so that a probe decides."""
        return self.policy is Dense.AUTO and not self.obstacle and self.faster is Faster.OPEN

    @property
    def use_dense(self) -> bool:
        """True if the dense product runs instead of the variant."""
        return not self.decision.on_device

    @property
    def decision(self) -> Decision:
        """Decision between the variant and the dense product, by the caller or by times, however they are called."""
        if self.policy is Dense.ALWAYS and not self.obstacle:
            return Decision.always(False, f"it runs instead (dense={self.policy})")
        sure = ", as far as estimates tell" if self.faster is Faster.OPEN else ""
        if not self.dense_is_faster:
            return Decision.always(True, f"sparse wins{sure}")
        if self.obstacle:
            return Decision.always(True, f"dense wins{sure}, but {self.obstacle}: sparse runs")
        if self.policy is Dense.NEVER:
            return Decision.always(True, f"dense wins{sure}, but sparse runs (dense={self.policy})")
        return Decision.always(False, f"dense wins{sure}, it runs instead")

    def explain(self) -> str:
        """The choice in words, several lines."""
        values = self.config.settings.replace(" ", ", ")
        lines = [f"{self.family.name} ({self.how}): {self.why}", f"  {values}"]
        if self.sparse is not None:
            lines.append(f"  takes {self.sparse}")
        if self.how is How.EXACT and self.predicted_us is not None:
            lines.append(f"  {microseconds(self.predicted_us)} were predicted")
        if self.dense is not None:
            lines.append(f"  dense takes {self.dense}: {self.decision.why}")
        elif self.use_dense:
            lines.append(f"  the dense product runs instead (dense={self.policy})")
        lines += [
            f"  asked: {_sizes(n.workload.problem)}, {n.workload.features.nnz} nonzeros, "
            f"{n.distance:.2f} octaves away"
            for n in self.neighbours
        ]
        lines += [f"  {probe}" for probe in self.raced]
        return "\n".join(lines)


def _sizes(problem: Problem) -> str:
    elements = f"{problem.batch} batch elements of " if problem.batch > 1 else ""
    return elements + " × ".join(map(str, problem.sizes.values()))
