"""Exact categories in few launches: float64 layers in groups of rows, rounds and segments, bounds of few layers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparsegen import SparseNetwork, backends
from sparsegen.kernels import families, family
from sparsegen.matrix.formats import as_csr
from sparsegen.networks.exact import exact_run, float64_run
from sparsegen.networks.exact.exact import inferred
from sparsegen.networks.exact.float64_run import Float64Run, Undecided
from sparsegen.networks.exact.row_groups import GROUP, RowGroups
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.operators import DType, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.plan.executors import shared_executor
from sparsegen.settings import Settings

WIDTHS = (20, 37, 30, 33, 9, 24, 31, 5)


def rectangular(highest_bias: float) -> Network:
    rng = np.random.default_rng(3)
    layers = [
        rng.random((after, before)) * (rng.random((after, before)) < 0.4)
        for before, after in itertools.pairwise(WIDTHS)
    ]
    layers[2][4] = 0  # a row without weights
    layers[3][:, 5:25] = layers[3][:1, 5:25]
    biases = [rng.uniform(-1, 0, after) for after in WIDTHS[1:]]
    biases[0][:3] = highest_bias
    return Network.of(layers, biases, 4.0)


def images(count: int, width: int) -> Any:
    lit = np.linspace(0, 1, count)[:, None]
    return (np.random.default_rng(4).random((count, width)) < lit).astype(np.float16)


def test_groups_hold_every_weight_once() -> None:
    rng = np.random.default_rng(5)
    same = np.tile(rng.random((1, 40)) < 0.3, (37, 1)) * rng.random((37, 40))
    other = (rng.random((20, 40)) < 0.2) * rng.random((20, 40))
    matrices = [np.concatenate((other, same, np.zeros((3, 40)))), np.zeros((0, 60)), rng.random((5, 60))]
    layers = [as_csr(matrix.astype(np.float32)) for matrix in matrices]
    biases = [rng.uniform(-1, 1, len(matrix)).astype(np.float32) for matrix in matrices]
    found = RowGroups.of(layers, biases, Activation.DYING_RELU)
    for number, (layer, bias) in enumerate(zip(layers, biases, strict=True)):
        again, seen = np.zeros(layer.shape, np.float32), []
        for group in range(found.before[number], found.before[number + 1]):
            first, columns, value, rows = found.groups[group]
            assert 1 <= rows <= GROUP
            own = found.columns[first : first + columns]
            block = found.values[value : value + columns * rows].reshape(columns, rows)
            again[np.ix_(found.rows[group, :rows], own)] = block.T
            np.testing.assert_array_equal(
                found.biases[group, :rows], np.minimum(bias[found.rows[group, :rows]], 0)
            )
            seen += found.rows[group, :rows].tolist()
        np.testing.assert_array_equal(again, layer.to_dense())
        assert sorted(seen) == list(range(layer.shape[0]))
    shared = [rows for *_, rows in found.groups[: found.before[1]] if rows > 3]
    assert sorted(shared) == [5, 16, 16], "37 rows that share their columns"


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(
    ("activation", "highest_bias"), [(Activation.DYING_RELU, 0.0), (Activation.RELU, 0.2)]
)
def test_float64_in_rounds_and_segments(
    emulator_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    dtype: DType,
    activation: Activation,
    highest_bias: float,
) -> None:
    network, y0 = rectangular(highest_bias), images(110, 20)
    monkeypatch.setattr(
        float64_run, "WIDE", 1 if dtype is DType.FLOAT32 else 1000
    )  # two inputs for each lane, or one
    monkeypatch.setattr(float64_run, "NEURONS", 64 * network.neurons)  # 90 inputs in two rounds
    monkeypatch.setattr(float64_run, "SEGMENT_BYTES", 16_000)
    executor = shared_executor(backends.find_device("emulator"))
    run = Float64Run(network, dtype, activation, executor)
    assert run.capacity == 64 and len(run.segments) > 2
    numbers = np.random.default_rng(6).permutation(110)[:90]
    right = inferred(network, activation, y0).any(axis=1)
    np.testing.assert_array_equal(run.live(y0[numbers]), right[numbers])
    rows = np.full((110, 21), 7.0)  # the last element of a row belongs to no input
    rows[:, :20] = y0
    y = executor.upload(dtype.to_storage(rows))
    counts = np.zeros(float64_run.words_of(110), np.int32)
    counts[:3] = -1, 90, -1
    inputs = Undecided(executor.upload(counts), executor.upload(numbers.astype(np.int32)), 21)

    run.decide(inputs, 90, y, 0)
    words = run.downloaded(inputs.results, counts.size)
    assert words[:3].tolist() == [-1, 90, 0]
    found = np.flatnonzero(float64_run.lives_of(words, 110))
    np.testing.assert_array_equal(found, np.intersect1d(np.flatnonzero(right), numbers))
    assert 0 < found.size < 90


def test_weights_beyond_the_share_of_memory_come_again(
    emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = radixnet(64, 12)
    monkeypatch.setattr(float64_run, "SEGMENT_BYTES", 60_000)
    executor = shared_executor(backends.find_device("emulator"))
    monkeypatch.setattr(type(executor), "free_bytes", lambda self: 4 * 50_000)
    run = Float64Run(network, DType.FLOAT16, Activation.DYING_RELU, executor)
    assert len(run.segments) > 3
    inputs = Undecided(*(executor.upload(np.zeros(8, np.int32)) for _ in range(2)), 64)
    for segment in (*range(len(run.segments)), 0):
        run.bound(segment, 0, inputs)
    assert 0 in run.kept and len(run.kept) < len(run.segments)


def ties(layers: int) -> tuple[Network, Any]:
    """Inputs at the unstable fixed point and beside it, and others that are decided at once, in any order."""
    network = radixnet(64, layers, bias=-0.3)
    inputs = np.full((100, 64), 0.3, dtype=np.float16)
    inputs[:75] += (np.arange(75) % 11 - 5)[:, None].astype(np.float16) * np.float16(2.0**-12)
    inputs[75:90], inputs[90:] = 0, 1
    return network, inputs[np.random.default_rng(8).permutation(100)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_bounds_of_few_layers_and_rounds_of_ties(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    network, inputs = ties(70)
    monkeypatch.setattr(float64_run, "MOST_INPUTS", 64)
    monkeypatch.setattr(exact_run, "OPEN", 0.6)
    net = SparseNetwork(network, dtype=dtype, **where)
    found = net.categories(inputs)
    right = np.flatnonzero(inferred(network, Activation.DYING_RELU, inputs).any(axis=1))
    np.testing.assert_array_equal(found, right)
    assert net.exact_run().bound_layers < 70
    assert (64 if dtype == "float16" else 0) < net.undecided < 100  # of float16 two rounds
    np.testing.assert_array_equal(net.categories(inputs[::-1]), 99 - right[::-1])


def test_more_inputs_may_live_than_in_the_call_before(where: dict[str, Any]) -> None:
    net = SparseNetwork(radixnet(64, 20, bias=-0.3), **where)
    y0 = np.zeros((40, 64))
    assert net.categories(y0).size == 0
    y0[7] = 1
    np.testing.assert_array_equal(net.categories(y0), [7])
    y0[3:20] = 1
    np.testing.assert_array_equal(net.categories(y0), np.arange(3, 20))
    np.testing.assert_array_equal(net.categories(y0[:10]), np.arange(3, 10))


@pytest.mark.parametrize("where_empty", [0, 1])
def test_layers_without_neurons(where: dict[str, Any], where_empty: int) -> None:
    """The layers after it have only their biases."""
    widths = [32, 32, 32]
    widths[where_empty] = 0
    layers = [np.zeros((after, before)) for before, after in itertools.pairwise((32, *widths))]
    y0 = np.ones((3, 32), np.float16)
    for bias, live in ((0.1, [0, 1, 2]), (-0.1, [])):
        net = SparseNetwork(Network.of(layers, bias, 4.0), **where)
        np.testing.assert_array_equal(net.categories(y0), live)


def test_launches_wait_for_memory_that_was_written_on_another_stream(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies and fills are queued on the default stream, for which streams of PyTorch's do not wait."""
    executor = shared_executor(backends.find_device("emulator"))
    kind, written, too_early = type(executor), [], []

    def noting(name: str) -> Any:
        known = getattr(kind, name)

        def call(self: Any, *arguments: Any) -> Any:
            written.append(name)
            return known(self, *arguments)

        return call

    def synchronize(self: Any) -> None:
        written.clear()

    bind = kind.bind

    def bound(self: Any, *arguments: Any) -> Any:
        launch = bind(self, *arguments)

        def call(*given: Any) -> None:
            too_early.extend(written)
            launch(*given)

        return call

    network, inputs = ties(70)
    monkeypatch.setattr(exact_run, "OPEN", 0.6)
    for name in ("fill", "upload", "overwrite"):
        monkeypatch.setattr(kind, name, noting(name))
    monkeypatch.setattr(kind, "synchronize", synchronize)
    monkeypatch.setattr(kind, "bind", bound)
    run = SparseNetwork(network, **where).exact_run()
    y = executor.upload(inputs.astype(np.float16))
    executor.synchronize()
    right = np.flatnonzero(inferred(network, Activation.DYING_RELU, inputs).any(axis=1))
    for _ in range(2):
        np.testing.assert_array_equal(run.categories(y, 100, stream=1).live, right)
    assert not too_early


