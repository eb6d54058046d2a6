"""Inputs through a network in float64 on a device, only as far as it takes to know of each whether it lives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.errors import LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import empty_as_one
from sparsegen.networks.exact.decisions import Levels
from sparsegen.networks.exact.row_groups import RowGroups, group_bytes
from sparsegen.networks.model.network import Network
from sparsegen.networks.run.network_run import NetworkRun
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Activation
from sparsegen.plan.own_launch import Bound
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP, Address, Buffer
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

THREADS = 256  # as in exact_network.cu
MOST_INPUTS = 1024  # inputs of a round, as there
CHUNK = 2 * WARP  # inputs
WIDE = 8192  # neurons from which on a lane has two inputs: weights are read once for both, but few warps have work
NEURONS = 1 << 26  # neurons of all inputs of a round, 16 bytes each
SEGMENT_BYTES = 1 << 30  # bytes of layers that go to the device together
KEPT_SHARE = 1 / 4  # fraction of the free memory that weights may keep
# Words before the bits of inputs that live: may live, undecided, of these left behind a segment, none.
COUNTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Layers on the device."""

    layers: range
    buffers: tuple[Buffer, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Undecided:
    """Inputs on the device that bounds have left open.

    Attributes:
        results: int32, counts and a bit for each input, which is set where it lives; see `words_of`.
        numbers: int32, rows of the inputs; the second count is their number.
        stride: elements of a row.
    """

    results: Buffer
    numbers: Buffer
    stride: int

    @property
    def lives(self) -> Buffer:
        """The bits."""
        return Address(self.results.address + 4 * COUNTS, self.results.nbytes - 4 * COUNTS)


class Float64Run(NetworkRun):
    """A network's float64 inference on a device; the weights stay there as far as a quarter of its free memory allows.

    Attributes:
        network, dtype: the network, and the type of its inputs.
        levels: what decides an input behind each layer.
        capacity: inputs of a round.
        segments: layers that go to the device together; a launch each.
        decided: int32 on the device, of each input of the last round behind which layer it was decided, counted from 1.
    """

    def __init__(self, network: Network, dtype: DType, activation: Activation, executor: Executor) -> None:
        """Allocate; the calling thread has entered the executor."""
        super().__init__(executor)
        self.network, self._activation = network, activation
        self.dtype, self._type = dtype, list(DType).index(dtype)
        width = network.neurons
        self.capacity = max(CHUNK, min(MOST_INPUTS, NEURONS // width // CHUNK * CHUNK))
        per_lane = 2 if width >= WIDE else 1
        (self._kernel,) = plain_launchers(executor, "exact_network.cu", f"exact_network_{per_lane}")
        self.levels = Levels.of(network, activation)
        self._pairs = executor.upload(self.levels.pairs())
        self._clip = executor.upload(np.array([network.clip], np.float64))
        self._neurons = executor.allocate(2 * 8 * self.capacity * width)
        self._open = executor.allocate(4 * 6 * self.capacity)
        self.decided = executor.allocate(4 * self.capacity)
        self.segments = _segments(network)
        self.kept: dict[int, Segment] = {}
        free = executor.free_bytes()
        self._most_kept = None if free is None else int(free * KEPT_SHARE)

    def enough_behind(self, layers: int) -> Buffer:
        """Address of the number that is enough after ``layers`` layers; see `Levels`."""
        return Address(self._pairs.address + 16 * (layers - 1), 8)

    def bound(self, segment: int, begin: int, inputs: Undecided) -> Bound:
        """The launch of a segment for inputs ``begin`` to ``begin + capacity`` of those that are undecided.

        Segments follow each other for the same inputs. See exact_network.cu for what is read and written.

        Returns:
            ``bound(stream, address of the inputs)``.
        """
        held, network = self._on_device(segment), self.network
        layers = held.layers
        return self._kernel.bind(
            Launch((self.executor.device.multiprocessors, 1, 1), (THREADS, 1, 1), together=True),
            layers.start,
            len(layers),
            int(layers.stop == len(network.layers)),
            network.neurons,
            network.inputs,
            inputs.stride,
            self._type,
            begin,
            self.capacity,
            inputs.results,
            inputs.numbers,
            None,
            *held.buffers,
            self._pairs,
            self._clip,
            self._neurons,
            self._open,
            self.decided,
            inputs.lives,
        )

    def decide(
        self, inputs: Undecided, count: int, y: Buffer, stream: int, *, is_begun: bool = False
    ) -> None:
        """Take ``count`` undecided inputs through segments, in rounds, until all are decided.

        Args:
            y: rows of inputs, of the dtype.
            is_begun: the first launch is queued already.
        """
        for begin in range(0, count, self.capacity):
            for segment in range(len(self.segments)):
                if begin or segment or not is_begun:
                    self.bound(segment, begin, inputs)(stream, y.address)
                if not self.downloaded(inputs.results, COUNTS, stream)[2]:
                    break

    def live(self, rows: Array) -> Array:
        """Decides which inputs live: bool.

        Args:
            rows: inputs × neurons before the first layer, as the dtype holds them.
        """
        found = np.empty(len(rows), bool)
        with self.turn(0), self.executor.entered():
            for begin in range(0, len(rows), self.capacity):
                found[begin : begin + self.capacity] = self._live_at_once(rows[begin : begin + self.capacity])
        return found

    def _live_at_once(self, rows: Array) -> Array:
        """The same for at most ``capacity`` inputs."""
        executor, count = self.executor, len(rows)
        words = np.zeros(words_of(count), np.int32)
        words[1] = count
        y, results = executor.upload(self.dtype.to_storage(rows)), executor.upload(words)
        inputs = Undecided(results, executor.upload(np.arange(count, dtype=np.int32)), rows.shape[1])
        self.decide(inputs, count, y, 0)
        return lives_of(self.downloaded(results, words.size), count)

    def _on_device(self, number: int) -> Segment:
        if number not in self.kept:
            layers = self.segments[number]
            some = slice(layers.start, layers.stop)
            groups = RowGroups.of(self.network.layers[some], self.network.biases[some], self._activation)
            arrays = [empty_as_one(array) for array in groups.arrays]
            nbytes = sum(array.nbytes for array in arrays)
            kept = sum(segment.nbytes for segment in self.kept.values())
            if self._most_kept is not None and kept + nbytes > self._most_kept:
                self.executor.synchronize()
                for other in [one for one in self.kept if one]:  # the first serves every call
                    del self.kept[other]
            self.kept[number] = Segment(layers, tuple(map(self.executor.upload, arrays)), nbytes)
            self.executor.synchronize()  # launches may come on other streams than the uploads
        return self.kept[number]


def words_of(count: int) -> int:
    """Number of words of the counts and a bit for each of ``count`` inputs."""
    return COUNTS + ceil_div(count, 32)


def lives_of(words: Array, count: int) -> Array:
    """Bool of each of ``count`` inputs, from these words."""
    return np.unpackbits(words[COUNTS:].view(np.uint8), count=count, bitorder="little").view(bool)


def _segments(network: Network) -> list[range]:
    """Layers that go to the device together."""
    found, begin, nbytes = [], 0, 0
    for number, layer in enumerate(network.layers):
        own = group_bytes(layer)
        if own > np.iinfo(np.int32).max:
            raise LaunchError(f"layer {number} has {layer.nnz} weights, too many for float64 on a device")
        if number > begin and nbytes + own > SEGMENT_BYTES:
            found.append(range(begin, number))
            begin, nbytes = number, 0
        nbytes += own
    found.append(range(begin, len(network.layers)))
    return found
