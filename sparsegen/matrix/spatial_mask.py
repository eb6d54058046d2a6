"""Masks of spatial blocks of images, for convolutions; for NumPy arrays and for PyTorch tensors, where they lie.

A mask is bools of images × rows × columns of blocks; the last blocks are cut off where a block does not divide the
image. Kernels take it as `words_of` packs it. Ren et al., SBNet: Sparse Blocks Network for Fast Inference, CVPR 2018,
section 3.1, names the operation that makes one from scores.

Nothing here waits for a device, so that CUDA graphs capture it. PyTorch is never imported: a tensor can only exist once
its owner has imported it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.bits import WORD_BITS, words_for
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.system.integers import ceil_div

AnyArray: TypeAlias = Any  # of NumPy, or a tensor of PyTorch
Library: TypeAlias = Any  # NumPy, or PyTorch

_SOURCE = "spatial mask"
BYTES_PER_BLOCK = 5  # while a mask is made: a float32 and a bool


class Pool(StrEnum):
    """Reduction of the scores of a block's pixels to one."""

    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Reach:
    """Geometry of a convolution's windows: a pair for rows and columns each, or one number for both."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        for name, least in (("kernel", 1), ("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(self, name, both(getattr(self, name), name, least))

    def output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of the output for an input of ``size``.

        Raises:
            MatrixError: the filter does not fit the padded input.
        """
        found = []
        for i in range(2):
            room = size[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1
            if room < 0:
                raise MatrixError(
                    f"a filter of {self.kernel} does not fit an input of {size}", source=_SOURCE
                )
            found.append(room // self.stride[i] + 1)
        return found[0], found[1]


def reduce_mask(
    scores: object, block: int | tuple[int, int], threshold: float, pool: Pool | str = Pool.MAX
) -> AnyArray:
    """The blocks whose pooled score is above a threshold.

    Args:
        scores: images × rows × columns, numbers or bools; NaN counts as live.
        block: its rows and columns, or one number for both.
        threshold: a block is live if the largest (or the mean) of its pixels' scores is greater.
        pool: ``max`` or ``mean``; the mean of a block that is cut off is that of the pixels it has.

    Returns:
        bools, images × rows × columns of blocks, of scores' library and device.

    Raises:
        MatrixError: scores of other dimensions, or sizes out of range.
    """
    library, block = _library(scores), both(block, "block", 1)
    limit = arguments.number(threshold, "threshold", MatrixError)
    if math.isnan(limit):
        raise MatrixError("threshold = nan is no number to compare scores with", source=_SOURCE)
    kind = arguments.word(Pool, pool, "pool", MatrixError)
    images, rows, columns = _dimensions(scores)
    across, down = ceil_div(columns, block[1]), ceil_div(rows, block[0])
    wide = _as_float(scores)
    fill = -float("inf") if kind == Pool.MAX else 0.0
    padded = _filled(library, (images, down * block[0], across * block[1]), fill, wide)
    padded[:, :rows, :columns] = wide
    tiles = padded.reshape(images, down, block[0], across, block[1])
    if kind == Pool.MAX:
        return ~(library.amax(tiles, (2, 4)) <= limit)
    heights = _extents(library, rows, block[0], wide)
    widths = _extents(library, columns, block[1], wide)
    return ~(library.sum(tiles, (2, 4)) / (heights[:, None] * widths) <= limit)


def from_difference(
    frame: AnyArray,
    previous: AnyArray,
    block: int | tuple[int, int],
    threshold: float,
    pool: Pool | str = Pool.MAX,
) -> AnyArray:
    """The blocks in which a frame differs from the one before, by channel the most, as `reduce_mask` makes them.

    Args:
        frame, previous: images × rows × columns × channels, or without channels.

    Raises:
        MatrixError: frames of different shapes, or what `reduce_mask` raises.
    """
    library = _library(frame)
    if _library(previous) is not library:
        raise MatrixError("expected two frames of the same library", source=_SOURCE)
    if tuple(frame.shape) != tuple(previous.shape) or frame.ndim not in (3, 4):
        raise MatrixError(
            f"expected two frames of images × rows × columns (× channels), got shapes {tuple(frame.shape)} and "
            f"{tuple(previous.shape)}",
            source=_SOURCE,
        )
    distance = library.abs(_as_float(frame) - _as_float(previous))
    return reduce_mask(library.amax(distance, -1) if distance.ndim == 4 else distance, block, threshold, pool)


def from_boxes(boxes: AnyArray, size: tuple[int, int, int], block: int | tuple[int, int]) -> AnyArray:
    """The blocks that boxes touch.

    Args:
        boxes: boxes × 5 numbers: image, first row, first column, and the row and column after the last. An empty box,
            or the part of one outside the image, touches nothing.
        size: images, rows and columns.
        block: see `reduce_mask`.

    Raises:
        MatrixError: boxes of another shape, sizes out of range, or a mask that takes more memory than there is.
    """
    library, block = _library(boxes), both(block, "block", 1)
    if boxes.ndim != 2 or boxes.shape[1] != 5:
        raise MatrixError(
            f"expected boxes × 5 (image, first row, first column, row and column after the last), got shape "
            f"{tuple(boxes.shape)}",
            source=_SOURCE,
        )
    if not isinstance(size, Sequence) or isinstance(size, str | bytes) or len(size) != 3:
        raise MatrixError(f"size = {size!r} is not images, rows and columns", source=_SOURCE)
    images, *sides = (arguments.whole(side, "size", MatrixError, least=1) for side in size)
    _require_room(library, images, ceil_div(sides[0], block[0]), ceil_div(sides[1], block[1]))
    wide = _as_float(boxes)
    touched = []
    for i in range(2):
        edges = _arange(library, ceil_div(sides[i], block[i]), wide) * block[i]
        ends = library.clip(edges + block[i], None, sides[i])
        first, last = wide[:, 1 + i, None], wide[:, 3 + i, None]
        touched.append((first < ends) & (last > edges) & (first < last))
    of_image = _as_float(wide[:, 0, None] == _arange(library, images, wide))
    rows, columns = (_as_float(one) for one in touched)
    return library.einsum("bi,br,bc->irc", of_image, rows, columns) > 0


def from_blocks(blocks: AnyArray, shape: tuple[int, int, int]) -> AnyArray:
    """The mask that a list of blocks names, as SBNet's kernels take them.

    Args:
        blocks: blocks × 3 whole numbers: image, and row and column among the blocks. One outside of the mask, such as
            -1 where a list is filled up to a fixed length, names none.
        shape: images, and rows and columns of blocks.

    Raises:
        MatrixError: a list of another shape or type, a shape out of range, or a mask that takes more memory than there
            is.
    """
    library = _library(blocks)
    if blocks.ndim != 2 or blocks.shape[1] != 3:
        raise MatrixError(
            f"expected blocks × 3 (image, row, column), got shape {tuple(blocks.shape)}", source=_SOURCE
        )
    is_whole = (
        blocks.dtype.kind in "iu"
        if library is np
        else not (blocks.is_floating_point() or blocks.dtype is library.bool)
    )
    if not is_whole:
        raise MatrixError(f"expected whole numbers of blocks, got {blocks.dtype}", source=_SOURCE)
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes) or len(shape) != 3:
        raise MatrixError(f"shape = {shape!r} is not images, rows and columns of blocks", source=_SOURCE)
    images, rows, columns = (arguments.whole(side, "shape", MatrixError, least=1) for side in shape)
    _require_room(library, images, rows, columns)
    count = images * rows * columns
    image, row, column = (_with_type(library, blocks[:, i], library.int64) for i in range(3))
    is_inside = (image >= 0) & (image < images) & (row >= 0) & (row < rows)
    is_inside &= (column >= 0) & (column < columns)
    places = library.where(is_inside, (image * rows + row) * columns + column, count)
    mask = _filled(library, (count + 1,), 0, blocks, library.bool_ if library is np else library.bool)
    if library is np:
        mask[places] = True  # behind the last block those that are none
    else:
        mask.index_fill_(0, places, True)
    return mask[:count].reshape(images, rows, columns)


def dilate(
    mask: object,
    size: tuple[int, int],
    block: int | tuple[int, int],
    reach: Reach,
    out_block: int | tuple[int, int] | None = None,
) -> AnyArray:
    """The output blocks of a convolution that a live input block reaches.

    A filter of 1 × 1 with a stride takes a mask to a coarser layer; one of stride 1 dilates it by its reach.

    Args:
        mask: images × rows × columns of blocks.
        size: rows and columns of the input.
        block: block of the input.
        reach: window that an output pixel reads; padding is never live.
        out_block: block of the output; by default the input's.

    Raises:
        MatrixError: a mask of no bools or not of this size in such blocks, or a filter that does not fit.
    """
    library, block = _library_of_mask(mask), both(block, "block", 1)
    target = block if out_block is None else both(out_block, "out_block", 1)
    size = arguments.pair(size, "size", MatrixError)
    arguments.instance(reach, Reach, "reach", MatrixError)
    require_blocks(mask, size, block)
    sizes = reach.output_size(size)
    live = _as_float(mask)
    down, across = (
        _touches(library, i, size[i], block[i], sizes[i], target[i], reach, live) for i in range(2)
    )
    return library.matmul(library.matmul(down, live), across.T) > 0


def pyramid(
    mask: object, size: tuple[int, int], block: int | tuple[int, int], layers: Sequence[Reach]
) -> list[tuple[AnyArray, tuple[int, int]]]:
    """The masks after each of a chain of convolutions, in blocks of the same size, with their layers' rows and columns.

    Raises:
        MatrixError: see `dilate`.
    """
    if not isinstance(layers, Sequence) or not all(isinstance(reach, Reach) for reach in layers):
        raise MatrixError("layers: expected a sequence of Reach, one for each convolution", source=_SOURCE)
    _library_of_mask(mask)
    found = []
    for reach in layers:
        mask = dilate(mask, size, block, reach)
        size = reach.output_size(size)
        found.append((mask, size))
    return found


def resize(
    mask: object,
    size: tuple[int, int],
    block: int | tuple[int, int],
    out_size: tuple[int, int],
    out_block: int | tuple[int, int] | None = None,
    margin: int = 0,
) -> AnyArray:
    """The mask of the same scene in other pixels: of a layer that is coarser or finer than the image.

    Args:
        mask: images × rows × columns of blocks.
        size: rows and columns of the pixels that it lies over.
        block: block of the mask.
        out_size: rows and columns of the layer's pixels; they cover the same scene.
        out_block: block of the result; by default the mask's, in the layer's pixels.
        margin: pixels of the mask that a live block reaches further on each side, as much as filters blur.

    Returns:
        bools, images × rows × columns of blocks: those that cover a part of a live block or of its margin.

    Raises:
        MatrixError: a mask of no bools or not of this size in such blocks, or sizes out of range.
    """
    library, block = _library_of_mask(mask), both(block, "block", 1)
    target = block if out_block is None else both(out_block, "out_block", 1)
    size, out_size = arguments.pair(size, "size", MatrixError), both(out_size, "out_size", 1)
    margin = arguments.whole(margin, "margin", MatrixError, least=0, most=MAX_INDEX)
    require_blocks(mask, size, block)
    live = _as_float(mask)
    covers = []
    for i in range(2):
        starts = _arange(library, ceil_div(out_size[i], target[i]), live, library.int64) * target[i]
        ends = library.clip(starts + target[i], None, out_size[i])
        begins = _arange(library, ceil_div(size[i], block[i]), live, library.int64) * block[i]
        stops = library.clip(begins + block[i], None, size[i])
        # Both in pixels of the mask times pixels of the layer, so that numbers stay whole.
        before = starts[:, None] * size[i] < (stops + margin) * out_size[i]
        behind = ends[:, None] * size[i] > (begins - margin) * out_size[i]
        covers.append(_as_float(before & behind))
    return library.matmul(library.matmul(covers[0], live), covers[1].T) > 0


def words_of(mask: AnyArray) -> AnyArray:
    """The mask's bits: images · rows of blocks, by 64-bit words that hold a row's blocks (`sparsegen.matrix.bits`).

    Returns:
        uint64 of NumPy, int64 of PyTorch: the same bits.

    Raises:
        MatrixError: not three dimensions of bools.
    """
    library = _library_of_mask(mask)
    images, rows, columns = _dimensions(mask)
    across = words_for(columns)
    padded = _filled(library, (images * rows, across * WORD_BITS), 0, mask, library.int64)
    padded[:, :columns] = mask.reshape(images * rows, columns)
    bits = padded.reshape(images * rows, across, WORD_BITS) << _arange(
        library, WORD_BITS, mask, library.int64
    )
    words = library.sum(bits, -1)  # no two share a bit
    return words.view(np.uint64) if library is np else words


def both(value: object, name: str, least: int) -> tuple[int, int]:
    """A pair of whole numbers, from one of them or from two.

    Raises:
        MatrixError: neither, or one out of range.
    """
    first, second = arguments.sides(value, name, MatrixError, least=least)
    if max(first, second) > MAX_INDEX:
        raise MatrixError(f"{name} = {first} × {second} is above {MAX_INDEX}", source=_SOURCE)
    return first, second


def require_blocks(mask: object, size: tuple[int, int], block: tuple[int, int]) -> None:
    """Raises MatrixError unless a mask has the blocks of ``size`` pixels."""
    _, rows, columns = _dimensions(mask)
    wanted = ceil_div(size[0], block[0]), ceil_div(size[1], block[1])
    if (rows, columns) != wanted:
        raise MatrixError(
            f"{size[0]} × {size[1]} pixels in blocks of {block[0]} × {block[1]} are {wanted[0]} × {wanted[1]} blocks, "
            f"got {rows} × {columns}",
            source=_SOURCE,
        )


def _touches(
    library: Library,
    axis: int,
    size: int,
    block: int,
    out_size: int,
    out_block: int,
    reach: Reach,
    like: AnyArray,
) -> AnyArray:
    """Float, output blocks × input blocks along an axis: how often one reads the other."""
    outputs, inputs = ceil_div(out_size, out_block), ceil_div(size, block)
    pixels = _arange(library, out_size, like, library.int64)
    taps = _arange(library, reach.kernel[axis], like, library.int64) * reach.dilation[axis]
    read = pixels[:, None] * reach.stride[axis] - reach.padding[axis] + taps
    is_inside = (read >= 0) & (read < size)
    read_blocks = _arange(library, inputs, like, library.int64)
    hits = (read[..., None] // block == read_blocks) & is_inside[..., None]
    own = pixels // out_block == _arange(library, outputs, like, library.int64)[:, None]
    return library.matmul(_as_float(own), library.sum(_as_float(hits), 1))


def _library(array: object) -> Library:
    """The module whose functions take an array.

    Raises:
        MatrixError: no array of real numbers.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise MatrixError(
            f"expected numbers or bools in an array of NumPy or PyTorch, got {kind}", source=_SOURCE
        )
    return np


def _library_of_mask(mask: AnyArray) -> Library:
    """The module whose functions take a mask.

    Raises:
        MatrixError: it holds no bools; of scores `reduce_mask` makes them.
    """
    library = _library(mask)
    if mask.dtype != (np.bool_ if library is np else library.bool):
        raise MatrixError(
            f"a mask holds bools, got {mask.dtype}: reduce_mask makes one of scores, and mask != 0 of numbers",
            source=_SOURCE,
        )
    return library


def _require_room(library: object, images: int, rows: int, columns: int) -> None:
    """Raises MatrixError where the host has no room for a mask; PyTorch looks after its own devices."""
    if library is np:
        MemoryBudget.of_machine(_SOURCE).require(
            BYTES_PER_BLOCK * images * rows * columns, f"{images} × {rows} × {columns} blocks"
        )


def _dimensions(array: AnyArray) -> tuple[int, int, int]:
    if getattr(array, "ndim", 0) != 3 or 0 in array.shape:
        raise MatrixError(
            f"expected images × rows × columns, none of them 0, got shape {tuple(getattr(array, 'shape', ()))}",
            source=_SOURCE,
        )
    images, rows, columns = array.shape
    return images, rows, columns


def _as_float(array: AnyArray) -> AnyArray:
    return array.astype(np.float32) if _library(array) is np else array.float()


def _with_type(library: Library, array: AnyArray, dtype: AnyArray) -> AnyArray:
    return array.astype(dtype) if library is np else array.to(dtype)


def _filled(
    library: Library, shape: tuple[int, ...], value: float, like: AnyArray, dtype: AnyArray = None
) -> AnyArray:
    dtype = dtype or like.dtype
    return np.full(shape, value, dtype) if library is np else like.new_full(shape, value, dtype=dtype)


def _arange(library: Library, count: int, like: AnyArray, dtype: AnyArray = None) -> AnyArray:
    dtype = dtype or like.dtype
    return (
        np.arange(count, dtype=dtype)
        if library is np
        else library.arange(count, dtype=dtype, device=like.device)
    )


def _extents(library: Library, size: int, block: int, like: object) -> AnyArray:
    """Pixels of each block along an axis: the block's, but for the last one."""
    starts = _arange(library, ceil_div(size, block), like) * block
    return library.clip(size - starts, None, block)
