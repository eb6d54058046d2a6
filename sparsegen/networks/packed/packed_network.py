"""Networks packed in segments: some layers at a time, each a problem of its own, as bytes for a device."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.backends.executor import Buffer, Executor, PinnedMemory
from sparsegen.errors import SavedOperatorError
from sparsegen.kernels import family_of
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.networks.model.network import Network
from sparsegen.networks.packed.memory_plan import MemoryPlan
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import BIAS_COLUMNS, Activation, Readout, SparseNetworkProblem
from sparsegen.plan.packing import with_all_values
from sparsegen.system.device_memory import Address
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.numpy_types import Array

ALIGNMENT = 256  # alignment of arrays in an image
CLIP_BYTES = 4
CHECKED_BYTES = 4 << 20  # bytes of an image for each checksum
RESULT_BUFFERS = 2  # one comes back to the host while the other fills


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Layers that follow each other, packed for one variant.

    Attributes:
        problem: the segment's problem for the largest batch.
        layers: their numbers in the network.
        sizes, scratch, nnz: see `Packed`.
        places: for each packed array, its start in the image, and its bytes.
        image: uint8, all packed arrays.
        pinned: the memory that holds the image, if a device reads it by itself.
        checksums: CRC-32 of every `CHECKED_BYTES` of an image that comes from a file; none of one that was packed here.
    """

    problem: SparseNetworkProblem
    layers: range
    sizes: Mapping[str, int]
    scratch: Mapping[str, int]
    nnz: int
    places: Mapping[str, tuple[int, int]]
    image: Array
    pinned: PinnedMemory | None = None
    checksums: tuple[int, ...] = ()

    @classmethod
    def of(cls, problem: SparseNetworkProblem, layers: range, packed: Packed[Array]) -> Segment:
        """The arrays behind each other."""
        arrays = {
            name: np.ascontiguousarray(empty_as_one(array)).reshape(-1).view(np.uint8)
            for name, array in with_all_values(problem, packed).items()
        }
        places, end = {}, 0
        for name, array in arrays.items():
            places[name] = (end, array.nbytes)
            end += round_up(array.nbytes, ALIGNMENT)
        image = np.zeros(end, dtype=np.uint8)
        for name, array in arrays.items():
            begin, nbytes = places[name]
            image[begin : begin + nbytes] = array
        return cls(problem, layers, packed.sizes, packed.scratch, packed.nnz, places, image)

    def checked_part(self, number: int) -> int:
        """The checksum that a part of the image has."""
        return zlib.crc32(self.image[number * CHECKED_BYTES : (number + 1) * CHECKED_BYTES].data)

    def with_checksums(self) -> Segment:
        """The same with what its image should sum to."""
        parts = range(ceil_div(self.image.nbytes, CHECKED_BYTES))
        return replace(self, checksums=tuple(self.checked_part(number) for number in parts))

    def require_whole(self, first: int, last: int) -> None:
        """Hold some parts of the image against their checksums.

        Raises:
            SavedOperatorError: the file that it comes from is damaged.
        """
        for number in range(first, last):
            if self.checked_part(number) != self.checksums[number]:
                raise SavedOperatorError(
                    f"layers {self.layers.start + 1} to {self.layers.stop} of this packed network are damaged: "
                    "pack it again (sparsegen network pack)"
                )

    def for_batches(self, batch: int, scratch: Mapping[str, int]) -> Segment:
        """The same for batches of another size, which changes nothing of the image."""
        return replace(self, problem=replace(self.problem, n=batch), scratch=scratch)

    def on_device(self, address: int) -> Packed[Buffer]:
        """The segment as a packed problem whose image begins at an address."""
        arrays: dict[str, Buffer] = {
            name: Address(address + begin, nbytes) for name, (begin, nbytes) in self.places.items()
        }
        return Packed(arrays=arrays, sizes=self.sizes, nnz=self.nnz, scratch=self.scratch)


@dataclass(frozen=True, slots=True, eq=False)
class PackedNetwork:
    """All layers of a network in segments.

    Attributes:
        config: config of all segments.
        inputs, neurons, outputs: before the first layer, of the widest one, of the last.
        edges: weights of all layers.
        clip: upper limit of activations, as the dtype holds it.
        plan: plan of the memory's use.
    """

    config: Config
    dtype: DType
    activation: Activation
    readout: Readout
    inputs: int
    neurons: int
    outputs: int
    edges: int
    clip: float
    plan: MemoryPlan
    segments: tuple[Segment, ...]

    @property
    def family(self) -> AnyFamily:
        """The config's."""
        return family_of(self.config)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the largest segment."""
        return max(segment.image.nbytes for segment in self.segments)

    @property
    def is_resident(self) -> bool:
        """True if all segments lie on a device at the same time."""
        return len(self.segments) <= self.plan.slots

    @property
    def scratch(self) -> Mapping[str, int]:
        """Bytes of scratch memory that serve every segment."""
        names = {name for segment in self.segments for name in segment.scratch}
        return {name: max(segment.scratch.get(name, 0) for segment in self.segments) for name in names}

    @property
    def is_pinned(self) -> bool:
        """True if devices read all images by themselves."""
        return all(segment.pinned is not None for segment in self.segments)

    def pin(self, executor: Executor) -> PackedNetwork:
        """The same with its images in pinned memory, which doubles what the host needs for one of them at a time.

        Raises:
            DeviceMemoryError: the host cannot pin so much.
        """
        moved = []
        for segment in self.segments:
            if segment.pinned is not None:
                moved.append(segment)
                continue
            memory = executor.pinned(segment.image.nbytes)
            image = memory.array[: segment.image.nbytes]
            image[:] = segment.image
            moved.append(replace(segment, image=image, pinned=memory))
        return replace(self, segments=tuple(moved))

    def explain(self) -> str:
        """Describes what runs, and how memory is used."""
        settings = self.config.settings.replace(" ", ", ")
        return "\n".join((f"{self.family.name}: {settings}", self.plan.explain()))


def segment_problem(
    network: Network, layers: range, batch: int, dtype: DType, activation: Activation, readout: Readout
) -> SparseNetworkProblem:
    """Returns the problem of some layers of a network: the last ones give the readout, others their neurons."""
    is_last = layers.stop == len(network.layers)
    rows = (len(layers) - 1) * network.neurons + (network.outputs if is_last else network.neurons)
    return SparseNetworkProblem(
        rows,
        network.neurons + BIAS_COLUMNS,
        batch,
        dtype,
        activation,
        readout if is_last else Readout.NEURONS,
    )


def batch_bytes(
    network: Network, batch: int, dtype: DType, activation: Activation, readout: Readout, *, is_cut: bool
) -> int:
    """Device memory for ``batch`` inputs besides scratch memory: the bytes that `DeviceRun` allocates.

    Args:
        is_cut: true if there are several segments, and so neurons between them.
    """
    neurons = batch * network.neurons * dtype.itemsize
    results = 4 * batch if readout is Readout.TOTALS else batch * network.outputs * dtype.itemsize
    bits = batch * ceil_div(network.inputs, 8)
    between = neurons + 8 * batch if is_cut else 0
    return neurons + bits + RESULT_BUFFERS * results + between + CLIP_BYTES
