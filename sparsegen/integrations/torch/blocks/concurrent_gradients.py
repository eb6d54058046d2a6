"""Both gradients of a masked product at once, in a CUDA graph and by kernels that leave each other room.

At 1024³ each has 64 tiles of 128 × 128, and a GPU some 132 multiprocessors; both read D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from sparsegen import api
from sparsegen.integrations.torch.calls.column_sums import column_sums
from sparsegen.integrations.torch.calls.launches import TensorLaunch
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.side_stream import at_once
from sparsegen.kernels import family_of
from sparsegen.kernels.masked.copied_tiles import CopiedTiles

Launch = Callable[..., Tensor]


class _Switch:
    is_on = False


@contextmanager
def concurrent_gradients() -> Iterator[None]:
    """Inside of the block, CUDA graphs compute both gradients of `dsd`, and so of `DropoutLinear`, at once.

    They are captured on two streams where both kernels fit on the device together: on Hopper, for few tiles, and with
    ``dense="never"``, or where masked products run in a layer. All else stays as it is.

    Warm up inside of the block too: kernels whose tiles are wider than those of kernels that run alone are compiled
    then. The block is for all threads, as gradients are computed in one of autograd's. It is not the default, since it
    was never timed on a GPU.
    """
    before, _Switch.is_on = _Switch.is_on, True
    try:
        yield
    finally:
        _Switch.is_on = before


def are_concurrent() -> bool:
    """True inside of `concurrent_gradients`."""
    return _Switch.is_on


class BothGradients:
    """The gradients of calls of one kind: by the launches of products that run alone, or, in a graph, at once."""

    def __init__(
        self, alone: tuple[Launch, Launch], at_once: tuple[TensorLaunch, TensorLaunch] | None
    ) -> None:
        """
        Args:
            at_once: launches whose kernels fit on the device together; None if there are none.
        """
        self._alone, self._at_once = alone, at_once

    def __call__(
        self, d: Tensor, weight: Tensor, words: Tensor, x: Tensor, *, adds: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients of X, of W, and, if ``adds``, of the bias, whose kernel waits for that of X alone."""
        (of_x, of_w), of_bias = self._alone, column_sums if adds else lambda _: None
        if self._at_once is not None and is_capturing(d):
            of_x, of_w = self._at_once
            (dx, db), dw = at_once(
                lambda: (of_x(d, weight, words), of_bias(d)), partial(of_w, x, d, words), d.device
            )
            return dx, dw, db
        for launch in self._at_once or ():
            launch.bind()  # in this thread: a capture allocates no scratch memory
        return of_x(d, weight, words), of_w(x, d, words), of_bias(d)


def beside_another(operator: Any, scale: float) -> Any:
    """An operator for the same problem whose kernel takes at most half of the device, with tiles as near to the first
    one's as can be; None if there is none.
    """
    problem, config = operator.problem, operator.launcher.choice.config
    family = family_of(config)
    if not isinstance(family, CopiedTiles):
        return None
    found = family.beside_another(problem, config, operator.device)
    if found is None or found == config:
        return None if found is None else operator
    named = {"family": family.name, "config": found.to_dict()}
    return api.prepare(problem=problem, device=operator.device, scale=scale, **named)
