"""Times of many configs on drawn problems, in a tuning database: what heuristics and expected times are fitted to.

    python -m benchmarks.drawn_variants --seed 7 --operator dsd --operator sdd [--rows 10] [--configs 12] [--limit 100]
    python -m benchmarks.drawn_variants --listed --operator dsd [--configs 12]  # problems of `benchmarks.off_the_list`
    python -m benchmarks.drawn_variants --operator masked_conv2d --rows 30 --having layout=nchw --family plane_conv
    python -m benchmarks.drawn_variants ... --compile-for nvidia-h200  # no GPU: fills the cache
    python -m benchmarks.drawn_variants told drawn_variants.db [--operator dsd]   # no GPU
    python -m benchmarks.drawn_variants keep drawn_variants.db -o variants.json.xz  # no GPU

Of each row (`sparsegen bench --suite drawn`) it times every family's heuristic config and its alternatives, and others
that differ from these in one or two tunables, or in all (``--spread``: most of them in all); ``--family`` names the
families whose other configs are timed beside the heuristic ones, and ``--having`` keeps the rows whose problems have a
field's value. Every result is checked first. Rows that the database holds stay. ``told`` prints, for each family, the
expected over the measured times, and for each operator how much slower than the fastest config that is known the
heuristic config of the family is that predictions put first. ``keep`` exports a database as results are committed: as
fine as the clocks that told it (`make_seeds.shortened`).
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import off_the_list
from benchmarks.drawn_rows import cases_in_turn
from benchmarks.make_seeds import grouped, shortened, shortened_baseline
from benchmarks.study import SideBySide
from sparsegen import backends
from sparsegen.bench.drawn import distributions
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results.summary import geometric
from sparsegen.errors import SparsegenError
from sparsegen.kernels import families_of, family_of
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.measure.summary import summarize
from sparsegen.operators import Problem
from sparsegen.plan.variants import RenderedVariant
from sparsegen.system.numpy_types import Array
from sparsegen.system.publish import publish_text
from sparsegen.system.quantities import microseconds
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning_db.exchange import Content, document
from sparsegen.tuning_db.layer import with_rates
from sparsegen.tuning_db.records import Measurement, Outcome, Variant, Workload
from sparsegen.tuning_db.store import Store

TRIES = 40  # draws for each config that is wanted: most may break a constraint
SPREAD_TRIES = 3 * TRIES  # where most differ in all tunables
ROUNDS, SAMPLES = 2, 9
AHEAD, DRAWING = 8, 2  # rows that are drawn before they are measured, and threads that draw
SLOW = 8.0  # times of the fastest, from which on a config is timed once


def candidates(
    workload: Workload,
    device: Device,
    count: int,
    seed: int,
    names: Sequence[str] = (),
    *,
    spread: bool = False,
) -> list[Config]:
    """Returns every family's heuristic config, then others, about ``count`` in all.

    Args:
        names: families that the others are of; all if there is none.
        spread: most of the others differ from the first ones in all tunables, else in one or two.
    """
    problem, features = workload.problem, workload.features
    families = [f for f in families_of(problem.operator) if f.computes(problem)]
    found: dict[Config, None] = {}
    for family in families:
        config = family.heuristic(problem, features, device)
        if family.suits(problem, features, config, device):
            found[config] = None
    draw = random.Random(f"{seed} {problem}")
    starts = [config for config in found if not names or config.family_name in names]
    for config in tuple(starts):
        others = list(family_of(config).alternatives(problem, features, device))
        some = draw.sample(others, min(len(others), max(2, count // 3)))
        starts += [config for config in some if config not in found]
        found |= dict.fromkeys(some)
    numbers = (1, 2, *[None] * 14) if spread else (1, 1, 2, 2, None)
    for _ in range((SPREAD_TRIES if spread else TRIES) * count):
        if not starts or len(found) >= count:
            break
        config = _changed(draw.choice(starts), draw, numbers)
        family = family_of(config)
        if family.is_worth_trying(problem, config, device) and family.suits(
            problem, features, config, device
        ):
            found[config] = None
    return list(found)


def _changed(config: Config, draw: random.Random, numbers: Sequence[int | None]) -> Config:
    """A config that differs in one of these numbers of tunables, or in any (None)."""
    tunables = config.tunables()
    some = draw.sample(tunables, min(len(tunables), draw.choice(numbers) or len(tunables)))
    changes: dict[str, Any] = {t.name: draw.choice(t.searched) for t in some}
    return replace(config, **changes)


@dataclass(frozen=True)
class Row:
    """A drawn problem with its operands as they are drawn, and variants as they are compiled."""

    case: Case
    matrix: CsrMatrix
    workload: Workload
    operands: Future[dict[str, Array]]
    variants: list[Future[RenderedVariant]]


def compiled(config: Config, workload: Workload, device: Device) -> RenderedVariant:
    """Renders and compiles a config, so that it is in the cache.

    Raises:
        CompileError: it does not compile.
    """
    toolchain = backends.toolchain(device)
    rendered = RenderedVariant.of(config, workload.problem, toolchain)
    rendered.compile(toolchain)
    return rendered


def measured(row: Row, device: Device) -> Iterator[Measurement]:
    """Yields what became of each variant of a row."""
    problem = row.case.problem
    bench = SideBySide(row.matrix, problem, device, row.operands.result())
    fastest = math.inf
    try:
        for future in row.variants:
            try:
                rendered = future.result()
                call = bench.variant(rendered.family.name, rendered.config.to_dict())
            except SparsegenError as error:
                click.echo(f"  {error}", err=True)
                continue
            timings = bench.timings({"": call}, rounds=1, samples=3)[""]
            if (once := min(timings[0].samples_us)) < SLOW * fastest:
                timings = bench.timings({"": call}, rounds=ROUNDS, samples=SAMPLES)[""]
            fastest = min(fastest, once)
            variant = Variant(rendered.config, rendered.digest)
            yield Measurement(row.workload, device, variant, Outcome.OK, summarize(timings))
    finally:
        bench.close()


def _field(text: str) -> tuple[str, str]:
    """A field's name and value, of ``name=value``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text} is no FIELD=VALUE")
    return name, value


