"""`mma_attention_backward` beyond the contract tests: spans, options, long lists, what it refuses, and nvcc."""

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
from sparsegen.operators import BlockAttentionBackwardProblem
from sparsegen.render import render

FAMILY = family("mma_attention_backward")
check = partial(check_variant, FAMILY)


def problem_of(queries: int = 200, keys: int = 300, **options: Any) -> BlockAttentionBackwardProblem:
    return BlockAttentionBackwardProblem.of((queries, keys), **USUAL | options)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize(
    "options",
    [
        {"masks": "heads"},
        {"masks": "all", "queries": 140, "block": "128x128", "head_dim": 128, "span": "causal"},
        {"masks": "nobody", "span": "causal:90+20", "head_dim": 72, "order": "tokens", "dtype": "bfloat16"},
        {"masks": "items", "batch": 2, "block": "64x128", "density": 0.2, "value_dim": 40},
        {"masks": "heads", "partial_blocks": 9, "scores": "softcap"},
        {"masks": "heads", "scores": "alibi", "block": "128x64", "partial_blocks": 20, "sinks": "heads"},
    ],
    ids=str,
)
def test_blocks_and_options(
    options: dict[str, Any], tile: int, emulator_toolchain: EmulatorToolchain
) -> None:
    check(problem_of(**options), emulator_toolchain, tile=tile)


@pytest.mark.slow
@pytest.mark.sanitizer
def test_lists_are_filled_again(emulator_toolchain: EmulatorToolchain) -> None:
    many = {"queries": 9000, "keys": 40, "group": 1, "head_dim": 16, "masks": "nobody"}
    check(problem_of(**many), emulator_toolchain, tile=64, changed=("kListed = 256;", "kListed = 128;"))


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("architecture", ["80", "86"])  # Hopper takes what has warpgroups
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_is_chosen_spills_little(head_dim: int, architecture: str, tmp_path: Path) -> None:
    problem = problem_of(4096, 4096, head_dim=head_dim)
    config = FAMILY.heuristic(problem, problem.features(problem.without_pattern), GPUS[architecture])
    said = ptxas(render(FAMILY, problem, config), tmp_path, architecture)
    (stored,) = re.findall(r"(\d+) bytes spill stores", said)
    assert int(stored) < 64, said


def test_it_refuses_by_name() -> None:
    for options, word in (
        ({"head_dim": 136}, "head_dim"),
        ({"block": "32x64"}, "blocks"),
        ({"dtype": "float32"}, "elements"),
    ):
        assert word in FAMILY.broken_constraints(problem_of(**options), FAMILY.config(), GPUS["80"])[0]
