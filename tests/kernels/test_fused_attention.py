"""`fused_attention` beyond the contract tests: heads, scales, masks, its heuristic, and that nvcc takes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvcc_builds import needs_nvcc, ptxas

from sparsegen import masks
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.bench.patterns.patterns import Band, GlobalTokens, Strided
from sparsegen.kernels import family
from sparsegen.kernels.attention.fused_attention import expected_tiles, longest_tiles
from sparsegen.kernels.attention.key_tiles import KeyTiles
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, SparseAttentionProblem
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import call, run_and_compare
from sparsegen.testing.matrices import csr
from sparsegen.testing.variants import Variant
from sparsegen.verify.bounds import worst_error

FAMILY = family("fused_attention")
H100 = Device("h100", "H100", "cuda", (9, 0), 132, 232448, 233472, 50 << 20)
A100 = Device("a100", "A100", "cuda", (8, 0), 108, 166912, 167936, 40 << 20)
L40 = Device("l40", "L40", "cuda", (8, 9), 142, 101376, 102400, 96 << 20)
V100 = Device("v100", "V100", "cuda", (7, 0), 80, 98304, 98304, 6 << 20)
SMALL = {"tile_n": 32, "stages": 3, "resident_blocks": 1, "heads_together": True}


def seen(shape: tuple[int, int], rows: Any, columns: Any) -> CsrMatrix:
    mask = np.zeros(shape, dtype=np.float32)
    mask[rows, columns] = 1
    return csr(mask)


ADVERSARIAL = {
    "causal": masks.sliding_window(150, 150),
    "window and sinks": masks.sliding_window(140, 20, 3),
    "one column": seen((130, 100), slice(None), [97]),
    "first key alone, then all": seen((65, 97), [0, *[64] * 97], [5, *range(97)]),
    "single query": seen((1, 70), 0, slice(3, 69)),
    "a gap of tiles": seen((70, 200), [3, 3, 69], [0, 199, 100]),
}


def problem_of(mask: CsrMatrix, k: int, dtype: DType, heads: int) -> SparseAttentionProblem:
    return SparseAttentionProblem(*mask.shape, k, dtype, heads)


@pytest.mark.sanitizer
@pytest.mark.parametrize("queries", ["registers", "shared"])
def test_masks_and_heads(emulator_toolchain: EmulatorToolchain, queries: str) -> None:
    config = FAMILY.config(**SMALL, queries=queries)
    for name, mask in ADVERSARIAL.items():
        problem = problem_of(mask, 16, DType.FLOAT16, 3)
        source = render(FAMILY, problem, config)
        kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
        kind = Kind(SparseAttentionProblem, (("k", 16),), (("dtype", DType.FLOAT16),), batch=3)
        variant = Variant(FAMILY, config, kind, (), source)
        run_and_compare(variant, kernel, problem, mask, FAMILY.pack(problem, config, mask), where=name)


@pytest.mark.sanitizer
@pytest.mark.parametrize("queries", ["registers", "shared"])
def test_scales_of_either_sign_and_none(emulator_toolchain: EmulatorToolchain, queries: str) -> None:
    mask = ADVERSARIAL["window and sinks"]
    problem = problem_of(mask, 16, DType.FLOAT16, 1)
    config = FAMILY.config(**SMALL, queries=queries)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, render(FAMILY, problem, config))
    packed = FAMILY.pack(problem, config, mask)
    for scale in (0.25, -0.25, 0.0, -0.0, 300.0, 1e-42):
        operands = problem.random_operands(np.random.default_rng(1), mask.nnz)
        operands["scale"] = np.array([scale], dtype=np.float32)
        prepared = call(FAMILY, problem, config, packed, operands, mask.nnz)
        arrays = run_sanitized(kernel.binary, prepared.launch, prepared.arguments)
        found = problem.reference(mask, operands)
        assert worst_error(found, arrays[prepared.result]) <= 1, scale


# --- the heuristic ---


@pytest.mark.parametrize("device", [H100, A100, L40], ids=lambda d: d.key)
@pytest.mark.parametrize("k", [16, 40, 64, 96, 128, 256])
def test_heuristics_fit_the_device(k: int, device: Device) -> None:
    mask = masks.sliding_window(2048, 256)
    problem = problem_of(mask, k, DType.FLOAT16, 8)
    config = FAMILY.heuristic(problem, Features.of(mask), device)
    assert FAMILY.suits(problem, Features.of(mask), config, device)


def test_long_lists_start_first() -> None:
    mask = masks.sliding_window(1024, 1024)
    problem = problem_of(mask, 64, DType.FLOAT16, 1)
    tasks = FAMILY.pack(problem, FAMILY.config(tile_m=64), mask).arrays["tiles"]
    np.testing.assert_array_equal(tasks[:, 0], np.arange(16)[::-1])
    assert (np.diff(tasks[:, 2]) <= 0).all()
    natural = FAMILY.pack(problem, FAMILY.config(tile_m=64, order="natural"), mask).arrays["tiles"]
    np.testing.assert_array_equal(natural[:, 0], np.arange(16))


@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (masks.sliding_window(4096, 256), 1.1),
        (masks.sliding_window(4096, 4096), 1.1),
        (random_uniform(2048, 2048, 0.02, seed=0), 1.01),
        (masks.blocks(4096, 64, 1, 2), 1.8),
        (GlobalTokens(3000, 3000, 64, 4).matrix(), 1.2),
        (Strided(2000, 2000, 64).matrix(), 1.35),
        (Band(3000, 3000, 128, 0.95, seed=0).matrix(), 1.1),
    ],
    ids=["window", "causal", "scattered", "blocks", "global", "strided", "band"],
)
def test_the_expected_numbers_of_tiles_are_near(mask: CsrMatrix, most: float) -> None:
    """So are those of the longest row of tiles; features say nothing of the size of blocks at random places."""
    features = Features.of(mask)
    for height, width in ((64, 64), (128, 64), (64, 32)):
        counts = KeyTiles.of(mask, height, width).counts
        expected = expected_tiles(features, height, width)
        assert 1 / most <= expected / counts.sum() <= most, (height, width)
        longest = longest_tiles(features, expected / counts.size, height, width)
        assert 1 / 2.1 <= longest / counts.max() <= 1.4, (height, width)


def test_scattered_masks_do_not_suit() -> None:
    features = Features.of(random_uniform(4096, 4096, 0.001, seed=0))
    problem = SparseAttentionProblem(4096, 4096, 64, DType.FLOAT16)
    (sentence,) = FAMILY.broken_requirements(problem, features, FAMILY.config())
    assert sentence.startswith("tiles of 64 queries by 64 keys have a nonzero in one place of 128 or more")


def test_what_it_cannot_do_is_told() -> None:
    def broken(problem: SparseAttentionProblem, device: Device = H100) -> str:
        return "; ".join(FAMILY.broken_constraints(problem, FAMILY.config(), device))

    assert "elements (float32) have 16 bits" in broken(SparseAttentionProblem(64, 64, 64))
    assert "k (20), is a multiple of 8" in broken(SparseAttentionProblem(64, 64, 20, DType.FLOAT16))
    assert "at most 256" in broken(SparseAttentionProblem(64, 64, 264, DType.FLOAT16))
    assert "(7.0) has compute capability 8.0" in broken(
        SparseAttentionProblem(64, 64, 64, DType.FLOAT16), V100
    )
    assert "at most 2147483647" in broken(SparseAttentionProblem(2**20, 64, 64, DType.FLOAT16, 2**18))


# --- nvcc ---


@needs_nvcc
@pytest.mark.parametrize(("arch", "device", "k"), [("80", A100, 40), ("89", L40, 64), ("90a", H100, 128)])
def test_nvcc_compiles_the_heuristic_and_spills_an_address_at_most(
    arch: str, device: Device, k: int, tmp_path: Path
) -> None:
    mask = masks.sliding_window(2048, 256)
    problem = problem_of(mask, k, DType.FLOAT16, 8)
    config = FAMILY.heuristic(problem, Features.of(mask), device)
    said = ptxas(render(FAMILY, problem, config), tmp_path, arch)
    assert max(map(int, re.findall(r"(\d+) bytes spill stores", said))) <= 8, said