@click.group(invoke_without_command=True)
@click.pass_context
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the rows.")
@click.option(
    "--operator", "operators", multiple=True, type=click.Choice(list(distributions())), help="default: all"
)
@click.option("--rows", type=click.IntRange(min=1), default=10, show_default=True, help="Of each operator.")
@click.option("--listed", is_flag=True, help="Problems of benchmarks.off_the_list, not drawn ones.")
@click.option("--having", type=_field, multiple=True, metavar="FIELD=VALUE", help="Only such problems.")
@click.option("--family", "names", multiple=True, help="With configs beside the heuristic one; default: all.")
@click.option("--configs", type=click.IntRange(min=1), default=12, show_default=True, help="Of each row.")
@click.option("--spread", is_flag=True, help="Most configs differ in all tunables.")
@click.option("--limit", type=float, default=100.0, show_default=True, help="Seconds in all.")
@click.option("--db", type=click.Path(path_type=Path), default=Path("drawn_variants.db"), show_default=True)
@click.option("--device", "where", help="default: the first GPU")
@click.option("--compile-for", "target", help="Only compile, for a described device: nvidia-h200.")
def main(
    context: click.Context,
    seed: int,
    operators: tuple[str, ...],
    rows: int,
    listed: bool,
    having: tuple[tuple[str, str], ...],
    names: tuple[str, ...],
    configs: int,
    spread: bool,
    limit: float,
    db: Path,
    where: str | None,
    target: str | None,
) -> None:
    """See the module's text."""
    if context.invoked_subcommand is not None:
        return
    ends = time.monotonic() + limit
    device = find_target(target).device if target else backends.find_device(where)
    if listed:
        cases = [c for c in off_the_list.cases() if not operators or c.problem.operator in operators]
    else:
        cases = cases_in_turn(operators or tuple(distributions()), seed, rows)
    cases = [c for c in cases if all(str(getattr(c.problem, name, "")) == value for name, value in having)]
    draw = partial(candidates, device=device, count=configs, seed=seed, names=names, spread=spread)
    if target:
        _compile(cases, device, draw)
        return
    with Store.open(db) as store, ThreadPoolExecutor() as pool:
        try:
            for row in _ahead(cases, device, _measured_before(store, device), draw, pool):
                if time.monotonic() > ends:
                    click.echo(f"time is up before {row.case}")
                    break
                found = []
                try:
                    for one in measured(row, device):
                        found.append(one)
                        store.add_measurement(one)
                except SparsegenError as error:
                    click.echo(f"  {row.case}: {error}", err=True)
                times = [m.sample.median_us for m in found if m.sample is not None]
                click.echo(f"{row.case}: {len(times)} configs, {microseconds(min(times, default=math.nan))}")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _measured_before(store: Store, device: Device) -> Set[tuple[Problem, str]]:
    return {
        (m.workload.problem, m.workload.fingerprint)
        for m in store.all_measurements()
        if m.device.key == device.key
    }


def _compile(cases: Iterable[Case], device: Device, draw: Callable[[Workload], list[Config]]) -> None:
    """Compiles what rows will ask for, into the cache, on all cores."""
    workloads = [Workload.of(case.problem, case.pattern.matrix()) for case in cases]
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(compiled, config, workload, device)
            for workload in workloads
            for config in draw(workload)
        ]
        for job in jobs:
            try:
                job.result()
            except SparsegenError as error:
                click.echo(f"  {error}", err=True)
    click.echo(f"compiled {len(jobs)} variants of {len(workloads)} rows")


