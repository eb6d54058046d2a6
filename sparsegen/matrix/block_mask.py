"""Masks of blocks, one bit for each block, in the one buffer that kernels walk by rows and by columns.

The buffer holds, in 64-bit words, little-endian:

1. the rows' live bits (`sparsegen.matrix.bits`), the row with most live blocks first, equal ones in their own order;
2. which row each of these is, in int32, padded to whole words;
3. and 4. both again for the transposed mask.

So a kernel that takes its rows from the top starts with the longest ones, and needs neither a list nor a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.bits import WORD, packed_rows, unpacked_rows, words_for
from sparsegen.matrix.csr import check_shape
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

_SOURCE = "block mask"
_ORDER = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class BlockMaskLayout:
    """Offsets of the four parts of a mask of rows × columns blocks in its buffer, in 64-bit words."""

    rows: int
    columns: int

    @property
    def row_words(self) -> int:
        """Words of a row."""
        return words_for(self.columns)

    @property
    def column_words(self) -> int:
        """Words of a column."""
        return words_for(self.rows)

    @property
    def row_order_at(self) -> int:
        return self.rows * self.row_words

    @property
    def column_bits_at(self) -> int:
        return self.row_order_at + _words_of_order(self.rows)

    @property
    def column_order_at(self) -> int:
        return self.column_bits_at + self.columns * self.column_words

    @property
    def words(self) -> int:
        """Words of the whole buffer."""
        return self.column_order_at + _words_of_order(self.columns)

    @property
    def nbytes(self) -> int:
        return self.words * WORD.itemsize

    def transposed(self) -> BlockMaskLayout:
        """The layout of the transposed mask, whose buffer is this one with its halves swapped."""
        return BlockMaskLayout(self.columns, self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class BlockMask:
    """A mask of blocks on the host.

    Attributes:
        shape: rows and columns of elements that the mask lies over.
        block: rows and columns of a block. Blocks need not divide the shape: the last ones are cut off.
        words: uint64, as many as ``layout.words``, read-only; see the module.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    words: Array

    def __post_init__(self) -> None:
        """Raises:
        MatrixError: sizes out of range, or a buffer that is none of this mask: of another size or dtype, or whose
            parts contradict each other.
        """
        shape, block = checked_blocks(self.shape, self.block)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "block", block)
        words, layout = arguments.array(self.words, "words", MatrixError), self.layout
        if words.dtype != WORD or words.shape != (layout.words,):
            raise MatrixError(
                f"a mask of {layout.rows} × {layout.columns} blocks ({shape[0]} × {shape[1]} elements in blocks of "
                f"{block[0]} × {block[1]}) is a buffer of {layout.words} uint64, got {words.dtype} of shape "
                f"{words.shape}",
                source=_SOURCE,
            )
        words = np.ascontiguousarray(words).view()
        words.setflags(write=False)
        object.__setattr__(self, "words", words)
        if not np.array_equal(packed(_natural(words, layout)), words):
            raise MatrixError(
                "the four parts of the buffer contradict each other: bits by ranked rows, their order, bits by "
                "ranked columns, their order; make masks with BlockMask.from_blocks, or on the device",
                source=_SOURCE,
            )

    @classmethod
    def from_blocks(
        cls, live: object, block: int | tuple[int, int], shape: tuple[int, int] | None = None
    ) -> BlockMask:
        """The mask whose live blocks are true.

        Args:
            live: bools, one for each block.
            block: rows and columns of a block, or one number for both.
            shape: rows and columns of elements; by default as many as whole blocks have.

        Raises:
            MatrixError: not a matrix of bools, or as many blocks as the shape does not have.
        """
        blocks = _bools(live)
        size = arguments.sides(block, "block", MatrixError)
        if shape is None:
            shape = blocks.shape[0] * size[0], blocks.shape[1] * size[1]
        shape, size = checked_blocks(shape, size)
        layout = grid(shape, size)
        if blocks.shape != (layout.rows, layout.columns):
            raise MatrixError(
                f"{shape[0]} × {shape[1]} elements in blocks of {size[0]} × {size[1]} are {layout.rows} × "
                f"{layout.columns} blocks, got {blocks.shape[0]} × {blocks.shape[1]}",
                source=_SOURCE,
            )
        return cls(shape, size, packed(blocks))

    @classmethod
    def from_elements(
        cls, live: object, block: int | tuple[int, int], *, allow_partial: bool = False
    ) -> BlockMask:
        """The mask of a bool for each element.

        Args:
            live: bools, rows × columns.
            block: rows and columns of a block, or one number for both.
            allow_partial: take blocks that are live in part for live ones; by default they are refused.

        Raises:
            MatrixError: not a matrix of bools, or a block that is live in part.
        """
        elements = _bools(live)
        shape, block = checked_blocks(elements.shape, block)
        layout = grid(shape, block)
        blocks = block_any(elements, block)
        if not arguments.flag(allow_partial, "allow_partial", MatrixError):
            partial = blocks & block_any(~elements, block)
            if partial.any():
                row, column = np.unravel_index(int(partial.argmax()), (layout.rows, layout.columns))
                raise MatrixError(
                    f"{int(partial.sum())} blocks of {block[0]} × {block[1]} are live in part, the first is ({row}, "
                    f"{column}); take smaller blocks, or allow_partial=True for the whole of them",
                    source=_SOURCE,
                )
        return cls(shape, block, packed(blocks))

    @property
    def layout(self) -> BlockMaskLayout:
        return grid(self.shape, self.block)

    def blocks(self) -> Array:
        """bool, one for each block, in rows and columns of blocks."""
        return _natural(self.words, self.layout)

    def expand(self) -> Array:
        """bool, one for each element."""
        expanded: Array = self.blocks().repeat(self.block[0], axis=0).repeat(self.block[1], axis=1)
        return expanded[: self.shape[0], : self.shape[1]]

    @property
    def live_blocks(self) -> int:
        layout = self.layout
        return int(np.count_nonzero(np.unpackbits(self.words[: layout.row_order_at].view(np.uint8))))

    @property
    def density(self) -> float:
        """Live blocks over all blocks."""
        return self.live_blocks / (self.layout.rows * self.layout.columns)

    def transposed(self) -> BlockMask:
        """The mask of the transpose: the halves of the buffer swapped."""
        at = self.layout.column_bits_at
        return BlockMask(
            (self.shape[1], self.shape[0]),
            (self.block[1], self.block[0]),
            np.concatenate((self.words[at:], self.words[:at])),
        )

    def __repr__(self) -> str:
        shape, block = self.shape, self.block
        return (
            f"BlockMask({shape[0]} × {shape[1]} in blocks of {block[0]} × {block[1]}, "
            f"{self.live_blocks} of {self.layout.rows * self.layout.columns} live)"
        )


