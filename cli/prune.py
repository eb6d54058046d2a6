"""``sparsegen prune``: zero the weights that matter least, in a pattern, and say what that costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from sparsegen import api, backends
from sparsegen.cli.parts.common import (
    OUTPUT,
    EnumChoice,
    Listing,
    db_option,
    device_option,
    emit,
    force_option,
    json_option,
    make_console,
    memory_limit_option,
    word_option,
)
from sparsegen.cli.parts.progress_lines import SECONDS_BETWEEN_LINES
from sparsegen.cli.parts.rounding import Encoder, rounding_of, rounding_options
from sparsegen.dispatch.pruned_times import LayerTime, PrunedTimes, TimeSource
from sparsegen.operators import DType, Layout, ScaleGroup, ValueType
from sparsegen.pruning import pruner
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.plan import Progress, Step, silent
from sparsegen.pruning.pruner import Comparison, OutputFormat
from sparsegen.pruning.report import LayerReport, PruneReport
from sparsegen.pruning.request import PatternName, PruneRequest, parse_block, parse_nm
from sparsegen.pruning.score import Score
from sparsegen.system.quantities import microseconds

_SCOPES = {Scope.GLOBAL: ", one threshold over all layers", Scope.LAYER: ", every layer by itself", None: ""}


@click.command()
@click.argument("weights", type=click.Path(path_type=Path))
@click.option("--pattern", type=EnumChoice(PatternName), help="Which weights stay together.")
@click.option(
    "--sparsity", type=float, help="Share of weights that become zero, such as 0.9; nm has its own."
)
@click.option(
    "--scope", type=EnumChoice(Scope), help="One threshold over all tensors (default), or each its own."
)
@click.option("--block", metavar="HxW", help="Block height and width; default 32x32.")
@click.option(
    "--nm",
    metavar="[V:]N:M",
    help="N of M neighbouring weights stay; default 2:4. V:N:M: in four of M columns, which V rows share.",
)
@click.option("--score", type=EnumChoice(Score), help="What a group of weights is worth; default l2.")
@click.option(
    "--gradients",
    type=click.Path(path_type=Path),
    help="With --score taylor: gradients of a loss by the weights, under their names, in a file like WEIGHTS.",
)
@click.option("--tensor", "tensors", multiple=True, metavar="GLOB", help="Only these; may be repeated.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Not these; may be repeated.")
@click.option(*OUTPUT, type=click.Path(path_type=Path), help="Where to; without it nothing is written.")
@word_option(
    "--format",
    "output_format",
    default=OutputFormat.SAME,
    help="The input's container, or a folder with a .npz for each layer that `sparsegen tune` reads.",
)
@rounding_options(
    "With --format csr-npz: round what stays to these codes, each times the scale of its group."
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="With --values: inputs of each layer, samples x columns, under its name in a .npz file. Codes are then chosen "
    "so that later ones make up for the rounding of earlier ones (GPTQ).",
)
@force_option
@click.option(
    "--compare-patterns", is_flag=True, help="A table of all patterns instead of one; writes nothing."
)
@click.option("-n", "n", type=click.IntRange(min=1), help="Look up times for products with n columns.")
@word_option("--dtype", default=DType.FLOAT32, help="Of these products.")
@word_option("--layout", default=Layout.ROW, help="Of these products.")
@memory_limit_option
@device_option
@db_option
@json_option
def command(
    weights: Path,
    pattern: PatternName | None,
    sparsity: float | None,
    scope: Scope | None,
    block: str | None,
    nm: str | None,
    score: Score | None,
    gradients: Path | None,
    tensors: tuple[str, ...],
    exclude: tuple[str, ...],
    output: Path | None,
    output_format: OutputFormat,
    values: ValueType | None,
    group: ScaleGroup | None,
    asymmetric: bool,
    calibration: Path | None,
    force: bool,
    compare_patterns: bool,
    n: int | None,
    dtype: DType,
    layout: Layout,
    memory_limit: int | None,
    device: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Prune the weights of a .npz, .npy or .safetensors file.

    Matrices and convolutions (as C_out x C_in*H*W) of floating-point numbers are pruned, all else is copied. With -n
    the report has the times of sparse and dense products, as far as the tuning database holds measurements of these
    patterns or of near ones.
    """
    sizes = parse_block(block) if block else None
    n_of_m = parse_nm(nm) if nm else None
    where = (
        None if n is None else backends.find_device(device)
    )  # a wrong device ends it before the work, not after

    def times(report: PruneReport) -> PrunedTimes | None:
        if n is None:
            return None
        return api.pruned_times(report, n=n, dtype=dtype, layout=layout, device=where, db=db)

    if compare_patterns:
        if (pattern, output, score, gradients) != (None, None, None, None):
            raise click.UsageError(
                "--compare-patterns goes without --pattern, --score, --gradients and --output"
            )
        if sparsity is None:
            raise click.UsageError("--compare-patterns needs --sparsity")
        with shown(as_json) as progress:
            comparison = pruner.compare_file(
                weights,
                sparsity,
                scope=scope,
                block=sizes,
                nm=n_of_m,
                tensors=tensors,
                exclude=exclude,
                memory_limit=memory_limit,
                progress=progress,
            )
        emit_comparison(as_json, comparison, [times(report) for report in comparison.reports])
        return
    if pattern is None:
        raise click.UsageError("name a --pattern, or --compare-patterns")
    rounding = rounding_of(values, group, asymmetric)
    if rounding is not None and (output is None or output_format is not OutputFormat.CSR_NPZ):
        raise click.UsageError("codes and scales are written by --format csr-npz --output FOLDER")
    if rounding is None and calibration is not None:
        raise click.UsageError("--calibration is for --values")
    encoder = None if rounding is None else Encoder(rounding, dtype, calibration)
    encoding: dict[str, Any] = {} if encoder is None else {"encode": encoder}
    request = PruneRequest.parse(pattern, sparsity, scope=scope, block=sizes, nm=n_of_m, score=score)
    with shown(as_json) as progress:
        report = pruner.prune_file(
            weights,
            request,
            output=output,
            output_format=output_format,
            force=force,
            gradients=gradients,
            tensors=tensors,
            exclude=exclude,
            memory_limit=memory_limit,
            progress=progress,
            **encoding,
        )
    emit_report(as_json, report, times(report), output, None if encoder is None else encoder.errors)


