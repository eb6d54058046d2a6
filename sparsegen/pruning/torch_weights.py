"""PyTorch tensors as `Weights`; PyTorch is never imported here, a tensor can only exist once it was."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsegen.matrix.csr import Array
from sparsegen.pruning.weights import WeightSpec, value_type


def is_tensor(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


class TorchWeights:
    """Tensors on any device, none of them changed. Ranked on the host, pruned where they are."""

    source = "weights"

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._torch = sys.modules["torch"]
        self._tensors = tensors
        self.specs = [
            WeightSpec(name, tuple(tensor.shape), str(tensor.dtype), self._value_type(tensor))
            for name, tensor in tensors.items()
        ]

    def _value_type(self, tensor: Any) -> np.dtype[Any] | None:
        dense = tensor.layout == self._torch.strided and tensor.device.type != "meta"
        return value_type(str(tensor.dtype)) if dense else None

    def read(self, name: str) -> Array:
        tensor = self._tensors[name].detach()
        if tensor.dtype not in (self._torch.float32, self._torch.float64):
            tensor = tensor.float()
        array: Array = tensor.cpu().numpy()
        return array

    def pruned(self, name: str, mask: Array) -> Any:
        """A new tensor without a gradient, zero where ``mask`` (m × k) is false; dtype and device are kept."""
        tensor = self._tensors[name].detach()
        kept = self._torch.from_numpy(mask.reshape(tuple(tensor.shape))).to(tensor.device)
        return tensor.masked_fill(~kept, 0)
