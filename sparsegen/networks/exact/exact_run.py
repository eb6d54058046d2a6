"""Exact categories on a device, without the host in between: bounds from above and below, then float64 for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparsegen import backends
from sparsegen.networks.exact.exact import Categories, bound
from sparsegen.networks.exact.float64_run import COUNTS, Float64Run, Undecided, lives_of, words_of
from sparsegen.networks.model.network import Network
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Readout, SparseNetworkProblem
from sparsegen.plan.binding import BoundVariant, bind_variant, zeroed
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP, Buffer
from sparsegen.system.integers import round_up

SAMPLED = 1024  # inputs that tell how many layers decide
OPEN = 0.005  # fraction of them that may be undecided after those layers
MORE_LAYERS = 2  # until those that die are zero, and float16 is certain too

Prepare = Callable[[Network, int, Readout], BoundVariant]
Queue = Callable[[int, int], None]  # (stream, address of the inputs)


@dataclass(slots=True)
class Batch:
    """Launches and buffers for one number of inputs.

    Attributes:
        totals, numbers: 4 bytes for each input.
        undecided: what bounds leave undecided, and all results.
        above: makes the results zero, and computes the totals of the network above.
        below: lists the inputs that may live; decides as many of them as there is room for in the network below, and
            begins with float64 for the others.
        capacity: inputs that there is room for.
    """

    count: int
    totals: Buffer
    numbers: Buffer
    undecided: Undecided
    above: Queue
    below: Queue
    capacity: int = 0


class ExactRun:
    """Exact categories of one network on one device.

    Bounds are computed only as far as nearly all inputs are decided: one that is zero in the network above is dead, and
    one whose neurons are all at least what `Levels` says in the network below lives, whatever layers follow.

    Any thread may call, with any stream; see `NetworkRun`.

    Attributes:
        bound_layers: number of layers of the bounds; 0 until inputs are there to tell.
        float64: computes what bounds leave undecided.
    """

    def __init__(self, float64: Float64Run, prepare: Prepare) -> None:
        """
        Args:
            prepare: makes a network's operator for a number of inputs, with a readout.
        """
        self.float64, self._prepare = float64, prepare
        self._network, self._dtype, self._executor = float64.network, float64.dtype, float64.executor
        self._batches: dict[int, Batch] = {}
        self._sides: dict[int, Network] = {}
        self._packed: dict[int, BoundVariant] = {}  # the network below, by how many inputs there is room for
        self.bound_layers = 0
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
            found = self.float64.downloaded(results, words, stream)
            if self._make_room(batch, int(found[0])):
                self._queue(batch, y, stream)
                found = self.float64.downloaded(results, words, stream)
            undecided = int(found[1])
            if found[2] or undecided > self.float64.capacity:
                self.float64.decide(batch.undecided, undecided, y, stream, is_begun=True)
                found = self.float64.downloaded(results, words, stream)
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
        variant = self._prepare(self._side(1), count, Readout.TOTALS)
        totals, numbers, undecided = (allocate(4 * count) for _ in range(3))
        words = words_of(count)
        results = allocate(4 * words)
        clear = self._clear.bind(words, words, results)
        list_living = self._take.bind(count, count, 0, 0, totals, results, numbers, totals, totals)

        def above(stream: int, y: int) -> None:
            clear(stream)
            variant.bound()(stream, y, self._clips[1].address, totals.address)

        inputs = Undecided(results, undecided, self._network.neurons)
        batch = Batch(count, totals, numbers, inputs, above, lambda stream, y: list_living(stream))
        self._queue(batch, y, stream)
        self._make_room(batch, int(self.float64.downloaded(results, COUNTS, stream)[0]))
        self._batches[count] = batch
        return batch

    @staticmethod
    def _queue(batch: Batch, y: Buffer, stream: int) -> None:
        batch.above(stream, y.address)
        batch.below(stream, y.address)

    def _make_room(self, batch: Batch, wanted: int) -> bool:
        """Makes room for ``wanted`` inputs that may live, and some more; returns True if there was too little."""
        if wanted <= batch.capacity:
            return False
        capacity = capacity_for(wanted)
        network, inputs, variant = self._side(-1), batch.undecided, self._below(capacity)
        rows = zeroed(self._executor, capacity * self._row_bytes)
        neurons = self._executor.allocate(capacity * network.outputs * self._dtype.itemsize)
        sizes = batch.count, capacity, self._row_bytes // self._word
        take = self._take.bind(batch.count, *sizes, batch.totals, inputs.results, batch.numbers, None, rows)
        decide = self._decide.bind(
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
        )
        float64 = self.float64.bound(0, 0, inputs)

        def below(stream: int, y: int) -> None:
            take(stream, y)
            variant.bound()(stream, rows.address, self._clips[-1].address, neurons.address)
            decide(stream)
            float64(stream, y)

        batch.below, batch.capacity = below, capacity
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
        self.float64.decide(inputs, sampled, y, stream)
        decided = self.float64.downloaded(self.float64.decided, self.float64.capacity, stream)[:sampled]
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
            self._sides[side] = bound(first_layers(self._network, self.bound_layers), self._dtype, side)
        return self._sides[side]


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
