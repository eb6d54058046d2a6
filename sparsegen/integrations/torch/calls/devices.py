"""Devices of tensors: those for which sparsegen's kernels run, and those for which they do not."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen import backends
from sparsegen.kernels.base import Device
from sparsegen.operators import DType
from sparsegen.settings import Settings

DTYPES = {getattr(torch, dtype.value): dtype for dtype in DType}  # types that kernels know


def kernel_device(like: Tensor) -> Device | None:
    """Returns the device that runs sparsegen's kernels for such tensors; None if none does.

    They run on the GPU of a CUDA tensor, and for CPU tensors in the emulator, if SPARSEGEN_DEVICE names that. They know
    float32, float16 and bfloat16.
    """
    return kernel_device_of(like.device) if like.dtype in DTYPES else None


def kernel_device_of(device: torch.device) -> Device | None:
    """The same by where tensors are alone."""
    found = _gpus.get(device)
    if found is not None:
        return found
    if device.type == "cuda":
        found = _find(f"cuda:{torch.cuda.current_device() if device.index is None else device.index}")
        if device.index is not None:
            _gpus[device] = found
        return found
    if device.type == "cpu" and Settings.from_environment().device == "emulator":
        return _find("emulator")
    return None


_devices: dict[str, Device] = {}
_gpus: dict[torch.device, Device] = {}  # those with a number: every call asks


def _find(name: str) -> Device:
    if name not in _devices:
        _devices[name] = backends.find_device(name)
    return _devices[name]
