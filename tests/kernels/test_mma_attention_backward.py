"""`mma_attention_backward` beyond the contract tests: spans, options, long lists, what it refuses, and nvcc."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from nvcc_builds import GPUS, needs_nvcc, ptxas

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.operators import BlockAttentionBackwardProblem
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.variants import Variant

FAMILY = family("mma_attention_backward")


def problem_of(queries: int = 200, keys: int = 300, **options: Any) -> BlockAttentionBackwardProblem:
    usual = {"kv_heads": 1, "group": 2, "head_dim": 64, "dtype": "float16", "block": "64x64", "density": 0.5}
    return BlockAttentionBackwardProblem.of((queries, keys), **usual | options)


def check(
    problem: BlockAttentionBackwardProblem,
    toolchain: EmulatorToolchain,
    *,
    listed: int = 256,
    **choices: Any,
) -> None:
    """Runs a variant under sanitizers, and holds its results against the reference."""
    config, nobody = FAMILY.config(**choices), problem.without_pattern
    usual = "kListed = 256;"
    source = render(FAMILY, problem, config)
    assert usual in source
    source = source.replace(usual, f"kListed = {listed};")
    kernel = toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    variant = Variant(FAMILY, config, Kind(type(problem), (), ()), (), source)
    run_and_compare(
        variant, kernel, problem, nobody, FAMILY.pack(problem, config, nobody), where=str(problem)
    )


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
    check(problem_of(**many), emulator_toolchain, tile=64, listed=128)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("architecture", ["80", "86", "90a"])
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
