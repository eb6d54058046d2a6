"""Fixed masks as `block_attention` takes them: a span of keys, or live blocks and the bits of partial ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np

from sparsegen.matrix.block_mask import BlockMask, grid
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.partial_blocks import FULL, bits_of
from sparsegen.operators import BlockAttentionProblem, DType, MasksOf, Room, Span
from sparsegen.operators.masked.masked_problem import Block, Density
from sparsegen.system.numpy_types import Array

BLOCKS = Block(128, 128), Block(64, 64)
_no_blocks = partial(np.zeros, (0, 0), np.int64)
P = TypeVar("P", bound=BlockAttentionProblem)


@dataclass(frozen=True, slots=True, eq=False)
class BlockForm:
    """A mask of queries × keys by what queries see by their places, and by blocks among that.

    Attributes:
        span: all that the mask lets queries see, if there are no blocks; else that no query sees a later key, or all.
        block: sides of blocks; None without blocks.
        counts, most: places of each block that live, and that the span lets live, rows × columns of blocks.
    """

    mask: CsrMatrix
    span: Span
    block: Block | None = None
    counts: Array = field(default_factory=_no_blocks)
    most: Array = field(default_factory=_no_blocks)

    @classmethod
    def of_blocks(cls, mask: CsrMatrix, span: Span, block: Block) -> Self:
        """The form by blocks of such sides."""
        rows = np.arange(0, mask.shape[0], block.rows)
        seen = span.band(*mask.shape).seen_of_blocks(*mask.shape, block.columns)
        return cls(mask, span, block, _live_places(mask, block), np.add.reduceat(seen, rows, axis=0))

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of a block; 0 without blocks."""
        return (0, 0) if self.block is None else (self.block.rows, self.block.columns)

    @property
    def density(self) -> Density:
        """The share of the span's places that lie in live blocks; all without blocks."""
        if self.block is None:
            return Density(1.0)
        return Density.of_rows(np.where(self.counts > 0, self.most, 0).sum(axis=1), self.most.sum(axis=1))

    @property
    def partial(self) -> Array:
        """Bool of each block: true where some of the places that the span lets live do, and others do not."""
        found: Array = (self.counts > 0) & (self.counts < self.most)
        return found

    def problem(self, kind: type[P], heads: int, head_dim: int, dtype: DType) -> P:
        """The operator's problem for heads that share the mask; of the forward or of the backward pass."""
        queries, keys = self.mask.shape
        of_blocks: dict[str, Any] = {"masks": MasksOf.NOBODY}
        if self.block is not None:
            of_blocks = {"masks": MasksOf.ALL, "block": self.block, "density": self.density}
            of_blocks["partial_blocks"] = Room(int(self.partial.sum()))
        return kind(
            queries=queries,
            keys=keys,
            kv_heads=heads,
            group=1,
            head_dim=head_dim,
            dtype=dtype,
            span=self.span,
            **of_blocks,
        )

    def operands(self) -> dict[str, Array]:
        """The mask, and numbers and bits if blocks live in part, as the problem's operands of these names."""
        if self.block is None:
            return {}
        partial, block = self.partial, self.sides
        words = BlockMask.from_blocks(self.counts > 0, block, self.mask.shape).words
        if not partial.any():
            return {"mask": words}
        numbers = np.full(partial.shape, FULL, np.int32)
        numbers[partial] = np.arange(partial.sum())
        bits = [bits_of(places) for places in self._places_of_rows(numbers)]
        return {"mask": words, "numbers": numbers, "bits": np.concatenate(bits)}

    def _places_of_rows(self, numbers: Array) -> Iterator[Array]:
        """The partial blocks of one row of blocks after the other that has some: bool, blocks × rows × columns."""
        (height, width), offsets = self.sides, self.mask.row_offsets
        for number in map(int, np.nonzero((numbers != FULL).any(axis=1))[0]):
            first, last = number * height, min((number + 1) * height, self.mask.shape[0])
            columns = self.mask.column_indices[offsets[first] : offsets[last]]
            rows = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
            partial = numbers[number][numbers[number] != FULL]
            own = numbers[number][columns // width]
            held = own != FULL
            places = np.zeros((partial.size, height, width), np.bool_)
            places[own[held] - partial[0], rows[held], columns[held] % width] = True
            yield places


def block_forms(mask: CsrMatrix) -> list[BlockForm]:
    """The forms of a mask with a place that lives: its span if that is all of it, else its blocks, of each size.

    The last query tells a window and its sinks, and all places are held against what they allow.
    """
    (queries, keys), offsets, columns = mask.shape, mask.row_offsets, mask.column_indices
    distance = columns - np.repeat(np.arange(queries), np.diff(offsets))
    last = columns[offsets[-2] :]
    breaks = np.nonzero(np.diff(last) != 1)[0]
    sinks = int(breaks[0]) + 1 if breaks.size else 0
    kind = Span(is_causal=bool(distance.max() <= keys - queries))
    for span in (kind, replace(kind, window=last.size - sinks, sinks=sinks)):
        band = span.band(queries, keys)
        seen = ((distance >= band.least) | (columns < band.sinks)) & (distance <= band.most)
        if band.places(queries, keys) == mask.nnz and seen.all():
            return [BlockForm(mask, span)]
    return [BlockForm.of_blocks(mask, kind, block) for block in BLOCKS]


def _live_places(mask: CsrMatrix, block: Block) -> Array:
    """The live places of each block."""
    layout = grid(mask.shape, (block.rows, block.columns))
    found, offsets = np.zeros((layout.rows, layout.columns), np.int64), mask.row_offsets
    for number, row in enumerate(found):
        first, last = offsets[number * block.rows], offsets[min((number + 1) * block.rows, mask.shape[0])]
        row += np.bincount(mask.column_indices[first:last] // block.columns, minlength=layout.columns)
    return found
