"""Exact categories of the Sparse DNN Challenge's networks: that they are float64's, and what they cost by wall clock.

    python -m benchmarks.exact_categories
    python -m benchmarks.exact_categories --all --seconds 500
    python -m benchmarks.exact_categories --neurons 4096 --neurons 16384 --neurons 65536 --checked 2048
    python -m benchmarks.exact_categories --device emulator --neurons 256 --layers 6 --inputs 64

`SparseNetwork.categories` gives float64's answer: two bounding networks of few layers, and float64 for what they leave
undecided. Inputs lie on the device. ``ms`` is by wall clock with categories on the host, ``device_ms`` between two
events with categories on the device and a cold L2, ``float16_ms`` and ``float16_device_ms`` the same without exactness,
and ``all_layers_device_ms`` with an upper bound of all layers, as many as inference without exactness has. Categories
are held against float64 through all layers by PyTorch's sparse products on the device, and those of the first inputs
against float64 on the host.

``--all`` takes all 12 networks of the challenge, with 60,000 inputs for 1024 × 120 and 1,024 for the others; given
again, it goes on where a time limit ended it. Raw output: ``exact_categories.json.xz``, in which rows of other networks
stay. The same networks by device time, without exactness, are the suite ``spdnn``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from benchmarks.float64 import live_through_all_layers
from benchmarks.study import WrongResultError, known_rows, torch_place, write_results
from sparsegen import SparseNetwork
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CONFIGURATIONS, radixnet
from sparsegen.system.device_memory import Address

CALLS = 15
CHECKED_ON_HOST = 64
MOST_EDGES_ON_HOST = 1 << 24  # of a network; the host needs long for more
MOST_EDGES_IN_FLOAT16 = 1 << 22  # all layers of which are packed, to time them without exactness
COLD_BYTES = 256 << 20  # written before a call is timed
ALL_INPUTS, SOME_INPUTS = 60000, 1024


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--neurons", multiple=True, type=int, default=(1024,), show_default=True)
@click.option("--layers", default=120, show_default=True)
@click.option("--inputs", default=ALL_INPUTS, show_default=True)
@click.option(
    "--all", "all_of_them", is_flag=True, help="All 12 networks instead; those that are known are left out."
)
@click.option(
    "--checked",
    default=ALL_INPUTS,
    show_default=True,
    help="Inputs held against float64 on the device, at most.",
)
@click.option("--seconds", default=500.0, show_default=True, help="After which no further network is begun.")
def main(
    name: str,
    neurons: tuple[int, ...],
    layers: int,
    inputs: int,
    all_of_them: bool,
    checked: int,
    seconds: float,
) -> None:
    device, ends = find_device(name), time.perf_counter() + seconds
    rows = known_rows(device, "exact_categories", "network")
    wanted = [(width, layers, inputs) for width in neurons]
    if all_of_them:
        networks = sorted(CONFIGURATIONS, key=lambda one: one[0] * one[1])
        sized = ((*one, ALL_INPUTS if one == CONFIGURATIONS[0] else SOME_INPUTS) for one in networks)
        wanted = [one for one in sized if name_of(*one) not in rows]
    for one in wanted:
        if time.perf_counter() > ends:
            click.echo(f"time is up: {name_of(*one)} and what follows is left out; the same command goes on")
            break
        row = {"network": name_of(*one), **measured(*one, checked, device)}
        rows[row["network"]] = row
        write_results(device, "exact_categories", list(rows.values()))
        click.echo(", ".join(f"{field} {value}" for field, value in row.items()))


def name_of(neurons: int, layers: int, inputs: int) -> str:
    return f"{neurons} x {layers} x {inputs}"


def measured(neurons: int, layers: int, inputs: int, most_checked: int, device: Device) -> dict[str, Any]:
    """A row.

    Raises:
        WrongResultError: categories differ from float64's.
    """
    place, began = torch_place(device), time.perf_counter()
    network, images = radixnet(neurons, layers), stroke_images(inputs, neurons)
    made = time.perf_counter()
    net = SparseNetwork(network, device=device)
    given = images.astype(np.float16) if place.type == "cpu" else _on(place, images)
    live = net.categories(given)
    undecided = net.undecided
    prepared = time.perf_counter()
    checked = min(most_checked, inputs)
    on_host = require_exact(network, images[:checked], live[live < checked], place)
    told = time.perf_counter()
    exact = _seconds(place, lambda: net.categories(given))
    row = {
        "neurons": neurons,
        "layers": layers,
        "inputs": inputs,
        "ms": 1e3 * exact,
        "tera_edges_per_second": network.edges * inputs / exact / 1e12,
        "bound_layers": net.exact_run().bound_layers,
        "living": int(live.size),
        "undecided": undecided,
        "checked": checked,
        "checked_on_host": on_host,
        "seconds_to_generate": round(made - began, 2),
        "seconds_to_prepare": round(prepared - made, 2),
        "seconds_in_float64": round(told - prepared, 2),
    }
    if place.type == "cuda":
        on_device = _device_seconds(lambda: _queue(net, given))
        row |= {
            "device_ms": 1e3 * on_device,
            "device_tera_edges_per_second": network.edges * inputs / on_device / 1e12,
        }
    if network.edges <= MOST_EDGES_IN_FLOAT16:
        row |= _through_all_layers(net, given, live, place)
    return row


def _through_all_layers(net: SparseNetwork, given: Any, live: np.ndarray, place: Any) -> dict[str, Any]:
    """Categories of float16 alone, and exact ones by an upper bound of all layers: fields of a row.

    Raises:
        WrongResultError: exact ones are others than before.
    """
    rounded = np.asarray(net.categories(given, exact=False))
    found = {
        "unlike_float16": int(np.setxor1d(live, rounded).size),
        "float16_ms": 1e3 * _seconds(place, lambda: net.categories(given, exact=False)),
    }
    if place.type == "cuda":
        again = net.exact_run(all_layers=True).categories(*_place_and_count(given)).live
        if not np.array_equal(again, live):
            raise WrongResultError("an upper bound of all layers gives other categories than one of few")
        found["float16_device_ms"] = 1e3 * _device_seconds(lambda: net.totals(given))
        found["all_layers_device_ms"] = 1e3 * _device_seconds(lambda: _queue(net, given, all_layers=True))
    return found


def _queue(net: SparseNetwork, given: Any, *, all_layers: bool = False) -> None:
    """Launch what gives exact categories, and leave them on the device."""
    net.exact_run(all_layers=all_layers).queue(*_place_and_count(given))


def _place_and_count(given: Any) -> tuple[Address, int]:
    return Address(given.data_ptr(), given.numel() * given.element_size()), len(given)


def require_exact(network: Network, images: np.ndarray, live: np.ndarray, place: Any) -> int:
    """Hold categories of all inputs against float64 on the device, and some against float64 on the host.

    Returns:
        How many were checked on the host.

    Raises:
        WrongResultError: some differ.
    """
    unlike = np.setxor1d(live, live_through_all_layers(network, images, place)).size
    if unlike:
        raise WrongResultError(f"{unlike} of {len(images)} categories are not those of float64 on the device")
    few = min(CHECKED_ON_HOST, len(images)) if network.edges <= MOST_EDGES_ON_HOST else 0
    on_host = SparseNetwork(network).inferred(images[:few]).any(axis=1) if few else np.zeros(0, bool)
    if (np.isin(np.arange(few), live) != on_host).any():
        raise WrongResultError(f"some of the first {few} categories are not those of float64 on the host")
    return few


def _on(place: Any, images: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(images).to(place).half()


def _seconds(place: Any, call: Callable[[], Any]) -> float:
    """Times calls by wall clock, with the result on the host; returns the median in seconds."""
    taken = []
    for _ in range(CALLS):
        start = _now(place)
        call()
        taken.append(_now(place) - start)
    return float(np.median(taken))


def _device_seconds(call: Callable[[], Any]) -> float:
    """Times the queued work of calls, between two events of the device, with a cold L2; returns the median in
    seconds.
    """
    import torch

    cold = torch.empty(COLD_BYTES, dtype=torch.uint8, device="cuda")
    taken = []
    for _ in range(CALLS):
        cold.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return float(np.median(taken))


def _now(place: Any) -> float:
    """Seconds, when the device has done what was queued."""
    import torch

    if place.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
