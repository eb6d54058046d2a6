"""`mma_attention_backward` beyond the contract tests: spans, options, long lists, what it refuses, and nvcc."""

from __future__ import annotations

from typing import Any

import pytest

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


def check(problem: BlockAttentionBackwardProblem, toolchain: EmulatorToolchain, **choices: Any) -> None:
    """Runs a variant under sanitizers, and holds its results against the reference."""
    config, nobody = FAMILY.config(**choices), problem.without_pattern
    source = render(FAMILY, problem, config)
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
