"""Networks within a budget of memory, on the emulator: results as in core, and never more memory than was allowed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from general_layers import general_layers

from sparsegen import backends
from sparsegen.backends.emulator.executor import EmulatorExecutor, HostBuffer
from sparsegen.errors import CompileError, ConfigError, DeviceMemoryError, OperandError, SavedOperatorError
from sparsegen.networks.files.packed_file import is_packed, load_packed, save_packed
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.inputs import BitInputs
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.packed import packing
from sparsegen.networks.run import placement
from sparsegen.networks.run.device_run import DeviceRun
from sparsegen.networks.run.packed_inference import PackedInference
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.settings import Settings

INPUTS, NEURONS, LAYERS = 90, 64, 12
SMALL = 40_000  # bytes: a few layers, and one tile of inputs


class Counting(EmulatorExecutor):
    """Knows how many bytes live, and how many did at once."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.living = self.most = 0

    def allocate(self, nbytes: int) -> HostBuffer:
        return self._counted(super().allocate(nbytes))

    def upload(self, array: Any) -> HostBuffer:
        return self._counted(super().upload(array))

    def _counted(self, buffer: HostBuffer) -> HostBuffer:
        self.living += buffer.nbytes
        self.most = max(self.most, self.living)
        weakref.finalize(buffer, self._freed, buffer.nbytes)
        return buffer

    def _freed(self, nbytes: int) -> None:
        self.living -= nbytes


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    made = Counting()
    monkeypatch.setattr(placement, "shared_executor", lambda device: made)
    yield made


@pytest.fixture(scope="module")
def images() -> Any:
    """Some die early, some late, some live."""
    rng = np.random.default_rng(4)
    return (rng.random((INPUTS, NEURONS)) < np.linspace(0, 0.6, INPUTS)[:, None]).astype(np.uint8)


@pytest.mark.parametrize("budget", [SMALL, 60_000, 200_000])
def test_totals_are_those_in_core_within_the_budget(
    where: dict[str, Any], counting: Counting, images: Any, budget: int
) -> None:
    net = SparseNetwork(radixnet(NEURONS, LAYERS, bias=-0.1), **where)
    right = net.totals(images)
    assert 0 < np.count_nonzero(right) < INPUTS
    for kind in (images, images.astype(np.float32), BitInputs.of(images)):
        np.testing.assert_array_equal(net.totals(kind, memory=budget), right)
    plan = net.pack(INPUTS, memory=budget).plan
    assert plan.nbytes <= budget and (plan.segments > 2) == (budget < 100_000)
    assert counting.most <= budget
    assert counting.most >= plan.nbytes - 4096, "the plan counts what is taken"
    net.release()
    assert counting.living == 0


def test_neurons_and_exact_categories_too(where: dict[str, Any], counting: Counting, images: Any) -> None:
    net = SparseNetwork(radixnet(NEURONS, LAYERS, bias=-0.1), **where)
    right, active = net(images)
    found, living = net(images, memory=60_000)
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(living, active)
    exact = net.categories(images, memory="48 kB")
    np.testing.assert_array_equal(exact, net.categories(images))
    assert counting.most <= 60_000


def test_exact_categories_of_near_ties(where: dict[str, Any]) -> None:
    inputs = np.full((21, 64), 0.3, dtype=np.float16)
    inputs += (np.arange(21) - 10)[:, None].astype(np.float16) * np.float16(2.0**-12)
    net = SparseNetwork(radixnet(64, 24, bias=-0.3), **where)
    right = net.categories(inputs)
    undecided = net.undecided
    np.testing.assert_array_equal(net.categories(inputs, memory=60_000), right)
    assert undecided > 0 and net.undecided > 0, "bounds of few layers, and of all"


@pytest.mark.parametrize("activation", ["relu", "none"])
def test_layers_of_other_widths_and_inputs_that_live(
    where: dict[str, Any], counting: Counting, activation: str
) -> None:
    rng = np.random.default_rng(1)
    widths = (20, 37, 30, 64, 9, 41, 5, 30, 20, 35, 11, 25, 5)
    layers, biases = general_layers(widths, rng)
    net = SparseNetwork(layers, bias=biases, activation=activation, clip=9.0, **where)
    y0 = rng.standard_normal((50, 20)).astype(np.float32)
    right, active = net(y0)
    found, living = net(y0, memory=38_000)
    assert net.pack(50, "neurons", memory=38_000).plan.segments > 2
    np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(living, active)


