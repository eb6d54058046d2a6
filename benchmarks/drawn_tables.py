"""Tables of drawn rows: what nothing tuned costs over tuned, the default over the faster of ours and dense, and ours.

    python -m benchmarks.drawn_tables drawn_dsd_7.json drawn_sdd_7.json [--worst 3]

Files are those of ``sparsegen bench --suite drawn``. Ratios are of times of one row, means are geometric, the worst is
the largest. Ours is the tuned winner, or where nothing was tuned plain dispatch. Dense is the fastest dense baseline
in the row's own type; of products with masks in float32, which we multiply in TF32, also in TF32. The strongest peer is
the fastest of all others, dense or sparse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.markdown import NONE, TYPES, figure, quotient, table
from benchmarks.suite_tables import origin, read
from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import DEFAULT, IN_GRAPH, TUNED, UNTUNED, Kind, Results, Row
from sparsegen.bench.results.summary import geometric
from sparsegen.errors import SparsegenError
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, MaskedProblem

KIND = "drawn"  # of files: drawn_*.json.xz
FEW = 10  # rows of a type that have no line of their own
LEAST = 5  # rows of an operator in the page's table, if there are as many: the newest seeds that have them


@dataclass(frozen=True)
class Times:
    """A row's times in microseconds; None where there is none.

    Attributes:
        default, graph: calls as users make them, from Python and in a CUDA graph.
        dense, peer: the fastest dense baseline, and the fastest of all others.
    """

    row: Row
    tuned: float | None
    untuned: float | None
    default: float | None
    graph: float | None
    dense: float | None
    peer: float | None

    @classmethod
    def of(cls, row: Row) -> Times:
        dense = _fastest(row, (Kind.DENSE,))
        peer = _fastest(row, (Kind.DENSE, Kind.SPARSE))
        return cls(row, *map(row.us, (TUNED, UNTUNED, DEFAULT, IN_GRAPH)), dense, peer)

    @property
    def ours(self) -> float | None:
        return self.tuned or self.untuned

    @property
    def best(self) -> float | None:
        """The faster of our kernel with nothing tuned and dense."""
        return min((us for us in (self.untuned, self.dense) if us is not None), default=None)


RATIOS: Mapping[str, Callable[[Times], float | None]] = {
    "untuned / tuned": lambda t: quotient(t.untuned, t.tuned),
    "default / min(ours, dense)": lambda t: quotient(t.default, t.best),
    "the same in a graph": lambda t: quotient(t.graph, t.best),
    "ours / dense": lambda t: quotient(t.ours, t.dense),
    "ours / strongest peer": lambda t: quotient(t.ours, t.peer),
}


@dataclass(frozen=True)
class Goal:
    """The most that the geometric mean, and the worst, of an operator's rows may be."""

    mean: float
    worst: float = math.inf


# Of issue 37: untuned over tuned, and the default over the faster of ours and dense.
GOALS: Mapping[str, tuple[Goal, Goal | None]] = {
    **dict.fromkeys(("spmm", "sddmm"), (Goal(1.03, 1.25), Goal(1.01, 1.05))),
    **dict.fromkeys(("dsd", "sdd", "dsd_transposed"), (Goal(1.05, 1.25), Goal(1.02, 1.06))),
    **dict.fromkeys(("masked_conv2d", "masked_conv2d_weights"), (Goal(1.08, 1.3), Goal(1.02, 1.06))),
    "sparse_network": (Goal(1.08, 1.3), Goal(1.02)),
    **dict.fromkeys(("submanifold_conv3d", "submanifold_conv3d_weights"), (Goal(1.08, 1.3), None)),
}


def also_counts(row: Row) -> Arithmetic | None:
    """TF32, where our kernels multiply float32 in it: in products with masks."""
    is_tf32 = isinstance(row.problem, MaskedProblem) and row.dtype is DType.FLOAT32
    return Arithmetic.TF32 if is_tf32 else None


def _fastest(row: Row, kinds: Sequence[Kind]) -> float | None:
    allowed = (row.dtype.value, also_counts(row))
    found = [
        cell.timing.us
        for cell in row.cells
        if cell.timing is not None and cell.kind in kinds and cell.arithmetic.value in allowed
    ]
    return min(found, default=None)


def summary(files: Sequence[Results]) -> str:
    """A line for each suite (operator and seed), and one for each of its types that has several rows."""
    lines = []
    rows = [Times.of(row) for results in files for row in results.rows]
    for suite in dict.fromkeys(times.row.suite for times in rows):
        own = [times for times in rows if times.row.suite == suite]
        lines.append([suite, len(own), *(_mean_and_worst(own, ratio) for ratio in RATIOS.values())])
        types = dict.fromkeys(times.row.dtype for times in own)
        for dtype in types if len(types) > 1 else ():
            some = [times for times in own if times.row.dtype is dtype]
            if len(some) < FEW:
                continue
            cells = [_mean_and_worst(some, ratio) for ratio in RATIOS.values()]
            lines.append([f"{suite}, {TYPES[dtype]}", len(some), *cells])
    return table(["geometric mean (worst) of ratios of times", "rows", *RATIOS], lines)


