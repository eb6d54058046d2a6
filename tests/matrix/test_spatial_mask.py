"""Masks of spatial blocks, pixel by pixel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsegen import masks
from sparsegen.errors import MatrixError
from sparsegen.masks import Reach
from sparsegen.matrix.bits import packed_rows
from sparsegen.system.numpy_types import Array


def tiles(size: int, block: int) -> list[slice]:
    return [slice(at, min(at + block, size)) for at in range(0, size, block)]


@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize(
    ("shape", "block"), [((2, 8, 12), (4, 3)), ((1, 9, 13), (4, 5)), ((3, 5, 4), (8, 8))]
)
def test_reduce_mask(shape: tuple[int, int, int], block: tuple[int, int], pool: str) -> None:
    scores = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    limit = 0.1 if pool == "mean" else 1.3
    found = masks.reduce_mask(scores, block, limit, pool)
    for n in range(shape[0]):
        for i, rows in enumerate(tiles(shape[1], block[0])):
            for j, columns in enumerate(tiles(shape[2], block[1])):
                tile = scores[n, rows, columns]
                assert found[n, i, j] == ((tile.max() if pool == "max" else tile.mean()) > limit)
    assert found.dtype == np.bool_ and (found.size == 3 or 0 < found.sum() < found.size)


def test_scores_that_are_no_numbers_are_live_and_bools_count() -> None:
    scores = np.zeros((1, 4, 4))
    scores[0, 3, 0] = math.nan
    assert masks.reduce_mask(scores, 2, 0.5).tolist() == [[[False, False], [True, False]]]
    assert masks.reduce_mask(scores, 2, 0.5, "mean").tolist() == [[[False, False], [True, False]]]
    assert masks.reduce_mask(np.eye(4, dtype=bool)[None], 2, 0).tolist() == [[[True, False], [False, True]]]


def test_differences_of_frames() -> None:
    frame = np.random.default_rng(1).integers(0, 255, (2, 6, 6, 3)).astype(np.uint8)
    previous = frame.copy()
    previous[1, 4, 5, 2] ^= 128
    expected = np.zeros((2, 3, 2), dtype=bool)
    expected[1, 2, 1] = True
    assert np.array_equal(masks.from_difference(frame, previous, (2, 3), 100), expected)
    assert np.array_equal(masks.from_difference(frame[..., 2], previous[..., 2], (2, 3), 100), expected)
    assert not masks.from_difference(frame, previous, (2, 3), 128).any()


def test_boxes() -> None:
    generator = np.random.default_rng(2)
    first = generator.integers(-3, 12, (20, 2))
    last = first + generator.integers(-1, 6, (20, 2))
    boxes = np.concatenate((generator.integers(0, 3, (20, 1)), first, last), axis=1)
    pixels = np.zeros((3, 11, 9), dtype=bool)
    for n, top, left, bottom, right in boxes:
        pixels[n, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    for block in ((4, 2), (1, 1), (3, 5)):
        assert np.array_equal(masks.from_boxes(boxes, (3, 11, 9), block), masks.reduce_mask(pixels, block, 0))
    assert not masks.from_boxes(boxes[:0], (3, 11, 9), 4).any()


def test_lists_of_blocks() -> None:
    mask = np.random.default_rng(3).random((3, 5, 7)) < 0.3
    listed = np.argwhere(mask)
    beyond = np.array([[-1, -1, -1], [3, 0, 0], [0, 5, 0], [0, 0, 7], [0, -1, 3]])
    for dtype in (np.int32, np.int64):
        padded = np.concatenate((listed, beyond, listed[:2])).astype(dtype)
        assert np.array_equal(masks.from_blocks(padded, mask.shape), mask)
    assert not masks.from_blocks(listed[:0], mask.shape).any()


REACHES = [
    Reach((3, 3), padding=(1, 1)),
    Reach((1, 1), stride=(2, 2)),
    Reach((3, 5), stride=(2, 1), padding=(0, 3), dilation=(2, 3)),
    Reach((7, 2), stride=(3, 4), padding=(5, 0)),
]


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize(("block", "out_block"), [((4, 4), None), ((3, 5), (2, 4)), ((1, 1), (1, 1))])
def test_dilation(reach: Reach, block: tuple[int, int], out_block: tuple[int, int] | None) -> None:
    size = (19, 22)
    down, across = (-(-size[i] // block[i]) for i in range(2))
    mask = np.random.default_rng(3).random((2, down, across)) < 0.15
    found = masks.dilate(mask, size, block, reach, out_block)
    height, width = reach.output_size(size)
    target = out_block or block
    expected = np.zeros((2, -(-height // target[0]), -(-width // target[1])), dtype=bool)
    for y in range(height):
        for x in range(width):
            for r in range(reach.kernel[0]):
                for s in range(reach.kernel[1]):
                    v = y * reach.stride[0] - reach.padding[0] + r * reach.dilation[0]
                    u = x * reach.stride[1] - reach.padding[1] + s * reach.dilation[1]
                    if 0 <= v < size[0] and 0 <= u < size[1]:
                        expected[:, y // target[0], x // target[1]] |= mask[:, v // block[0], u // block[1]]
    assert np.array_equal(found, expected)


def test_a_pyramid_is_dilation_after_dilation() -> None:
    mask = np.random.default_rng(4).random((1, 8, 8)) < 0.05
    levels = masks.pyramid(mask, (64, 62), 8, REACHES[:3])
    size = (64, 62)
    for reach, (level, found) in zip(REACHES, levels, strict=False):
        mask, size = masks.dilate(mask, size, 8, reach), reach.output_size(size)
        assert np.array_equal(level, mask) and found == size
    assert [size for _, size in levels] == [(64, 62), (32, 31), (14, 25)]


@pytest.mark.parametrize("across", [1, 63, 64, 65, 200])
def test_words(across: int) -> None:
    mask: Array = np.random.default_rng(across).random((3, 5, across)) < 0.5
    words = masks.words_of(mask)
    assert words.dtype == np.uint64 and np.array_equal(words, packed_rows(mask.reshape(15, across)))


def test_no_score_is_above_nan() -> None:
    with pytest.raises(MatrixError, match="threshold = nan"):
        masks.reduce_mask(np.zeros((1, 8, 8)), 4, np.nan)


def test_bad_masks() -> None:
    mask = np.ones((2, 3, 4), dtype=bool)
    with pytest.raises(MatrixError, match=r"12 × 17 pixels in blocks of 4 × 4 are 3 × 5 blocks, got 3 × 4"):
        masks.dilate(mask, (12, 17), 4, REACHES[0])
    with pytest.raises(
        MatrixError, match=r"expected images × rows × columns, none of them 0, got shape \(3, 4\)"
    ):
        masks.reduce_mask(mask[0], 4, 0.5)
    with pytest.raises(MatrixError, match="pool = 'sum' is none of max, mean"):
        masks.reduce_mask(mask, 4, 0.5, "sum")
    with pytest.raises(MatrixError, match="block = 0 is below 1"):
        masks.reduce_mask(mask, 0, 0.5)
    with pytest.raises(MatrixError, match="stride = 0 is below 1"):
        Reach((3, 3), stride=(0, 1))
    with pytest.raises(MatrixError, match=r"a filter of \(9, 1\) does not fit an input of \(8, 8\)"):
        Reach((9, 1)).output_size((8, 8))
    with pytest.raises(MatrixError, match=r"expected boxes × 5 .* got shape \(3, 4\)"):
        masks.from_boxes(np.zeros((3, 4)), (1, 8, 8), 4)
    with pytest.raises(MatrixError, match=r"expected blocks × 3 .* got shape \(2, 4\)"):
        masks.from_blocks(np.zeros((2, 4), dtype=int), (1, 8, 8))
    for numbers in (np.zeros((2, 3)), np.zeros((2, 3), dtype=bool)):
        with pytest.raises(MatrixError, match="expected whole numbers of blocks"):
            masks.from_blocks(numbers, (1, 8, 8))
    with pytest.raises(MatrixError, match=r"shape = \(8, 8\) is not images"):
        masks.from_blocks(np.zeros((2, 3), dtype=int), (8, 8))  # type: ignore[arg-type]
    with pytest.raises(MatrixError, match=r"expected two frames .* got shapes \(2, 3, 4\) and \(2, 3, 3\)"):
        masks.from_difference(mask, mask[..., 1:], 4, 0.5)


@pytest.mark.parametrize("margin", [0, 3])
@pytest.mark.parametrize(
    ("size", "block", "out_size", "out_block"),
    [
        ((12, 20), (4, 4), (6, 10), (4, 4)),
        ((13, 9), (3, 5), (7, 5), (2, 2)),
        ((5, 6), (2, 2), (15, 18), (4, 8)),
    ],
)
def test_resized_masks_cover_what_is_live(
    size: tuple[int, int],
    block: tuple[int, int],
    out_size: tuple[int, int],
    out_block: tuple[int, int],
    margin: int,
) -> None:
    rows, columns = tiles(size[0], block[0]), tiles(size[1], block[1])
    mask = np.random.default_rng(3).random((2, len(rows), len(columns))) < 0.2
    found = masks.resize(mask, size, block, out_size, out_block, margin)
    for n, i, j in np.ndindex(found.shape):
        covered = [
            (out[0].start * full / part - margin, out[0].stop * full / part + margin)
            for out, full, part in (
                ([tiles(out_size[0], out_block[0])[i]], size[0], out_size[0]),
                ([tiles(out_size[1], out_block[1])[j]], size[1], out_size[1]),
            )
        ]
        live = any(
            mask[n, r, c]
            and rows[r].start < covered[0][1]
            and rows[r].stop > covered[0][0]
            and columns[c].start < covered[1][1]
            and columns[c].stop > covered[1][0]
            for r, c in np.ndindex(mask.shape[1:])
        )
        assert found[n, i, j] == live
    same = masks.resize(mask, size, block, size)
    assert np.array_equal(same, mask), "of the same pixels it is the mask"
    torch = pytest.importorskip("torch")
    tensor = masks.resize(torch.from_numpy(mask), size, block, out_size, out_block, margin)
    assert np.array_equal(tensor.numpy(), found)


@pytest.mark.parametrize(
    "make",
    [
        masks.words_of,
        lambda mask: masks.dilate(mask, (12, 16), 4, REACHES[0]),
        lambda mask: masks.pyramid(mask, (12, 16), 4, [REACHES[0]]),
        lambda mask: masks.resize(mask, (12, 16), 4, (24, 32)),
    ],
)
def test_scores_are_no_mask(make: Callable[[Array], Any]) -> None:
    make(np.ones((2, 3, 4), np.bool_))
    for dtype in (np.float32, np.int32):
        with pytest.raises(MatrixError, match=r"a mask holds bools, got .*reduce_mask makes one of scores"):
            make(np.ones((2, 3, 4), dtype))


def test_a_mask_that_does_not_fit_is_refused_before_it_is_made() -> None:
    for make in (
        lambda: masks.from_boxes(np.zeros((0, 5)), (10**6, 10**6, 10**6), 2),
        lambda: masks.from_blocks(np.zeros((0, 3), np.int64), (10**6, 10**6, 10**6)),
    ):
        with pytest.raises(MatrixError, match=r"blocks would take .* of memory"):
            make()
