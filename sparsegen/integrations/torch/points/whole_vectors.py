"""Channels of points padded with zeros to whole vectors, where kernels then take less time by more than the copies."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from sparsegen.integrations.torch.calls.copied_operands import is_faster_padded
from sparsegen.integrations.torch.calls.prepared import VECTOR_BYTES
from sparsegen.kernels.base import Device
from sparsegen.operators import SubmanifoldConv3dProblem, SubmanifoldConv3dWeightsProblem
from sparsegen.system.integers import round_up

Convolution = SubmanifoldConv3dProblem | SubmanifoldConv3dWeightsProblem


@lru_cache(maxsize=1024)
def padded(problem: Convolution, device: Device) -> Convolution | None:
    """Returns the problem with channels that vectors of 16 bytes divide, and filters of gradients too, in its place.

    None where it has such channels, was measured on the device, or should take no longer than with the copies.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    p, vector = problem, VECTOR_BYTES // problem.dtype.itemsize
    wider = replace(p, channels=round_up(p.channels, vector))
    if isinstance(wider, SubmanifoldConv3dWeightsProblem):
        wider = replace(wider, filters=round_up(p.filters, vector))
    return wider if wider != p and is_faster_padded(p, wider, device) else None
