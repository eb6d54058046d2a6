"""Inference on one device: batches of inputs go through a packed network segment by segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import Executor, LoadedKernel, Moment
from sparsegen.kernels import family_of
from sparsegen.kernels.packed import Packed
from sparsegen.networks.model.chunks import Chunk
from sparsegen.networks.model.inputs import Inputs, write_rows
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.run.network_run import NetworkRun
from sparsegen.networks.run.parked import Parked
from sparsegen.networks.run.result_buffers import ResultBuffers
from sparsegen.networks.run.staging import Staging, Writers
from sparsegen.networks.run.weight_slots import WeightSlots
from sparsegen.operators.sparse_network import Activation, Readout
from sparsegen.plan.binding import bind_launch, zeroed
from sparsegen.plan.own_launch import Bound
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.plan.variants import RenderedVariant
from sparsegen.system.device_memory import WARP, Address, Buffer
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

NextChunk = Callable[[], Chunk | None]
PART = 1024  # elements of a row that a warp copies, as in network_inputs.cu
MOST_LAUNCHES = 256  # kept: batches are of one size but where inputs died


class DeviceRun(NetworkRun):
    """A packed network on a device, for the thread that has entered the executor.

    Inputs that died are dropped after every segment. Where few are left of a batch and others are still to come, they
    wait on the host, so that a segment that is brought to the device has a full batch to compute.
    """

    def __init__(self, packed: PackedNetwork, executor: Executor) -> None:
        super().__init__(executor)
        self._packed = packed
        batch, itemsize = packed.plan.batch, packed.dtype.itemsize
        self._row_bytes = packed.neurons * itemsize
        self._bit_bytes = ceil_div(packed.inputs, 8)
        self._stream = executor.copy_stream()
        most = max(packed.slot_bytes, batch * self._row_bytes)
        writers = Writers()
        self._staging = Staging(executor, self._stream, writers, most, self._row_bytes)
        self._kernels = self._loaded()
        names = (f"{name}_{8 * itemsize}" for name in ("unpack", "find_alive", "gather"))
        self._unpack, self._find_alive, self._gather = plain_launchers(executor, "network_inputs.cu", *names)
        self._row_threads = WARP * ceil_div(packed.neurons, PART)  # that copy a row
        self.weights = WeightSlots(packed, executor, self._stream, self._staging)
        self._y: Buffer = executor.allocate(batch * self._row_bytes)
        self._bits = executor.allocate(batch * self._bit_bytes)
        self._results = ResultBuffers(executor, writers, batch, self._result_bytes)
        self._clip = executor.upload(np.array([packed.clip], np.float32))
        self._scratch = {name: zeroed(executor, nbytes) for name, nbytes in packed.scratch.items()}
        executor.synchronize()  # the stream of copies and launches does not wait for uploads
        self._z: Buffer = self._y
        if len(packed.segments) > 1:
            self._z = executor.allocate(batch * self._row_bytes)
            self._alive, self._kept = executor.allocate(4 * batch), executor.allocate(4 * batch)
        self._parked = [Parked(packed.neurons, packed.dtype.storage) for _ in packed.segments]
        self._launches: dict[tuple[int, int, int], Bound] = {}  # by segment, slot and number of inputs
        self._upcoming: Chunk | None = None
        self._sent: Moment | None = None

    @property
    def _result_bytes(self) -> int:
        packed = self._packed
        return 4 if packed.readout is Readout.TOTALS else packed.outputs * packed.dtype.itemsize

    def infer(self, inputs: Inputs, next_chunk: NextChunk, results: Array) -> None:
        """Infer chunk after chunk until there is none.

        Args:
            next_chunk: gives a chunk of at most the plan's batch; None behind the last.
            results: totals, or inputs × outputs in storage form; zero, and filled where inputs live.
        """
        self._fetch_upcoming(inputs, next_chunk)
        while (start := self._start(inputs)) is not None:
            level, numbers = start
            may_fetch = level == 0
            while numbers.size:
                packed = self.weights.hold_kernels_for(level)
                room = self.weights.make_room(self._following(level))
                if may_fetch:
                    self._stream.wait_for_kernels()  # bits are read
                is_last = level == len(self._packed.segments) - 1
                to = self._results.free(results) if is_last else self._z
                self._launch(level, packed, numbers.size, to)
                if is_last:
                    self._results.launched(numbers)
                self.weights.bring(room)
                if may_fetch:
                    self._fetch_upcoming(inputs, next_chunk)
                    may_fetch = False
                if is_last:
                    break
                numbers = self._survivors(numbers)
                level += 1
                if self._should_park(level, numbers.size):
                    rows = self._parked[level].put(numbers)
                    self.executor.download(Address(self._y.address, rows.nbytes), rows)
                    break
        self._results.collect(results)

    # --- which inputs come next ---

    def _fetch_upcoming(self, inputs: Inputs, next_chunk: NextChunk) -> None:
        """Take a chunk and begin to send it, if it is of bits; kernels that read those before were waited for."""
        self._upcoming, self._sent = next_chunk(), None
        if self._upcoming is None:
            return
        if inputs.are_bits:
            self._staging.send_inputs(inputs, self._upcoming, self._bits.address)
            self._sent = self._stream.moment()

    def _start(self, inputs: Inputs) -> tuple[int, Array] | None:
        """A segment, and the numbers of inputs that lie before it on the device: the deepest full batch of those that
        wait, new ones, or what waits before the first segment.
        """
        batch = self._packed.plan.batch
        waiting = [level for level, parked in enumerate(self._parked) if parked.count]
        full = [level for level in waiting if self._parked[level].count >= batch]
        if full:
            return full[-1], self._unparked(full[-1])
        if self._upcoming is not None:
            return 0, self._unpacked(inputs).numbers
        return (waiting[0], self._unparked(waiting[0])) if waiting else None

    def _unpacked(self, inputs: Inputs) -> Chunk:
        """The upcoming chunk, whose neurons are in y then."""
        chunk, self._upcoming = self._upcoming, None
        assert chunk is not None
        if self._sent is not None:
            self._stream.hold_kernels(self._sent)
            packed = self._packed
            one = int(packed.dtype.to_storage(np.ones(1)).view(f"u{packed.dtype.itemsize}")[0])
            sizes = (chunk.count, packed.inputs, packed.neurons, self._bit_bytes, one)
            self._unpack.bind(self._row_threads * chunk.count, *sizes, self._bits, self._y)(0)
        else:
            rows = np.empty((chunk.count, inputs.row_bytes), np.uint8)
            write_rows(inputs, chunk, 0, chunk.count, rows)
            self._put(rows.view(self._packed.dtype.storage))
        return chunk

    def _following(self, level: int) -> int | None:
        """The segment that is most likely needed next."""
        if self._packed.is_resident:
            return next((i for i in range(len(self._packed.segments)) if not self.weights.has(i)), None)
        if level + 1 < len(self._packed.segments):
            return level + 1
        waiting = [i for i, parked in enumerate(self._parked) if parked.count]
        return 0 if self._upcoming is not None else waiting[0] if waiting else None

    def _should_park(self, level: int, living: int) -> bool:
        if self._packed.is_resident or not living:
            return False
        more = self._upcoming is not None or any(parked.count for parked in self._parked[: level + 1])
        return more and 2 * living <= self._packed.plan.batch

    # --- neurons on the device ---

    def _unparked(self, level: int) -> Array:
        numbers, rows = self._parked[level].take(self._packed.plan.batch)
        self._put(rows)
        return numbers

    def _put(self, rows: Array) -> None:
        """Rows of numbers to the device, filled up with zeros; returns when they are there."""
        width = self._packed.neurons
        if rows.shape[1] < width:
            rows = np.pad(rows, ((0, 0), (0, width - rows.shape[1])))
        self._stream.wait_for_kernels()
        self._staging.send(np.ascontiguousarray(rows), self._y.address)
        self._stream.hold_kernels(self._stream.moment())

    def _survivors(self, numbers: Array) -> Array:
        """The inputs that live behind a segment, whose neurons are in y then."""
        packed, count = self._packed, numbers.size
        if packed.activation is not Activation.DYING_RELU:
            self._y, self._z = self._z, self._y
            return numbers
        self._find_alive.bind(WARP * count, count, packed.neurons, self._z, self._alive)(0)
        kept = np.flatnonzero(self.downloaded(self._alive, count))
        if kept.size == count:
            self._y, self._z = self._z, self._y
        elif kept.size:
            self.executor.overwrite(Address(self._kept.address, 4 * kept.size), kept.astype(np.int32))
            arguments = (kept.size, packed.neurons, self._kept, self._z, self._y)
            self._gather.bind(self._row_threads * kept.size, *arguments)(0)
        return numbers[kept]

    def _launch(self, level: int, weights: Packed[Buffer], count: int, to: Buffer) -> None:
        key = level, self.weights.current, count
        launch = self._launches.get(key)
        if launch is None:
            if len(self._launches) == MOST_LAUNCHES:
                self._launches.clear()
            launch = self._launches[key] = self._bound(level, weights, count)
        launch(0, self._y.address, self._clip.address, to.address)

    def _bound(self, level: int, weights: Packed[Buffer], count: int) -> Bound:
        """The launch of a segment for ``count`` inputs, with its weights where they lie now."""
        segment, config = self._packed.segments[level], self._packed.config
        problem, kernel = replace(segment.problem, n=count), self._kernels[segment.layers.start]
        return bind_launch(family_of(config), problem, config, weights, kernel, self.executor, self._scratch)

    def _loaded(self) -> dict[int, LoadedKernel]:
        """The kernel of each segment, by its first layer; most share one."""
        toolchain = backends.toolchain(self.executor.device)
        variants = {
            segment.layers.start: RenderedVariant.of(self._packed.config, segment.problem, toolchain)
            for segment in self._packed.segments
        }
        by_digest = {variant.digest: variant for variant in variants.values()}
        loaded = {
            digest: self.executor.load(variant.compile(toolchain).kernel)
            for digest, variant in by_digest.items()
        }
        return {start: loaded[variant.digest] for start, variant in variants.items()}
