"""A module on a sparsity pattern, which its state dict holds."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegen.errors import MatrixError
from sparsegen.integrations.torch.calls.tensor_checks import checked_device
from sparsegen.integrations.torch.pattern.pattern import SparsePattern


class PatternModule(nn.Module):
    """Keeps a pattern as the buffers ``row_offsets`` and ``column_indices``; `load_state_dict` takes one over.

    Attributes:
        pattern: pattern that calls multiply with; another object after another pattern was loaded.
    """

    row_offsets: Tensor
    column_indices: Tensor

    def __init__(self, pattern: SparsePattern, *, device: torch.device | str | None = None) -> None:
        """Raises OperandError for a device that PyTorch cannot use."""
        super().__init__()
        where = checked_device(device)
        self.pattern = pattern
        for name, array in _arrays(pattern).items():
            self.register_buffer(name, array.to(where))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the pattern over first, so that what is loaded fits."""
        offsets: Any = state_dict.get(f"{prefix}row_offsets")
        columns: Any = state_dict.get(f"{prefix}column_indices")
        there = isinstance(offsets, Tensor) and isinstance(columns, Tensor)
        if there and not (_equal(offsets, self.row_offsets) and _equal(columns, self.column_indices)):
            try:
                self._take_pattern(
                    SparsePattern.of_csr(
                        self.pattern.shape,
                        offsets,
                        columns,
                        run_dense=self.pattern.run_dense,
                        db=self.pattern.db,
                    )
                )
            except MatrixError as error:
                errors: list[str] = args[-1]
                errors.append(f"{prefix}row_offsets, {prefix}column_indices: {error}")
                return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _take_pattern(self, pattern: SparsePattern) -> None:
        """Another pattern of the same shape."""
        self.pattern = pattern
        for name, array in _arrays(pattern).items():
            setattr(self, name, array.to(self.row_offsets.device))


def csr_tensor(offsets: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Makes a CSR tensor of PyTorch from arrays, which shares their memory and their gradients."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # CSR tensors are in beta state; checks are off
        return torch.sparse_csr_tensor(offsets, columns, values, shape)


def _arrays(pattern: SparsePattern) -> dict[str, Tensor]:
    names = ("row_offsets", "column_indices")
    return {name: torch.from_numpy(np.array(getattr(pattern.matrix, name))) for name in names}


def _equal(one: Tensor, other: Tensor) -> bool:
    """True if integers are the same, of whatever type and on whatever device."""
    return one.shape == other.shape and bool((one.cpu() == other.cpu()).all())