@contextmanager
def shown(as_json: bool) -> Iterator[Progress]:
    """The progress to hand to the pruner: one line on a terminal, a line a second elsewhere, none with ``--json``."""
    console = make_console(stderr=True)
    if as_json:
        yield silent
    elif console.is_terminal:
        with console.status("reading") as status:
            yield lambda step: status.update(Text(_words(step)))
    else:
        last = time.monotonic()

        def line(step: Step) -> None:
            nonlocal last
            if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                console.print(_words(step), soft_wrap=True)

        yield line


def _words(step: Step) -> str:
    return f"{step.stage}: {step.layer} ({step.number} of {step.layers})"


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
    table = Listing(
        *("layer", "shape", "sparsity", "row mean", "row CoV", "kept energy", "block fill"),
        *(("rounding error",) if rounding_errors is not None else ()),
        *(("sparse", "dense", "source") if times is not None else ()),
    )
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
        remedy = "use --scope layer, or --exclude" if request.scope is Scope.GLOBAL else "use --exclude"
        lines.append(f"NOTHING IS LEFT of {', '.join(report.emptied)}: {remedy}")
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
    timed = ("sparse", "dense", "layers measured") if times[0] is not None else ()
    table = Listing("pattern", "sparsity", "kept energy", "row CoV", "block fill", *timed)
    lines = [f"left out: {name}: {why}" for name, why in comparison.left_out]
    if times[0] is not None:
        lines.append(_times_line(times[0]))
    for report, known in zip(comparison.reports, times, strict=True):
        table.add_row(
            report.request.pattern.describe(),
            _percent(report.sparsity),
            _percent(report.kept_energy),
            f"{report.row_cov:.3f}",
            _percent(report.block_fill),
            *(_sum_cells(known) if known else ()),
        )
    emptied = (
        f"{r.request.pattern.describe()} of {', '.join(r.emptied)}" for r in comparison.reports if r.emptied
    )
    lines += [f"NOTHING IS LEFT after {words}" for words in emptied]
    data = {
        "patterns": [
            {**report.to_dict(), "times": known.to_dict() if known else None}
            for report, known in zip(comparison.reports, times, strict=True)
        ],
        "left_out": [{"pattern": name, "reason": why} for name, why in comparison.left_out],
    }
    emit(as_json, data, table, *lines)


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
