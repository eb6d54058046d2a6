"""`mma_attention` beyond the contract tests: tiles of every kind of block, long lists, what it refuses, and nvcc."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attention_launches import USUAL, check_variant
from nvcc_builds import GPUS, needs_nvcc, ptxas

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.operators import BlockAttentionProblem
from sparsegen.render import render

FAMILY, WARPGROUPS = family("mma_attention"), family("tma_attention")
check = partial(check_variant, FAMILY)


def problem_of(queries: int = 200, keys: int = 300, **options: Any) -> BlockAttentionProblem:
    return BlockAttentionProblem.of((queries, keys), **USUAL | options)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize("row_tiles", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"masks": "heads"},
        {"masks": "heads", "queries": 300, "block": "16x64", "density": 0.3},
        {"masks": "all", "queries": 140, "block": "128x128", "head_dim": 128, "span": "causal"},
        {"masks": "nobody", "span": "causal:90+20", "head_dim": 72, "order": "tokens", "dtype": "bfloat16"},
        {"masks": "items", "batch": 2, "block": "32x32", "density": 0.2},
        {"masks": "heads", "partial_blocks": 9},
        {"masks": "items", "batch": 2, "block": "16x64", "partial_blocks": 30, "span": "causal"},
        {"masks": "heads", "scores": "softcap"},
        {"masks": "heads", "scores": "alibi", "block": "32x64", "partial_blocks": 20, "sinks": "heads"},
    ],
    ids=str,
)
def test_blocks_and_options(
    options: dict[str, Any], row_tiles: int, emulator_toolchain: EmulatorToolchain
) -> None:
    check(problem_of(**options), emulator_toolchain, row_tiles=row_tiles)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "options",
    [
        {"queries": 20, "keys": 34_000, "block": "16x16", "head_dim": 16, "density": 0.1},
        {"queries": 20, "keys": 17_000, "masks": "nobody", "head_dim": 16},
    ],
    ids=str,
)
def test_lists_are_filled_again(options: dict[str, Any], emulator_toolchain: EmulatorToolchain) -> None:
    check(
        problem_of(**{"masks": "all"} | options),
        emulator_toolchain,
        changed=("kListed = 512;", "kListed = 128;"),
    )


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("options", "choices"),
    [
        ({"masks": "heads", "head_dim": 256, "block": "128x128"}, {"stage_keys": 32}),
        ({"masks": "all", "head_dim": 136, "block": "32x64", "partial_blocks": 9, "dtype": "bfloat16"}, {}),
        ({"masks": "heads", "head_dim": 192, "value_dim": 128}, {"stages": 3}),
        ({"masks": "nobody", "head_dim": 88, "value_dim": 40, "order": "tokens"}, {"warps": 16}),
        ({"masks": "heads", "block": "16x32", "queries": 520}, {"warps": 16, "stages": 4}),
    ],
    ids=str,
)
def test_wide_heads_and_tall_tiles(
    options: dict[str, Any], choices: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    check(problem_of(**options), emulator_toolchain, queries="shared", **choices)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("architecture", ["80", "86"])  # Hopper takes what has warpgroups
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_is_chosen_spills_little(head_dim: int, architecture: str, tmp_path: Path) -> None:
    problem = problem_of(4096, 4096, head_dim=head_dim)
    device = GPUS[architecture]
    config = FAMILY.heuristic(problem, problem.features(problem.without_pattern), device)
    said = ptxas(render(FAMILY, problem, config), tmp_path, architecture)
    (stored,) = re.findall(r"(\d+) bytes spill stores", said)
    assert int(stored) < 160, said


def test_it_refuses_by_name() -> None:
    broken = FAMILY.broken_constraints(problem_of(head_dim=264), FAMILY.config(), GPUS["80"])
    assert any("head_dim" in sentence for sentence in broken)
    broken = FAMILY.broken_constraints(problem_of(dtype="float32"), FAMILY.config(), GPUS["80"])
    assert broken == ["elements (float32) have 16 bits"]


@pytest.mark.parametrize("options", [{"block": "16x64"}, {"block": "128x128"}, {"masks": "nobody"}], ids=str)
@pytest.mark.parametrize("sizes", [(64, 65_536), (500, 300), (8192, 64), (8192, 8192)], ids=str)
def test_hopper_takes_what_has_warpgroups(sizes: tuple[int, int], options: dict[str, Any]) -> None:
    """An H200 computed no problem faster without warpgroups."""
    problem = problem_of(*sizes, kv_heads=8, head_dim=64, **options)
    features = problem.features(problem.without_pattern)
    assert FAMILY.predicted_us(problem, features, GPUS["90a"]) > WARPGROUPS.predicted_us(
        problem, features, GPUS["90a"]
    )
    assert not any(FAMILY.space(problem, GPUS["90a"])) and any(FAMILY.space(problem, GPUS["86"]))
