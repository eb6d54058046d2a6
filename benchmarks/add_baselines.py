"""Time cuBLAS and cuSPARSE for the workloads of the benchmark lists and record them in tuning databases.

    python -m benchmarks.add_baselines --peers peers.db --dlmc DLMC tuned.db own.db

The benchmark scripts tune without baselines, which they time themselves; packaged seeds need them, so that dispatch can
say where dense is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.common import peer_workloads
from benchmarks.dispatch_transfer import cases_of
from sparsegen import baselines
from sparsegen.backends import find_device
from sparsegen.family import Device
from sparsegen.features import Features
from sparsegen.formats import CsrMatrix
from sparsegen.matrix_io import load_matrix
from sparsegen.operators import DType, SpmmProblem
from sparsegen.tuning.summary import summarize
from sparsegen.tuning_db.records import Baseline, Workload
from sparsegen.tuning_db.store import Store


def peer_problems() -> Iterator[tuple[CsrMatrix, SpmmProblem]]:
    for workload, _ in peer_workloads(["rnn", "transformer"]):
        matrix = workload.matrix()
        for dtype in (DType.FLOAT32, DType.FLOAT16):
            yield matrix, workload.problem(dtype)


def collection_problems(data: Path) -> Iterator[tuple[CsrMatrix, SpmmProblem]]:
    for path, n in cases_of(data):
        matrix = load_matrix(data / path)
        yield matrix, SpmmProblem(*matrix.shape, n, DType.FLOAT32)


def record(
    problems: Iterator[tuple[CsrMatrix, SpmmProblem]], databases: tuple[str, ...], device: Device
) -> int:
    """Time what a database has tuned and has no baselines for; returns how many workloads that were."""
    stores = [Store.open(path) for path in databases]
    done = 0
    for matrix, problem in problems:
        workload = Workload(problem, matrix.fingerprint(), Features.of(matrix))
        missing = [s for s in stores if s.winner(workload, device) and not s.baselines(workload, device)]
        if not missing:
            continue
        session = baselines.Session(matrix, problem, device)
        for result in session.measure():
            version = f"{result.version} ({result.detail})"
            for store in missing:
                store.add_baseline(
                    Baseline(workload, device, result.contender, version, summarize([result.timing]))
                )
        session.close()
        done += 1
    for store in stores:
        store.close()
    return done


@click.command()
@click.option("--peers", "peer_databases", multiple=True, type=click.Path(exists=True))
@click.option("--dlmc", "data", type=click.Path(exists=True, path_type=Path))
@click.argument("databases", nargs=-1, type=click.Path(exists=True))
def main(peer_databases: tuple[str, ...], data: Path | None, databases: tuple[str, ...]) -> None:
    device = find_device("cuda")
    done = record(peer_problems(), peer_databases, device) if peer_databases else 0
    if data is not None:
        done += record(collection_problems(data), databases, device)
    click.echo(f"{done} workloads timed")


if __name__ == "__main__":
    main()