def _ahead(
    cases: Iterable[Case],
    device: Device,
    known: Set[tuple[Problem, str]],
    draw: Callable[[Workload], list[Config]],
    pool: ThreadPoolExecutor,
) -> Iterator[Row]:
    """Yields rows that are not known, while later ones are drawn and their variants compiled."""

    def prepared(case: Case) -> Row | None:
        matrix = case.pattern.matrix()
        workload = Workload.of(case.problem, matrix)
        if (workload.problem, workload.fingerprint) in known:
            return None
        some = draw(workload)
        operands = pool.submit(case.pattern.operands, case.problem, matrix.nnz, np.random.default_rng(7))
        variants = [pool.submit(compiled, config, workload, device) for config in some]
        return Row(case, matrix, workload, operands, variants)

    waiting: deque[Future[Row | None]] = deque()
    with ThreadPoolExecutor(DRAWING) as drawing:
        try:
            for case in cases:
                waiting.append(drawing.submit(prepared, case))
                if len(waiting) > AHEAD and (row := waiting.popleft().result()) is not None:
                    yield row
            while waiting:
                if (row := waiting.popleft().result()) is not None:
                    yield row
        finally:
            drawing.shutdown(wait=False, cancel_futures=True)


@main.command()
@click.argument("databases", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--operator", "operators", multiple=True, help="default: all")
@click.option("--each", is_flag=True, help="Every config.")
def told(databases: tuple[Path, ...], operators: tuple[str, ...], each: bool) -> None:
    """Print how well heuristics and expected times fit."""
    ratios: dict[str, list[float]] = defaultdict(list)
    slower: dict[str, list[float]] = defaultdict(list)
    for workload, device, times in _known(databases):
        problem, features = workload.problem, workload.features
        if operators and problem.operator not in operators:
            continue
        if each:
            click.echo(str(problem))
        for config, us in sorted(times.items(), key=lambda pair: pair[1]):
            family = family_of(config)
            expected = family.analytic_us(problem, features, config, device)
            ratios[family.name].append(expected / us)
            if each:
                click.echo(f"    {us:9.1f} expected {expected:9.1f} {expected / us:5.2f} {config}")
        families: Sequence[AnyFamily] = [
            f
            for f in families_of(problem.operator)
            if f.computes(problem)
            and f.suits(problem, features, f.heuristic(problem, features, device), device)
        ]
        first = min(families, key=lambda f: f.predicted_us(problem, features, device))
        chosen = first.heuristic(problem, features, device)
        if each:
            click.echo(f"    chosen: {times.get(chosen, math.nan):9.1f} {chosen}")
        if chosen in times:
            slower[problem.operator].append(times[chosen] / min(times.values()))
        else:
            slower[f"{problem.operator}, not measured"].append(math.nan)
    for name, found in sorted(ratios.items()):
        logs = np.log(found)
        low, high = np.exp(np.percentile(logs, [10, 90]))
        click.echo(
            f"{name}: {len(found)} times, expected / measured {math.exp(logs.mean()):.2f}, "
            f"spread {math.exp(logs.std()):.2f}, 10 to 90 % {low:.2f} to {high:.2f}"
        )
    for name, found in sorted(slower.items()):
        click.echo(
            f"{name}: {len(found)} rows, untuned / fastest {geometric(found).value:.3f} ({max(found):.2f})"
        )


@main.command()
@click.argument("database", type=click.Path(path_type=Path, exists=True))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
def keep(database: Path, output: Path) -> None:
    """Export a database, without the digits that no clock told."""
    with Store.open(database) as store:
        content = Content(
            tuple(map(shortened, store.all_measurements())),
            tuple(map(shortened_baseline, store.all_baselines())),
            tuple(store.all_rates()),
        )
    publish_text(output, json.dumps(document(content), separators=(",", ":")))


def _known(databases: Iterable[Path]) -> Iterator[tuple[Workload, Device, dict[Config, float]]]:
    """Yields each workload with the times of its configs."""
    for database in databases:
        with Store.open(database) as store:
            timed = (
                m for m in store.all_measurements() if m.sample is not None and m.variant.config.is_known
            )
            for group in grouped(timed):
                times: dict[Config, float] = {}
                for m in sorted(group, key=lambda m: m.final):
                    assert m.sample is not None
                    times[m.variant.config] = m.sample.median_us
                yield group[0].workload, with_rates(group[0].device, store), times


if __name__ == "__main__":
    main()