def test_calls_on_several_streams_wait_for_one_another(
    where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share memory, whatever streams they are on; calls on one stream are queued without a wait."""
    executor = shared_executor(backends.find_device("emulator"))
    kind, seen = type(executor), []
    bind = kind.bind

    def bound(self: Any, *arguments: Any) -> Any:
        launch = bind(self, *arguments)

        def call(stream: int, *addresses: int) -> None:
            seen.append(stream)
            launch(stream, *addresses)

        return call

    monkeypatch.setattr(kind, "bind", bound)
    monkeypatch.setattr(kind, "synchronize", lambda self: seen.append("waited"))
    network, inputs = ties(20)
    run = SparseNetwork(network, **where).exact_run()
    y = executor.upload(inputs.astype(np.float16))
    right = run.categories(y, 100, stream=1).live
    few = run.categories(y, 60, stream=1).live
    seen.clear()
    run.queue(y, 100, stream=1)
    run.queue(y, 60, stream=1)
    assert seen and "waited" not in seen
    run.queue(y, 60, stream=2)
    np.testing.assert_array_equal(run.categories(y, 100, stream=3).live, right)
    run.queue(y, 100, stream=2)
    np.testing.assert_array_equal(run.categories(y, 60).live, few)
    at = [i for i, (one, after) in enumerate(itertools.pairwise(seen)) if one != after]
    assert [seen[i : i + 2].count("waited") for i in at] == [1] * len(at), seen
    assert {0, 1, 2, 3} <= set(seen)


def test_room_is_a_little_more_than_was_wanted() -> None:
    for wanted in (1, 31, 32, 700, 1598, 4800, 60000):
        room = exact_run.capacity_for(wanted)
        assert 17 * wanted // 16 <= room <= max(64, 1.13 * wanted)
        assert room % 32 == 0


def test_inputs_that_come_to_life_again(where: dict[str, Any]) -> None:
    """An input that is zero behind some layers is not dead where a later bias is above zero."""
    network = radixnet(64, 30, bias=-0.3)
    biases = list(network.biases)
    biases[25] = np.full(64, 0.4, np.float32)
    net = SparseNetwork(Network(network.layers, tuple(biases), network.clip), **where)
    y0 = np.zeros((12, 64))
    y0[4:8] = 1
    assert net.activation is Activation.RELU
    right = np.flatnonzero(inferred(net.network, net.activation, y0).any(axis=1))
    np.testing.assert_array_equal(right, np.arange(12))
    np.testing.assert_array_equal(net.categories(y0), right)
    assert net.exact_run().bound_layers == 30


def test_wider_layers_behind_are_computed_by_bounds_too(where: dict[str, Any]) -> None:
    """Bounds end no sooner than the widest layer, whose neurons rows of inputs have room for."""
    rng = np.random.default_rng(9)
    widths = (32, 32, 32, 32, 32, 32, 32, 32, 48)
    layers = [2 * rng.random((after, before)) / before * 2 for before, after in itertools.pairwise(widths)]
    network = Network.of(layers, -0.3, 8.0)
    y0 = rng.random((30, 32)) * np.linspace(0, 0.7, 30)[:, None]
    net = SparseNetwork(network, **where)
    y0 = y0.astype(np.float16)
    right = np.flatnonzero(inferred(network, Activation.DYING_RELU, y0).any(axis=1))
    np.testing.assert_array_equal(net.categories(y0), right)
    assert 0 < right.size < 30 and net.exact_run().bound_layers == len(layers)


@pytest.mark.parametrize(
    "name", [f.name for f in families().values() if f.problem_type is SparseNetworkProblem]
)
def test_what_is_packed_for_many_inputs_serves_fewer(name: str) -> None:
    """Sizes and arrays do not depend on how many there are, and scratch memory for more of them is no smaller."""
    known = family(name)
    matrix = radixnet(256, 5).stacked(DType.FLOAT16)
    problem = SparseNetworkProblem(*matrix.shape, 2048, DType.FLOAT16, Activation.DYING_RELU)
    device = replace(
        backends.find_device("emulator"),
        compute_capability=(9, 0),
        multiprocessors=132,
        shared_memory_per_block=232448,
    )
    config = known.heuristic(problem, problem.features(matrix), device)
    most = known.pack(problem, config, matrix)
    for count in (1, 63, 100, 1598, 1728):
        fewer = known.pack(replace(problem, n=count), config, matrix)
        assert fewer.sizes == most.sizes
        assert all(fewer.scratch[part] <= nbytes for part, nbytes in most.scratch.items())
        for part, array in most.arrays.items():
            np.testing.assert_array_equal(fewer.arrays[part], array)
