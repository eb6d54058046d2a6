"""Forward pass of attention on a pattern, written to a given tensor: by the fused kernel, or in steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from sparsegen.attention.steps import at_once
from sparsegen.integrations.torch.attention.attention_steps import steps
from sparsegen.integrations.torch.pattern.pattern import Product, SparsePattern
from sparsegen.system.integers import round_up

PADDING = 8  # elements: rows of weights begin at multiples of 16 bytes, whatever the dtype
padded = partial(round_up, step=PADDING)


def by_fused(pattern: SparsePattern, q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor) -> None:
    """Attention of contiguous heads × rows × head_dim in one launch; for tensors that kernels run for."""
    heads = q.shape[0]
    prepared = pattern.prepared(Product.ATTENTION, q.shape[-1], q, scale=scale, batch=heads)
    assert prepared is not None
    if heads == 1:  # a batch of one has no dimension for it
        q, k, v, out = q[0], k[0], v[0], out[0]
    prepared(q, k, v, out=out)


def by_steps(
    pattern: SparsePattern,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    out: Tensor,
    weights: Tensor | None = None,
) -> None:
    """The same in steps, as many heads at once as have room.

    Args:
        weights: room for the weights of all heads, if they are kept.
    """
    turns = Turns(q.shape[0], pattern.nnz, q.element_size())
    run = steps(pattern, q, scale, turns.heads)
    room = room_for_weights(q, pattern, heads=turns.heads) if weights is None else weights
    for turn, part in enumerate(turns.parts()):
        own = turns.of(room, 0 if weights is None else turn)
        run.scores(q[part], k[part], own)
        run.softmax(own, own)
        run.weighted(v[part], own, out[part])


class Turns:
    """All heads, in turns of as many as run at once, and where the weights of each turn lie.

    A turn's weights follow each other, head after head, from a multiple of `PADDING` on: they fit where there is room
    for each head's alone, rounded up to `PADDING`.

    Attributes:
        heads: heads of a turn; see `sparsegen.attention.steps.at_once`.
    """

    def __init__(self, heads: int, nnz: int, itemsize: int) -> None:
        self._all, self._nnz = heads, nnz
        self.heads = at_once(heads, nnz * itemsize)

    def parts(self) -> Iterator[slice]:
        """The heads of each turn."""
        return (slice(first, first + self.heads) for first in range(0, self._all, self.heads))

    def of(self, weights: Tensor, turn: int) -> Tensor:
        """A turn's weights, heads × nonzeros."""
        used = self.heads * self._nnz
        return weights.view(-1)[turn * padded(used) :][:used].view(self.heads, self._nnz)


def room_for_weights(like: Tensor, pattern: SparsePattern, *, heads: int) -> Tensor:
    """Buffer for the weights of ``heads`` heads, in `Turns`; padding is zero."""
    made = like.new_empty((heads, padded(pattern.nnz)))
    if made.numel():
        size = Turns(heads, pattern.nnz, like.element_size()).heads
        used, turns = size * pattern.nnz, heads // size
        flat = made.view(-1)
        flat[: turns * padded(used)].view(turns, -1)[:, used:] = 0
        flat[turns * padded(used) :] = 0
    return made
