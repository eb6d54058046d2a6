"""Sparse networks on several GPUs, and with layers streamed from the host, by wall clock.

    python -m benchmarks.network_devices
    python -m benchmarks.network_devices --devices 0,1 --seconds 100
    python -m benchmarks.network_devices --devices emulator --neurons 256 --layers 6 --inputs 96

Cases: every input alive (random weights and biases) and challenge-like (most inputs die), on 1, 2, 4, … devices; and on
one device layers that are streamed, two segments at a time, against the same layers resident. Inputs are bits on the
host, results totals on the host; both copies are in the times, which are medians after a first call. Results must be
equal, bit for bit, however many devices compute them and whether layers are streamed or not. The topology is packed
once for each case, and preprocessing is timed by itself. A time limit ends the study between two rows. Raw output:
``network_devices.json.xz``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.study import Rows, WrongResultError, write_results
from sparsegen import SparseNetwork
from sparsegen.backends import find_devices
from sparsegen.kernels.base import Device
from sparsegen.networks.files.packed_file import load_packed, save_packed
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.inputs import BitInputs
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.run.dealing import Dealt, DeviceGroup
from sparsegen.networks.run.placement import Placement
from sparsegen.operators.sparse_network import Readout
from sparsegen.plan.executors import shared_executor

DISTINCT = 2048  # images; inputs repeat them
CALLS = 3


@dataclass
class Study:
    """Rows so far, what preprocessing took, when to end, and a folder for what is streamed from a file."""

    ends: float
    device: Device
    family: str
    folder: Path
    rows: Rows = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return time.perf_counter() > self.ends

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Times a step of the preprocessing, and prints its time."""
        began = time.perf_counter()
        yield
        self.seconds[what] = round(time.perf_counter() - began, 2)
        click.echo(f"# {what}: {self.seconds[what]:.1f} s")

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        write_results(self.device, "network_devices", self.rows, preprocessing_seconds=self.seconds)
        words = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in row.items()
        )
        click.echo(", ".join(word for word in words if not word.startswith(("state", "measured"))))


@click.command()
@click.option("--devices", "names", default="all", show_default=True, help="As of sparsegen network run.")
@click.option("--neurons", default=65536, show_default=True)
@click.option("--layers", default=120, show_default=True)
@click.option("--inputs", default=60000, show_default=True)
@click.option("--segment-layers", default=48, show_default=True, help="Of a segment that is streamed.")
@click.option("--segments", default=10, show_default=True, help="As often it stands behind itself.")
@click.option("--streamed-inputs", default=16896, show_default=True, help="Of the streamed cases.")
@click.option(
    "--family", default="streamed_network", show_default=True, help="Of kernels, by its heuristic config."
)
@click.option("--seconds", default=100.0, show_default=True, help="After which no further row is begun.")
def main(
    names: str,
    neurons: int,
    layers: int,
    inputs: int,
    segment_layers: int,
    segments: int,
    streamed_inputs: int,
    family: str,
    seconds: float,
) -> None:
    devices = find_devices(names)
    with tempfile.TemporaryDirectory() as folder:
        study = Study(time.perf_counter() + seconds, devices[0], family, Path(folder))
        measure(study, devices, neurons, layers, inputs, segment_layers, segments, streamed_inputs)


def measure(
    study: Study,
    devices: list[Device],
    neurons: int,
    layers: int,
    inputs: int,
    segment_layers: int,
    segments: int,
    streamed_inputs: int,
) -> None:
    """All rows; see the command's options."""
    with study.timed("generate"):
        challenge = radixnet(neurons, layers)
    with study.timed("images"):
        images = BitInputs.of(stroke_images(min(DISTINCT, inputs), neurons))
        given = images.some(np.arange(inputs) % images.count)
    with study.timed("weights"):
        alive = living(challenge)
    for name, network in (("alive", alive), ("challenge-like", challenge)):
        if not study.is_over:
            on_devices(study, name, network, given, devices)
    few = given.some(np.arange(min(streamed_inputs, inputs)))
    for name, network in (("alive", alive), ("challenge-like", challenge)):
        if not study.is_over:
            part = slice(0, segment_layers)
            cut = replace(network, layers=network.layers[part], biases=network.biases[part])
            streamed(study, name, cut, few, devices[0], segments)


def living(network: Network) -> Network:
    """The same topology with weights below 1/16 and biases by which every input lives; nothing is ever clipped."""
    rng = np.random.default_rng(0)
    weights = [
        layer.with_values(
            (rng.random(layer.nnz, dtype=np.float32) / 16).astype(np.float16).astype(np.float32)
        )
        for layer in network.layers
    ]
    biases = tuple(rng.uniform(-0.05, 0.10, bias.size).astype(np.float32) for bias in network.biases)
    return replace(network, layers=tuple(weights), biases=biases)


