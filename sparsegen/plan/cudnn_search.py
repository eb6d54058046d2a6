"""cuDNN's search for its fastest algorithm, which PyTorch switches."""

from __future__ import annotations

from typing import Any


class CudnnSearch:
    """A context in which cuDNN searches where sizes are first met; for calls outside of it that do not.

    Attributes:
        is_on: tells whether PyTorch searches anyway.
    """

    def __init__(self, torch: Any) -> None:
        # What ``torch.backends.cudnn.benchmark`` reads and writes, as calls of C: every dense convolution takes them.
        self.is_on, self._set = torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark

    def __enter__(self) -> None:
        self._set(True)

    def __exit__(self, *_: object) -> None:
        self._set(False)
