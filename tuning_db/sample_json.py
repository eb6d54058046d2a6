"""Samples in exported documents: as every version has them, with what later ones add."""

from __future__ import annotations

from dataclasses import asdict

from sparsegen.operators import MAX_INDEX
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.json_reader import Node
from sparsegen.tuning_db.records import MeasuredAs, Sample
from sparsegen.tuning_db.row_checks import BIG

COLD_OR_WARM = (MeasuredAs.COLD, MeasuredAs.WARM)  # kinds that every version knows


def sample_dict(sample: Sample) -> Json:
    """A sample as every version has it, and what later ones add."""
    kind = sample.measured_as
    values = {
        "cold" if name == "measured_as" else name: kind is not MeasuredAs.WARM
        if name == "measured_as"
        else value
        for name, value in asdict(sample).items()
    }
    return values | ({} if kind in COLD_OR_WARM else {"measured_as": str(kind)})


def read_sample(node: Node) -> Sample:
    """Raises ImportFileError, which names the place in the document."""
    f = node.fields(
        ("median_us", "low_us", "high_us", "count", "cold"), ("clock_mhz", "throttle_reasons", "measured_as")
    )
    kind = MeasuredAs.COLD if f["cold"].boolean() else MeasuredAs.WARM
    if "measured_as" in f:
        word = f["measured_as"].text(20)
        if word not in list(MeasuredAs):
            f["measured_as"].refuse(f"one of {', '.join(MeasuredAs)}")
        kind = MeasuredAs(word)

    def optional(name: str) -> int | None:
        member = f.get(name)
        return None if member is None or member.value is None else member.integer(0, BIG)

    return Sample(
        median_us=f["median_us"].number(above=True),
        low_us=f["low_us"].number(),
        high_us=f["high_us"].number(),
        count=f["count"].integer(1, MAX_INDEX),
        measured_as=kind,
        clock_mhz=optional("clock_mhz"),
        throttle_reasons=optional("throttle_reasons"),
    )
