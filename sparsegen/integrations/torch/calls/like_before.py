"""Telling by one function of C that the tensors of a call are like earlier ones, without a frame of Python for each."""

from __future__ import annotations

from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

LATEST = "latest"  # the key of what the call before took, among those of kinds of calls


def guards_of(*tensors: Tensor) -> TensorGuards:
    """Returns what ``check`` holds tensors against: these ones' sizes, strides, dtypes, devices and dispatch keys.

    No tensor may be given twice, and all are strided.
    """
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
