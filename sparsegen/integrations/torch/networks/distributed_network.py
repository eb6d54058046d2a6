"""Sparse networks on several hosts: every process of ``torchrun`` infers a part of the inputs on its own device.

The first process packs the network and sends it to all others once, by `torch.distributed`'s broadcast (NCCL or gloo).
Inputs are dealt such that those that live are spread evenly; results are gathered in the order of the inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sparsegen.errors import ConfigError, SavedOperatorError
from sparsegen.kernels.base import Device
from sparsegen.networks.files.packed_header import header_of, packed_of
from sparsegen.networks.model.chunks import Chunk
from sparsegen.networks.model.inputs import Inputs, as_inputs
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.run.packed_inference import PackedInference
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators.sparse_network import Readout
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.json_reader import Node

PIECE_BYTES = 256 << 20  # bytes of images sent at a time


class DistributedNetwork:
    """A network on the devices of all processes of a group; every process makes one, and calls it, at the same time.

    Attributes:
        packed: the network, the same in every process.
        rank, world_size: number of this process, and number of all.
    """

    def __init__(
        self,
        network: SparseNetwork | None,
        count: int,
        readout: Readout | str = Readout.TOTALS,
        *,
        memory: object = None,
        device: Device | str | None = None,
    ) -> None:
        """Pack in the first process, and send to all.

        Args:
            network: the first process's; others need none.
            count: inputs of a call, about.
            readout: ``"totals"`` or ``"neurons"``.
            memory: bytes of each device; see `SparseNetwork.__call__`.
            device: this process's; by default the GPU of its rank on its host, or without GPUs the emulator.

        Raises:
            ConfigError: there is no process group, or the first process gave no network.
            What `SparseNetwork.pack` raises: in every process a RuntimeError names it, but for the first.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                "there is no process group: start with torchrun and call torch.distributed.init_process_group()"
            )
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        local = dist.get_node_local_rank(fallback_rank=self.rank)
        if device is None:
            device = f"cuda:{local}" if torch.cuda.is_available() else "emulator"
        self._place = torch.device("cuda", local) if _needs_cuda() else torch.device("cpu")
        self.packed = self._shared(network, ceil_div(count, self.world_size), readout, memory)
        self._inference = PackedInference(self.packed, device=device)

    def __call__(self, y: object) -> tuple[Array, Array]:
        """The last layer's neurons, and which inputs live, in every process.

        Args:
            y: all inputs, the same in every process; see `SparseNetwork.__call__`.

        Raises:
            ConfigError: it was packed for totals.
            OperandError: inputs of another shape, or no numbers.
        """
        inputs, chunks = self._dealt(y)
        found = self._gathered(self._inference(inputs, self._own(chunks))[0], chunks)
        return found, np.flatnonzero(found.any(axis=1))

    def totals(self, y: object) -> Array:
        """The sum of each input's outputs, float32, in every process; see `__call__`.

        Raises:
            ConfigError: it was packed for neurons.
        """
        inputs, chunks = self._dealt(y)
        return self._gathered(self._inference.totals(inputs, self._own(chunks)), chunks)

    def categories(self, y: object) -> Array:
        """The inputs that live, as the dtype computes them: int64, sorted; see `totals`."""
        return np.flatnonzero(self.totals(y))

    def _dealt(self, y: object) -> tuple[Inputs, list[Chunk]]:
        """Returns all inputs and their chunks; every process has the same list and takes its own."""
        inputs = as_inputs(y, self.packed.inputs, self.packed.dtype)
        return inputs, self._inference.chunks(inputs.count, self.world_size)

    def _own(self, chunks: list[Chunk], rank: int | None = None) -> list[Chunk]:
        """A process's; by default this one's."""
        return chunks[self.rank if rank is None else rank :: self.world_size]

    def _gathered(self, found: Array, chunks: list[Chunk]) -> Array:
        """The results of all processes in the order of the inputs.

        Args:
            found: results of all inputs. This process has inferred its own; the others are filled in.
        """
        numbers = [_numbers(self._own(chunks, rank)) for rank in range(self.world_size)]
        padded = np.zeros((max(some.size for some in numbers), *found.shape[1:]), found.dtype)
        padded[: numbers[self.rank].size] = found[numbers[self.rank]]
        own = torch.from_numpy(padded).to(self._place)
        parts = [torch.empty_like(own) for _ in numbers]
        dist.all_gather(parts, own)
        for some, part in zip(numbers, parts, strict=True):
            found[some] = part.cpu().numpy()[: some.size]
        return found

    def _shared(
        self, network: SparseNetwork | None, count: int, readout: Readout | str, memory: object
    ) -> PackedNetwork:
        """The network packed by the first process."""
        packed: PackedNetwork | None = None
        told: list[Any] = [None]
        try:
            if self.rank == 0:
                if network is None:
                    raise ConfigError("the first process needs the network")
                packed = network.pack(count, readout, memory=memory)
                told = [header_of(packed)]
        finally:
            dist.broadcast_object_list(told, src=0)  # None if the first process failed
        header = told[0]
        if header is None:
            raise RuntimeError("the first process could not pack the network; it says why")
        if packed is not None:
            for segment, about in zip(packed.segments, header["segments"], strict=True):
                self._broadcast(segment.image, about["nbytes"])
            return packed
        images = np.zeros(header["nbytes"], np.uint8)
        for about in header["segments"]:
            self._broadcast(images[about["begin"] :], about["nbytes"])
        return packed_of(Node(header, None, "$", "the network of rank 0", SavedOperatorError), images)

    def _broadcast(self, image: Array, nbytes: int) -> None:
        """The first process's bytes into all others' arrays."""
        for begin in range(0, nbytes, PIECE_BYTES):
            part = image[begin : min(begin + PIECE_BYTES, nbytes)]
            piece = torch.from_numpy(part if part.flags.writeable else part.copy()).to(self._place)
            dist.broadcast(piece, src=0)
            if self.rank:
                part[:] = piece.cpu().numpy()


def _numbers(chunks: list[Chunk]) -> Array:
    """Numbers of all inputs in some chunks."""
    return np.concatenate([np.zeros(0, np.int64), *(chunk.numbers for chunk in chunks)])


def _needs_cuda() -> bool:
    """True if tensors must lie on a GPU to be sent."""
    return "nccl" in str(dist.get_backend())
