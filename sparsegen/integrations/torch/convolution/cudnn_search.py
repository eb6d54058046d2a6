"""Convolutions of PyTorch by the fastest algorithm of cuDNN, which it searches when sizes are first met.

Without a search cuDNN takes what it estimates to be fast, and may miss the fastest algorithm by far. PyTorch keeps the
algorithm of sizes that a thread has met, however it was found.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.compiler import is_compiling

from sparsegen.integrations.torch.calls.prepared import is_capturing

# What ``torch.backends.cudnn.benchmark`` reads and writes, as calls of C: every dense convolution takes them.
_searches, _set_search = torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark


class _Search:
    """A context in which cuDNN searches."""

    def __enter__(self) -> None:
        _set_search(True)

    def __exit__(self, *_: object) -> None:
        _set_search(False)


_SEARCH = _Search()


def fastest_algorithms(x: Tensor) -> AbstractContextManager[object]:
    """A context in which convolutions of images search; nothing where PyTorch searches anyway, in a graph that is
    traced, or in one that is captured, which a search would break off.
    """
    if is_compiling() or not x.is_cuda or _searches() or is_capturing(x):
        return nullcontext()
    return _SEARCH
