"""Output of ``sparsegen tune-model``: every layer's time beside a dense product's, and the gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.table import Table

from sparsegen.cli.parts.common import emit
from sparsegen.dispatch.dense_or_sparse import Source
from sparsegen.dispatch.pruned_times import LayerTime, PrunedTimes, TimeSource
from sparsegen.pruning.pruned_layers import PrunedLayers
from sparsegen.system.quantities import counted, microseconds
from sparsegen.tuning.model import ModelTuning


def emit_tuning(as_json: bool, source: str, found: PrunedLayers, tuning: ModelTuning, location: str) -> None:
    """Print what is known of every layer after the searches."""
    several = len({times.device.key for times in tuning.times}) > 1  # models of devices
    headings = ("layer", "shape", "zeros", "tokens", "sparse", "dense", "× dense", "source")
    table = Table(*(("device",) if several else ()), *headings, box=None, padding=(0, 2, 0, 0))
    for times in tuning.times:
        for layer, time in zip(found.layers, times.layers, strict=True):
            shape = " × ".join(map(str, layer.spec.shape))
            device = (times.device.name,) if several else ()
            table.add_row(*device, layer.name, shape, f"{layer.sparsity:.1%}", str(times.n), *_cells(time))
    lines = [line for times in tuning.times for line in _compared_lines(times, named=several)]
    counts = Counter(outcome.state for outcome in tuning.outcomes)
    searches, products = len(tuning.outcomes), sum(len(o.search.layers) for o in tuning.outcomes)
    lines.append(
        f"{searches} search{'es' * (searches != 1)} for {counted(products, 'product')}: "
        + ", ".join(f"{count} {state}" for state, count in counts.items())
    )
    lines += [
        f"failed: {o.search.layers[0].name} for {o.search.problem.n} tokens on {o.device.name}: {o.reason}"
        for o in tuning.failed
    ]
    if found.others:
        lines.append("not tuned: " + ", ".join(f"{other.name} ({other.reason})" for other in found.others))
    lines.append(f"recorded in {location}")
    if tuning.was_interrupted:
        lines.append("Interrupted: the same command goes on from here.")
    data = {
        "source": source,
        "layers": [layer.to_dict() for layer in found.layers],
        "others": [
            {"name": other.name, "shape": list(other.shape), "dtype": other.dtype, "reason": other.reason}
            for other in found.others
        ],
        "searches": [outcome.to_dict() for outcome in tuning.outcomes],
        "times": [{**times.to_dict(), "speedup": times.speedup} for times in tuning.times],
        "interrupted": tuning.was_interrupted,
        "database": location,
    }
    emit(as_json, data, table, "\n".join(lines))


def _cells(time: LayerTime) -> tuple[str, ...]:
    speedup = "-" if time.speedup is None else f"{time.speedup:.2f}"
    source = f"{time.source} ({time.family})" if time.family else str(time.source)
    estimated = "~" if time.dense_source not in (None, Source.MEASURED) else ""
    return _time(time.sparse_us), estimated + _time(time.dense_us), speedup, source


def _compared_lines(times: PrunedTimes, *, named: bool) -> Iterator[str]:
    """Yields lines on which layers gain over dense ones, and on all of them together."""
    tokens = f"{times.n} token{'s' if times.n > 1 else ''}" + (f" on {times.device.name}" if named else "")
    known = [time for time in times.layers if time.speedup is not None]
    if not known:
        missing = "nothing was measured" if not times.known else "dense products were not timed"
        yield f"{tokens}: {missing}, so that it is not known what gains over dense"
        return
    slower = [time.layer for time in known if (time.speedup or 0) <= 1]
    line = f"{tokens}: {len(known) - len(slower)} of {len(known)} layers gain over dense"
    if times.speedup is not None:
        line += f", all together {times.speedup:.2f} ×"
    if slower and times.fastest_us and times.dense_us:
        line += f", {times.dense_us / times.fastest_us:.2f} × with the others dense, as they run by default"
    yield line + (f": {', '.join(slower)}" if slower else "")
    not_measured = [time.layer for time in times.layers if time.source is TimeSource.NOT_MEASURED]
    if not_measured:
        yield f"{tokens}: not measured: {', '.join(not_measured)}"


def _time(value: float | None) -> str:
    return "-" if value is None else microseconds(value)
