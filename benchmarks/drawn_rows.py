"""Measure drawn rows of several operators in one run, and print their tables.

    python -m benchmarks.drawn_rows --seed 7 --rows 12 --compile-for nvidia-h200   # no GPU: fills the cache
    python -m benchmarks.drawn_rows --seed 7 --rows 12 [--operator dsd --operator sdd] [--minutes 9] [--into FOLDER]

It is ``sparsegen bench --suite drawn`` for all of these operators at once: each baseline's process starts once, and
operators take turns row by row, so that a run that ends early has about as many rows of each. First it compiles what
searches begin with, on all cores and for at most `COMPILING` of the time; then rows are tuned side by side, some at a
time, and measured. Every row is written at once. Given again, it goes on. ``torch-bsr`` and ``torch-flex``, which
search or compile for many seconds a row, and ``cublaslt-mma`` take no part unless ``--all`` asks for them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click

from benchmarks import drawn_tables
from sparsegen import backends
from sparsegen.bench.baselines import baselines
from sparsegen.bench.drawn import distributions, drawn_cases
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results.results import Protocol
from sparsegen.bench.run.request import Request, Step
from sparsegen.bench.run.run import run
from sparsegen.cli.parts.bench_text import row_line
from sparsegen.errors import SparsegenError
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.l2 import L2
from sparsegen.plan.variants import compile_variant
from sparsegen.tuning.loop.pipeline import cores
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning.search.first_configs import first_to_try
from sparsegen.tuning.search.listing import space_of
from sparsegen.tuning.search.search import Search
from sparsegen.tuning_db.layer import with_rates
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds

SLOW = ("cublaslt-mma", "torch-bsr", "torch-flex")
COMPILING = 0.4  # of the time, at most
JOBS = 6  # searches side by side


def file_of(folder: Path, seed: int) -> Path:
    """The result file of a seed's rows."""
    return folder / f"{drawn_tables.KIND}_{seed}.json.xz"


def cases_in_turn(operators: Sequence[str], seed: int, rows: int) -> list[Case]:
    """The first row of each operator, then the second of each, and so on."""
    lists = [drawn_cases(operator, seed, rows) for operator in operators]
    return [case for together in zip(*lists, strict=True) for case in together]


def likely(workload: Workload, device: Device, variants: int) -> list[Config]:
    """The first variants that a search asks for, before it knows any time: later ones depend on what it measured."""
    families = families_of(workload.problem.operator)
    space_device = with_rates(device, seeds())
    first = first_to_try(workload, space_device, seeds(), families)
    if len(first) >= variants:
        return first[:variants]
    search = Search(space_of(workload, space_device, families, first), first)
    asked = (search.ask() for _ in range(variants))
    return [config for config in asked if config is not None]


def compile_row(case: Case, device: Device, variants: int) -> list[str]:
    """Compiles what a search of a row begins with, into the cache; what failed, in words."""
    problem, failures = case.problem, []
    toolchain = backends.toolchain(device)
    for config in likely(Workload.of(problem, case.matrix()), device, variants):
        try:
            compile_variant(config, problem, toolchain)
        except SparsegenError as error:
            failures.append(f"{case.name}: {config}: {error}")
    return failures


def compile_ahead(
    cases: Sequence[Case], device: Device, variants: int, seconds: float | None
) -> Iterator[str]:
    """Compiles for rows in their order, on all cores; yields what failed, and where it ended, in words."""
    began, spawn = time.monotonic(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores(), mp_context=spawn) as pool:
        futures = {pool.submit(compile_row, case, device, variants): case for case in cases}
        done = 0
        try:
            for future in as_completed(futures, timeout=seconds):
                done += 1
                try:
                    yield from future.result()
                except SparsegenError as error:
                    yield f"{futures[future].name}: {error}"
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
        yield f"compiled for {done} of {len(cases)} rows in {time.monotonic() - began:.0f} s"


@click.command()
@click.option("--seed", type=click.IntRange(min=0), required=True, help="Of the rows.")
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(list(distributions())),
    default=list(drawn_tables.GOALS),
    help="default: those with goals",
)
@click.option("--rows", type=click.IntRange(min=1), default=12, show_default=True, help="Of each operator.")
@click.option("--variants", type=click.IntRange(min=1), default=16, show_default=True, help="Of each search.")
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), default=9.0, show_default=True, help="In all."
)
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder of files."
)
@click.option("--all", "whole", is_flag=True, help="With baselines that take long.")
@click.option("--device", "where", help="default: the first GPU")
@click.option("--compile-for", "target", help="Only compile, for a described device: nvidia-h200.")
def main(
    seed: int,
    operators: tuple[str, ...],
    rows: int,
    variants: int,
    minutes: float,
    into: Path,
    whole: bool,
    where: str | None,
    target: str | None,
) -> None:
    ends = time.monotonic() + 60 * minutes
    cases = cases_in_turn(operators, seed, rows)
    try:
        device = find_target(target).device if target else backends.find_device(where)
        seconds = 60 * minutes * (1.0 if target else COMPILING)
        for line in compile_ahead(cases, device, variants, seconds):
            click.echo(line)
        if not target:
            into.mkdir(parents=True, exist_ok=True)
            request = request_of(cases, device, into, seed, variants, ends - time.monotonic(), whole=whole)
            finished = run(request, _said)
            click.echo(
                f"{len(finished.measured)} rows measured, {finished.kept} kept, {finished.left} left; the same "
                "command goes on with them"
            )
            click.echo(
                drawn_tables.summary([finished.results]) + "\n\n" + drawn_tables.goals([finished.results])
            )
    except SparsegenError as error:
        raise click.ClickException(str(error)) from None


def request_of(
    cases: Sequence[Case],
    device: Device,
    folder: Path,
    seed: int,
    variants: int,
    seconds: float,
    *,
    whole: bool,
) -> Request:
    """The run of these rows.

    Args:
        seconds: time after which no row is begun.
        whole: include the slow baselines.
    """
    return Request(
        cases=cases,
        baselines=[one for name, one in baselines().items() if whole or name not in SLOW],
        device=device,
        protocol=Protocol(L2.COLD, rounds=4, samples=15, tune=f"{variants}-trials"),
        db=str(folder / f"{drawn_tables.KIND}.db"),
        output=file_of(folder, seed),
        seconds=max(1e-3, seconds),
        jobs=JOBS,
        command=f"python -m benchmarks.drawn_rows --seed {seed}",
    )


def _said(step: Step) -> None:
    number = f"[{step.index + 1} of {step.total}]"
    if step.row is not None:
        click.echo(f"{number} {row_line(step.row)}")
    else:  # where a run that stands still does so
        click.echo(f"{number} {step.key}: {step.doing}", err=True)


if __name__ == "__main__":
    main()
