"""Inference with a packed network, for one that comes from a file, or for other devices than it was packed for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsegen.errors import ConfigError
from sparsegen.kernels.base import Device
from sparsegen.networks.model.chunks import Chunk
from sparsegen.networks.model.inputs import as_inputs
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.run.placement import Devices, Placement
from sparsegen.operators.sparse_network import Readout
from sparsegen.system.device_bound import DeviceBound
from sparsegen.system.numpy_types import Array


class PackedInference(DeviceBound):
    """A packed network on devices, within the memory that it was planned for.

    Attributes:
        packed: the packed network, and the plan.
    """

    instead = "load its file again where it is needed"

    def __init__(
        self, packed: PackedNetwork, *, device: Device | str | None = None, devices: Devices | None = None
    ) -> None:
        """
        Args:
            device, devices: see `SparseNetwork`.

        Raises:
            ConfigError: the variant that it was packed for does not run there.
            DeviceUnavailableError: a device is not there.
        """
        self.packed = packed
        self._group = Placement.of(None, devices, device).group(packed)

    def chunks(self, count: int, hands: int) -> list[Chunk]:
        """Divides ``count`` inputs into chunks for ``hands`` devices; see `DeviceGroup.chunks`."""
        return self._group.chunks(count, hands)

    def __call__(self, y: object, chunks: Sequence[Chunk] | None = None) -> tuple[Array, Array]:
        """The last layer's neurons, and which inputs live; see `SparseNetwork.__call__`.

        Args:
            chunks: infer these inputs alone; neurons of others are zero.

        Raises:
            ConfigError: it was packed for totals.
            OperandError: inputs of another shape, or no numbers.
        """
        if self.packed.readout is not Readout.NEURONS:
            raise ConfigError("this network was packed for totals: pack it with readout = neurons")
        found = self.packed.dtype.from_storage(self._inferred(y, chunks))
        return found, np.flatnonzero(found.any(axis=1))

    def totals(self, y: object, chunks: Sequence[Chunk] | None = None) -> Array:
        """The sum of each input's outputs, float32; see `__call__`.

        Raises:
            ConfigError: it was packed for neurons.
            OperandError: inputs of another shape, or no numbers.
        """
        if self.packed.readout is not Readout.TOTALS:
            raise ConfigError("this network was packed for neurons: pack it with readout = totals")
        return self._inferred(y, chunks)

    def categories(self, y: object) -> Array:
        """The inputs that live, as the dtype computes them: int64, sorted; errors as of `totals`."""
        return np.flatnonzero(self.totals(y))

    def _inferred(self, y: object, chunks: Sequence[Chunk] | None) -> Array:
        return self._group.infer(as_inputs(y, self.packed.inputs, self.packed.dtype), chunks).results
