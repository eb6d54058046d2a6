"""Make the packaged seeds from tuning databases: the fastest few variants of each workload, and the baselines.

python -m benchmarks.make_seeds tuned.db ... -o tuning_db/seeds/h100.json
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

import click

from sparsegen.tuning_db.exchange import Content, dump, merge
from sparsegen.tuning_db.ranking import ranked
from sparsegen.tuning_db.records import Measurement
from sparsegen.tuning_db.store import Store


@click.command()
@click.argument("databases", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
@click.option("--keep", default=5, help="variants per workload")
def main(databases: tuple[str, ...], output: Path, keep: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "all.db") as store:
        for database in databases:
            with Store.open(database) as other:
                merge(store, other)
        by_workload: dict[object, list[Measurement]] = defaultdict(list)
        for measurement in store.all_measurements():
            workload = measurement.workload
            by_workload[workload.problem, workload.fingerprint, measurement.device.key].append(measurement)
        baselines = tuple(store.all_baselines())
        kept = [r.measurement for group in by_workload.values() for r in ranked(group)[:keep]]
    output.write_text(dump(Content(tuple(kept), baselines)))
    click.echo(
        f"{len(kept)} measurements and {len(baselines)} baselines of {len(by_workload)} workloads in {output}"
    )


if __name__ == "__main__":
    main()
