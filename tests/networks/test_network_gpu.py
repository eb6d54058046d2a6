"""Networks on GPUs: every family, exact categories; in batches, within a budget and on all GPUs what one launch gives.

The same tests on the emulator, smaller: -m gpu --gpu-device emulator tests/networks/test_network_gpu.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.matrix.generators import random_rows
from sparsegen.networks.exact.exact import inferred
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.inputs import BitInputs
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.packed import packing
from sparsegen.networks.run.placement import Placement
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators.sparse_network import Activation
from sparsegen.plan.executors import shared_executor

pytestmark = pytest.mark.gpu

NEURONS = 1024
SIZES = {"cuda": (24, 3001), "emulator": (24, 301)}  # layers, inputs
ALIVE: dict[str, Any] = {"first_check": 0, "checks": 1}
DYING: dict[str, Any] = {"first_check": 5, "checks": 2}
SOON: dict[str, Any] = {"first_check": 1, "checks": 3}
RING = {"inputs": 96, "warps": 16, "run": 4, "biases": "multiplied"}
BUFFERS = {"inputs": 40, "warps": 16, "run": 2, "parts": 2, "biases": "multiplied", "ahead": 32}
PAIRS = {"cluster": 2, "inputs": 24, "warps": 8, "run": 4, "sending": "listed"}
EIGHTS = {"cluster": 8, "inputs": 40, "warps": 4, "run": 2, "sending": "sought"}
STAGED = {"minibatch": 16, "vector": 8, "buffer": 1024, "warps": 8, "resident_blocks": 1}
INPUTS = {"sharing": "inputs", "inputs": 64, "run": 4, "stages": 6, "sets": 1, "set_tiles": 1}
LAYERS = {"sharing": "layers", "inputs": 32, "run": 4, "stages": 12, "sets": 2, "set_tiles": 1}


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    return str(request.config.option.gpu_device)


@pytest.fixture
def where(device: str, tmp_path: Path) -> dict[str, Any]:
    return {"device": device, "db": tmp_path / "tuning.db"}


@pytest.mark.parametrize(
    ("bias", "readout", "family", "config"),
    [
        (-0.3, "totals", "streamed_network", LAYERS | DYING),
        (-0.3, "neurons", "streamed_network", LAYERS | DYING),
        (0.05, "totals", "streamed_network", LAYERS | ALIVE),
        (0.05, "neurons", "streamed_network", LAYERS | ALIVE),
        (-0.3, "totals", "streamed_network", INPUTS | DYING),
        (0.05, "neurons", "streamed_network", INPUTS | ALIVE),
        (-0.3, "totals", "fused_network", BUFFERS | DYING),
        (0.05, "neurons", "fused_network", RING | ALIVE),
        (-0.3, "totals", "cluster_network", PAIRS | DYING),
        (0.05, "neurons", "cluster_network", EIGHTS | ALIVE),
        (-0.3, "neurons", "staged_network", STAGED | DYING),
        (0.05, "totals", "staged_network", STAGED | ALIVE),
    ],
)
def test_results_are_those_of_one_launch(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    where: dict[str, Any],
    readout: str,
    bias: float,
    family: str,
    config: dict[str, Any],
) -> None:
    monkeypatch.setattr(packing, "TURN_BYTES", 1 << 14)
    layers, count = SIZES[device]
    net = SparseNetwork(radixnet(NEURONS, layers, bias=bias), family=family, config=config, **where)
    y0 = stroke_images(count, NEURONS)
    right = net.totals(y0) if readout == "totals" else net(y0)[0]
    living = np.count_nonzero(right.reshape(count, -1).any(axis=1))
    assert 0 < living < count or (bias > 0 and living == count)
    whole = net.group(count, readout, Placement.of("1 GiB", None, device)).packed.plan
    small, tight = whole.segment_bytes * 3 // 2 + whole.batch_bytes // 4, whole.segment_bytes * 5 // 8
    for memory, devices in ((None, "all"), (small, None), (tight, None), (tight, "all")):
        plan = net.group(count, readout, Placement.of(memory, devices, device)).packed.plan
        assert (plan.segments > 2) == (memory == tight) and (memory != small or plan.batch < count)
        for given in (BitInputs.of(y0), y0.astype(np.float16)):
            found = (
                net.totals(given, memory=memory, devices=devices)
                if readout == "totals"
                else net(given, memory=memory, devices=devices)[0]
            )
            np.testing.assert_array_equal(found, right)
    net.release()


def of_small_integers(layers: int, activation: Activation) -> Network:
    """The challenge's topology and a layer whose rows share nothing; sums are exact in any order."""
    rng = np.random.default_rng(1)
    made = list(radixnet(NEURONS, layers).layers)
    made[layers // 2] = random_rows(NEURONS, NEURONS, 0.02, 0.3, seed=5)
    weights = [layer.with_values(rng.integers(-2, 4, layer.nnz).astype(np.float32)) for layer in made]
    low, high = (-40, 1) if activation is Activation.DYING_RELU else (-60, 20)
    return Network.of(weights, [rng.integers(low, high, NEURONS) for _ in weights], 31.0)


@pytest.mark.parametrize(
    ("activation", "dtype", "family", "config"),
    [
        (Activation.DYING_RELU, "float16", "fused_network", BUFFERS | SOON),
        (Activation.NONE, "float16", "fused_network", BUFFERS | {"ahead": 0, "biases": "added"} | ALIVE),
        (Activation.RELU, "float16", "fused_network", RING | ALIVE),
        (Activation.DYING_RELU, "float16", "cluster_network", PAIRS | SOON),
        (Activation.NONE, "float16", "cluster_network", EIGHTS | ALIVE),
        (Activation.DYING_RELU, "float16", "streamed_network", INPUTS | SOON),
        (Activation.RELU, "float16", "streamed_network", LAYERS | ALIVE),
        (Activation.DYING_RELU, "float16", "staged_network", STAGED | SOON),
        (Activation.RELU, "float32", "staged_network", STAGED | {"vector": 4} | ALIVE),
        (Activation.NONE, "bfloat16", "staged_network", STAGED | {"staging": "neurons"} | ALIVE),
    ],
)
def test_small_integers_are_exact(
    device: str,
    where: dict[str, Any],
    activation: Activation,
    dtype: str,
    family: str,
    config: dict[str, Any],
) -> None:
    """Inputs that fill no tile, an odd number of layers, and a second launch on memory that the first one left."""
    count = SIZES[device][1]
    asked = "none" if activation is Activation.NONE else "relu"
    network = of_small_integers(9, activation)
    net = SparseNetwork(network, activation=asked, dtype=dtype, family=family, config=config, **where)
    assert net.activation is activation
    rng = np.random.default_rng(2)
    y0 = (rng.random((count, NEURONS)) < np.linspace(0, 0.5, count)[:, None]).astype(np.float32)
    y0[::3] = 0
    right = inferred(network, activation, y0)
    assert np.unique(right).size > 20
    if activation is Activation.DYING_RELU:
        assert 0 < np.count_nonzero(right.any(axis=1)) < count
    for _ in range(2):
        np.testing.assert_array_equal(net(y0)[0], right)
    np.testing.assert_array_equal(net.totals(y0), right.sum(axis=1))


def images_and_ties(count: int) -> Any:
    """Every second one near the unstable fixed point of a network with a bias of -0.3."""
    found = stroke_images(count, NEURONS).astype(np.float16)
    ties = (np.arange(count)[::2] % 11 - 5)[:, None].astype(np.float16)
    found[::2] = np.float16(0.3) + ties * np.float16(2.0**-12)
    return found


def test_exact_categories_are_those_of_float64(device: str, where: dict[str, Any]) -> None:
    layers, count = SIZES[device]
    net = SparseNetwork(radixnet(NEURONS, layers, bias=-0.3), **where)
    y0 = images_and_ties(count)
    right = np.flatnonzero(net.inferred(y0).any(axis=1))
    assert 0 < right.size < count
    for options in ({}, {}, {"memory": "3 MiB"}, {"devices": "all"}):
        np.testing.assert_array_equal(net.categories(y0, **options), right)
        assert 0 < net.undecided < count
    net.release()


def test_exact_categories_of_several_streams(device: str, where: dict[str, Any]) -> None:
    """Results of one stream do not change by another stream's work in the same memory."""
    if device == "cuda":
        torch = pytest.importorskip("torch")
        made = [torch.cuda.Stream() for _ in range(2)]
        streams = [stream.cuda_stream for stream in made]
    else:
        streams = [1, 2]
    count = SIZES[device][1]
    net = SparseNetwork(radixnet(NEURONS, 12, bias=-0.3), **where)
    given = images_and_ties(count)
    both = given, np.ascontiguousarray(given[::-1])
    right = [net.categories(one) for one in both]
    executor, run = shared_executor(backends.find_device(device)), net.exact_run()
    assert not np.array_equal(*right)
    with executor.entered():
        held = [executor.upload(one) for one in both]
        executor.synchronize()
    for turn in range(20 if device == "cuda" else 1):
        own, other = turn % 2, 1 - turn % 2
        run.queue(held[other], count, streams[other])
        found = run.categories(held[own], count, streams[own])
        np.testing.assert_array_equal(found.live, right[own])
