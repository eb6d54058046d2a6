"""The kernels of exact categories on buffers of exactly their sizes, under AddressSanitizer and UBSan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.plain import plain_source
from sparsegen.errors import KernelFault
from sparsegen.kernels.launch import Launch
from sparsegen.networks.exact.decisions import Levels
from sparsegen.networks.exact.exact import inferred
from sparsegen.networks.exact.float64_run import THREADS
from sparsegen.networks.exact.row_groups import RowGroups
from sparsegen.networks.model.network import Network
from sparsegen.operators.sparse_network import Activation

CAPACITY = 64


def network() -> Network:
    rng = np.random.default_rng(1)
    shared = np.repeat(rng.random((3, 40)) < 0.3, (17, 16, 7), axis=0)
    layers = [(shared * rng.uniform(0.5, 1.5, (40, 40)))[rng.permutation(40)] for _ in range(5)]
    layers += [(rng.random((9, 40)) < 0.9) * rng.random((9, 40)), rng.random((1, 9))]
    layers = [1.9 * layer / layer.sum(axis=1, keepdims=True) for layer in layers]
    return Network.of(layers, -0.3, 2.0)


def launch(entry: str, toolchain: EmulatorToolchain, source: str, blocks: int, *arguments: Any) -> list[Any]:
    kernel = toolchain.compile_sanitized("plain", entry, source)
    threads = THREADS if entry.startswith("exact_network") else 256
    return run_sanitized(kernel.binary, Launch((blocks, 1, 1), (threads, 1, 1)), arguments)


def run_float64(toolchain: EmulatorToolchain, source: str, y: Any, numbers: Any, per_lane: int) -> Any:
    """Returns the inputs that live, a bit each."""
    net = network()
    groups = RowGroups.of(net.layers, net.biases, Activation.DYING_RELU)
    counts = np.array([0, numbers.size, 9, 0], np.int32)
    levels = Levels.of(net, Activation.DYING_RELU).pairs()
    buffers = [
        np.full((2, CAPACITY * 40), np.nan),
        np.full(6 * CAPACITY, 7, np.int32),
        np.full(CAPACITY, 7, np.int32),
        np.zeros(3, np.uint32),
    ]
    sizes = (0, 7, 1, 40, 40, 40, 1, 0, CAPACITY)
    clip = np.array([net.clip])
    found = launch(
        f"exact_network_{per_lane}",
        toolchain,
        source,
        3,
        *sizes,
        counts,
        numbers,
        y,
        *groups.arrays,
        levels,
        clip,
        *buffers,
    )
    assert found[0][:3].tolist() == [0, numbers.size, 0]
    decided, lives = found[-2:]
    assert decided.max() > 2 and (decided[: numbers.size] >= 1).all() and (decided[numbers.size :] == 0).all()
    return np.flatnonzero(np.unpackbits(lives.view(np.uint8), bitorder="little"))


@pytest.fixture
def inputs() -> Any:
    lit = np.linspace(0, 1, 70)[:, None]
    return (np.random.default_rng(2).random((70, 40)) < lit).astype(np.float16)


def require_right(toolchain: EmulatorToolchain, source: str, inputs: Any, per_lane: int = 1) -> None:
    numbers = np.random.default_rng(3).permutation(70)[:45].astype(np.int32)
    found = run_float64(toolchain, source, inputs, numbers, per_lane)
    right = np.flatnonzero(inferred(network(), Activation.DYING_RELU, inputs).any(axis=1))
    np.testing.assert_array_equal(found, np.intersect1d(right, numbers))
    assert 0 < found.size < 45


@pytest.mark.parametrize("per_lane", [1, 2])
def test_float64_of_some_inputs(emulator_toolchain: EmulatorToolchain, inputs: Any, per_lane: int) -> None:
    require_right(emulator_toolchain, plain_source("exact_network.cu"), inputs, per_lane)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (r < staged.group.rows) {", "{"),  # rows that a group does not have
        (
            "input < count ? static_cast<long long>(numbers[input])",
            "input < 99 ? static_cast<long long>(numbers[input])",
        ),
        ("if (small[j]) open.too_small(layer)", "if (large[j]) open.too_small(layer)"),
        ("is_end ? large : !small", "true"),
        ("neurons + layer % 2 * buffer", "neurons"),
    ],
)
def test_planted_bugs_are_found(
    emulator_toolchain: EmulatorToolchain, inputs: Any, right: str, wrong: str
) -> None:
    source = plain_source("exact_network.cu")
    assert right in source
    with pytest.raises((KernelFault, AssertionError)):
        require_right(emulator_toolchain, source.replace(right, wrong), inputs)


@pytest.mark.parametrize("word", [2, 4, 16])
@pytest.mark.parametrize("capacity", [300, 20, 0])
def test_lists_and_rows_by_them(emulator_toolchain: EmulatorToolchain, word: int, capacity: int) -> None:
    source, rng = plain_source("network_selection.cu"), np.random.default_rng(4)
    totals = (rng.random(300) * (rng.random(300) < 0.1)).astype(np.float32)
    right, length = np.flatnonzero(totals), 45
    kind = np.uint16 if word == 2 else np.uint32
    rows = rng.integers(0, 255, (300, length * word), dtype=np.uint8).view(kind)
    copies = np.full((max(1, capacity), length * word), 9, np.uint8).view(kind)
    _, counts, numbers, _, found = launch(
        f"take_living_{word}",
        emulator_toolchain,
        source,
        2,
        300,
        capacity,
        length,
        totals,
        np.zeros(4, np.int32),
        np.full(300, -1, np.int32),
        rows,
        copies,
    )
    assert counts.tolist() == [right.size, 0, 0, 0] and right.size > 20
    assert sorted(numbers[: right.size]) == right.tolist() and (numbers[right.size :] == -1).all()
    taken = min(right.size, capacity)
    np.testing.assert_array_equal(found[:taken], rows[numbers[:taken]])
    np.testing.assert_array_equal(found[taken:], copies[taken:])


@pytest.mark.parametrize(("has_ended", "row_bytes"), [(False, 154), (True, 160)])
def test_what_lives_in_the_network_below(
    emulator_toolchain: EmulatorToolchain, has_ended: bool, row_bytes: int
) -> None:
    source, rng = plain_source("network_selection.cu"), np.random.default_rng(5)
    neurons = rng.uniform(0, 2, (50, 77)).astype(np.float16)
    neurons[::2] += 1
    neurons[::3, :76] = 0
    neurons[::6] = 0
    numbers = rng.permutation(400)[:50].astype(np.int32)
    found = launch(
        "decide",
        emulator_toolchain,
        source,
        8,
        60,
        77,
        1,
        int(has_ended),
        row_bytes,
        np.array([1.0]),
        np.array([50, 0, 0, 0], np.int32),
        numbers,
        neurons,
        np.full((60, row_bytes), 9, np.uint8),
        np.full(50, -1, np.int32),
        np.zeros(13, np.uint32),
    )
    lives = neurons.any(axis=1) if has_ended else (neurons >= 1).all(axis=1)
    assert 0 < lives.sum() < 50
    bits = np.flatnonzero(np.unpackbits(found[-1].view(np.uint8), bitorder="little"))
    np.testing.assert_array_equal(bits, np.sort(numbers[lives]))
    assert not found[-3][:50].any() and (found[-3][50:] == 9).all()
    left = 50 - lives.sum()
    assert found[1].tolist() == [50, left, 0, 0]
    np.testing.assert_array_equal(np.sort(found[-2][:left]), np.sort(numbers[~lives]))
