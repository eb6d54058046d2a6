"""Captures of CUDA graphs by array libraries that this process has imported."""

from __future__ import annotations

import sys


def is_capturing() -> bool:
    """True if this thread captures a CUDA graph, by PyTorch or CuPy: nothing may be timed or checked then."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    return cupy is not None and bool(cupy.cuda.get_current_stream().is_capturing())
