"""``sparsegen tune-model``: tune the products with every pruned layer of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click
from rich.text import Text

from sparsegen.cli.main import INTERRUPTED
from sparsegen.cli.parts.common import (
    F,
    FiniteRange,
    Listing,
    apply_options,
    db_option,
    emit,
    json_option,
    make_console,
    memory_limit_option,
    note_emulator,
    word_option,
)
from sparsegen.cli.parts.engines import Places, engine_options
from sparsegen.cli.parts.limits import limit_options
from sparsegen.cli.parts.rounding import rounding_of, rounding_options
from sparsegen.cli.parts.searches import watched
from sparsegen.cli.parts.torch_models import EXPORTED
from sparsegen.cli.parts.tune_model_in_situ import require_alone, tune_in_situ
from sparsegen.dispatch.dense_or_sparse import Source
from sparsegen.dispatch.pruned_times import LayerTime, PrunedTimes, TimeSource
from sparsegen.operators import DType, Epilogue, Layout, ScaleGroup, ValueType
from sparsegen.pruning.files.open import open_weights
from sparsegen.pruning.pruned_layers import LEAST_SPARSITY, PrunedLayers, Reading, pruned_layers, unheard
from sparsegen.pruning.weights import Weights
from sparsegen.settings import Settings
from sparsegen.system.quantities import counted, microseconds
from sparsegen.tuning.model import ModelTuning, SearchOutcome, tune_model
from sparsegen.tuning.report import Budget
from sparsegen.tuning_db.store import Store


class TokenCounts(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """Numbers of tokens with commas between."""

    name = "N,N,..."

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            counts = tuple(int(word) for word in value.split(","))
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1:
            self.fail(f"{value!r} is not like 1,8,256", param, ctx)
        return tuple(dict.fromkeys(counts))


def model_layer_options(function: F) -> F:
    """Adds the options that select layers and products: ``min_sparsity``, ``tensors``, ``exclude``, ``dtype``,
    ``layout``, ``epilogue``.
    """
    options = (
        click.option(
            "--min-sparsity",
            type=FiniteRange(0, 1),
            default=LEAST_SPARSITY,
            show_default=True,
            help="Share of zeros from which on a matrix counts as pruned.",
        ),
        click.option(
            "--tensor", "tensors", multiple=True, metavar="GLOB", help="Only these; may be repeated."
        ),
        click.option("--exclude", multiple=True, metavar="GLOB", help="Not these; may be repeated."),
        word_option(
            "--dtype",
            default=DType.FLOAT32,
            help="Element type of weights, activations and result; sums are float32.",
        ),
        word_option(
            "--layout",
            default=Layout.COLUMN,
            help="column: activations are tokens x features, as linear layers have them.",
        ),
        word_option(
            "--epilogue",
            default=Epilogue.NONE,
            help="What is done to the result before it is stored; layers of PyTorch that have a bias: bias.",
        ),
    )
    return apply_options(options, function)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--tokens",
    type=TokenCounts(),
    help="Rows of the activations (batch times sequence), such as 1,8,256.",
)
@click.option(
    "--example-inputs",
    metavar="FILE",
    help="In the place of --tokens: inputs to call the model with, a .npz, .npy or .pt file or module:function. Tunes "
    "what the call computes, and decides inside the model which layers become sparse. MODEL is then a .pt2 file, or "
    "module:function.",
)
@click.option(
    "--no-graph",
    is_flag=True,
    help="With --example-inputs: time the model as it is called from Python, not as a CUDA graph.",
)
@model_layer_options
@rounding_options("Tune products with the layers' weights rounded to these codes, in a 16-bit --dtype.")
@limit_options("each search")
@click.option("--again", is_flag=True, help="Search also where that was finished before.")
@click.option("--no-baselines", is_flag=True, help="Do not time dense and vendor routines.")
@memory_limit_option
@engine_options
@db_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    model: Path,
    tokens: tuple[int, ...] | None,
    example_inputs: str | None,
    no_graph: bool,
    min_sparsity: float,
    tensors: tuple[str, ...],
    exclude: tuple[str, ...],
    dtype: DType,
    layout: Layout,
    epilogue: Epilogue,
    values: ValueType | None,
    group: ScaleGroup | None,
    asymmetric: bool,
    limits: Budget,
    again: bool,
    no_baselines: bool,
    memory_limit: int | None,
    places: Places,
    db: str | None,
    as_json: bool,
) -> None:
    """Tune every pruned layer of a model: a .safetensors, .pt2, .npz or .npy file.

    Layers of the same shape and much the same sparsity share a search, as dispatch takes one's winner for the other.
    Every measurement is recorded at once: after Ctrl-C or a crash the same command goes on where it was.
    """
    rounding = rounding_of(values, group, asymmetric)
    if example_inputs is not None:
        require_alone(context)
        in_situ = tune_in_situ(
            model,
            example_inputs,
            min_sparsity=min_sparsity,
            exclude=exclude,
            capture=not no_graph,
            budget=limits,
            again=again,
            baselines=not no_baselines,
            rounding=rounding,
            places=places,
            db=db,
            as_json=as_json,
        )
        _end(in_situ)
        return
    if tokens is None:
        raise click.UsageError("give --tokens, or --example-inputs to call the model with")
    if no_graph:
        raise click.UsageError("--no-graph says how --example-inputs are timed: give them")
    weights = open_model(model, memory_limit)
    with reading_shown(as_json) as reading:
        found = pruned_layers(
            weights, tensors=tensors, exclude=exclude, least_sparsity=min_sparsity, reading=reading
        )

    place = db or Settings.from_environment().db
    with places.opened(place) as engine, Store.open(place) as store, watched(as_json=as_json) as watch:
        note_emulator(engine.models, as_json=as_json)
        tuning = tune_model(
            weights,
            found.layers,
            tokens,
            engine=engine,
            store=store,
            dtype=dtype,
            layout=layout,
            epilogue=epilogue,
            budget=limits,
            again=again,
            baselines=not no_baselines,
            watch=watch,
            rounding=rounding,
        )
    emit_tuning(as_json, str(model), found, tuning, str(store.location))
    _end(tuning)


class _Tuning(Protocol):
    """Result of the searches for a model."""

    @property
    def was_interrupted(self) -> bool: ...

    @property
    def failed(self) -> tuple[SearchOutcome, ...]: ...


def _end(tuning: _Tuning) -> None:
    if tuning.was_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if tuning.failed:
        raise click.exceptions.Exit(max(o.error.exit_code for o in tuning.failed if o.error is not None))


def open_model(model: Path, memory_limit: int | None) -> Weights:
    """The weights of a file.

    Raises:
        PruningError: a suffix that is not read.
        MatrixError: missing, empty, or malformed.
        PackageMissingError: an exported program, without PyTorch.
    """
    if model.suffix.lower() == EXPORTED:
        from sparsegen.integrations.torch.models.exported_program import ExportedWeights

        return ExportedWeights(model)
    return open_weights(model, memory_limit)


@contextmanager
def reading_shown(as_json: bool) -> Iterator[Reading]:
    """Shows which tensor is being read, on a terminal only, where reading takes long."""
    console = make_console(stderr=True)
    if as_json or not console.is_terminal:
        yield unheard
        return
    with console.status("reading") as status:
        yield lambda name, number, tensors: status.update(Text(f"reading {name} ({number} of {tensors})"))


def emit_tuning(as_json: bool, source: str, found: PrunedLayers, tuning: ModelTuning, location: str) -> None:
    """Print what is known of every layer after the searches."""
    several = len({times.device.key for times in tuning.times}) > 1  # models of devices
    headings = ("layer", "shape", "zeros", "tokens", "sparse", "dense", "× dense", "source")
    table = Listing(*(("device",) if several else ()), *headings)
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
