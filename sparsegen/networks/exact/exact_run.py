"""Exact categories on a device, without the host in between: bounds from above and below, then float64 for the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import Executor, LoadedKernel, PinnedMemory
from sparsegen.backends.plain import compiled_kernels
from sparsegen.kernels.launch import Launch
from sparsegen.networks.exact.decisions import Levels
from sparsegen.networks.exact.exact import Categories, bound
from sparsegen.networks.exact.float64_run import Float64Run
from sparsegen.networks.model.network import Network
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Activation, Readout, SparseNetworkProblem
from sparsegen.plan.binding import BoundVariant, bind_variant, zeroed
from sparsegen.plan.own_launch import Bound
from sparsegen.system.device_memory import WARP, Address, Buffer
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.numpy_types import Array

THREADS = 256  # as in network_selection.cu
COUNTS = (
    4  # words before the bits of inputs that live: may live, undecided, of these left behind a segment, none
)
SAMPLED = 1024  # inputs that tell how many layers decide
OPEN = 0.005  # fraction of them that may be undecided after those layers
MORE_LAYERS = 2  # until those that die are zero, and float16 is certain too

Prepare = Callable[[Network, int, Readout], BoundVariant]


@dataclass(frozen=True, slots=True)
class Below:
    """The network below, for as many inputs as there is room.

    Attributes:
        rows, neurons: its inputs and results.
        take: lists the inputs that may live and copies them there, from an address; decide: tells which of them live.
    """

    capacity: int
    variant: BoundVariant
    rows: Buffer
    neurons: Buffer
    take: Bound
    decide: Bound


@dataclass(slots=True)
class Batch:
    """Networks and buffers for one number of inputs.

    Attributes:
        above: the network above.
        totals, numbers, undecided: 4 bytes for each input.
        results: counts, and a bit for each input; clear makes them zero.
        list_living: the numbers of the inputs that are not zero in the network above.
        float64: decides what bounds leave undecided, of the inputs at an address.
        below: None until it is known how many inputs may live, and if none does.
    """

    count: int
    above: BoundVariant
    totals: Buffer
    numbers: Buffer
    undecided: Buffer
    results: Buffer
    clear: Bound
    list_living: Bound
    float64: Bound
    below: Below | None = None

    @property
    def lives(self) -> Buffer:
        """The bits."""
        return bits_of(self.results)


class ExactRun:
    """Exact categories of one network on one device.

    Bounds are computed only as far as nearly all inputs are decided: one that is zero in the network above is dead, and
    one whose neurons are all at least what `Levels` says in the network below lives, whatever layers follow.

    Any thread may call, with any stream. All calls share memory: one on another stream than the call before it waits on
    the host until that has ended.

    Attributes:
        bound_layers: number of layers of the bounds; 0 until inputs are there to tell.
        float64: computes what bounds leave undecided.
    """

    def __init__(
        self,
        network: Network,
        dtype: DType,
        activation: Activation,
        executor: Executor,
        prepare: Prepare,
        all_layers: bool = False,
    ) -> None:
        """
        Args:
            prepare: makes a network's operator for a number of inputs, with a readout.
            all_layers: the network above has all of them, whether or not that decides more.
        """
        self._network, self._dtype, self._prepare, self._executor = network, dtype, prepare, executor
        self._lock = threading.Lock()
        self._queued_on: int | None = None  # the stream of launches that were not waited for
        self._batches: dict[int, Batch] = {}
        self._sides: dict[int, Network] = {}
        self._packed: dict[int, BoundVariant] = {}  # the network below, by how many inputs there is room for
        self.bound_layers, self._all_layers = 0, all_layers
        self._landing: PinnedMemory | None = None  # host memory that receives results
        row_bytes = network.neurons * dtype.itemsize
        self._word = 16 if row_bytes % 16 == 0 else dtype.itemsize
        self._row_bytes = row_bytes
        with executor.entered():
            levels = Levels.of(network, activation)
            self._little = levels.little
            self.float64 = Float64Run(network, dtype, activation, levels, executor)
            names = ("clear_words", f"take_living_{self._word}", "decide")
            self._clear, self._take, self._decide = compiled_kernels(
                executor, *(("network_selection.cu", name) for name in names)
            )
            self._clips = {
                side: executor.upload(np.array([bound_clip(network, dtype, side)], np.float32))
                for side in (1, -1)
            }
            executor.synchronize()  # launches may come on other streams than the uploads

    def categories(self, y: Buffer, count: int, stream: int = 0) -> Categories:
        """The inputs that live.

        Args:
            y: inputs × neurons of the widest layer, of the dtype.
            stream: on which it is ready.
        """
        with self._lock, self._executor.entered():
            self._wait_for_other_streams(stream)
            batch = self._batch(y, count, stream)
            self._queue(batch, y, stream)
            found = self._downloaded(batch.results, words_of(count), stream)
            if self._make_room(batch, int(found[0])):
                self._queue(batch, y, stream)
                found = self._downloaded(batch.results, words_of(count), stream)
            undecided = int(found[1])
            if found[2] or undecided > self.float64.capacity:
                self._finish(batch, y, undecided, stream)
                found = self._downloaded(batch.results, words_of(count), stream)
            self._queued_on = None
        bits = np.unpackbits(found[COUNTS:].view(np.uint8), count=count, bitorder="little")
        return Categories(np.flatnonzero(bits.view(bool)), undecided)

    def queue(self, y: Buffer, count: int, stream: int = 0) -> None:
        """Launch what is nearly always enough, after `categories` of as many inputs; the results stay on the device."""
        with self._lock:
            self._executor.activate()
            self._wait_for_other_streams(stream)
            self._queue(self._batches[count], y, stream)

    def _wait_for_other_streams(self, stream: int) -> None:
        """Waits for work on other streams, so that launches that follow on this one find memory that is no longer in
        use.
        """
        if self._queued_on not in (None, stream):
            self._executor.synchronize()
        self._queued_on = stream

    def _batch(self, y: Buffer, count: int, stream: int) -> Batch:
        """Returns the networks and buffers for ``count`` inputs; makes them, with these inputs, at the first call."""
        if not self.bound_layers:
            self.bound_layers = self._layers_that_decide(y, count, stream)
        if count in self._batches:
            return self._batches[count]
        allocate = self._executor.allocate
        above = self._prepare(self._side(1), count, Readout.TOTALS)
        totals, numbers, undecided = (allocate(4 * count) for _ in range(3))
        words = words_of(count)
        results = allocate(4 * words)
        batch = Batch(
            count,
            above,
            totals,
            numbers,
            undecided,
            results,
            self._bound(self._clear, words, words, results),
            self._bound(self._take, count, count, 0, 0, totals, results, numbers, totals, totals),
            self.float64.bound(0, 0, results, undecided, self._network.neurons, bits_of(results)),
        )
        self._queue_above(batch, y, stream)
        batch.list_living(stream)
        self._make_room(batch, int(self._downloaded(results, COUNTS, stream)[0]))
        self._batches[count] = batch
        return batch

    def _queue(self, batch: Batch, y: Buffer, stream: int) -> None:
        self._queue_above(batch, y, stream)
        below = batch.below
        if below is None:
            batch.list_living(stream)
            return
        below.take(stream, y.address)
        launch = below.variant.bound()
        launch(stream, below.rows.address, self._clips[-1].address, below.neurons.address)
        below.decide(stream)
        batch.float64(stream, y.address)

    def _queue_above(self, batch: Batch, y: Buffer, stream: int) -> None:
        """The network above."""
        batch.clear(stream)
        batch.above.bound()(stream, y.address, self._clips[1].address, batch.totals.address)

    def _finish(self, batch: Batch, y: Buffer, undecided: int, stream: int) -> None:
        """Decides what one launch leaves open: runs further layers, and further rounds of inputs."""
        width = self._network.neurons
        for begin in range(0, undecided, self.float64.capacity):
            for segment in range(self.float64.segments):
                if begin or segment:
                    launch = self.float64.bound(
                        segment, begin, batch.results, batch.undecided, width, batch.lives
                    )
                    launch(stream, y.address)
                if not self._downloaded(batch.results, COUNTS, stream)[2]:
                    break

    def _make_room(self, batch: Batch, wanted: int) -> bool:
        """Makes room for ``wanted`` inputs that may live, and some more; returns True if there was too little."""
        if wanted <= (batch.below.capacity if batch.below else 0):
            return False
        capacity = capacity_for(wanted)
        network, results = self._side(-1), batch.results
        variant = self._below(capacity)
        allocate = self._executor.allocate
        rows = zeroed(self._executor, capacity * self._row_bytes)
        neurons = allocate(capacity * network.outputs * self._dtype.itemsize)
        batch.below = Below(
            capacity,
            variant,
            rows,
            neurons,
            self._bound(
                self._take,
                batch.count,
                batch.count,
                capacity,
                self._row_bytes // self._word,
                batch.totals,
                results,
                batch.numbers,
                None,
                rows,
            ),
            self._bound(
                self._decide,
                WARP * capacity,
                capacity,
                network.outputs,
                list(DType).index(self._dtype),
                int(self.bound_layers == len(self._network.layers)),
                self._row_bytes,
                self.float64.enough_behind(self.bound_layers),
                results,
                batch.numbers,
                neurons,
                rows,
                batch.undecided,
                batch.lives,
            ),
        )
        return True

    def _below(self, capacity: int) -> BoundVariant:
        """The network below for ``capacity`` inputs, packed once for up to the next power of two."""
        most = 1 << (capacity - 1).bit_length()
        if most not in self._packed:
            self._packed[most] = self._prepare(self._side(-1), most, Readout.NEURONS)
        packed, executor = self._packed[most], self._executor
        rendered = packed.compiled.rendered
        problem = rendered.problem
        assert isinstance(problem, SparseNetworkProblem)
        return bind_variant(
            rendered.config,
            replace(problem, n=capacity),
            packed.packed,
            executor,
            backends.toolchain(executor.device),
        )

    def _layers_that_decide(self, y: Buffer, count: int, stream: int) -> int:
        """Number of layers after which float64 has decided nearly all inputs of a sample, and some more."""
        executor, whole = self._executor, len(self._network.layers)
        sampled = min(count, SAMPLED, self.float64.capacity)
        numbers = executor.upload(np.linspace(0, count - 1, sampled).astype(np.int32))
        results = executor.upload(np.array([0, sampled, 0, 0], np.int32))
        lives = executor.upload(np.zeros(words_of(count), np.int32))
        executor.synchronize()  # the uploads must not pass the stream's work
        for segment in range(self.float64.segments):
            self.float64.bound(segment, 0, results, numbers, self._network.neurons, lives)(stream, y.address)
            if not self._downloaded(results, COUNTS, stream)[2]:
                break
        decided = self._downloaded(self.float64.decided, self.float64.capacity, stream)[:sampled]
        behind = np.sort(np.where(decided > 0, decided, whole))
        layers = int(behind[-1 - int(OPEN * sampled)]) + MORE_LAYERS
        return layers if layers < whole and self._can_end_behind(layers) else whole

    def _can_end_behind(self, layers: int) -> bool:
        """True if bounds may end after ``layers``: rows of inputs are those of the whole network, and a zero input is
        dead.
        """
        is_widest = first_layers(self._network, layers).neurons == self._network.neurons
        return is_widest and bool(self._little[layers - 1] >= 0)

    def _side(self, side: int) -> Network:
        if side not in self._sides:
            layers = len(self._network.layers) if side > 0 and self._all_layers else self.bound_layers
            self._sides[side] = bound(first_layers(self._network, layers), self._dtype, side)
        return self._sides[side]

    def _downloaded(self, buffer: Buffer, words: int, stream: int) -> Array:
        """int32, when the stream has come so far."""
        if stream:
            self._executor.synchronize()
        if self._landing is None or self._landing.array.nbytes < 4 * words:
            self._landing = self._executor.pinned(4 * words)
        found: Array = self._landing.array[: 4 * words].view(np.int32)
        self._executor.download(Address(buffer.address, found.nbytes), found)
        return found.copy()

    def _bound(self, kernel: LoadedKernel, threads: int, *arguments: Buffer | int | None) -> Bound:
        launch = Launch((ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1))
        return self._executor.bind(kernel, launch, arguments)


def capacity_for(wanted: int) -> int:
    """A sixteenth more than wanted, in steps of a thirty-second or more, so that about as many find room again."""
    step = max(WARP, (1 << wanted.bit_length() - 1) // 32)
    return round_up(wanted + wanted // 16, step)


def words_of(count: int) -> int:
    """Number of words of the counts and a bit for each of ``count`` inputs."""
    return COUNTS + ceil_div(count, 32)


def bits_of(results: Buffer) -> Buffer:
    """Returns the part of the results that follows the counts."""
    return Address(results.address + 4 * COUNTS, results.nbytes - 4 * COUNTS)


def first_layers(network: Network, count: int) -> Network:
    """A network of its first layers."""
    return replace(network, layers=network.layers[:count], biases=network.biases[:count])


def bound_clip(network: Network, dtype: DType, side: int) -> float:
    """The clip of a network that bounds another."""
    return bound(first_layers(network, 1), dtype, side).clip
