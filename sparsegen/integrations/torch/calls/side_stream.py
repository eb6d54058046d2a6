"""A second stream inside of a CUDA graph that is captured, for two kernels which leave each other room.

Outside of a capture the host would spend more on events than the device saves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")

# By the stream that is captured, so that graphs which are captured at the same time have side streams of their own.
_sides: dict[torch.cuda.Stream, torch.cuda.Stream] = {}


def at_once(main: Callable[[], T], beside: Callable[[], S], device: torch.device) -> tuple[T, S]:
    """Returns the results of two functions that do not need each other; the second one is captured on a side stream.

    The side stream begins behind all that the captured one has had until now, and that one goes on behind both, even if
    one of them fails: a capture that leaves a stream unjoined cannot end. So the tensors that both read are never
    written too early, and need no `Tensor.record_stream`. What the second allocates is of the graph's own memory; once
    freed it goes to the side stream alone, which by then waits for all that has read it.

    Args:
        device: whose current stream is captured.
    """
    captured = torch.cuda.current_stream(device)
    side = _sides.get(captured)
    while side is None or side == captured:  # PyTorch hands out the streams of a pool again and again
        side = _sides[captured] = torch.cuda.Stream(device)
    side.wait_stream(captured)
    try:
        first = main()
        with torch.cuda.stream(side):
            return first, beside()
    finally:
        captured.wait_stream(side)
