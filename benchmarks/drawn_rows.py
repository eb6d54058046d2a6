"""Measure drawn rows of several operators, one result file each, and print their table.

    python -m benchmarks.drawn_rows --seed 7 [--operator dsd --operator sdd] [--rows 60] [--limit 560] [--into FOLDER]

Runs ``sparsegen bench --suite drawn`` for one operator after the other, with a database of its own beside the files, in
which every row is tuned quickly. Given again, it goes on where the time ended. ``torch-bsr`` and ``torch-flex``, which
search or compile for many seconds a row, and ``cublaslt-mma`` take no part unless ``--all`` asks for them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import click

from benchmarks import drawn_tables
from sparsegen.bench.drawn import ROWS, SUITE, distributions
from sparsegen.bench.results import result_file
from sparsegen.errors import SparsegenError

SLOW = ("cublaslt-mma", "torch-bsr", "torch-flex")
LEAST_SECONDS = 20.0  # that an operator is begun with


def file_of(folder: Path, operator: str, seed: int) -> Path:
    """The result file of an operator's rows."""
    return folder / f"{drawn_tables.KIND}_{operator}_{seed}.json.xz"


def command(operator: str, seed: int, rows: int, folder: Path, seconds: float, *, whole: bool) -> list[str]:
    """Returns the command that measures an operator's rows, without the program's name.

    Args:
        seconds: time after which no row is begun.
        whole: include the slow baselines.
    """
    left_out = () if whole else SLOW
    return [
        *("bench", "--suite", SUITE, "--operator", operator, "--seed", str(seed), "--rows", str(rows)),
        *(word for name in left_out for word in ("--except", name)),
        *("--tune", "quick", "--jobs", "6", "--db", str(folder / f"{drawn_tables.KIND}.db")),
        *("--rounds", "4", "--samples", "15", "--limit", f"{seconds:.0f}"),
        *("-o", str(file_of(folder, operator, seed))),
    ]


@click.command()
@click.option("--seed", type=click.IntRange(min=0), required=True, help="Of the rows.")
@click.option(
    "--operator", "operators", multiple=True, type=click.Choice(list(distributions())), help="default: all"
)
@click.option("--rows", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Of each operator.")
@click.option(
    "--limit", type=click.FloatRange(min=1), default=560.0, show_default=True, help="Seconds in all."
)
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder of files."
)
@click.option("--all", "whole", is_flag=True, help="With baselines that take long.")
def main(seed: int, operators: tuple[str, ...], rows: int, limit: float, into: Path, whole: bool) -> None:
    ends = time.monotonic() + limit
    into.mkdir(parents=True, exist_ok=True)
    for operator in operators or distributions():
        left = ends - time.monotonic()
        if left < LEAST_SECONDS:
            click.echo(f"time is up before {operator}; the same command goes on with it")
            break
        words = command(operator, seed, rows, into, left, whole=whole)
        done = subprocess.run([sys.executable, "-m", "sparsegen", *words])
        if done.returncode:
            raise click.ClickException(f"sparsegen {' '.join(words)} ended with {done.returncode}")
    files = [
        file for operator in operators or distributions() if (file := file_of(into, operator, seed)).exists()
    ]
    try:
        click.echo(drawn_tables.summary([result_file.read(file) for file in files]))
    except SparsegenError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