def on_devices(study: Study, case: str, network: Network, inputs: BitInputs, devices: list[Device]) -> None:
    """Rows for 1, 2, 4, … devices.

    Raises:
        WrongResultError: several devices give other results than one.
    """
    net, series = SparseNetwork(network, family=study.family), Series(case, network, inputs)
    for count in (1 << i for i in range(len(devices).bit_length())):
        if study.is_over:
            return
        placement = Placement.of(None, devices[:count], None)
        with study.timed(f"pack and upload {case} for {count}"):
            group = net.group(inputs.count, Readout.TOTALS, placement)
            found = group.infer(inputs)
        row, ratio, dealt = series.row(group, found, f"on {count} devices")
        study.add(
            **row,
            devices=count,
            efficiency=1 / ratio / count,
            inputs_of=list(dealt.inputs_of),
            batch=group.packed.plan.batch,
        )
        net.release()


def streamed(
    study: Study, case: str, network: Network, inputs: BitInputs, device: Device, repeats: int
) -> None:
    """Rows for segments that are resident, streamed from pinned memory, by way of staging memory, and from a file.

    The network is the given one, ``repeats`` times in sequence: packed once, each copy is streamed by itself.

    Raises:
        WrongResultError: streamed layers give other results.
    """
    placement = Placement.of(None, [device], None)
    net = SparseNetwork(network, family=study.family)
    with study.timed(f"pack {case} once"):
        whole = repeated(net.group(inputs.count, Readout.TOTALS, placement).packed, repeats)
        net.release()
    with study.timed(f"pin {case}"):
        executor = shared_executor(device)
        pinned = repeated(replace(whole, segments=whole.segments[:1]).pin(executor), repeats)
    series = Series(case, network, inputs, repeats)
    cases = (("resident", whole, repeats), ("pinned", pinned, 2), ("staged", whole, 2), ("file", whole, 2))
    for where, packed, slots in cases:
        if study.is_over:
            return
        if where == "file":
            with study.timed(f"write {case}"):
                packed = from_file(packed, study.folder)
        group = placement.group(replace(packed, plan=replace(packed.plan, slots=slots)))
        found = group.infer(inputs)
        row, ratio, dealt = series.row(group, found, where)
        study.add(
            **row,
            devices=1,
            weights=where,
            over_resident=ratio,
            batch=packed.plan.batch,
            segments=repeats,
            segments_copied=sum(dealt.copies_of),
            segment_bytes=packed.slot_bytes,
        )


def from_file(packed: PackedNetwork, folder: Path) -> PackedNetwork:
    """The same mapped from a file, with a copy there of every segment."""
    file = folder / "network.packed"
    save_packed(packed, file)
    return load_packed(file)


def repeated(packed: PackedNetwork, repeats: int) -> PackedNetwork:
    """A packed network of one segment several times behind itself."""
    (first,) = packed.segments[:1]
    between = replace(first.problem, readout=Readout.NEURONS)
    last = replace(first.problem, readout=Readout.TOTALS)
    count = len(first.layers)
    segments = tuple(
        replace(
            first,
            layers=range(i * count, (i + 1) * count),
            problem=last if i == repeats - 1 else between,
        )
        for i in range(repeats)
    )
    plan = replace(packed.plan, segments=repeats)
    return replace(packed, segments=segments, edges=repeats * first.problem.edges(first.nnz), plan=plan)


@dataclass
class Series:
    """Rows of one case: the first one has the results that all must have, and the time that others are held against.

    Attributes:
        repeats: so often the network stands behind itself.
    """

    case: str
    network: Network
    inputs: BitInputs
    repeats: int = 1
    first: tuple[float, np.ndarray] | None = None

    def row(self, group: DeviceGroup, found: Dealt, what: str) -> tuple[dict[str, Any], float, Dealt]:
        """Returns the values that all rows have, the time over the first row's, and the last call's division of inputs.

        Args:
            found: result of a first call, which is not timed.

        Raises:
            WrongResultError: the results are not those of the first row.
        """
        us, dealt = median_us(lambda: group.infer(self.inputs))
        first_us, right = self.first = self.first or (us, found.results)
        if unlike := int(np.count_nonzero(found.results != right)):
            raise WrongResultError(
                f"{self.case}, {what}: {unlike} of {right.size} results are not those of one device, resident"
            )
        edges = self.repeats * self.network.edges * self.inputs.count
        told = {
            "case": self.case,
            "neurons": self.network.neurons,
            "layers": self.repeats * len(self.network.layers),
            "inputs": self.inputs.count,
            "ms": us / 1e3,
            "tera_edges_per_second": edges / us / 1e6,
            "living": int(np.count_nonzero(found.results)),
        }
        return told, us / first_us, dealt


def median_us(call: Callable[[], Dealt]) -> tuple[float, Dealt]:
    """Microseconds of a call, and what the last one gave."""
    taken = []
    for _ in range(CALLS):
        began = time.perf_counter()
        found = call()
        taken.append(1e6 * (time.perf_counter() - began))
    return float(np.median(taken)), found


if __name__ == "__main__":
    main()
