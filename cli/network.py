"""``sparsegen network``: make, tune, run and verify sparse networks as in the Sparse DNN Challenge."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from sparsegen import backends
from sparsegen.cli.main import INTERRUPTED
from sparsegen.cli.parts.common import (
    OUTPUT,
    apply_options,
    db_option,
    device_option,
    emit,
    force_option,
    json_option,
    note_emulator,
    word_option,
)
from sparsegen.cli.parts.limits import limit_options
from sparsegen.cli.parts.progress import shown
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.networks.files.challenge_files import (
    layer_file,
    read_categories,
    read_challenge,
    read_images,
    write_categories,
    write_challenge,
)
from sparsegen.networks.files.network_file import load_network, save_network
from sparsegen.networks.files.packed_file import is_packed, load_packed, save_packed
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.run.packed_inference import PackedInference
from sparsegen.networks.run.placement import Placement
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators.sparse_network import Readout
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.numpy_load import load_numpy
from sparsegen.system.numpy_types import Array
from sparsegen.system.publish import refuse_existing, require_place
from sparsegen.system.quantities import microseconds, size_text
from sparsegen.tuning.report import Budget
from sparsegen.tuning_db.location import Location

F = TypeVar("F", bound=Callable[..., Any])
USUAL_IMAGES = 1000
USUAL_BATCH, EMULATED_BATCH = 60000, 64
SHOWN = 10  # inputs of which a category is wrong


@click.group()
def command() -> None:
    """Make, tune, run and verify sparse networks, all layers of one as a single operator.

    A NETWORK is a file that `generate` wrote, for `run` also one of `pack`, or a folder of the challenge's layers,
    n<neurons>-l<number>.tsv.
    """


def network_argument(function: F) -> F:
    """``network``: Path."""
    return click.argument("network", type=click.Path(path_type=Path))(function)


def inputs_options(function: F) -> F:
    """``inputs``, ``images``, ``seed``: what `_inputs` takes."""
    options = (
        click.option(
            "--inputs",
            type=click.Path(path_type=Path),
            help="Inputs: .npy (inputs × neurons), or the challenge's .tsv of images.",
        ),
        click.option(
            "--images",
            type=click.IntRange(min=1),
            help=f"So many images of strokes instead; default {USUAL_IMAGES}.",
        ),
        click.option(
            "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the images."
        ),
    )
    return apply_options(options, function)


def function_options(function: F) -> F:
    """``bias``, ``clip``, ``activation``: what each layer does with its sums."""
    options = (
        click.option(
            "--bias", type=float, help="Of every neuron; default the file's, of a folder the challenge's."
        ),
        click.option(
            "--clip", type=float, help="Where activations end; default likewise (the challenge's: 32)."
        ),
        click.option("--activation", type=click.Choice(["relu", "none"]), default="relu", show_default=True),
    )
    return apply_options(options, function)


def placement_options(function: F) -> F:
    """``memory``, ``devices``: what `SparseNetwork.categories` takes."""
    options = (
        click.option(
            "--memory",
            help="Of each device at the most, like 8GiB: layers are streamed from the host, inputs go in batches.",
        ),
        click.option("--devices", help="Deal inputs to several: all, or 0,1."),
    )
    return apply_options(options, function)


@command.command()
@click.option("--neurons", default=1024, show_default=True, type=int, help="16 times a power of two.")
@click.option("--layers", default=120, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the permutations.")
@click.option("--bias", type=float, help="Of every neuron; default the challenge's.")
@click.option(
    *OUTPUT,
    required=True,
    type=click.Path(path_type=Path),
    help="A file to write, or with --tsv a folder.",
)
@force_option
@click.option("--tsv", is_flag=True, help="Write the challenge's files instead, one for each layer.")
@json_option
def generate(
    neurons: int,
    layers: int,
    seed: int,
    bias: float | None,
    output: Path,
    force: bool,
    tsv: bool,
    as_json: bool,
) -> None:
    """A RadiX-Net of the challenge's family: 32 weights of 1/16 for each neuron."""
    if not tsv:
        require_place(output)
    refuse_existing(layer_file(output, neurons, 1) if tsv else output, force=force)
    made = radixnet(neurons, layers, seed=seed, bias=bias)
    if tsv:
        write_challenge(made, output)
    else:
        save_network(made, output)
    data = {"output": str(output), "neurons": neurons, "layers": layers, "edges": made.edges}
    emit(as_json, data, f"{layers} layers of {neurons} neurons, {made.edges} weights: {output}")


