"""`tma_attention` beyond the contract tests: tiles of one warpgroup, what it refuses, and nvcc."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attention_launches import USUAL, check_variant
from nvcc_builds import needs_nvcc, ptxas

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.operators import BlockAttentionProblem
from sparsegen.render import render

FAMILY = family("tma_attention")
check = partial(check_variant, FAMILY)
H100 = Device("h100", "H100", "cuda", (9, 0), 132, 227 * 1024, 228 * 1024, 50 << 20)


def problem_of(queries: int = 200, keys: int = 300, **options: Any) -> BlockAttentionProblem:
    return BlockAttentionProblem.of((queries, keys), **USUAL | options)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "options",
    [
        {"masks": "heads"},
        {"masks": "heads", "queries": 300, "block": "16x64", "density": 0.3},
        {"masks": "all", "queries": 140, "block": "128x128", "head_dim": 128, "span": "causal"},
        {"masks": "nobody", "span": "causal:90+20", "head_dim": 72, "order": "tokens", "dtype": "bfloat16"},
        {"masks": "items", "batch": 2, "block": "32x32", "density": 0.2},
    ],
    ids=str,
)
def test_tiles_of_one_warpgroup(options: dict[str, Any], emulator_toolchain: EmulatorToolchain) -> None:
    check(problem_of(**options), emulator_toolchain, warpgroups="single")


OPTIONS: list[dict[str, Any]] = [
    {"masks": "heads", "partial_blocks": 9},
    {"masks": "items", "batch": 2, "block": "16x64", "partial_blocks": 30, "span": "causal"},
    {"masks": "all", "block": "128x128", "partial_blocks": 4, "head_dim": 128, "density": 0.9},
    {"masks": "heads", "scores": "softcap"},
    {"masks": "nobody", "scores": "alibi", "span": "causal"},
    {"masks": "heads", "scores": "alibi", "block": "32x64", "partial_blocks": 20, "sinks": "heads"},
    {"masks": "nobody", "sinks": "heads", "batch": 2, "span": "full:20"},
]


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize("warpgroups", ["together", "single"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_partial_blocks_changes_of_scores_and_sinks(
    options: dict[str, Any], warpgroups: str, emulator_toolchain: EmulatorToolchain
) -> None:
    check(problem_of(**options), emulator_toolchain, warpgroups=warpgroups)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "options",
    [
        {"masks": "heads", "head_dim": 256, "block": "128x128"},
        {"masks": "nobody", "head_dim": 192, "span": "causal:90+20", "order": "tokens", "sinks": "heads"},
        {"masks": "all", "head_dim": 136, "block": "32x64", "partial_blocks": 9, "dtype": "bfloat16"},
        {"masks": "heads", "head_dim": 192, "value_dim": 128},
        {"masks": "nobody", "head_dim": 88, "value_dim": 40, "span": "causal", "order": "tokens"},
    ],
    ids=str,
)
def test_wide_heads(options: dict[str, Any], emulator_toolchain: EmulatorToolchain) -> None:
    check(problem_of(**options), emulator_toolchain)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    ("warpgroups", "head_dim"),
    [
        ("together", 64),
        ("together", 128),
        ("together", 192),
        ("together", 256),
        ("single", 64),
        ("single", 128),
    ],
)
@pytest.mark.parametrize("rows", ["whole", "split"])
def test_nvcc_lets_products_overlap(warpgroups: str, head_dim: int, rows: str, tmp_path: Path) -> None:
    problem = problem_of(head_dim=head_dim)
    config = FAMILY.config(warpgroups=warpgroups, rows=rows)
    said = ptxas(render(FAMILY, problem, config), tmp_path)
    assert "serialized" not in said, said


def test_it_refuses_by_name() -> None:
    broken = FAMILY.broken_constraints(problem_of(head_dim=264), FAMILY.config(), H100)
    assert any("head_dim" in sentence for sentence in broken)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_two_rings_fit_shared_memory_up_to_128_columns(head_dim: int) -> None:
    problem = problem_of(head_dim=head_dim)
    assert FAMILY.is_valid(problem, FAMILY.config(), H100)
    assert FAMILY.is_valid(problem, FAMILY.config(warpgroups="single"), H100) == (head_dim <= 128)


def chosen(problem: BlockAttentionProblem) -> str:
    return FAMILY.heuristic(problem, problem.features(problem.without_pattern), H100).warpgroups


def test_small_blocks_get_tiles_of_one_warpgroup() -> None:
    found = {
        block: chosen(problem_of(4096, 4096, block=block, kv_heads=16))
        for block in ("64x64", "16x64", "128x128", "128x64")
    }
    assert found == {"64x64": "single", "16x64": "single", "128x128": "together", "128x64": "together"}


def test_few_tiles_are_of_one_warpgroup() -> None:
    """The longest one dictates the time: on an H200 they took .83 to .93 of the time of shared ones."""
    of_causal = {"masks": "nobody", "span": "causal"}
    assert chosen(problem_of(2064, 2145, kv_heads=1, **of_causal)) == "single"
    assert chosen(problem_of(4096, 4096, kv_heads=32, **of_causal)) == "together"
    wide = problem_of(2064, 2145, kv_heads=1, head_dim=256, **of_causal)
    assert (
        chosen(wide) == "together"
        and FAMILY.alternatives(wide, wide.features(wide.without_pattern), H100) == ()
    )