def test_few_that_live_wait_for_each_other(
    where: dict[str, Any], images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most inputs of each batch die in the first segments; those that live go on together, and weights come once."""
    net = SparseNetwork(radixnet(NEURONS, LAYERS, bias=-0.3), **where)
    mixed = images[np.random.default_rng(5).permutation(INPUTS)]
    group = net.group(INPUTS, "totals", placement.Placement.of(SMALL, None, "emulator"))
    assert group.packed.plan.batch * 3 < INPUTS
    dealt = group.infer(BitInputs.of(mixed))
    np.testing.assert_array_equal(dealt.results, net.totals(mixed))
    monkeypatch.setattr(DeviceRun, "_should_park", lambda self, level, living: False)
    alone = group.infer(BitInputs.of(mixed))
    np.testing.assert_array_equal(alone.results, dealt.results)
    assert dealt.copies_of[0] < 0.8 * alone.copies_of[0]


def test_a_budget_for_no_layer_is_refused(where: dict[str, Any], images: Any) -> None:
    net = SparseNetwork(radixnet(NEURONS, LAYERS), **where)
    with pytest.raises(DeviceMemoryError, match="give at least"):
        net.totals(images, memory=5000)
    for wrong in ("much", "0 GiB", -3, 1.5):
        with pytest.raises(ConfigError, match="memory"):
            net.totals(images, memory=wrong)
    with pytest.raises(OperandError, match="inputs × 64 neurons"):
        net.totals(images[:, :60], memory=SMALL)


def test_a_layer_larger_than_those_before_is_cut_or_told(where: dict[str, Any]) -> None:
    """The plan rests on the first layers; a dense one behind them takes ten times the memory."""
    sparse = list(radixnet(64, 6).layers)
    dense = [np.random.default_rng(i).random((64, 64)) for i in range(3)]
    net = SparseNetwork([*sparse, *dense, *sparse], bias=0.01, clip=32.0, **where)
    y0 = stroke_images(40, 64)
    right = net.totals(y0)
    np.testing.assert_array_equal(net.totals(y0, memory=60_000), right)
    plan = net.pack(40, memory=60_000).plan
    assert plan.nbytes <= 60_000


def test_what_is_streamed_from_a_file(
    where: dict[str, Any], counting: Counting, images: Any, tmp_path: Path
) -> None:
    net = SparseNetwork(radixnet(NEURONS, LAYERS, bias=-0.1), **where)
    right, file = net.totals(images), tmp_path / "net.packed"
    save_packed(net.pack(INPUTS, memory=SMALL), file)
    assert is_packed(file) and not is_packed(tmp_path / "none")
    packed = load_packed(file)
    assert isinstance(packed.segments[0].image.base, np.memmap) or isinstance(
        packed.segments[0].image, np.memmap
    )
    inference = PackedInference(packed, device="emulator")
    np.testing.assert_array_equal(inference.totals(images), right)
    np.testing.assert_array_equal(inference.categories(images), np.flatnonzero(right))
    assert counting.most <= SMALL
    with pytest.raises(ConfigError, match="packed for totals"):
        inference(images)
    save_packed(net.pack(INPUTS, "neurons", memory=60_000), file)
    neurons = PackedInference(load_packed(file), device="emulator")
    np.testing.assert_array_equal(neurons(images)[0], net(images)[0])
    with pytest.raises(ConfigError, match="packed for neurons"):
        neurons.totals(images)


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:-5000],
        lambda data: data[:40],
        lambda data: b"",
        lambda data: data.replace(b'"begin": 0', b'"begin":-9', 1),
        lambda data: data.replace(b'_network", "packing', b'_netzerk", "packing', 1),
        lambda data: data.replace(b'"clip": ', b'"clip":1', 1),
        lambda data: data.replace(b"packed network 2", b"packed network 1", 1),
    ],
)
def test_damaged_files_are_told(
    where: dict[str, Any], tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "net.packed"
    save_packed(SparseNetwork(radixnet(64, 3), **where).pack(20), file)
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(SavedOperatorError, match=r"net\.packed"):
        load_packed(file)


@pytest.mark.parametrize("streams", [True, False])
def test_a_damaged_image_is_never_computed_with(
    where: dict[str, Any], images: Any, tmp_path: Path, streams: bool
) -> None:
    file = tmp_path / "net.packed"
    packed = SparseNetwork(radixnet(NEURONS, LAYERS, bias=-0.1), **where).pack(
        INPUTS, memory=SMALL if streams else 2**30
    )
    save_packed(packed, file)
    data = bytearray(file.read_bytes())
    last = packed.segments[-1]
    begin, nbytes = next(place for place in last.places.values() if place[1] > 64)
    data[len(data) - -(-last.image.nbytes // 4096) * 4096 + begin + nbytes // 2] ^= 1
    file.write_bytes(data)
    inference = PackedInference(load_packed(file), device="emulator")
    with pytest.raises(SavedOperatorError, match=r"layers \d+ to \d+ of this packed network are damaged"):
        inference.totals(images)


def test_pinned_segments_are_sent_as_they_are(where: dict[str, Any], images: Any) -> None:
    net = SparseNetwork(radixnet(NEURONS, LAYERS, bias=-0.1), **where)
    packed = net.pack(INPUTS, memory=SMALL)
    executor = Counting()
    pinned = packed.pin(executor)
    assert pinned.is_pinned and not packed.is_pinned and executor.most == 0
    assert pinned.pin(executor).segments == pinned.segments
    group = placement.Placement.of(None, None, backends.find_device("emulator")).group(pinned)
    np.testing.assert_array_equal(group.infer(BitInputs.of(images)).results, net.totals(images))


@pytest.mark.parametrize("given", [81, 80])  # a number at a time, and 16 bytes
def test_other_dtypes_unpack_alike(emulator_settings: Settings, given: int) -> None:
    """The kernels between segments have a version for 32 bits, which no family uses yet."""
    from sparsegen.backends.plain import PlainKernels

    executor = EmulatorExecutor(threads=1)
    device, images = PlainKernels(executor), stroke_images(5, 81)[:, :given]
    bits = device.upload(np.packbits(images, axis=1, bitorder="little"))
    y, kept = device.filled(4 * 5 * 96, 0xFF), device.filled(4 * 2 * 96, 0xFF)
    one = int(np.ones(1, np.float32).view(np.int32)[0])
    device.run("network_inputs.cu:unpack_32", 5, 5, given, 96, -(-given // 8), one, bits, y)
    found = device.download(y, 5 * 96, np.float32).reshape(5, 96)
    np.testing.assert_array_equal(found, np.pad(images, ((0, 0), (0, 96 - given))))
    found[3] = -0.0
    y, alive = device.upload(found), device.filled(20, 0xFF)
    device.run("network_inputs.cu:find_alive_32", 5, 5, 96, y, alive)
    assert device.download(alive, 5, np.int32).tolist() == [1, 1, 1, 0, 1]
    device.run("network_inputs.cu:gather_32", 2, 2, 96, device.upload(np.array([4, 1], np.int32)), y, kept)
    np.testing.assert_array_equal(device.download(kept, 192, np.float32).reshape(2, 96), found[[4, 1]])


def test_the_kernel_is_compiled_while_a_large_network_is_packed(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: list[str] = []
    variant = packing.RenderedVariant

    def noted(self: Any, toolchain: Any) -> Any:
        compiled.append(threading.current_thread().name)
        raise CompileError("no compiler today", log="")

    monkeypatch.setattr(packing, "COMPILED_AHEAD", 1)
    monkeypatch.setattr(variant, "compile", noted)
    with caplog.at_level("INFO"):
        SparseNetwork(radixnet(64, 6), **where).pack(20)
        for thread in threading.enumerate():
            if thread.name == "compile ahead":
                thread.join()
    assert compiled == ["compile ahead"] and "no compiler today" in caplog.text


def test_more_weights_than_32_bits_number_lie_on_the_device_in_segments(
    emulator_settings: Settings, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All segments stay there, though no matrix may hold all layers; results are those of one matrix."""
    network = radixnet(NEURONS, LAYERS)
    wanted = SparseNetwork(network, device="emulator").totals(images)
    of_layer = network.edges // LAYERS + 3 * NEURONS
    monkeypatch.setattr(packing, "MAX_INDEX", 5 * of_layer)
    monkeypatch.setattr("sparsegen.networks.model.network.MAX_INDEX", 5 * of_layer)
    for memory in (None, 1 << 30):
        model = SparseNetwork(network, device="emulator")
        packed = model.pack(INPUTS, memory=memory, devices="emulator")
        assert [len(segment.layers) for segment in packed.segments] == [4, 4, 4]
        assert (packed.plan.segments, packed.plan.slots, packed.plan.copy_us) == (3, 3, 0)
        np.testing.assert_array_equal(model.totals(images, memory=memory, devices="emulator"), wanted)
