"""PyTorch tensors as `Weights`; PyTorch is never imported here, a tensor can only exist once it was."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsegen.pruning.cut import Cut
from sparsegen.pruning.weights import LARGEST, WeightSpec, value_type
from sparsegen.system.numpy_types import Array, NumpyType

SQUARED_AT_ONCE = 1 << 24  # elements, to bound memory


def is_tensor(obj: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


@dataclass(frozen=True, slots=True, eq=False)
class PrunedTensor:
    """A matrix of weights that was pruned where it lies.

    Attributes:
        mask: m × k booleans, a tensor: the weights that stay.
        pruned: m × k, a tensor with zeros for the others.
        kept: weights that stay.
        energy, energy_before: sums of squares.
    """

    mask: Any
    pruned: Any
    kept: int
    energy: float
    energy_before: float


class TorchWeights:
    """Tensors on any device, none of them changed, pruned where they are.

    Single weights of a GPU's tensors are ranked there, too; all else is ranked on the host.
    """

    source = "weights"

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._torch = sys.modules["torch"]
        self._tensors = tensors
        self.specs = [
            WeightSpec(name, tuple(tensor.shape), str(tensor.dtype), self._value_type(tensor))
            for name, tensor in tensors.items()
        ]

    def _value_type(self, tensor: Any) -> NumpyType | None:
        dense = tensor.layout == self._torch.strided and tensor.device.type != "meta"
        return value_type(str(tensor.dtype)) if dense else None

    def read(self, name: str) -> Array:
        tensor = self._tensors[name].detach()
        if tensor.dtype not in (self._torch.float32, self._torch.float64):
            tensor = tensor.float()
        array: Array = tensor.cpu().numpy()
        return array

    def pruned(self, name: str, mask: Any) -> Any:
        """A new tensor without a gradient, zero where ``mask`` (m × k) is false; dtype and device are kept."""
        tensor = self._tensors[name].detach()
        kept = self._torch.as_tensor(mask).reshape(tensor.shape).to(tensor.device)
        return tensor.masked_fill(~kept, 0)

    def pruned_there(self, spec: WeightSpec, keep: int, cut: Cut | None) -> PrunedTensor | None:
        """The largest weights of a tensor on a GPU, chosen there; None of one on the host, or with NaN or infinity.

        Args:
            keep: number that stays; of equal ones the first.
            cut: one through several tensors, in the place of ``keep``.
        """
        tensor = self._tensors[spec.name].detach()
        if not tensor.is_cuda:
            return None
        return pruned_by_torch(self._torch, tensor.reshape(spec.matrix_shape), keep, cut)


def pruned_by_torch(torch: Any, matrix: Any, keep: int, cut: Cut | None) -> PrunedTensor | None:
    """See `TorchWeights.pruned_there`; of a tensor anywhere."""
    magnitudes = matrix.abs().reshape(-1)
    if not bool(
        (magnitudes <= LARGEST).all() if matrix.dtype == torch.float64 else magnitudes.isfinite().all()
    ):
        return None
    if cut is not None:
        threshold, room = torch.from_numpy(cut.threshold).to(matrix.device), cut.room
        mask = magnitudes > threshold
    elif keep == 0:
        threshold, room, mask = None, 0, torch.zeros_like(magnitudes, dtype=torch.bool)
    else:
        threshold = _largest(torch, magnitudes, keep)
        mask = magnitudes > threshold
        room = keep - int(mask.sum())
    if room > 0 and threshold is not None:
        mask[(magnitudes == threshold).nonzero()[:room, 0]] = True
    mask = mask.reshape(matrix.shape)
    pruned = matrix.masked_fill(~mask, 0)
    return PrunedTensor(mask, pruned, int(mask.sum()), _energy(pruned), _energy(matrix))


def _largest(torch: Any, magnitudes: Any, number: int) -> Any:
    """The ``number``-th largest of them, bit by bit: bits of numbers that are not negative sort like the numbers.

    PyTorch's `kthvalue` has one multiprocessor look at them all, which takes ten times as long.
    """
    bits = magnitudes.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[magnitudes.element_size()])
    found = 0
    for bit in reversed(range(8 * magnitudes.element_size() - 1)):
        tried = found | 1 << bit
        if int((bits >= tried).sum()) >= number:
            found = tried
    return torch.tensor(found, dtype=bits.dtype, device=bits.device).view(magnitudes.dtype)


def _energy(matrix: Any) -> float:
    """Returns the sum of squares, as `sparsegen.pruning.groups.energy`: of two matrices of one shape the one with more
    zeros never has more.
    """
    parts = matrix.reshape(-1).split(SQUARED_AT_ONCE)
    return float(sum(part.double().square().sum() for part in parts))
