"""Data that the cost model is fitted to: measurements, with the instruction counts of what was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks import fitting
from benchmarks.fitting import Known
from sparsegen.backends.cuda.instructions import Instructions
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.system.publish import publish_text
from sparsegen.tuning.prediction.targets import described
from sparsegen.tuning.prediction.terms import Resources
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.conversion import canonical
from sparsegen.tuning_db.json_reader import read_text
from sparsegen.tuning_db.records import Measurement, Workload

Counts = Mapping[str, Instructions]

LARGEST_COUNTS = 64 * 2**20  # bytes


def source_key(problem: Problem, config: Config) -> str:
    """Returns a name of a source, whatever compiles it: all that it depends on, hashed to 16 hexadecimal digits."""
    constants = family_of(config).constants(problem, config)
    text = f"{config.family_name} {canonical(config.to_dict())} {canonical(dict(constants))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_counts(file: Path) -> dict[str, Instructions]:
    """Instructions by `source_key`; none where there is no file."""
    if not file.is_file():
        return {}
    rows = json.loads(read_text(file, LARGEST_COUNTS))["instructions"]
    return {key: Instructions(*counts) for key, counts in rows.items()}


def write_counts(file: Path, counts: Counts, **facts: str) -> None:
    """One source a line, sorted: equal counts make equal files."""
    lines = (f'"{key}": {json.dumps([c.total, c.looped, c.products])}' for key, c in sorted(counts.items()))
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in facts.items())
    publish_text(file, "{" + head + '"instructions": {\n' + ",\n".join(lines) + "\n}}\n")


def known_variants(measurements: Iterable[Measurement], counts: Counts) -> tuple[list[Known], int]:
    """Every variant that ran right, with the median of its times, and the usual number of registers.

    Devices are taken as they are described (`targets.described`), so that measured and described ones compare.
    """
    groups: dict[tuple[Workload, str], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault((m.workload, m.device.key), []).append(m)
    measured: list[tuple[Workload, Device, Config, float, Resources]] = []
    for (workload, _), group in groups.items():
        device = described(group[0].device)
        for found in ranking.times(group).values():
            config, m = found.variant.config, found.measurement
            if not config.is_known or m.registers is None:
                continue
            resources = Resources(
                m.registers,
                m.spill_bytes or 0,
                instructions=counts.get(source_key(workload.problem, config)),
            )
            measured.append((workload, device, config, found.time_us, resources))
    usual = fitting.usual_registers(resources for *_, resources in measured)
    return fitting.known(measured, usual), usual
