"""The gradients of a masked product; in a CUDA graph both at once, by kernels that leave each other room.

At 1024³ each has 64 tiles of 128 × 128, and a GPU some 132 multiprocessors; both read dY.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from sparsegen import api
from sparsegen.integrations.torch.calls.launches import Gradients, Launch, TensorLaunch
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.side_stream import at_once
from sparsegen.kernels import family_of
from sparsegen.kernels.masked.copied_tiles import CopiedTiles


class GradientLaunches:
    """The gradients of calls of one kind, those that are needed: in turn, or, in a graph, at once."""

    def __init__(
        self,
        in_turn: tuple[Launch | None, Launch | None, Launch | None],
        at_once: tuple[TensorLaunch, TensorLaunch] | None,
    ) -> None:
        """
        Args:
            in_turn: launches by x (of dY, the weight and words), by the weight (of X, dY and words) and by the bias (of
                dY); None where no gradient is needed.
            at_once: launches by x and by the weight whose kernels fit on the device together; None if there are none.
        """
        self._in_turn, self._at_once = in_turn, at_once

    def __call__(
        self, dy: Tensor, x: Tensor, weight: Tensor, words: Tensor, out: Tensor | None = None
    ) -> Gradients:
        """The gradients, that of X in ``out`` if it is given: see `TensorLaunch`."""
        if self._at_once is not None:
            if is_capturing(dy):
                return self.in_graph(dy, x, weight, words, out)
            for launch in self._at_once:
                launch.bind()  # in this thread: a capture allocates no scratch memory
        by_x, by_weight, by_bias = self._in_turn
        return (
            None if by_x is None else by_x(dy, weight, words, out=out),
            None if by_weight is None else by_weight(x, dy, words),
            None if by_bias is None else by_bias(dy),
        )

    def in_graph(
        self, dy: Tensor, x: Tensor, weight: Tensor, words: Tensor, out: Tensor | None = None
    ) -> Gradients:
        """The gradients as a graph captures them; the bias's kernel takes what both others leave it."""
        if self._at_once is None:
            return self(dy, x, weight, words, out)
        (by_x, by_weight), by_bias = self._at_once, self._in_turn[2]
        of_x, of_weight = partial(by_x, dy, weight, words, out=out), partial(by_weight, x, dy, words)
        if by_bias is None:
            return *at_once(of_x, of_weight, dy.device), None
        of_others = partial(at_once, of_weight, partial(by_bias, dy), dy.device)
        dx, (dw, db) = at_once(of_x, of_others, dy.device)
        return dx, dw, db


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
