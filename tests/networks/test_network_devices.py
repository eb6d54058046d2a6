"""Inputs dealt to several devices, emulated ones: results in input order, whoever computed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsegen.errors import ConfigError, DeviceUnavailableError, KernelFault
from sparsegen.networks.dealing import ChunkQueue, chunk_sizes, dealing_order, evenly
from sparsegen.networks.device_run import DeviceRun
from sparsegen.networks.images import stroke_images
from sparsegen.networks.inputs import BitInputs
from sparsegen.networks.placement import Placement
from sparsegen.networks.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.settings import Settings

INPUTS = 70


@pytest.fixture
def where(tmp_path: Path, emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("SPARSEGEN_EMULATORS", "4")
    return {"device": "emulator", "db": tmp_path / "tuning.db"}


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


@pytest.mark.parametrize("count", [1, 7, 64, 1000, 60000])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_chunks_are_all_inputs_and_the_last_ones_are_small(count: int, devices: int) -> None:
    sizes = chunk_sizes(count, devices, 1024, 64)
    assert sum(sizes) == count and sizes == sorted(sizes, reverse=True) and max(sizes) <= 1024
    # Whoever is free takes the next: nobody works longer than the mean and one small chunk.
    ends = [0] * devices
    for size in sizes:
        ends[ends.index(min(ends))] += size
    assert max(ends) <= count / devices + 2 * 64


@pytest.mark.parametrize("count", [1, 2, 3, 10, 97, 4096, 60000])
def test_every_part_of_the_order_is_spread_evenly(count: int) -> None:
    order = evenly(count)
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    if count >= 97:
        for part in np.array_split(order, 4):
            assert abs(part.mean() - (count - 1) / 2) < 0.02 * count


def test_a_queue_gives_each_chunk_once() -> None:
    queue = ChunkQueue(np.arange(10), [4, 4, 2])
    taken = [queue.take() for _ in range(4)]
    assert taken.pop() is None
    assert [chunk.tolist() for chunk in taken if chunk is not None] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    queue = ChunkQueue(np.arange(10), [4, 6])
    queue.empty()
    assert queue.take() is None


@pytest.mark.parametrize("planted", ["in front", "scattered", "every fourth", "not by ones"])
def test_inputs_that_live_are_dealt_evenly(where: dict[str, Any], planted: str) -> None:
    """However those that die are planted, each of four devices' chunks has as many that live as the others, nearly;
    and results are those of one device.
    """
    neurons, count = 256, 400
    rng = np.random.default_rng(0)
    lives = {
        "in front": np.arange(count) >= 3 * count // 4,
        "scattered": rng.permutation(count) < count // 4,
        "every fourth": np.arange(count) % 4 == 0,
    }.get(planted)
    share = np.full(count, 0.45) if lives is None else np.where(lives, 0.7, 0.1)  # 0.45 is where fates part
    y0 = (rng.random((count, neurons)) < share[:, None]).astype(np.uint8)
    net = SparseNetwork(radixnet(neurons, 5, bias=-0.45), **where)
    right = net.totals(y0)
    live = np.count_nonzero(right)
    assert live == count // 4 if lives is not None else count // 10 < live < count
    group = net.group(count, "totals", Placement.of(None, "all", None))
    inputs = BitInputs.of(y0)
    chunks = np.array_split(dealing_order(group.packed, inputs, 4), 4)
    alive = np.array([np.count_nonzero(right[chunk]) for chunk in chunks])
    assert np.all(np.abs(alive - alive.mean()) <= 0.15 * alive.mean()), alive
    np.testing.assert_array_equal(group.infer(inputs).results, right)
