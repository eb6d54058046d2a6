"""PyTorch tensors that outlive the call in which they are made, in compiled models too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def lasting_zeros(torch: Any, shape: Sequence[int], dtype: Any, place: Any) -> Any:
    """Returns a tensor that can get new values within and without inference mode.

    Args:
        torch: the module.
        dtype, place: of PyTorch.
    """
    return lasting(torch, lambda: torch.zeros(shape, dtype=dtype, device=place), place)


def lasting(torch: Any, make: Callable[[], Any], place: Any) -> Any:
    """Returns a tensor that a function makes, without gradients, of others on this device; see `lasting_zeros`."""

    def made() -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return make()

    def ready() -> Any:
        tensor = made()
        torch.cuda.current_stream(place).synchronize()
        return tensor

    if place.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return made()
    torch.cuda.current_stream(place).synchronize()  # what it reads may be on its way here
    # A compiled model's first call may come while what this thread allocates goes to the pool of a graph to be, which
    # refuses tensors that outlive the call (torch._inductor.cudagraph_trees).
    with ThreadPoolExecutor(1) as other:
        return other.submit(ready).result()
