"""Searches of the toy family of `tuning_fakes`: what they record, and how they are made to fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tuning_fakes
from patience import is_running
from tuning_fakes import DEVICE, MATRIX, PROBLEM, ToyConfig

from sparsegen.kernels.config import UnknownConfig
from sparsegen.matrix.features import Features
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store

WORKLOAD = Workload(PROBLEM, MATRIX.fingerprint(), Features.of(MATRIX))
FAKES = Path(tuning_fakes.__file__)


def recorded(store: Store, *, final: bool = False) -> list[Measurement]:
    return [m for m in store.measurements(WORKLOAD, DEVICE) if m.final == final]


def bad_day(monkeypatch: pytest.MonkeyPatch, what: str, folder: Path = Path()) -> None:
    """Let the best variant fail with nothing in its source that would tell."""
    monkeypatch.setenv("TOY_BAD_DAY", what)
    monkeypatch.setenv("TOY_FOLDER", str(folder))


def behave(monkeypatch: pytest.MonkeyPatch, behaviour: str, **values: int) -> None:
    """Let the variants with these values misbehave behind the tuner's back."""
    honest = tuning_fakes.render_toy

    def render(family, problem, config):  # type: ignore[no-untyped-def]
        matches = all(getattr(config, name) == value for name, value in values.items())
        return honest(family, problem, replace(config, behaviour=behaviour) if matches else config)

    monkeypatch.setattr("sparsegen.plan.variants.render", render)


def children(pid: int) -> list[int]:
    """The child processes of a process that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        child = int(stat.parent.name)
        if int(fields[1]) == pid and is_running(child):
            found.append(child)
    return found


def timed(median_us: float, size: int, family: str = "toy") -> Measurement:
    toy = ToyConfig(size=size, width=1)
    config = toy if family == "toy" else UnknownConfig(family, toy.key[1])
    sample = Sample(median_us, median_us, median_us, 30)
    return Measurement(WORKLOAD, DEVICE, Variant(config, "ab" * 32), Outcome.OK, sample)
