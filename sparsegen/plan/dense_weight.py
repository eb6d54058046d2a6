"""The sparse matrix with its zeros, as a PyTorch tensor that dense products multiply."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsegen.backends.executor import Address, Executor
from sparsegen.dispatch.dense_time import CHUNK_BYTES
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.plan.arrays import host_values
from sparsegen.plan.dense_fill import DenseFill
from sparsegen.plan.lasting_tensors import lasting_zeros
from sparsegen.system.numpy_types import Array


class DenseWeight:
    """A full m × k tensor whose values at the places of a pattern can be replaced.

    Attributes:
        tensor: m × k, with zeros outside the pattern.
    """

    def __init__(self, pattern: CsrMatrix, dtype: Any, place: Any, *, by_columns: bool = False) -> None:
        """Zeros; `update` fills the pattern, by default in CSR order.

        Args:
            pattern: pattern, whose values play no part.
            dtype, place: the tensor's, of PyTorch.
            by_columns: column-major, not row-major, if columns begin at larger powers of two of bytes than rows do.
        """
        import torch

        self._torch, self._pattern = torch, pattern
        self._order: Array | None = None
        self._kept: tuple[Any, Any | None] | None = None
        m, k = pattern.shape
        of_column, of_row = (math.gcd(size * dtype.itemsize, CHUNK_BYTES) for size in (m, k))
        turned = by_columns and of_column > of_row
        self._stored = lasting_zeros(torch, (k, m) if turned else (m, k), dtype, torch.device(place))
        self.tensor = self._stored.t() if turned else self._stored

    @property
    def nbytes(self) -> int:
        """Bytes on the device, of the places too while these are kept."""
        kept = () if self._kept is None else self._kept
        return int(self.tensor.nbytes) + sum(int(array.nbytes) for array in kept if array is not None)

    def update(self, values: Any, *, keeps_places: bool = False) -> None:
        """New values at the pattern, an array of any library or a tensor anywhere, one for each nonzero.

        Args:
            keeps_places: keep the nonzeros' places on the device, 8 bytes each, as values that train need: otherwise
                they are sent again for each update.
        """
        torch = self._torch
        if not isinstance(values, torch.Tensor):
            values = torch.as_tensor(np.array(host_values(values)))  # a copy: it may be read-only
        with torch.inference_mode(False), torch.no_grad():
            stored = values.detach().to(self.tensor.device, self.tensor.dtype)
            places, order = self._kept or self._sent()
            if keeps_places:
                self._kept = places, order
            self._stored.view(-1).index_copy_(0, places, stored if order is None else stored[order])

    def fill(self, executor: Executor) -> DenseFill | None:
        """Returns a launch that writes values on the device into the pattern; None if `update` kept no places.

        Raises:
            CompileError, DeviceUnavailableError, LaunchError: its kernel cannot be compiled or loaded.
        """
        if self._kept is None or self._order is not None:
            return None
        full, places = (Address(t.data_ptr(), t.nbytes) for t in (self.tensor, self._kept[0]))
        return DenseFill(full, self.tensor.element_size(), places, executor)

    def reorder(self, order: Array) -> None:
        """Values of later updates come in this order: for each nonzero its number among them."""
        self._order, self._kept = order.astype(np.int64), None

    def _sent(self) -> tuple[Any, Any | None]:
        """The nonzeros' places in the tensor, and their order among the values."""
        torch, pattern, place = self._torch, self._pattern, self.tensor.device
        of_row, of_column = self.tensor.stride()
        lengths = torch.as_tensor(np.diff(pattern.row_offsets), device=place)
        begins = torch.arange(pattern.shape[0], device=place) * of_row
        places = torch.repeat_interleave(begins, lengths)
        places += torch.as_tensor(np.array(pattern.column_indices), device=place) * of_column
        return places, None if self._order is None else torch.as_tensor(self._order, device=place)
