"""Products whose rows are no whole vectors of 16 bytes, which TMA cannot copy: on copies with zeros behind the rows.

That holds for cuBLAS as for kernels of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sparsegen.dispatch.padded_dense import is_dense_faster_padded, padded_product
from sparsegen.integrations.torch.blocks.plain_products import PlainProduct
from sparsegen.integrations.torch.calls.copied_operands import is_faster_padded
from sparsegen.integrations.torch.calls.launches import Place, Result, View, launch_of
from sparsegen.integrations.torch.calls.row_copies import RowCopy, padded_to
from sparsegen.kernels.base import Device
from sparsegen.operators import MaskedProblem


def padded(problem: MaskedProblem, device: Device) -> MaskedProblem | None:
    """Returns the product with features that vectors divide, in and out, that takes a problem's place.

    Blocks of a mask have whole vectors, so that the mask stays. None where the features are so, where the problem was
    measured on the device, or should take no longer than with the copies.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    wider = padded_product(problem)
    return wider if wider != problem and is_faster_padded(problem, wider, device) else None


def padded_for_dense(problem: MaskedProblem, device: Device) -> MaskedProblem | None:
    """The same for PyTorch's own product.

    Results in another's memory, whose dead blocks stay as they were, are asked of our kernels alone (`Dense.NEVER`).
    """
    wider = padded_product(problem)
    return wider if wider != problem and is_dense_faster_padded(problem, wider, device) else None


class PaddedProduct:
    """A product on copies of its operands, for tensors of one kind."""

    def __init__(
        self,
        wider: MaskedProblem,
        operator: Any,
        tensors: tuple[Tensor | None, ...],
        places: Mapping[str, Place],
        shape: tuple[int, int],
    ) -> None:
        """
        Args:
            wider: what `padded` gave for the problem.
            operator: prepared for it.
            tensors, places: the first call's, and for each operand its place among them, as `launch_of` takes it.
            shape: shape of the result.
        """
        shapes = {spec.name: spec.shape for spec in wider.operands(0)}
        self._taken = [_Taken.of(place, tensors, shapes[name]) for name, place in places.items()]
        self._rows, self._columns = shape
        at = {name: number for number, name in enumerate(places)}
        first, second = wider.result(0).shape
        self._is_whole = shape == (first, second)
        copies = tuple(taken(tensors) for taken in self._taken)
        self._launch = launch_of(operator, wider, copies, at, Result((first, second)))

    def __call__(self, *tensors: Tensor | None, out: Tensor | None = None) -> Tensor:
        """The result, in ``out`` if it is given: contiguous, of any shape with its elements."""
        copies = (taken(tensors) for taken in self._taken)
        if self._is_whole:
            return self._launch(*copies, out=out)
        found: Tensor = self._launch(*copies)[: self._rows, : self._columns]
        return found.contiguous() if out is None else out.copy_(found.reshape(out.shape))


class PaddedPlainProduct:
    """PyTorch's product on such copies, called as `PlainProduct` is."""

    def __init__(self, wider: MaskedProblem, scale: float, device: Device, shape: tuple[int, int]) -> None:
        """
        Args:
            wider: what `padded_for_dense` gave for the problem.
            device: where our kernels run.
            shape: shape of the result.
        """
        p = wider
        sides = {"x": (p.m, p.k), "d": (p.m, p.n), "w": (p.n, p.k)}
        self._product = PlainProduct(wider, scale, device)
        self._sides = [sides[spec.name] for spec in wider.dense_operands()]
        self._outputs = p.n
        self._is_whole = shape == wider.result(0).shape
        self._rows, self._columns = shape

    def __call__(
        self, first: Tensor, second: Tensor, *rest: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """See `PlainProduct`."""
        *biases, words = rest
        factors = map(padded_to, (first, second), self._sides)
        added = [one if one is None else padded_to(one, (self._outputs,)) for one in biases]
        if self._is_whole:
            return self._product(*factors, *added, words, out=out)
        found = self._product(*factors, *added, words)[: self._rows, : self._columns]
        return found.contiguous() if out is None else out.copy_(found.reshape(out.shape))


@dataclass(frozen=True, slots=True)
class _Taken:
    """An operand's place among the tensors of a call, the function that views it, and its copy; None for itself."""

    at: int
    view: View | None
    copy: RowCopy | None

    @classmethod
    def of(cls, place: Place, tensors: tuple[Tensor | None, ...], shape: tuple[int, ...]) -> _Taken:
        at, view = place if isinstance(place, tuple) else (place, None)
        seen = cls(at, view, None)(tensors)
        return cls(at, view, None if seen.shape == shape else RowCopy(seen, shape))

    def __call__(self, tensors: tuple[Tensor | None, ...]) -> Tensor:
        tensor = tensors[self.at]
        assert tensor is not None
        seen = tensor if self.view is None else self.view(tensor)
        return seen if self.copy is None else self.copy(seen)
