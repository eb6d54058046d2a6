"""Output of ``sparsegen prune``: the layers of one pattern, or the patterns side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from sparsegen.cli.parts.common import emit
from sparsegen.dispatch.pruned_times import LayerTime, PrunedTimes, TimeSource
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.pruner import Comparison
from sparsegen.pruning.report import LayerReport, PruneReport
from sparsegen.system.quantities import microseconds

_SCOPES = {Scope.GLOBAL: ", one threshold over all layers", Scope.LAYER: ", every layer by itself", None: ""}


def emit_report(
    as_json: bool,
    report: PruneReport,
    times: PrunedTimes | None,
    output: Path | None,
    rounding_errors: Mapping[str, float] | None = None,
) -> None:
    """Print one pruned set of weights.

    Args:
        output: where it was written.
        rounding_errors: error of the norm of each layer by name, where they were rounded.
    """
    table = _table("layer", "shape", "sparsity", "row mean", "row CoV", "kept energy", "block fill")
    if rounding_errors is not None:
        table.add_column("rounding error")
    if times is not None:
        for heading in ("sparse", "dense", "source"):
            table.add_column(heading)
    for i, layer in enumerate(report.layers):
        rounded = () if rounding_errors is None else (f"{rounding_errors[layer.name]:.2g}",)
        table.add_row(*_layer_cells(layer), *rounded, *(_time_cells(times.layers[i]) if times else ()))
    request = report.request
    lines = [
        f"{request.pattern.describe()}{_SCOPES[request.scope]}: {_percent(request.sparsity)} asked for, "
        f"rounding: {request.pattern.rule}",
        f"{report.kept:,} of {report.size:,} weights stay, {report.nonzeros:,} of them not zero: sparsity "
        f"{_percent(report.sparsity)}, kept energy {_percent(report.kept_energy)}",
    ]
    if report.emptied:
        lines.append(f"NOTHING IS LEFT of {', '.join(report.emptied)}: use --scope layer, or --exclude")
    if times is not None:
        lines.append(_times_line(times))
    lines += [f"copied untouched: {c.name} ({c.reason})" for c in report.copied]
    lines.append(f"written to {output}" if output else "nothing written; --output says where to")
    data = {
        **report.to_dict(),
        "rounding_errors": rounding_errors,
        "times": times.to_dict() if times else None,
        "output": output,
    }
    emit(as_json, data, table, "\n".join(lines))


def emit_comparison(as_json: bool, comparison: Comparison, times: Sequence[PrunedTimes | None]) -> None:
    """Print patterns side by side; times are sums over the layers."""
    table = _table("pattern", "sparsity", "kept energy", "row CoV", "block fill")
    lines = [f"left out: {name}: {why}" for name, why in comparison.left_out]
    if times[0] is not None:
        for heading in ("sparse", "dense", "layers measured"):
            table.add_column(heading)
        lines.append(_times_line(times[0]))
    for report, time in zip(comparison.reports, times, strict=True):
        table.add_row(
            report.request.pattern.describe(),
            _percent(report.sparsity),
            _percent(report.kept_energy),
            f"{report.row_cov:.3f}",
            _percent(report.block_fill),
            *(_sum_cells(time) if time else ()),
        )
    emptied = (
        f"{r.request.pattern.describe()} of {', '.join(r.emptied)}" for r in comparison.reports if r.emptied
    )
    lines += [f"NOTHING IS LEFT after {words}" for words in emptied]
    data = {
        "patterns": [
            {**report.to_dict(), "times": time.to_dict() if time else None}
            for report, time in zip(comparison.reports, times, strict=True)
        ],
        "left_out": [{"pattern": name, "reason": why} for name, why in comparison.left_out],
    }
    emit(as_json, data, table, *lines)


def _table(*headings: str) -> Table:
    return Table(*headings, box=None, padding=(0, 2, 0, 0))


def _layer_cells(layer: LayerReport) -> tuple[str, ...]:
    return (
        layer.name,
        " × ".join(map(str, layer.shape)),
        _percent(layer.sparsity),
        f"{layer.features.row_mean:.4g}",
        f"{layer.features.row_cov:.3f}",
        _percent(layer.kept_energy),
        _percent(layer.features.block_fill),
    )


def _time_cells(time: LayerTime) -> tuple[str, ...]:
    source = f"{time.source} ({time.family})" if time.family else str(time.source)
    return _time(time.sparse_us), _time(time.dense_us), source


def _sum_cells(times: PrunedTimes) -> tuple[str, ...]:
    exact = sum(time.source is TimeSource.EXACT for time in times.layers)
    return (
        _time(times.sparse_us),
        _time(times.dense_us),
        f"{times.known} of {len(times.layers)} ({exact} exact)",
    )


def _times_line(times: PrunedTimes) -> str:
    return (
        f"times from the tuning database, on {times.device.name} for n = {times.n}, {times.dtype}, "
        f"{times.layout}-major; near: scaled from a similar pattern"
    )


def _time(microseconds_: float | None) -> str:
    return "-" if microseconds_ is None else microseconds(microseconds_)


def _percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %")
