"""Masks of blocks from and to what other libraries call them: SciPy's sparse formats, and counts with indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.block_mask import BlockMask, checked_blocks, grid
from sparsegen.matrix.csr import check_compressed
from sparsegen.matrix.foreign import is_scipy
from sparsegen.system.integers import round_up
from sparsegen.system.numpy_types import Array

if TYPE_CHECKING:
    import scipy.sparse

_SOURCE = "block mask"


def from_bsr(matrix: Any) -> BlockMask:
    """The mask of the blocks that a ``scipy.sparse`` BSR matrix or array stores, whatever their values.

    Raises:
        MatrixError: another format, or arrays that are no BSR.
    """
    if not is_scipy(matrix) or matrix.format != "bsr":
        raise MatrixError(
            f"expected a scipy.sparse matrix in BSR, got {type(matrix).__name__}; use .tobsr(blocksize=...)",
            source=_SOURCE,
        )
    return from_csr_of_blocks(matrix.indptr, matrix.indices, matrix.blocksize, matrix.shape)


def to_bsr(mask: BlockMask) -> scipy.sparse.bsr_array:
    """The mask as BSR with bools, all of them true.

    Raises:
        MatrixError: blocks that do not divide the shape, which BSR has not.
    """
    import scipy.sparse

    require_whole_blocks(mask)
    offsets, columns = to_csr_of_blocks(mask)
    values = np.ones((columns.size, *mask.block), dtype=np.bool_)
    return scipy.sparse.bsr_array((values, columns, offsets), shape=mask.shape, blocksize=mask.block)


def from_csr_of_blocks(
    offsets: object, columns: object, block: tuple[int, int], shape: tuple[int, int]
) -> BlockMask:
    """The mask of a pattern of blocks in compressed sparse rows, in any order and with duplicates.

    Args:
        offsets: integers, one more than rows of blocks.
        columns: integers, a column of blocks for each live one.
        block: rows and columns of a block.
        shape: rows and columns of elements.

    Raises:
        MatrixError: arrays that are no pattern of this shape in such blocks.
    """
    shape, block = checked_blocks(shape, block)
    layout = grid(shape, block)
    starts = arguments.array(offsets, "offsets", MatrixError)
    found = arguments.array(columns, "columns", MatrixError)
    check_compressed(starts, found, (layout.rows, layout.columns), source=_SOURCE)
    live = np.zeros((layout.rows, layout.columns), dtype=np.bool_)
    live[np.repeat(np.arange(layout.rows), starts[1:] - starts[:-1]), found] = True
    return BlockMask.from_blocks(live, block, shape)


def to_csr_of_blocks(mask: BlockMask) -> tuple[Array, Array]:
    """Offsets (int32, one more than rows of blocks) and columns (int32, sorted in each row) of the live blocks."""
    live = mask.blocks()
    offsets = np.concatenate(([0], np.cumsum(live.sum(axis=1)))).astype(np.int32)
    return offsets, np.nonzero(live)[1].astype(np.int32)


def from_counts(counts: object, indices: object, block: tuple[int, int], shape: tuple[int, int]) -> BlockMask:
    """The mask of counts and indices, as FlexAttention, FlashAttention and cuDNN take them.

    Args:
        counts: integers, how many blocks of each row are live.
        indices: integers, rows × at least the largest count: their columns; the rest of a row is not looked at.
        block, shape: sizes in elements.

    Raises:
        MatrixError: arrays that are no mask of this shape in such blocks.
    """
    shape, block = checked_blocks(shape, block)
    layout = grid(shape, block)
    lengths, columns = _integers(counts, "counts"), _integers(indices, "indices")
    if lengths.shape != (layout.rows,) or columns.ndim != 2 or columns.shape[0] != layout.rows:
        raise MatrixError(
            f"{layout.rows} rows of blocks need so many counts and rows of indices, got shapes {lengths.shape} and "
            f"{columns.shape}",
            source=_SOURCE,
        )
    most = min(columns.shape[1], layout.columns)
    if lengths.min() < 0 or lengths.max() > most:
        row = int(((lengths < 0) | (lengths > most)).argmax())
        raise MatrixError(
            f"{lengths[row]} live blocks among {layout.columns} columns of blocks and {columns.shape[1]} indices",
            source=_SOURCE,
            place=f"counts[{row}]",
        )
    is_used = np.arange(columns.shape[1]) < lengths[:, None]
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return from_csr_of_blocks(offsets, columns[is_used], block, shape)


def to_counts(mask: BlockMask) -> tuple[Array, Array]:
    """Counts (int32) and indices (int32, rows × columns of blocks): a row's live columns first, then the others."""
    live = mask.blocks()
    indices = np.argsort(~live, axis=1, kind="stable").astype(np.int32)
    return live.sum(axis=1).astype(np.int32), indices


def require_whole_blocks(mask: BlockMask) -> None:
    """Refuses masks whose last blocks are cut off, which BSR cannot hold.

    Raises:
        MatrixError: the blocks do not divide the shape; the message says which shape they would.
    """
    if any(size % side for size, side in zip(mask.shape, mask.block, strict=True)):
        whole = " × ".join(
            str(round_up(size, side)) for size, side in zip(mask.shape, mask.block, strict=True)
        )
        raise MatrixError(
            f"BSR needs blocks that divide the shape, and {mask.block[0]} × {mask.block[1]} do not divide "
            f"{mask.shape[0]} × {mask.shape[1]}; pad it to {whole}",
            source=_SOURCE,
        )


def _integers(given: object, name: str) -> Array:
    found = arguments.array(given, name, MatrixError)
    if found.dtype.kind not in "iu":
        raise MatrixError(f"expected integers, got {found.dtype}", source=_SOURCE, place=name)
    return found
