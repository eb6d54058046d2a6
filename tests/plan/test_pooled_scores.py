"""Pooled scores and blocks of places: kernels under AddressSanitizer, with arrays of exact sizes, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.plain import plain_source
from sparsegen.errors import OperandError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.bits import packed_rows
from sparsegen.matrix.partial_blocks import FULL, bits_of
from sparsegen.operators import DType
from sparsegen.plan.pooled_scores import PooledScores, PooledTokens, bind_pooled_scores
from sparsegen.system.numpy_types import Array

UNWRITTEN = np.float32(np.nan)


def pooled(tokens: Array, block: int, takes_most: bool) -> Array:
    """Heads × blocks × head_dim of heads × tokens × head_dim."""
    parts = np.split(tokens.astype(np.float32), range(block, tokens.shape[1], block), axis=1)
    return np.stack([part.max(1) if takes_most else part.mean(1) for part in parts], 1)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("width", "head_dim"), [(8, 24), (8, 64), (1, 5), (1, 300)])
@pytest.mark.parametrize("takes_most", [0, 1])
def test_pooling(width: int, head_dim: int, takes_most: int, emulator_toolchain: EmulatorToolchain) -> None:
    """Q lies token by token, K head by head; the last block of each is cut off."""
    rng = np.random.default_rng(head_dim)
    entry = f"pool_blocks_float16_{width}"
    compiled = emulator_toolchain.compile_sanitized("plain", entry, plain_source("pooled_scores.cu"))
    q = rng.normal(size=(37, 2, head_dim)).astype(np.float16)
    k = rng.normal(size=(1, 21, head_dim)).astype(np.float16)
    parts = head_dim // width
    of_q = PooledTokens(2, 37, 16, (0, head_dim, 2 * head_dim))
    of_k = PooledTokens(1, 21, 8, (0, 21 * head_dim, head_dim))
    sizes_q, sizes_k = of_q.sizes(parts), of_k.sizes(parts)
    results = [np.full((heads, blocks, head_dim), UNWRITTEN) for heads, blocks in ((2, 3), (1, 3))]
    given = [head_dim, takes_most, *sizes_q, *sizes_k, q, k, *results]
    *_, pooled_q, pooled_k = run_sanitized(compiled.binary, Launch((3, 3, 1), (256, 1, 1)), given)
    expected = pooled(q.transpose(1, 0, 2), 16, bool(takes_most)), pooled(k, 8, bool(takes_most))
    for found, right in zip((pooled_q, pooled_k), expected, strict=True):
        np.testing.assert_allclose(found.reshape(right.shape), right, rtol=1e-5, atol=1e-6)


@pytest.mark.sanitizer
def test_products(emulator_toolchain: EmulatorToolchain) -> None:
    rng = np.random.default_rng(2)
    source = plain_source("pooled_scores.cu")
    compiled = emulator_toolchain.compile_sanitized("plain", "score_blocks", source)
    q, k = (rng.normal(size=size).astype(np.float32) for size in ((4, 35, 70), (2, 40, 70)))
    scale = int(np.float32(0.25).view(np.int32))
    given = [35, 40, 70, 2, scale, q, k, np.full((4, 35, 40), UNWRITTEN)]
    *_, found = run_sanitized(compiled.binary, Launch((4, 2, 2), (256, 1, 1)), given)
    right = 0.25 * np.einsum("hrd,hcd->hrc", q.astype(np.float64), k.repeat(2, 0))
    np.testing.assert_allclose(found.reshape(4, 35, 40), right, rtol=1e-5, atol=1e-5)


def test_too_many_heads_are_refused() -> None:
    tokens = PooledTokens(65536, 16, 16, (0, 0, 8))
    what = PooledScores(1, 8, tokens, tokens, DType.FLOAT16, False, 1.0, True)
    with pytest.raises(OperandError, match="q: a launch pools at most 65535 items and as many heads"):
        bind_pooled_scores(backends.open_executor(backends.find_device("emulator")), what)


@pytest.mark.sanitizer
@pytest.mark.parametrize("block", [(16, 16), (32, 48)])
@pytest.mark.parametrize("bits", [32, 64])
def test_documents(bits: int, block: tuple[int, int], emulator_toolchain: EmulatorToolchain) -> None:
    """Unsorted documents, padding, cut-off blocks: numbers, bits and live blocks of two items."""
    rng = np.random.default_rng(bits)
    compiled = emulator_toolchain.compile_sanitized(
        "plain", f"documents_int{bits}", plain_source("partial_blocks.cu")
    )
    queries, keys = 70, 1700  # two words of columns
    dtype = np.dtype(f"i{bits // 8}")
    q = np.repeat(rng.integers(-1, 4, (2, 70)), 37, axis=1)[:, 5 : 5 + queries].astype(dtype)
    k = np.repeat(rng.integers(-1, 4, (2, 200)), 110, axis=1)[:, 5 : 5 + keys].astype(dtype)
    rows, columns = -(-queries // block[0]), -(-keys // block[1])
    halves, count, words = 2 * -(-columns // 64), 2 * rows * columns, block[0] * block[1] // 64
    live = np.full((2, rows, halves), 2**32 - 1, np.uint32)
    numbers, found_bits = np.full(count, -9, np.int32), np.zeros((count + 1, words), np.uint64)
    found_bits[:] = 2**64 - 1
    launch = Launch((halves, rows, 2), (256, 1, 1))
    given = [queries, keys, *block, q, k, live, numbers, found_bits]
    *_, live, numbers, found_bits = run_sanitized(compiled.binary, launch, given)
    seen = np.zeros((2, rows * block[0], columns * block[1]), bool)
    seen[:, :queries, :keys] = (q[:, :, None] == k[:, None]) & (q >= 0)[:, :, None]
    tiles = seen.reshape(2, rows, block[0], columns, block[1]).swapaxes(2, 3).reshape(count, *block)
    found_bits = found_bits.reshape(count + 1, words)
    assert not found_bits[count].any(), "what dead blocks have"
    known = numbers.reshape(-1)
    partial = known == np.arange(count)
    assert partial.any() and (known == FULL).any() and (known == count).any()
    assert (partial | (known == FULL) | (known == count)).all()
    np.testing.assert_array_equal(found_bits[:count][partial], bits_of(tiles[partial]))
    assert not tiles[known == count].any(), "no place of dead blocks lives"
    is_inside = np.zeros((rows * block[0], columns * block[1]), bool)
    is_inside[:queries, :keys] = True
    inside = is_inside.reshape(rows, block[0], columns, block[1]).swapaxes(1, 2)
    inside = np.tile(inside.reshape(rows * columns, *block), (2, 1, 1))
    np.testing.assert_array_equal(tiles[known == FULL], inside[known == FULL])
    alive = packed_rows((known != count).reshape(2 * rows, columns))
    np.testing.assert_array_equal(live.reshape(-1).view(np.uint64), alive.reshape(-1))


@pytest.mark.sanitizer
@pytest.mark.parametrize("keys", [136, 75])
def test_places(keys: int, emulator_toolchain: EmulatorToolchain) -> None:
    """Rows that eight bytes divide, and others."""
    rng = np.random.default_rng(keys)
    compiled = emulator_toolchain.compile_sanitized("plain", "mark_places", plain_source("partial_blocks.cu"))
    queries, block = 50, (16, 32)
    rows, columns = -(-queries // 16), -(-keys // 32)
    places = rng.random((2, queries, keys)) < 0.004
    places[0, :16, :32] = True
    count, words = 2 * rows * columns, 16 * 32 // 64
    results = np.full(count, 7, np.uint8), np.full(count, -9, np.int32), np.full((count, words), 5, np.uint64)
    given = [queries, keys, *block, places.view(np.uint8), *results]
    launch = Launch((columns, rows, 2), (256, 1, 1))
    *_, live, numbers, bits = run_sanitized(compiled.binary, launch, given)
    whole = np.zeros((2, rows * 16, columns * 32), bool)
    whole[:, :queries, :keys] = places
    tiles = whole.reshape(2, rows, 16, columns, 32).swapaxes(2, 3).reshape(count, *block)
    np.testing.assert_array_equal(live.reshape(-1), tiles.any((1, 2)))
    np.testing.assert_array_equal(bits.reshape(count, words), bits_of(tiles))
    expected = np.arange(count)
    expected[0] = FULL
    np.testing.assert_array_equal(numbers.reshape(-1), expected)
