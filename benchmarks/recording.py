"""Recorded exhaustive searches: what became of every candidate of a space, compact enough to lie in a repository.

One file holds several, as JSON compressed by xz. Configs stand in columns: for each family the values of each tunable,
as places among its choices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsegen import kernels
from sparsegen.errors import ImportFileError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_text
from sparsegen.tuning.samplers.study import time_us
from sparsegen.tuning_db.json_reader import parse_json, read_text
from sparsegen.tuning_db.problem_reader import read_problem
from sparsegen.tuning_db.record_json import workload_dict
from sparsegen.tuning_db.records import Measurement, Outcome, Workload

FORMAT = "sparsegen-recorded-searches/1"
LARGEST_FILE = 256 * 2**20  # bytes of JSON
DIGITS = 5  # digits of a time; medians of a variant vary more


@dataclass(frozen=True, slots=True)
class Tried:
    """Outcome of a candidate: its median in µs, or None if it failed."""

    config: Config
    outcome: Outcome
    time_us: float | None
    registers: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """An exhaustive search.

    Attributes:
        name: name of the space.
        is_modelled: times were computed by a model, and nothing was measured.
    """

    name: str
    workload: Workload
    device: Device
    tried: tuple[Tried, ...]
    is_modelled: bool = False

    @classmethod
    def of(cls, name: str, measurements: Sequence[Measurement]) -> Recording:
        """The last measurement of each config, in the order of the first; of finalists only where there is no other.

        Args:
            measurements: measurements of one workload on one device, at least one.
        """
        found: dict[Config, Measurement] = {}
        for m in sorted(measurements, key=lambda m: m.final, reverse=True):
            found[m.variant.config] = m
        order = dict.fromkeys(m.variant.config for m in measurements if m.variant.config.is_known)
        tried = tuple(
            Tried(config, m.outcome, time_us(m), m.registers, m.spill_bytes)
            for config in order
            if (m := found[config])
        )
        return cls(name, measurements[0].workload, measurements[0].device, tried)

    @property
    def best_us(self) -> float:
        """The lowest time; infinite where every candidate failed."""
        return min((t.time_us for t in self.tried if t.time_us is not None), default=math.inf)


def write(path: Path, recordings: Iterable[Recording]) -> None:
    """Write a file, whole or not at all."""
    document = {"format": FORMAT, "searches": [_dict(r) for r in recordings]}
    publish_text(path, json.dumps(document, separators=(",", ":")))


def read(path: Path) -> list[Recording]:
    """Read a file; what families tried that are gone since is left out.

    Raises:
        ImportFileError: it cannot be read, is none of these, or names tunables or values that families lack.
    """
    try:
        document = json.loads(read_text(path, LARGEST_FILE))
        if document["format"] != FORMAT:
            raise ImportFileError(f"{path} is {document['format']}, not {FORMAT}")
        return [_recording(found) for found in document["searches"]]
    except ImportFileError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, SparsegenError) as error:
        raise ImportFileError(
            f"{path} holds no recorded searches that this version knows: {type(error).__name__}: {error}"
        ) from error


def _dict(r: Recording) -> Json:
    families: dict[str, list[Config]] = {}
    for t in r.tried:
        families.setdefault(t.config.family_name, []).append(t.config)
    in_order = [t for name in families for t in r.tried if t.config.family_name == name]
    return {
        "name": r.name,
        "is_modelled": r.is_modelled,
        "workload": workload_dict(r.workload),
        "device": {name: value for name, value in asdict(r.device).items() if name != "rates"},
        "families": {
            name: {
                t.name: [t.choices.index(getattr(c, t.name)) for c in configs] for t in configs[0].tunables()
            }
            for name, configs in families.items()
        },
        "outcomes": [t.outcome.value for t in in_order],
        "times_us": [t.time_us if t.time_us is None else float(f"{t.time_us:.{DIGITS}g}") for t in in_order],
        "registers": [t.registers for t in in_order],
        "spill_bytes": [t.spill_bytes for t in in_order],
    }


def _recording(found: Json) -> Recording:
    configs: list[Config | None] = []  # None of a family that is gone
    for name, columns in found["families"].items():
        rows = list(zip(*columns.values(), strict=True))
        family = kernels.families().get(name)
        if family is None:
            configs += [None] * len(rows)
            continue
        tunables = {t.name: t for t in family.config_type.tunables()}
        if tunables.keys() != columns.keys():
            raise ImportFileError(f"{name} has the tunables {', '.join(tunables)}, not {', '.join(columns)}")
        for row in rows:
            places = zip(columns, row, strict=True)
            configs.append(family.config(**{t: tunables[t].choices[place] for t, place in places}))
    facts = (found[name] for name in ("outcomes", "times_us", "registers", "spill_bytes"))
    tried = tuple(
        Tried(config, Outcome(outcome), *others)
        for config, outcome, *others in zip(configs, *facts, strict=True)
        if config is not None
    )
    workload, device = found["workload"], found["device"]
    problem = read_problem(parse_json(json.dumps(workload["problem"]), "a recorded search"))
    return Recording(
        found["name"],
        Workload(problem, workload["fingerprint"], Features(**workload["features"])),
        Device(**device | {"compute_capability": tuple(device["compute_capability"])}),
        tried,
        found["is_modelled"],
    )
