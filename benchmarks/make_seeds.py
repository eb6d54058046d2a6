"""Make the packaged seeds from tuning databases.

    python -m benchmarks.make_seeds tuned.db ... -o tuning_db/seeds/h100.json
    python -m benchmarks.make_seeds variants_27183.json.xz drawn_224466.json.xz ... -o tuning_db/seeds/h200.json

They keep, for each workload, the fastest few variants, each family's fastest and each family's heuristic config (by
these dispatch compares families and heuristics), and each baseline's latest time. They leave out variants that today's
families refuse, those with a newer source measured on the same workload, operators of `FAR_APART`, and all that was
measured on the test half of DLMC's layers (`benchmarks.dlmc_split`), on which untuned dispatch is judged. Numbers are
written as fine as the clocks that told them, without what the host took or packed (`shortened`), and without rates,
which are of one machine. An export, packaged seeds, or results of ``sparsegen bench`` may stand for a database
(`measured_files`).
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import click

from benchmarks import seed_documents
from benchmarks.dlmc_split import test_half
from benchmarks.measured_files import content_of
from sparsegen.dispatch.neighbours import heuristic_configs
from sparsegen.kernels import family_of
from sparsegen.kernels.config import Config
from sparsegen.system.publish import publish_text
from sparsegen.tuning_db import exchange, seed_columns
from sparsegen.tuning_db.exchange import Content
from sparsegen.tuning_db.ranking import ranked
from sparsegen.tuning_db.records import Baseline, Measurement, Sample
from sparsegen.tuning_db.store import Store

# Their problems differ in so much that the nearest row tells little: by rows of an H200 fixed masks were expected to
# take 1.55 of their time, by the families' own models at most 1.4.
FAR_APART = ("block_attention", "block_attention_backward")
DIGITS = 8  # of a source's digest, which tell it apart from a config's others


@click.command()
@click.argument("databases", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
@click.option("--keep", default=5, help="variants per workload")
def main(databases: tuple[str, ...], output: Path, keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "all.db") as store:
        for database in databases:
            exchange.add(store, content_of(Path(database)), database)
        groups = grouped(filter(may_ship, store.all_measurements()))
        baselines = tuple(map(shortened_baseline, latest(filter(may_ship, store.all_baselines()))))
        kept = [shortened(m) for group in groups for m in chosen(group, keep)]
    document = exchange.document(Content(tuple(kept), baselines))
    publish_text(output, seed_documents.text_of(seed_columns.pack(document)))
    click.echo(
        f"{len(kept)} measurements and {len(baselines)} baselines of {len(groups)} workloads in {output}"
    )


def grouped(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Groups measurements by workload and device."""
    groups: dict[Hashable, list[Measurement]] = defaultdict(list)
    for m in measurements:
        groups[m.workload.problem, m.workload.fingerprint, m.device.key].append(m)
    return list(groups.values())


def may_ship(record: Measurement | Baseline) -> bool:
    """True if its operator's rows tell of others, and it was not measured on a matrix that is set aside for testing."""
    workload = record.workload
    return workload.problem.operator not in FAR_APART and workload.fingerprint not in set_aside()


@cache
def set_aside() -> frozenset[str]:
    return frozenset(test_half().values())


def chosen(group: list[Measurement], keep: int) -> list[Measurement]:
    """Selects one workload's measurements to keep, fastest first."""
    order = ranked(newest(filter(is_valid, group)))
    workload, device = group[0].workload, group[0].device
    heuristics = set(heuristic_configs(workload.problem, workload.features, device).values())
    seen: set[str] = set()
    stay = []
    for place, found in enumerate(order):
        variant = found.variant
        is_heuristic = variant.config in heuristics
        if place < keep or variant.family not in seen or is_heuristic:
            stay.append(found.measurement)
        seen.add(variant.family)
    return stay


def shortened(found: Measurement) -> Measurement:
    """Rounds times to nanoseconds (CUDA events tell 32 of them apart), errors to two digits, moments to seconds.

    What the host took and packed is dropped, and most of the digests: sources are others by the next release.
    """
    return replace(
        found,
        variant=replace(found.variant, source_digest=found.variant.source_digest[:DIGITS]),
        sample=found.sample and rounded(found.sample),
        measured_at=found.measured_at.replace(microsecond=0),
        worst_error=None if found.worst_error is None else float(f"{found.worst_error:.2g}"),
        compile_seconds=None,
        prepare_seconds=None,
        packed_bytes=None,
    )


def latest(baselines: Iterable[Baseline]) -> list[Baseline]:
    """The last time of each kind of every workload's baselines, which is what dispatch reads."""
    ordered = sorted(baselines, key=lambda b: b.measured_at)
    last = {(b.workload, b.device.key, b.name, b.sample.measured_as): b for b in ordered}
    return list(last.values())


def shortened_baseline(found: Baseline) -> Baseline:
    """Rounds as `shortened` does."""
    return replace(found, sample=rounded(found.sample), measured_at=found.measured_at.replace(microsecond=0))


def rounded(sample: Sample) -> Sample:
    """Rounds times to nanoseconds."""
    return replace(
        sample,
        median_us=round(sample.median_us, 3),
        low_us=round(sample.low_us, 3),
        high_us=round(sample.high_us, 3),
    )


def newest(group: Iterable[Measurement]) -> list[Measurement]:
    """Drops measurements of a config's earlier sources: its kernel has changed since."""
    every = sorted(group, key=lambda m: m.measured_at)
    last: dict[Config, Measurement] = {m.variant.config: m for m in every}
    return [m for m in every if m.variant == last[m.variant.config].variant]


def is_valid(measurement: Measurement) -> bool:
    """True if the variant's family still exists, and takes its config for this problem."""
    config = measurement.variant.config
    return config.is_known and family_of(config).is_valid(
        measurement.workload.problem, config, measurement.device
    )


if __name__ == "__main__":
    main()
