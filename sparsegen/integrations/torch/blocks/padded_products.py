"""Products whose rows are no whole vectors of 16 bytes, which TMA cannot copy: on copies with zeros behind the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from sparsegen.integrations.torch.calls.copied_operands import is_faster_padded, padded_to
from sparsegen.integrations.torch.calls.launches import Place, Result, launch_of
from sparsegen.integrations.torch.calls.prepared import VECTOR_BYTES
from sparsegen.kernels.base import Device
from sparsegen.operators import MaskedProblem, Rest, SddProblem
from sparsegen.system.integers import round_up


def padded(problem: MaskedProblem, device: Device) -> MaskedProblem | None:
    """Returns the product with features that vectors divide, in and out, that takes a problem's place.

    Blocks of a mask have whole vectors, so that the mask stays. None where the features are so, where the problem was
    measured on the device, or should take no longer than with the copies.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    p, vector = problem, VECTOR_BYTES // problem.dtype.itemsize
    if isinstance(p, SddProblem) and p.rest is Rest.KEPT:  # the result is another's memory
        return None
    wider = replace(p, k=round_up(p.k, vector), n=round_up(p.n, vector))
    return wider if wider != p and is_faster_padded(p, wider, device) else None


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
        self._taken = [(place, shapes[name]) for name, place in places.items()]
        self._rows, self._columns = shape
        at = {name: number for number, name in enumerate(places)}
        first, second = wider.result(0).shape
        self._launch = launch_of(operator, wider, self._copies(tensors), at, Result((first, second)))

    def _copies(self, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        copies = []
        for place, shape in self._taken:
            at, view = place if isinstance(place, tuple) else (place, None)
            tensor = tensors[at]
            assert tensor is not None
            copies.append(padded_to(tensor if view is None else view(tensor), shape))
        return tuple(copies)

    def __call__(self, *tensors: Tensor | None, out: Tensor | None = None) -> Tensor:
        """The result, in ``out`` if it is given: contiguous, of any shape with its elements."""
        found: Tensor = self._launch(*self._copies(tensors))[: self._rows, : self._columns]
        return found.contiguous() if out is None else out.copy_(found.reshape(out.shape))