@command.command()
@network_argument
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help=f"Inputs; default {USUAL_BATCH}, on the emulator {EMULATED_BATCH}.",
)
@function_options
@word_option(
    "--readout",
    default=Readout.TOTALS,
    help="neurons: of the last layer; totals: their sum, which categories need.",
)
@limit_options("the search")
@device_option
@db_option
@json_option
def tune(
    network: Path,
    batch: int | None,
    bias: float | None,
    clip: float | None,
    activation: str,
    readout: Readout,
    limits: Budget,
    device: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Search for the fastest variant for a network and a batch, verify it and record it."""
    where, place = backends.find_device(device), db or Settings.from_environment().db
    net = SparseNetwork(_read(network, bias, clip), activation=activation, device=where, db=place)
    if batch is None:
        batch = EMULATED_BATCH if where.backend == "emulator" else USUAL_BATCH
    note_emulator([where], as_json=as_json)
    with shown(as_json=as_json) as progress:
        result = net.tune(
            batch,
            readout,
            effort=limits.effort,
            trials=limits.trials,
            seconds=limits.seconds,
            progress=progress,
            baselines=False,
        )
    sample = result.winner.sample
    assert sample is not None
    rate = net.network.edges * batch / sample.median_us / 1e6
    config = result.winner.variant.config
    data = {
        "family": config.family_name,
        "config": config.to_dict(),
        "us": sample.median_us,
        "edges_per_second": rate * 1e12,
        "interrupted": result.was_interrupted,
        "database": (location := str(Location.parse(place))),
    }
    told = f"{microseconds(sample.median_us)} for {batch:,} inputs, {rate:.4g} TE/s; recorded in {location}"
    rest = [
        "interrupted: this is the best so far; the same command goes on from here"
    ] * result.was_interrupted
    emit(as_json, data, f"{config}", told, *rest)
    if result.was_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


@command.command()
@network_argument
@click.option("--batch", default=60000, show_default=True, type=click.IntRange(min=1), help="Inputs in all.")
@click.option(*OUTPUT, required=True, type=click.Path(path_type=Path), help="A file to write, for run.")
@force_option
@placement_options
@device_option
@db_option
@json_option
def pack(
    network: Path,
    batch: int,
    output: Path,
    force: bool,
    memory: str | None,
    devices: str | None,
    device: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Pack a network for totals into a file, from which `run` streams its layers.

    The variant and the plan of memory are kept: `run` needs neither the network nor the database.
    """
    _require_one(device, devices)
    require_place(output)
    refuse_existing(output, force=force)
    net = SparseNetwork(_read(network), device=device, db=db)
    packed = net.pack(batch, memory=memory, devices=devices)
    save_packed(packed, output)
    data = {"output": str(output), **_packed_data(packed)}
    emit(as_json, data, packed.explain(), f"{output}: {size_text(output.stat().st_size)}")


@command.command()
@network_argument
@inputs_options
@function_options
@click.option("--exact", is_flag=True, help="Categories as float64 gives them.")
@click.option(*OUTPUT, type=click.Path(path_type=Path), help="A file of categories to write.")
@force_option
@placement_options
@device_option
@db_option
@json_option
def run(
    network: Path,
    inputs: Path | None,
    images: int | None,
    seed: int,
    bias: float | None,
    clip: float | None,
    activation: str,
    exact: bool,
    output: Path | None,
    force: bool,
    memory: str | None,
    devices: str | None,
    device: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Categories of inputs: which of them live through all layers.

    The time is that of the second call, with inputs on the host: copies there and back are in it.
    """
    _require_one(device, devices)
    if output is not None:
        require_place(output)
        refuse_existing(output, force=force)
    placed = memory is not None or devices is not None
    if is_packed(network):
        if exact or memory is not None:
            raise ConfigError(
                f"{network} is packed, with a plan of memory: give neither --exact nor --memory"
            )
        if (bias, clip, activation) != (None, None, "relu"):
            raise ConfigError(f"{network} is packed, with its bias, clip and activation: give none of them")
        inference = PackedInference(load_packed(network), device=device, devices=devices)
        given = _inputs(inference.packed.inputs, inputs, images, seed)
        categories = partial(inference.categories, given)
        edges, explained = inference.packed.edges, inference.packed.explain
        described = partial(_packed_data, inference.packed)
    else:
        net = SparseNetwork(_read(network, bias, clip), activation=activation, device=device, db=db)
        given = _inputs(net.network.inputs, inputs, images, seed)
        categories = partial(net.categories, given, exact=exact, memory=memory, devices=devices)
        edges = net.network.edges
        explained = partial(net.explain, len(given), Readout.TOTALS, memory=memory, devices=devices)
        if placed:
            described = partial(_packed_data, net.pack(len(given), memory=memory, devices=devices))
        else:
            described = partial(_variant_data, net, len(given))
    note_emulator(Placement.of(None, devices, device).devices, as_json=as_json)
    live = categories()
    started = time.perf_counter()
    categories()
    seconds = time.perf_counter() - started
    if output is not None:
        write_categories(live, output)
    rate = edges * len(given) / seconds / 1e12
    data = {"inputs": len(given), "live": live.size, "seconds": seconds, "edges_per_second": rate * 1e12}
    data |= described()
    text = f"{live.size} of {len(given)} inputs live; {1e3 * seconds:.1f} ms with copies, {rate:.3g} TE/s"
    emit(as_json, data, explained(), text)


@command.command()
@network_argument
@inputs_options
@function_options
@click.option(
    "--truth", type=click.Path(path_type=Path), help="The categories that should come out; default float64's."
)
@click.option("--exact", is_flag=True, help="Check exact categories, not those of the dtype.")
@device_option
@db_option
@json_option
def verify(
    network: Path,
    inputs: Path | None,
    images: int | None,
    seed: int,
    bias: float | None,
    clip: float | None,
    activation: str,
    truth: Path | None,
    exact: bool,
    device: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Check categories against a file of them, or against float64 on the host.

    Ends with exit code 5 when one is wrong.
    """
    net = SparseNetwork(_read(network, bias, clip), activation=activation, device=device, db=db)
    given = _inputs(net.network.inputs, inputs, images, seed)
    found = net.categories(given, exact=exact)
    right = (
        np.flatnonzero(net.inferred(given).any(axis=1))
        if truth is None
        else read_categories(truth, len(given))
    )
    wrong = np.setxor1d(found, right)
    data = {"inputs": len(given), "live": right.size, "wrong": wrong.tolist(), "right": not wrong.size}
    parts = [f"right; {right.size} of {len(given)} inputs live"]
    if wrong.size:
        some = ", ".join(map(str, wrong[:SHOWN] + 1)) + ", …" * (wrong.size > SHOWN)
        parts = [
            f"WRONG: {wrong.size} of {len(given)} inputs, counted from 1: {some}; {right.size} inputs should live"
        ]
        if not exact:
            parts.append(
                f"neurons are {net.dtype}, which may decide close cases otherwise: --exact checks exact ones"
            )
    emit(as_json, data, *parts)
    if wrong.size:
        raise click.exceptions.Exit(NoVariantError.exit_code)


def _read(path: Path, bias: float | None = None, clip: float | None = None) -> Network:
    """The network of a file or folder; with another bias of all neurons, and another clip, where they are given."""
    if is_packed(path):
        raise ConfigError(
            f"{path} is packed, which `sparsegen network run` alone takes: name the network itself"
        )
    found = read_challenge(path) if path.is_dir() else load_network(path)
    if bias is None and clip is None:
        return found
    return Network.of(
        found.layers, found.biases if bias is None else bias, found.clip if clip is None else clip
    )


def _require_one(device: str | None, devices: str | None) -> None:
    if device is not None and devices is not None:
        raise click.UsageError("give either --device or --devices")


def _variant_data(net: SparseNetwork, batch: int) -> Json:
    config = net.operator(batch, Readout.TOTALS).choice.config
    return {"family": config.family_name, "config": config.to_dict()}


def _packed_data(packed: PackedNetwork) -> Json:
    return {
        "family": packed.family.name,
        "config": packed.config.to_dict(),
        "plan": packed.plan.to_dict(),
    }


def _inputs(neurons: int, file: Path | None, images: int | None, seed: int) -> Array:
    if file is None:
        return stroke_images(images or USUAL_IMAGES, neurons, seed=seed)
    if images is not None:
        raise click.UsageError("give either --inputs or --images")
    if file.suffix == ".tsv":
        return read_images(file, neurons)
    try:
        found = load_numpy(file)
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as an array: {error}") from None
    if not isinstance(found, np.ndarray):
        raise ConfigError(f"{file}: holds several arrays; inputs are one, saved as .npy")
    return found
