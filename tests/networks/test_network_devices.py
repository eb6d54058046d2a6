"""Inputs dealt to several devices, emulated ones: results in input order, whoever computed them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.errors import ConfigError, DeviceUnavailableError, KernelFault
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.inputs import BitInputs, as_inputs
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.packed import packing
from sparsegen.networks.run import result_buffers, staging
from sparsegen.networks.run.device_run import DeviceRun
from sparsegen.networks.run.placement import Placement
from sparsegen.networks.sparse_network import SparseNetwork

INPUTS = 70
NARROW: dict[str, Any] = {
    "family": "streamed_network",
    "config": {
        "inputs": 16,
        "warps": 4,
        "run": 1,
        "stages": 2,
        "sharing": "layers",
        "sets": 1,
        "set_tiles": 1,
        "first_check": 5,
        "checks": 2,
    },
}


def growing_images() -> Any:
    """Inputs with few and with many ones, some of which die."""
    rng = np.random.default_rng(1)
    return (rng.random((INPUTS, 64)) < np.linspace(0.05, 0.6, INPUTS)[:, None]).astype(np.uint8)


@pytest.fixture(autouse=True)
def emulators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_EMULATORS", "4")


@pytest.mark.parametrize("bias", [-0.2, 0.05])
@pytest.mark.parametrize("devices", ["emulator:2", "emulator:0,emulator:3", "all"])
def test_results_are_those_of_one_device(where: dict[str, Any], bias: float, devices: str) -> None:
    net = SparseNetwork(radixnet(64, 6, bias=bias), **where)
    y0 = stroke_images(INPUTS, 64)
    right, active = net(y0)
    found, living = net(y0, devices=devices)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(living, active)
    np.testing.assert_array_equal(net.totals(y0, devices=devices, memory="60 kB"), net.totals(y0))
    if bias < 0:
        assert 0 < active.size < INPUTS
        np.testing.assert_array_equal(net.categories(y0, devices=devices), net.categories(y0))


def test_every_device_has_its_part_and_says_so(where: dict[str, Any]) -> None:
    net = SparseNetwork(radixnet(64, 6, bias=-0.2), **where)
    group = net.group(INPUTS, "totals", Placement.of(None, "all", None))
    dealt = group.infer(BitInputs.of(stroke_images(INPUTS, 64)))
    assert sum(dealt.inputs_of) == INPUTS and len(dealt.inputs_of) == 4
    assert "emulator, emulator:1, emulator:2, emulator:3" in net.explain(INPUTS, "totals", devices="all")


def test_a_device_that_fails_stops_the_others_and_all_go_on_afterwards(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = SparseNetwork(radixnet(64, 6), **where)
    y0 = stroke_images(INPUTS, 64)
    right = net.totals(y0, devices="all")

    def fails(self: DeviceRun, *arguments: Any) -> None:
        raise KernelFault("out of bounds")

    with monkeypatch.context() as patch:
        patch.setattr(DeviceRun, "_launch", fails)
        with pytest.raises(KernelFault, match="out of bounds"):
            net.totals(y0, devices="all")
    np.testing.assert_array_equal(net.totals(y0, devices="all"), right)


def test_devices_that_are_not_there_or_twice_there_are_told(where: dict[str, Any]) -> None:
    net, y0 = SparseNetwork(radixnet(64, 2), **where), stroke_images(4, 64)
    with pytest.raises(DeviceUnavailableError):
        net.totals(y0, devices="emulator:4")
    with pytest.raises(ConfigError, match="each device once"):
        net.totals(y0, devices="emulator,emulator:0")
    with pytest.raises(ConfigError, match="each of them once"):
        net.totals(y0, devices=["emulator", "emulator:0"])
    np.testing.assert_array_equal(net.totals(y0, devices=["emulator", "emulator:1"]), net.totals(y0))


@pytest.mark.parametrize("planted", ["in front", "scattered", "every fourth"])
def test_inputs_that_live_are_dealt_evenly(where: dict[str, Any], planted: str) -> None:
    """However those that die are planted, each of four devices has some that live; results are those of one."""
    neurons, count = 256, 400
    rng = np.random.default_rng(0)
    lives = {
        "in front": np.arange(count) >= 3 * count // 4,
        "scattered": rng.permutation(count) < count // 4,
        "every fourth": np.arange(count) % 4 == 0,
    }[planted]
    share = np.where(lives, 0.7, 0.1)
    y0 = (rng.random((count, neurons)) < share[:, None]).astype(np.uint8)
    net = SparseNetwork(radixnet(neurons, 5, bias=-0.45), **where)
    right = net.totals(y0)
    assert np.count_nonzero(right) == count // 4
    group = net.group(count, "totals", Placement.of(None, "all", None))
    alive = np.array([np.count_nonzero(right[chunk.numbers]) for chunk in group.chunks(count, 4)])
    assert alive.size == 4 and np.all(np.abs(alive - alive.mean()) <= 0.4 * alive.mean()), alive
    np.testing.assert_array_equal(group.infer(BitInputs.of(y0)).results, right)


@pytest.mark.parametrize("readout", ["totals", "neurons"])
@pytest.mark.parametrize("devices", ["emulator", "emulator:0,emulator:1"])
def test_several_batches_on_each_device(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch, readout: str, devices: str
) -> None:
    """Inputs of bits and of numbers go up, and results come back in pieces, while the batch between is computed."""
    monkeypatch.setattr(packing, "TURN_BYTES", 64)
    monkeypatch.setattr(result_buffers, "PIECE_BYTES", 600)
    monkeypatch.setattr(staging, "PIECE_BYTES", 40)
    monkeypatch.setattr(staging, "LEAST_BYTES", 16)
    net = SparseNetwork(radixnet(64, 6, bias=-0.2), **NARROW, **where)
    y0 = growing_images()
    right = net.totals(y0) if readout == "totals" else net(y0)[0]
    assert 0 < np.count_nonzero(right.reshape(INPUTS, -1).any(axis=1)) < INPUTS
    group = net.group(INPUTS, readout, Placement.of(None, devices, None))
    launches: list[int] = []
    launch = DeviceRun._launch

    def counted(self: DeviceRun, segment: Any, weights: Any, count: int, to: Any) -> None:
        launches.append(count)
        launch(self, segment, weights, count, to)

    monkeypatch.setattr(DeviceRun, "_launch", counted)
    for given in (BitInputs.of(y0), as_inputs(y0.astype(np.float32), 64, net.dtype)):
        launches.clear()
        found = group.infer(given).results
        np.testing.assert_array_equal(net.dtype.from_storage(found) if readout == "neurons" else found, right)
        assert sum(launches) == INPUTS and len(launches) >= 3, launches
