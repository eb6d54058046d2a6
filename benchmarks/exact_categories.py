"""What exact categories of the Sparse DNN Challenge's networks cost: host and device together, by wall clock.

    python -m benchmarks.exact_categories
    python -m benchmarks.exact_categories --device emulator --neurons 256 --layers 6 --inputs 64

`SparseNetwork.categories` gives float64's answer: two bounding networks, and float64 for what they leave undecided.
It is many launches with decisions of the host in between, so that no time of a device tells what it takes. Those of
the first inputs are held against float64 first. Inputs lie on the device. Raw output:
``exact_categories.json``. The same networks by device time, without exactness, are the suite ``spdnn``.
"""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np

from benchmarks.study import WrongResultError, torch_place, write_results
from sparsegen import SparseNetwork
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.networks.images import stroke_images
from sparsegen.networks.radixnet import radixnet

CHECKED, CALLS = 256, 3


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--neurons", multiple=True, type=int, default=(1024,), show_default=True)
@click.option("--layers", default=120, show_default=True)
@click.option("--inputs", default=60000, show_default=True)
def main(name: str, neurons: tuple[int, ...], layers: int, inputs: int) -> None:
    device, rows = find_device(name), []
    for width in neurons:
        rows.append(measured(width, layers, inputs, device))
        write_results(device, "exact_categories", rows)
        click.echo(", ".join(f"{key} {value}" for key, value in rows[-1].items()))


def measured(neurons: int, layers: int, inputs: int, device: Device) -> dict[str, Any]:
    """A row.

    Raises:
        WrongResultError: categories differ from float64's.
    """
    place = torch_place(device)
    network = SparseNetwork(radixnet(neurons, layers), device=device)
    images = stroke_images(inputs, neurons)
    given = images.astype(np.float16) if place.type == "cpu" else _on(place, images)
    live = np.asarray(network.categories(given))
    few = min(CHECKED, inputs)
    right = np.flatnonzero(network.inferred(images[:few]).any(axis=1))
    unlike = np.setxor1d(live[live < few], right).size
    if unlike:
        raise WrongResultError(f"{unlike} of the first {few} categories are not those of float64")
    undecided = network.undecided
    rounded = np.asarray(network.categories(given, exact=False))
    taken = []
    for _ in range(CALLS):
        began = _now(place)
        network.categories(given)
        taken.append(_now(place) - began)
    seconds = float(np.median(taken))
    return {
        "neurons": neurons,
        "layers": layers,
        "inputs": inputs,
        "ms": 1e3 * seconds,
        "tera_edges_per_second": network.network.edges * inputs / seconds / 1e12,
        "living": int(live.size),
        "undecided": undecided,
        "unlike_float16": int(np.setxor1d(live, rounded).size),
        "checked": few,
    }


def _on(place: Any, images: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(images).to(place).half()


def _now(place: Any) -> float:
    """Seconds, when the device has done what was queued."""
    import torch

    if place.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
