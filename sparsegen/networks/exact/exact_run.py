"""Exact categories on a device, without the host in between: bounds from above and below, then float64 for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import PinnedMemory
from sparsegen.networks.exact.exact import Categories, bound
from sparsegen.networks.exact.float64_run import COUNTS, Float64Run, Undecided, lives_of, words_of
from sparsegen.networks.model.network import Network
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Readout, SparseNetworkProblem
from sparsegen.plan.binding import BoundVariant, bind_variant, zeroed
from sparsegen.plan.own_launch import Bound
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP, Address, Buffer
from sparsegen.system.integers import round_up
from sparsegen.system.numpy_types import Array

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
        totals, numbers: 4 bytes for each input.
        undecided: what bounds leave undecided, and all results; clear makes these zero.
        list_living: the numbers of the inputs that are not zero in the network above.
        float64: begins to decide what is undecided, of the inputs at an address.
        below: None until it is known how many inputs may live, and if none does.
    """

    count: int
    above: BoundVariant
    totals: Buffer
    numbers: Buffer
    undecided: Undecided
    clear: Bound
    list_living: Bound
    float64: Bound
    below: Below | None = None


class ExactRun:
    """Exact categories of one network on one device.

    Bounds are computed only as far as nearly all inputs are decided: one that is zero in the network above is dead, and
    one whose neurons are all at least what `Levels` says in the network below lives, whatever layers follow.

    Any thread may call, with any stream; see `Float64Run.turn`.

    Attributes:
        bound_layers: number of layers of the bounds; 0 until inputs are there to tell.
        float64: computes what bounds leave undecided.
    """

    def __init__(self, float64: Float64Run, prepare: Prepare, all_layers: bool = False) -> None:
        """
        Args:
            prepare: makes a network's operator for a number of inputs, with a readout.
            all_layers: the network above has all of them, whether or not that decides more.
        """
        self.float64, self._prepare = float64, prepare
        self._network, self._dtype, self._executor = float64.network, float64.dtype, float64.executor
        self._batches: dict[int, Batch] = {}
        self._sides: dict[int, Network] = {}
        self._packed: dict[int, BoundVariant] = {}  # the network below, by how many inputs there is room for
        self.bound_layers, self._all_layers = 0, all_layers
        self._landing: PinnedMemory | None = None  # host memory that receives results
        self._row_bytes = self._network.neurons * self._dtype.itemsize
        self._word = 16 if self._row_bytes % 16 == 0 else self._dtype.itemsize
        with self._executor.entered():
            names = ("clear_words", f"take_living_{self._word}", "decide")
            self._clear, self._take, self._decide = plain_launchers(
                self._executor, "network_selection.cu", *names
            )
            clips = {side: bound_clip(self._network, self._dtype, side) for side in (1, -1)}
            self._clips = {
                side: self._executor.upload(np.array([clip], np.float32)) for side, clip in clips.items()
            }
            self._executor.synchronize()  # launches may come on other streams than the uploads

    def categories(self, y: Buffer, count: int, stream: int = 0) -> Categories:
        """The inputs that live.

        Args:
            y: inputs × neurons of the widest layer, of the dtype.
            stream: on which it is ready.
        """
        with self.float64.turn(stream), self._executor.entered():
            batch = self._batch(y, count, stream)
            self._queue(batch, y, stream)
            results, words = batch.undecided.results, words_of(count)
            found = self._downloaded(results, words, stream)
            if self._make_room(batch, int(found[0])):
                self._queue(batch, y, stream)
                found = self._downloaded(results, words, stream)
            undecided = int(found[1])
            if found[2] or undecided > self.float64.capacity:
                self._finish(batch.undecided, undecided, y, stream, is_begun=True)
                found = self._downloaded(results, words, stream)
        return Categories(np.flatnonzero(lives_of(found, count)), undecided)

    def queue(self, y: Buffer, count: int, stream: int = 0) -> None:
        """Launch what is nearly always enough, after `categories` of as many inputs; the results stay on the device."""
        with self.float64.turn(stream, is_awaited=False):
            self._executor.activate()
            self._queue(self._batches[count], y, stream)

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
        inputs = Undecided(results, undecided, self._network.neurons)
        batch = Batch(
            count,
            above,
            totals,
            numbers,
            inputs,
            self._clear.bind(words, words, results),
            self._take.bind(count, count, 0, 0, totals, results, numbers, totals, totals),
            self.float64.bound(0, 0, inputs),
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

    def _finish(
        self, inputs: Undecided, count: int, y: Buffer, stream: int, *, is_begun: bool = False
    ) -> None:
        """Decides in float64 what is undecided, by as many launches as that takes."""

        def counts() -> Array:
            return self._downloaded(inputs.results, COUNTS, stream)

        self.float64.decide(inputs, count, y, stream, counts, is_begun=is_begun)

    def _make_room(self, batch: Batch, wanted: int) -> bool:
        """Makes room for ``wanted`` inputs that may live, and some more; returns True if there was too little."""
        if wanted <= (batch.below.capacity if batch.below else 0):
            return False
        capacity = capacity_for(wanted)
        network, inputs = self._side(-1), batch.undecided
        variant = self._below(capacity)
        allocate = self._executor.allocate
        rows = zeroed(self._executor, capacity * self._row_bytes)
        neurons = allocate(capacity * network.outputs * self._dtype.itemsize)
        batch.below = Below(
            capacity,
            variant,
            rows,
            neurons,
            self._take.bind(
                batch.count,
                batch.count,
                capacity,
                self._row_bytes // self._word,
                batch.totals,
                inputs.results,
                batch.numbers,
                None,
                rows,
            ),
            self._decide.bind(
                WARP * capacity,
                capacity,
                network.outputs,
                list(DType).index(self._dtype),
                int(self.bound_layers == len(self._network.layers)),
                self._row_bytes,
                self.float64.enough_behind(self.bound_layers),
                inputs.results,
                batch.numbers,
                neurons,
                rows,
                inputs.numbers,
                inputs.lives,
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
        words = np.zeros(words_of(count), np.int32)
        words[1] = sampled
        numbers = executor.upload(np.linspace(0, count - 1, sampled).astype(np.int32))
        inputs = Undecided(executor.upload(words), numbers, self._network.neurons)
        executor.synchronize()  # the uploads must not pass the stream's work
        self._finish(inputs, sampled, y, stream)
        decided = self._downloaded(self.float64.decided, self.float64.capacity, stream)[:sampled]
        behind = np.sort(np.where(decided > 0, decided, whole))
        layers = int(behind[-1 - int(OPEN * sampled)]) + MORE_LAYERS
        return layers if layers < whole and self._can_end_behind(layers) else whole

    def _can_end_behind(self, layers: int) -> bool:
        """True if bounds may end after ``layers``: rows of inputs are those of the whole network, and a zero input is
        dead.
        """
        is_widest = first_layers(self._network, layers).neurons == self._network.neurons
        return is_widest and bool(self.float64.levels.little[layers - 1] >= 0)

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


def capacity_for(wanted: int) -> int:
    """A sixteenth more than wanted, in steps of a thirty-second or more, so that about as many find room again."""
    step = max(WARP, (1 << wanted.bit_length() - 1) // 32)
    return round_up(wanted + wanted // 16, step)


def first_layers(network: Network, count: int) -> Network:
    """A network of its first layers."""
    return replace(network, layers=network.layers[:count], biases=network.biases[:count])


def bound_clip(network: Network, dtype: DType, side: int) -> float:
    """The clip of a network that bounds another."""
    return bound(first_layers(network, 1), dtype, side).clip
