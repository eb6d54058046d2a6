"""Output of ``sparsegen bench``: rows, means, missing baselines and comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.table import Table

from sparsegen.bench.results.compare import Comparison
from sparsegen.bench.results.problem_facts import of_factors
from sparsegen.bench.results.results import TUNED, UNTUNED, WITHOUT, Cell, Kind, Results, Row, Status
from sparsegen.bench.results.summary import Mean, SuiteSummary, summarize
from sparsegen.cli.parts.common import Listing
from sparsegen.cli.parts.progress_lines import figure
from sparsegen.operators import ImageLayout, Layout


def ours(row: Row) -> Cell | None:
    """The tuned winner if it has a time, else plain dispatch."""
    timed = (cell for name in (TUNED, UNTUNED) if (cell := row.cell(name)) is not None and cell.timing)
    return next(timed, None)


def row_table(rows: Iterable[Row]) -> Listing:
    """Each row; times in µs, the others as multiples of ours."""
    rows = list(rows)
    unseen = unseen_baselines(rows)
    table = Listing(
        "case",
        "dtype",
        "ours µs",
        "untuned",
        *map(_unseen_heading, unseen),
        "dense",
        "× dense",
        "best peer",
        "× peer",
        "% of floor",
        "peer",
        "failed",
    )
    for row in rows:
        table.add_row(*_cells(row, unseen))
    return table


def _cells(row: Row, unseen: Sequence[str]) -> list[str]:
    mine, dense, peer = ours(row), row.dense(), row.best_sparse()
    floor = row.floor.us
    time = _us(mine)
    return [
        row.case,
        f"{row.dtype}" + _layout_text(row),
        _shown(_us(row.cell(TUNED))),
        _shown(_us(row.cell(UNTUNED))),
        *(_shown(_us(row.cell(name))) for name in unseen),
        _shown(_us(dense)),
        _ratio(_us(dense), time),
        _shown(_us(peer)),
        _ratio(_us(peer), time),
        f"{100 * floor / time:.0f}" if floor and time else "",
        peer.baseline if peer else "",
        ", ".join(f"{c.baseline} {c.status}" for c in row.cells if _is_failure(c)),
    ]


def unseen_baselines(rows: Iterable[Row]) -> list[str]:
    """The baselines that choose without what is packaged of a row, as far as they take part."""
    names = dict.fromkeys(cell.baseline for row in rows for cell in row.cells)
    return [name for name in names if name.startswith(WITHOUT)]


def _unseen_heading(name: str) -> str:
    return f"no {name.removeprefix(WITHOUT)}"


def row_line(row: Row) -> str:
    """The row in one line, for progress."""
    shown = [
        f"{cell.baseline} {figure(cell.timing.us)}" if cell.timing else f"{cell.baseline} {cell.status}"
        for cell in row.cells
        if cell.timing or _is_failure(cell)
    ]
    return f"{row.key}: {', '.join(shown) or 'nothing ran'}" + (" µs" if shown else "")


def summary_table(rows: Iterable[Row]) -> Listing:
    """Means for each suite and type. With ×: how many times faster, above 1 in favour of the first."""
    rows = list(rows)
    unseen = unseen_baselines(rows)
    summaries = list(summarize(rows))
    tf32 = ["× dense TF32"] * any(s.to_dense_tf32.count for s in summaries)
    table = Listing(
        "suite",
        "dtype",
        "rows",
        "× dense",
        *tf32,
        "faster than dense",
        "× best peer",
        "untuned / tuned",
        *(f"{_unseen_heading(name)} (worst)" for name in unseen),
        "peer × dense",
        "% of floor",
        "tried (least)",
        "packing ms",
        "pays after",
    )
    for s in summaries:
        table.add_row(
            s.suite,
            of_factors(s.factor_type, str(s.dtype)),
            str(s.rows),
            _inverse(s.to_dense),
            *[_inverse(s.to_dense_tf32)] * len(tf32),
            _percent(s.faster_than_dense),
            _inverse(s.to_best_sparse),
            _mean(s.untuned_to_tuned),
            *(_with_worst(s, name) for name in unseen),
            _inverse(s.best_sparse_to_dense),
            _percent(s.share_of_floor),
            "" if s.tried is None else f"{s.tried} ({s.least_tried})",
            _shown(s.preparation_ms),
            _count(s.break_even_calls),
        )
    return table


def config_parts(rows: Iterable[Row], most: int) -> list[Table | str]:
    """The fastest configs of each row and set, at most ``most``; empty for 0."""
    parts: list[Table | str] = []
    for row in rows:
        for cell in row.cells:
            if not most or cell.kind is not Kind.OURS or not cell.implementations:
                continue
            table = Table(box=None, pad_edge=False, header_style="bold")
            table.add_column("µs", justify="right", no_wrap=True)
            table.add_column("config")
            varied = _varied(cell)
            for one in cell.implementations[:most]:
                config = {} if one.variant is None else one.variant.to_dict()
                told = " ".join(f"{name}={str(config[name]).lower()}" for name in varied) or one.detail
                table.add_row(
                    _shown(one.us),
                    told if one.us else f"{told}: {one.reason}",
                )
            parts += [f"\n{row.key}: {cell.baseline}, {len(cell.implementations)} configs", table]
    return parts


def _varied(cell: Cell) -> list[str]:
    """The tunables in which a cell's configs differ."""
    configs = [
        implementation.variant.to_dict()
        for implementation in cell.implementations
        if implementation.variant is not None
    ]
    return [name for name in configs[0] if len({config[name] for config in configs}) > 1] if configs else []


