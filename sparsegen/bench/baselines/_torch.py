"""Shared parts of the baselines that go through PyTorch; it is imported in their processes only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Baseline, MissingError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.operators import DType
from sparsegen.system.numpy_types import Array


def open_torch(executor: Executor, *more: str) -> Mapping[str, str]:
    """Import PyTorch and other packages, on the executor's device; their versions.

    Raises:
        MissingError: one is not installed, or PyTorch sees no GPU.
    """
    versions = {}
    for name in ("torch", *more):
        try:
            versions[name] = str(importlib.import_module(name).__version__)
        except ImportError as error:
            raise MissingError(f"{name} is not installed ({error}): pip install {name}") from error
    torch = import_torch()
    if executor.device.backend == "cuda":
        if not torch.cuda.is_available():
            raise MissingError("PyTorch sees no GPU: install a build for CUDA")
        torch.cuda.set_device(executor.device.index)
    return versions


def import_torch() -> Any:
    return importlib.import_module("torch")


def place() -> Any:
    """Returns the device of tensors: the current GPU, or the host if PyTorch sees none."""
    torch = import_torch()
    is_there = torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if is_there else torch.device("cpu")


def to_tensor(stored: Array, dtype: DType | None = None) -> Any:
    """An array at that place; ``dtype``: it is in that type's storage form."""
    torch = import_torch()
    tensor = torch.from_numpy(np.array(stored.view(np.int16) if dtype is DType.BFLOAT16 else stored))
    return (tensor.view(torch.bfloat16) if dtype is DType.BFLOAT16 else tensor).to(place())


def wait() -> None:
    """Waits until the GPU has done what was queued."""
    torch = import_torch()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def memory_beside(call: Callable[[], object]) -> int:
    """Bytes that PyTorch's allocator held at most during a call beside what it held before; 0 without a GPU."""
    torch = import_torch()
    call()  # compiles, and makes what is kept
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


class TorchBaseline(Baseline):
    """A baseline through PyTorch, and other packages where it names some."""

    packages: tuple[str, ...] = ()

    def open(self, executor: Executor) -> Mapping[str, str]:
        return open_torch(executor, *self.packages)


class TensorResult:
    """A result in a tensor of the problem's stored shape, which `run` may replace.

    Args:
        dtype: type; by default the problem's.
    """

    def __init__(self, bench: Workbench, shape: tuple[int, ...], dtype: DType | None = None) -> None:
        torch = import_torch()
        self._dtype = dtype or bench.problem.dtype
        self.tensor: Any = torch.empty(shape, dtype=getattr(torch, str(self._dtype)), device=place())

    def clear(self) -> None:
        """NaN everywhere."""
        self.tensor.fill_(float("nan"))

    def read(self) -> Array:
        """Wait, download."""
        torch = import_torch()
        wait()
        host = self.tensor.contiguous().cpu()
        if self._dtype is DType.BFLOAT16:
            bits: Array = host.view(torch.int16).numpy().view(np.uint16)
            return bits
        found: Array = host.numpy()
        return found


def nbytes(*tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
