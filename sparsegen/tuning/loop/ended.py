"""Searches that ended by their own budget: remembered in the cache, so that equal ones need not be made again.

A database says what was measured, not how long a search was allowed to take. A note says that, and is worth nothing
without the measurements: if these are gone, or were of other sources, the search is made.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparsegen.backends.executor import Toolchain
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.plan.variants import RenderedVariant
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_text
from sparsegen.tuning.loop.finalists import is_finished
from sparsegen.tuning.report import Budget, Counts, TuneResult
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Measurement, Workload

logger = logging.getLogger(__name__)
UNLIMITED = 1e18  # stands for no limit in a note


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of a search besides its workload, device and database.

    Attributes:
        trials, seconds: its budget.
        families: their names, in order; None for all.
        baselines: true if dense and vendor routines were to be timed.
    """

    trials: float
    seconds: float
    families: tuple[str, ...] | None
    deterministic: bool
    sampler: str
    seed: int
    baselines: bool

    @classmethod
    def of(cls, budget: Budget, families: Any, **options: Any) -> Asked:
        """Make it of a call's arguments."""
        trials, seconds = budget.limits
        names = None if families is None else tuple(sorted(families))
        return cls(min(trials, UNLIMITED), min(seconds, UNLIMITED), names, **options)

    def covers(self, other: Asked) -> bool:
        """True if a search for this leaves nothing to do of one for the other."""
        longer = self.trials >= other.trials and self.seconds >= other.seconds
        return longer and replace(self, trials=other.trials, seconds=other.seconds) == other


def note(path: Path, asked: Asked, result: TuneResult) -> None:
    """Remember that a search ended by its budget."""
    facts = {"pruned": result.pruned, "left_out": result.left_out, "space_size": result.space_size}
    told = {**facts, "baselines_skipped": result.baselines_skipped, "asked": asdict(asked)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        publish_text(path, json.dumps(told))
    except OSError as error:  # the search is recorded all the same
        logger.warning("%s: that the search ended cannot be noted: %s", path, error.strerror or error)


def result_of_before(
    path: Path, asked: Asked, workload: Workload, device: Device, known: Layer, toolchain: Toolchain
) -> TuneResult | None:
    """Returns the result of an equal or longer search; None if there was none, or its variants have changed since."""
    told = _read(path)
    if told is None or not told[0].covers(asked):
        return None
    measurements = known.measurements(workload, device)
    if not is_finished(measurements):
        return None
    of_family: dict[str, Measurement] = {}
    for ranked in ranking.ranked(measurements):
        config = ranked.variant.config
        if not config.is_known or (
            asked.families is not None and ranked.variant.family not in asked.families
        ):
            continue
        family = family_of(config)
        if family.is_valid(workload.problem, config, device) and (
            not asked.deterministic or family.is_deterministic(workload.problem, config)
        ):
            of_family.setdefault(ranked.variant.family, ranked.measurement)
    if not of_family:
        return None
    winner = next(iter(of_family.values()))
    rendered = RenderedVariant.of(winner.variant.config, workload.problem, toolchain)
    if rendered.digest != winner.variant.source_digest:
        return None
    variants = len({m.variant for m in measurements})
    facts = told[1]
    pruned: Mapping[str, int] = facts["pruned"]
    return TuneResult(
        workload=workload,
        device=device,
        winner=winner,
        family_winners=of_family,
        counts=Counts(resumed=variants, pruned=sum(pruned.values())),
        pruned=pruned,
        left_out=facts["left_out"],
        space_size=facts["space_size"],
        baselines=tuple(known.baselines(workload, device)),
        baselines_skipped=facts["baselines_skipped"],
        seconds=0.0,
        was_interrupted=False,
    )


def _read(path: Path) -> tuple[Asked, Json] | None:
    """A note; what is damaged says nothing."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        told = json.loads(path.read_text(encoding="utf-8"))
        asked = dict(told["asked"])
        families = asked["families"]
        asked["families"] = None if families is None else tuple(families)
        facts = {
            "pruned": {str(name): int(count) for name, count in told["pruned"].items()},
            "left_out": {str(name): str(why) for name, why in told["left_out"].items()},
            "space_size": int(told["space_size"]),
            "baselines_skipped": str(told["baselines_skipped"]),
        }
        return Asked(**asked), facts
    return None