def _mean_and_worst(rows: Iterable[Times], ratio: Callable[[Times], float | None]) -> str:
    found = [one for times in rows if (one := ratio(times)) is not None]
    return f"{geometric(found).value:.3f} ({max(found):.2f})" if found else NONE


def newest(files: Sequence[Results]) -> Mapping[str, Sequence[Row]]:
    """Rows of each operator: of its seeds, those measured last that have `LEAST` rows together, or all."""
    suites: dict[str, dict[str, list[Row]]] = {}
    for row in (row for results in files for row in results.rows):
        suites.setdefault(row.problem.operator, {}).setdefault(row.suite, []).append(row)
    found: dict[str, list[Row]] = {}
    for operator, of_suites in sorted(suites.items()):
        own = found.setdefault(operator, [])
        last = sorted(
            of_suites.values(), key=lambda rows: max(str(row.measured) for row in rows), reverse=True
        )
        for rows in last:
            if len(own) < LEAST:
                own += rows
    return found


def by_operator(files: Sequence[Results]) -> str:
    """A line for each operator, of its newest rows."""
    lines = []
    for operator, rows in newest(files).items():
        seeds = dict.fromkeys(row.suite.rpartition("-")[2] for row in rows)
        own = [*map(Times.of, rows)]
        cells = [_mean_and_worst(own, ratio) for ratio in RATIOS.values()]
        lines.append([f"`{operator}`, {', '.join(seeds)}", len(own), *cells])
    return table(["geometric mean (worst) of ratios of times, seeds", "rows", *RATIOS], lines)


def origin_of_newest(files: Sequence[Results]) -> str:
    """The origin of the newest rows."""
    suites = {row.suite for rows in newest(files).values() for row in rows}
    return origin([results for results in files if any(row.suite in suites for row in results.rows)])


def goals(files: Sequence[Results]) -> str:
    """A line for each operator's goal: what was measured beside it, and whether that reaches it."""
    names, lines = list(RATIOS)[:2], []
    rows = [Times.of(row) for results in files for row in results.rows]
    for operator, wanted in GOALS.items():
        own = [times for times in rows if times.row.problem.operator == operator]
        for name, goal in zip(names, wanted, strict=True):
            found = [one for times in own if (one := RATIOS[name](times)) is not None]
            if goal is None or not found:
                continue
            mean, most = geometric(found).value, max(found)
            is_reached = mean <= goal.mean and most <= goal.worst
            limit = "" if math.isinf(goal.worst) else f" ({goal.worst:.2f})"
            outcome = "reached" if is_reached else "short"
            lines.append(
                [operator, name, len(found), f"{mean:.3f} ({most:.2f})", f"{goal.mean:.2f}{limit}", outcome]
            )
    return table(["operator", "ratio", "rows", "geometric mean (worst)", "goal", ""], lines)


def worst(files: Sequence[Results], count: int) -> str:
    """The rows where each ratio is largest, with all times: what is to be looked at next."""
    rows = [Times.of(row) for results in files for row in results.rows]
    lines = []
    for name, ratio in RATIOS.items():
        found = [(one, times) for times in rows if (one := ratio(times)) is not None]
        for one, t in sorted(found, key=lambda pair: -pair[0])[:count]:
            what = f"{name}: {t.row.suite} {t.row.case}, {TYPES[t.row.dtype]}"
            times = (t.tuned, t.untuned, t.default, t.graph, t.dense, t.peer)
            lines.append([what, f"{one:.2f}", *map(figure, times)])
    return table(["row", "ratio", "tuned, µs", "untuned", "default", "in a graph", "dense", "peer"], lines)


def drawn(folders: Iterable[Path]) -> str:
    """The table of the files of some devices' folders, with where they come from."""
    devices = [files for folder in folders if (files := read(folder, KIND))]
    if not devices:
        return f"Not measured yet: there is no `{KIND}_*.json.xz` (benchmarks/README.md)."
    return "\n\n".join(by_operator(files) + origin_of_newest(files) for files in devices)


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@click.option("--worst", "count", type=click.IntRange(min=1), help="Also list so many rows of each ratio.")
def main(files: tuple[Path, ...], count: int | None) -> None:
    """Print the tables of result files."""
    try:
        read_files = [result_file.read(file) for file in files]
    except SparsegenError as error:
        raise click.ClickException(str(error)) from None
    click.echo(summary(read_files) + "\n\n" + goals(read_files))
    if count is not None:
        click.echo("\n" + worst(read_files, count))
    for results in read_files:
        click.echo(origin([results]))


if __name__ == "__main__":
    main()