def grid(shape: tuple[int, int], block: tuple[int, int]) -> BlockMaskLayout:
    """Returns the layout of a mask over ``shape`` elements in blocks of this size."""
    return BlockMaskLayout(ceil_div(shape[0], block[0]), ceil_div(shape[1], block[1]))


def checked_blocks(
    shape: tuple[int, int], block: int | tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Both as Python's integers.

    Raises:
        MatrixError: one of them is not two whole numbers from 1 on.
    """
    found = arguments.pair(shape, "shape", MatrixError), arguments.sides(block, "block", MatrixError)
    for sizes, name in zip(found, ("shape", "block"), strict=True):
        check_shape(sizes, source=_SOURCE)
        if min(sizes) < 1:
            raise MatrixError(f"{name} = {sizes[0]} × {sizes[1]} is below 1 × 1", source=_SOURCE)
    return found


def packed(blocks: Array) -> Array:
    """The buffer of a mask, from a bool for each block."""
    parts = []
    for side in (blocks, blocks.T):
        order = np.argsort(-np.count_nonzero(side, axis=1), kind="stable")
        padded = np.zeros(2 * _words_of_order(order.size), dtype=_ORDER)
        padded[: order.size] = order
        parts += [packed_rows(side[order]).ravel(), padded.view(WORD)]
    return np.concatenate(parts)


def block_any(elements: Array, block: tuple[int, int]) -> Array:
    """bool for each block of a matrix of bools: whether one of its elements is true."""
    starts = (np.arange(0, size, side) for size, side in zip(elements.shape, block, strict=True))
    found: Array = elements
    for axis, at in enumerate(starts):
        found = np.logical_or.reduceat(found, at, axis=axis)
    return found


def _natural(words: Array, layout: BlockMaskLayout) -> Array:
    """The blocks by rows in their own order, of the first two parts of a buffer."""
    bits = words[: layout.row_order_at].reshape(layout.rows, layout.row_words)
    order = words[layout.row_order_at : layout.column_bits_at].view(_ORDER)[: layout.rows]
    if not np.array_equal(np.sort(order), np.arange(layout.rows)):
        raise MatrixError(
            f"the order of the rows is no permutation of 0 … {layout.rows - 1}",
            source=_SOURCE,
            place="row order",
        )
    blocks = np.empty((layout.rows, layout.columns), dtype=np.bool_)
    blocks[order] = unpacked_rows(bits, layout.columns)
    return blocks


def _words_of_order(count: int) -> int:
    """Number of words that ``count`` int32 take."""
    return ceil_div(count, 2)


def _bools(given: object) -> Array:
    found = arguments.array(given, "mask", MatrixError)
    if found.ndim != 2 or found.dtype != np.bool_:
        raise MatrixError(
            f"a mask is a matrix of bools, got {found.dtype} of shape {found.shape}; compare numbers first: "
            "mask != 0, or of an additive mask mask == 0",
            source=_SOURCE,
        )
    if not found.size:
        raise MatrixError(f"a mask has at least one block, got shape {found.shape}", source=_SOURCE)
    return found
