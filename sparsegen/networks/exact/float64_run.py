"""Inputs through a network in float64 on a device, only as far as it takes to know of each whether it lives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import compiled_kernels
from sparsegen.errors import LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import empty_as_one
from sparsegen.networks.exact.decisions import Levels
from sparsegen.networks.exact.row_groups import RowGroups, group_bytes
from sparsegen.networks.model.network import Network
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Activation
from sparsegen.plan.own_launch import Bound
from sparsegen.system.device_memory import WARP, Address, Buffer

THREADS = 256  # as in exact_network.cu
MOST_INPUTS = 1024  # inputs of a round, as there
CHUNK = 2 * WARP  # inputs
WIDE = 8192  # neurons from which on a lane has two inputs: weights are read once for both, but few warps have work
NEURONS = 1 << 26  # neurons of all inputs of a round, 16 bytes each
SEGMENT_BYTES = 1 << 30  # bytes of layers that go to the device together
KEPT_SHARE = 1 / 4  # fraction of the free memory that weights may keep


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Layers on the device."""

    layers: range
    buffers: tuple[Buffer, ...]
    nbytes: int


class Float64Run:
    """A network's float64 inference on a device; the weights stay there as far as a quarter of its free memory allows.

    Attributes:
        capacity: inputs of a round.
        decided: int32 on the device, of each input of the last round behind which layer it was decided, counted from 1.
    """

    def __init__(
        self,
        network: Network,
        dtype: DType,
        activation: Activation,
        levels: Levels,
        executor: Executor,
    ) -> None:
        self._network, self._activation, self._executor = network, activation, executor
        self._type = list(DType).index(dtype)
        width = network.neurons
        self.capacity = max(CHUNK, min(MOST_INPUTS, NEURONS // width // CHUNK * CHUNK))
        per_lane = 2 if width >= WIDE else 1
        (self._kernel,) = compiled_kernels(executor, ("exact_network.cu", f"exact_network_{per_lane}"))
        self._levels = executor.upload(levels.pairs())
        self._clip = executor.upload(np.array([network.clip], np.float64))
        self._neurons = executor.allocate(2 * 8 * self.capacity * width)
        self._open = executor.allocate(4 * 6 * self.capacity)
        self.decided = executor.allocate(4 * self.capacity)
        self._segments = _segments(network)
        self.kept: dict[int, Segment] = {}
        free = executor.free_bytes()
        self._most_kept = None if free is None else int(free * KEPT_SHARE)

    def enough_behind(self, layers: int) -> Buffer:
        """Address of the number that is enough after ``layers`` layers; see `Levels`."""
        return Address(self._levels.address + 16 * (layers - 1), 8)

    @property
    def segments(self) -> int:
        """Launches that take an input through all layers."""
        return len(self._segments)

    def bound(
        self, segment: int, begin: int, counts: Buffer, undecided: Buffer, stride: int, lives: Buffer
    ) -> Bound:
        """The launch of a segment for inputs ``begin`` to ``begin + capacity`` of those that are undecided.

        Segments follow each other for the same inputs. See exact_network.cu for what is read and written.

        Args:
            stride: elements of a row of inputs.

        Returns:
            ``bound(stream, address of the inputs)``.
        """
        held = self._on_device(segment)
        layers = held.layers
        arguments: list[Buffer | int | None] = [
            layers.start,
            len(layers),
            int(layers.stop == len(self._network.layers)),
            self._network.neurons,
            self._network.inputs,
            stride,
            self._type,
            begin,
            self.capacity,
            counts,
            undecided,
            None,
            *held.buffers,
            self._levels,
            self._clip,
            self._neurons,
            self._open,
            self.decided,
            lives,
        ]
        blocks = self._executor.device.multiprocessors
        launch = Launch((blocks, 1, 1), (THREADS, 1, 1), together=True)
        return self._executor.bind(self._kernel, launch, arguments)

    def _on_device(self, number: int) -> Segment:
        if number not in self.kept:
            layers = self._segments[number]
            some = slice(layers.start, layers.stop)
            groups = RowGroups.of(self._network.layers[some], self._network.biases[some], self._activation)
            arrays = [empty_as_one(array) for array in groups.arrays]
            nbytes = sum(array.nbytes for array in arrays)
            kept = sum(segment.nbytes for segment in self.kept.values())
            if self._most_kept is not None and kept + nbytes > self._most_kept:
                self._executor.synchronize()
                for other in [one for one in self.kept if one]:  # the first serves every call
                    del self.kept[other]
            self.kept[number] = Segment(layers, tuple(map(self._executor.upload, arrays)), nbytes)
            self._executor.synchronize()  # launches may come on other streams than the uploads
        return self.kept[number]


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
