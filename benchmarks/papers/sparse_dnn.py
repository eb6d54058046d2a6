"""The Sparse DNN Challenge: all 12 networks with 60,000 images, by wall clock from host to host.

    python -m benchmarks.papers.sparse_dnn --data DATA

Hidayetoglu et al., HPEC 2020, table I: input edges over the time from images in the host's memory to totals there, with
the copies of images, on 1, 2 and, where there are, 4 devices, whose totals are compared; weights are packed and
uploaded before, and that time is told apart. Images are MNIST's, enlarged to 32², 64², 128² and 256² pixels and
thresholded as the challenge's are. Categories (inputs that live) of every network are rows of their own, which time
nothing: they are held against float64, on the device. The emulator times nothing, and holds some images of each network
that the host's memory has room for against float64.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.markdown import NONE, figure, table
from benchmarks.papers.budget import seconds
from benchmarks.papers.float64 import live_through_all_layers
from benchmarks.papers.study import Claim, Document, Point, Row, Setting, Study, outcome, result
from benchmarks.study import WrongResultError, torch_place
from sparsegen import SparseNetwork
from sparsegen.backends import find_devices
from sparsegen.bench.run.rows import turn
from sparsegen.kernels.base import Device
from sparsegen.networks.model.inputs import BitInputs
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CONFIGURATIONS, FAN_IN, radixnet
from sparsegen.networks.run.dealing import DeviceGroup
from sparsegen.networks.run.placement import Placement
from sparsegen.operators.sparse_network import Readout
from sparsegen.system.numpy_types import Array

IMAGES, CALLS = 60000, 5
WIDEST, NODE = 65536, 0.876  # neurons, and the efficiency of 6 GPUs of a node with them (section IV-C)
GENERATED, PACKED = 24e-9 / 8, 300e-9 / 8  # seconds of a weight by 16 cores, of which 8 are busy
THRESHOLD = 0.5  # of white, from which a pixel is 1
CHECKED = {1024: 60000, 4096: 8192, 16384: 2048, 65536: 512}  # inputs held against float64, by neurons
ON_EMULATOR = {1024: 1024, 4096: 256, 16384: 64, 65536: 32}  # inputs there
MOST_EDGES = 1 << 28  # of a network there: 2 GiB of the host's memory, and as much again packed
V100 = {  # table I, one V100: tera-edges a second
    (1024, 120): 10.51, (1024, 480): 12.87, (1024, 1920): 14.30, (4096, 120): 9.45, (4096, 480): 11.74,
    (4096, 1920): 13.88, (16384, 120): 6.15, (16384, 480): 7.45, (16384, 1920): 7.84, (65536, 120): 3.47,
    (65536, 480): 3.83, (65536, 1920): 3.93,
}  # fmt: skip
A100 = {  # table I, one A100
    (1024, 120): 16.74, (1024, 480): 20.99, (1024, 1920): 20.68, (4096, 120): 14.27, (4096, 480): 18.63,
    (4096, 1920): 19.86, (16384, 120): 11.60, (16384, 480): 14.31, (16384, 1920): 15.27, (65536, 120): 8.15,
    (65536, 480): 9.08, (65536, 1920): 9.33,
}  # fmt: skip


class SparseDnn(Study):
    name = "sparse_dnn"
    title = "Sparse DNN Challenge: networks"
    paper = (
        "M. Hidayetoglu et al.: At-Scale Sparse Deep Neural Network Inference With Efficient GPU Implementation, "
        "HPEC 2020"
    )
    gpu = "V100 and A100"
    claims = (
        Claim("tera-edges a second, one GPU", "3.47 to 14.30 (V100), 8.15 to 20.99 (A100)", "Table I"),
        Claim("the same, by up to 768 V100", "180", "Table I"),
        Claim("efficiency of 6 GPUs of a node at 65536 neurons", "87.6 %", "section IV-C"),
        Claim("over the baseline kernel of listing 1", "5.56 to 11.84 ×", "section IV-B"),
    )
    differs = (
        "Images are MNIST's in its own order, thresholded after bilinear enlargement: not the challenge's own files.",
        "Ours computes float16 on tensor cores where a network allows it, and drops dead inputs between layers.",
        "What is packed for one device serves two: their seconds to prepare are those of a network that was packed.",
        "Of the wide networks only some inputs are held against float64, which takes long; the emulator takes few of "
        "all, and no network of more than 268 million weights.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        for neurons, layers, images in _networks(setting):
            given = neurons, layers, images, setting
            host, checked = network_seconds(neurons, layers, images), check_seconds(neurons, layers, images)
            yield Point(
                f"{neurons} x {layers}, categories",
                lambda g=given: categories(*g),
                expected=host + checked,
                is_timed=False,
                group=str(neurons),
            )
        for neurons, layers, images in _networks(setting) if setting.is_timed or setting.tiny else ():
            given = neurons, layers, images, setting
            for count in (count for count in (1, 2, 4) if count <= setting.gpus):
                host = network_seconds(neurons, layers, images)
                called = (1 + CALLS) * FAN_IN * neurons * layers * images / 60e12
                yield Point(
                    f"{neurons} x {layers}, {count} devices",
                    lambda g=given, c=count: timed(*g, c),
                    expected=host + called,
                )

    def table(self, document: Document) -> str:
        lines, exact = [], {_key(row): row for row in document["rows"] if "living" in row}
        has_times = {_key(row) for row in document["rows"] if row.get("ms")}
        for row in document["rows"]:
            key = _key(row)
            if key in has_times and not row.get("ms"):
                continue  # its categories stand beside its times
            held = exact.get(key, {})
            on = f", {row['devices']} GPU" if row.get("ms") else ""
            speed = row.get("tera_edges_per_second")
            lines.append(
                [
                    f"{key[0]} × {key[1]}{on}", figure(row.get("ms")),
                    figure(speed), figure(V100.get(key)), figure(A100.get(key)),
                    outcome(speed / A100[key]) if speed and key in A100 and row["devices"] == 1 else NONE,
                    figure(row.get("seconds_to_prepare")),
                    f"{held['living']:,} of {held['inputs']:,}" if held else NONE,
                    f"{held['checked']:,}" if held else NONE,
                ]
            )  # fmt: skip
        head = [
            "network",
            "ms, host to host",
            "TE/s",
            "V100 (paper)",
            "A100 (paper)",
            "beside it",
            "s to prepare",
            "living",
        ]
        return table([*head, "held against float64"], lines)

    def results(self, document: Document) -> Sequence[str]:
        found = []
        for told, theirs in (("one V100 of the paper", V100), ("one A100 of the paper", A100)):
            ratios = [
                row["tera_edges_per_second"] / theirs[row["neurons"], row["layers"]]
                for row in document["rows"]
                if row["devices"] == 1 and row.get("ms") and (row["neurons"], row["layers"]) in theirs
            ]
            if ratios:
                found.append(result(f"Over {told}, the least of {len(ratios)} networks", min(ratios)))
        timed = [row for row in document["rows"] if row.get("ms")]
        alone = {_key(row): row for row in timed if row["devices"] == 1}
        for row in timed:
            one = alone.get(_key(row))
            if row["devices"] > 1 and one:
                share = one["ms"] / row["ms"] / row["devices"]
                told = f"{row['neurons']} × {row['layers']} on {row['devices']} GPUs: efficiency {share:.0%}"
                both = [each.get("totals") for each in (one, row)]
                if None not in both:
                    told += (
                        ", with the totals of one"
                        if both[0] == both[1]
                        else ", **with other totals than one**"
                    )
                found.append(
                    result(f"{told}, over the paper's of 6", share / NODE)
                    if row["neurons"] == WIDEST
                    else f"{told}."
                )
        held = {_key(row): row["checked"] for row in document["rows"] if "checked" in row}
        if held:
            least, most = min(held.values()), max(held.values())
            inputs = f"{least:,}" + (f" to {most:,}" if most > least else "")
            found.append(
                f"Categories of {len(held)} of {len(CONFIGURATIONS)} networks are those of float64, of {inputs} inputs "
                "each."
            )
        return found

    def why(self, document: Document, name: str) -> str:
        if "efficiency" in name:
            return "one host sends and collects for all GPUs, and the smaller a GPU's part, the more its launches weigh"
        return "most inputs live, so that dropping dead ones spares little"


def _key(row: Row) -> tuple[int, int]:
    """The network of a row."""
    return row["neurons"], row["layers"]


def _networks(setting: Setting) -> list[tuple[int, int, int]]:
    """Neurons, layers and inputs of the networks, the smallest first."""
    if setting.tiny:
        return [(256, 6, 48)]
    networks = sorted(CONFIGURATIONS, key=lambda one: one[0] * one[1])
    if setting.is_timed:
        return [(*one, IMAGES) for one in networks]
    return [(*one, ON_EMULATOR[one[0]]) for one in networks if FAN_IN * one[0] * one[1] <= MOST_EDGES]


@lru_cache(maxsize=1)
def made(neurons: int, layers: int) -> tuple[SparseNetwork, float]:
    """A network, and the seconds that it took; what is packed for one device serves several."""
    began = time.perf_counter()
    network = radixnet(neurons, layers)
    return SparseNetwork(network), round(time.perf_counter() - began, 2)


def packed(network: SparseNetwork, count: int, devices: Sequence[Device]) -> DeviceGroup:
    """The network on some devices, for totals of some inputs."""
    return network.group(count, Readout.TOTALS, Placement.of(None, list(devices), None))


def network_seconds(neurons: int, layers: int, images: int) -> float:
    """Seconds until a network lies on a device; nearly all are the host's.

    An image takes 2 ns a pixel to enlarge.
    """
    return 5 + FAN_IN * neurons * layers * (GENERATED + PACKED) + images * neurons * 2e-9


def check_seconds(neurons: int, layers: int, images: int) -> float:
    """Seconds of categories: kernels, packing once more, and float64.

    That is two operations a weight and input, at a tenth of float32's rate, for data that lie apart; most inputs die.
    """
    weights = FAN_IN * neurons * layers
    checked = min(images, CHECKED.get(neurons, images))
    return weights * PACKED + seconds(float32=5 * 2 * weights * checked, compiled=4)


def timed(neurons: int, layers: int, count: int, setting: Setting, gpus: int) -> dict[str, Any]:
    """Times from host to host, and of what comes before the first of them; none where times mean nothing."""
    devices = find_devices("all")[:gpus] if setting.is_timed else [setting.device]
    (network, generated), (images, what) = made(neurons, layers), enlarged(neurons, count, setting)
    began = time.perf_counter()
    inputs, group = BitInputs.of(images), packed(network, count, devices)
    totals = group.infer(inputs).results
    prepared = time.perf_counter() - began
    ms = 1e3 * median_seconds(lambda: group.infer(inputs), devices) if setting.is_timed else None
    rate = ms and round(network.network.edges * count / ms / 1e9, 4)
    return {
        "neurons": neurons,
        "layers": layers,
        "inputs": count,
        "data": what,
        "devices": len(devices),
        "ms": ms and round(ms, 4),
        "tera_edges_per_second": rate,
        "seconds_to_generate": generated,
        "seconds_to_prepare": round(prepared, 2),
        "totals": hashlib.sha256(np.ascontiguousarray(totals).tobytes()).hexdigest(),
    }


def categories(neurons: int, layers: int, count: int, setting: Setting) -> dict[str, Any]:
    """Exact categories, some of them held against float64, and how many of those differ that totals tell.

    Raises:
        WrongResultError: categories differ from float64's.
    """
    (network, generated), (images, what) = made(neurons, layers), enlarged(neurons, count, setting)
    row = {"neurons": neurons, "layers": layers, "inputs": count, "data": what, "devices": 1}
    told = np.flatnonzero(packed(network, count, [setting.device]).infer(BitInputs.of(images)).results)
    checked = min(count, CHECKED.get(neurons, count))
    living = held_against_float64(network.network, images, checked, setting.device)
    unlike = np.setxor1d(told, living).size
    return row | {
        "living": living.size,
        "checked": checked,
        "totals_differ": unlike,
        "seconds_to_generate": generated,
    }


def held_against_float64(network: Network, images: Array, checked: int, device: Device) -> Array:
    """The inputs that live, by exact categories; some of these are held against float64.

    Raises:
        WrongResultError: they differ.
    """
    live = SparseNetwork(network, device=device).categories(images.astype(np.float16))
    right = live_through_all_layers(network, images[:checked], torch_place(device))
    unlike = np.setxor1d(live[live < checked], right).size
    if unlike:
        raise WrongResultError(f"{unlike} of {checked} categories are not those of float64")
    return live


@lru_cache(maxsize=1)
def enlarged(neurons: int, count: int, setting: Setting) -> tuple[Array, str]:
    """Digits as zeros and ones, inputs × neurons: enlarged bilinearly to a square of pixels, thresholded."""
    learnt, _, what = setting.data.digits(count, 1)
    side = round(neurons**0.5)
    grey = learnt.images
    at = (np.arange(side) + 0.5) * grey.shape[1] / side - 0.5
    low = np.clip(np.floor(at).astype(int), 0, grey.shape[1] - 1)
    high = np.minimum(low + 1, grey.shape[1] - 1)
    part = np.clip(at - low, 0, 1).astype(np.float32)
    found = np.empty((len(grey), neurons), np.uint8)
    for first in range(0, len(grey), 1024):
        some = grey[first : first + 1024]
        rows = some[:, low] * (1 - part)[:, None] + some[:, high] * part[:, None]
        whole = rows[:, :, low] * (1 - part) + rows[:, :, high] * part
        found[first : first + 1024] = (whole >= THRESHOLD).reshape(len(some), neurons)
    return found, what


def median_seconds(call: Callable[[], Any], devices: Sequence[Device]) -> float:
    """Seconds by wall clock, while no other process measures on these devices."""
    taken = []
    with contextlib.ExitStack() as turns:
        for device in sorted(devices, key=lambda one: one.uuid or ""):  # all processes wait in one order
            turns.enter_context(turn(device))
        for _ in range(CALLS):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return float(np.median(taken))


STUDY = SparseDnn()
main = STUDY.command()

if __name__ == "__main__":
    main()