def missing_lines(results: Results, missing: Sequence[tuple[str, str]]) -> list[str]:
    """One line for each baseline that is not there, and for each way in which one failed."""
    reasons: dict[str, list[str]] = {}
    for name, reason in missing:
        reasons.setdefault(reason, []).append(name)
    lines = [f"missing: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    seen: dict[tuple[str, str, str], int] = {}
    for row in results.rows:
        for cell in row.cells:
            if _is_failure(cell):
                key = (cell.baseline, str(cell.status), cell.reason.partition("\n")[0])
                seen[key] = seen.get(key, 0) + 1
    lines += [f"{status}: {name} ({count} rows): {reason}" for (name, status, reason), count in seen.items()]
    return lines


def comparison_parts(comparison: Comparison) -> list[Table | str]:
    """The tables of what became faster and slower, and the drift of each baseline."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("row", "baseline", "old µs", "new µs", "new / old", ""):
        table.add_column(heading, justify="right" if "µs" in heading or "/" in heading else "left")
    for change in comparison.differing:
        table.add_row(
            str(change.key),
            change.baseline,
            figure(change.old.us),
            figure(change.new.us),
            f"{change.ratio:.3f}",
            str(change.outcome),
        )
    drifts = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("suite", "dtype", "baseline", "new / old", "rows"):
        drifts.add_column(heading)
    for drift in comparison.drifts:
        drifts.add_row(
            drift.suite, str(drift.dtype), drift.baseline, _mean(drift.ratio), str(drift.ratio.count)
        )
    same = len(comparison.changes) - len(comparison.differing)
    parts: list[Table | str] = [f"{len(comparison.differing)} times changed beyond the noise, {same} did not"]
    if comparison.differing:
        parts.append(table)
    parts.append(drifts)
    parts += [
        f"{c.key}, {c.baseline}: {c.old} before, {c.new} now: {c.reason}" for c in comparison.status_changes
    ]
    for words, keys in (
        ("only in the old file", comparison.only_old),
        ("only in the new one", comparison.only_new),
        ("another matrix of the same name, not compared", comparison.other_pattern),
    ):
        if keys:
            parts.append(
                f"{len(keys)} rows {words}: {', '.join(map(str, keys[:5]))}"
                + (" ..." if len(keys) > 5 else "")
            )
    return parts


def _is_failure(cell: Cell) -> bool:
    return cell.status in (Status.WRONG, Status.CRASHED, Status.TIMEOUT)


def _us(cell: Cell | None) -> float | None:
    return cell.timing.us if cell is not None and cell.timing is not None else None


def _shown(us: float | None) -> str:
    return "" if us is None else figure(us)


def _layout_text(row: Row) -> str:
    """Names the layout of a row if it is not the usual one, to tell rows of one name apart."""
    is_told = row.problem.multiplies_by_b if isinstance(row.layout, Layout) else True
    return f", {row.layout}" if is_told and row.layout in (Layout.COLUMN, ImageLayout.NCHW) else ""


def _ratio(other: float | None, mine: float | None) -> str:
    return f"{other / mine:.2f}" if other and mine else ""


def _mean(mean: Mean) -> str:
    return "" if math.isnan(mean.value) else f"{mean.value:.3f}"


def _with_worst(summary: SuiteSummary, name: str) -> str:
    worst = summary.worst_unseen.get(name)
    return "" if worst is None else f"{_mean(summary.unseen_to_tuned[name])} ({worst:.2f})"


def _count(calls: int | None) -> str:
    return "" if calls is None else f"{calls:,}"


def _inverse(mean: Mean) -> str:
    return "" if math.isnan(mean.value) else f"{1 / mean.value:.3f}"


def _percent(mean: Mean) -> str:
    return "" if math.isnan(mean.value) else f"{100 * mean.value:.0f}"
