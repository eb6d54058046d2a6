"""Long rows of `tma_attention` split over thread blocks: results, parts that depend on the mask alone, planted bugs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_launches import USUAL

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import KernelFault
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.matrix.block_mask import BlockMask
from sparsegen.operators import BlockAttentionProblem
from sparsegen.render import render
from sparsegen.system.numpy_types import Array
from sparsegen.testing.launches import call
from sparsegen.verify.bounds import worst_error

FAMILY = family("tma_attention")
H100 = Device("h100", "H100", "cuda", (9, 0), 132, 227 * 1024, 228 * 1024, 50 << 20)
TURN, LIST, PART_WORDS = 2, 16, 4  # counters of grid_sync, and where parts begin: tile, number, count, room


def problem_of(queries: int, keys: int, **options: Any) -> BlockAttentionProblem:
    return BlockAttentionProblem.of((queries, keys), **USUAL | options)


def uneven_masks(problem: BlockAttentionProblem, rng: np.random.Generator) -> Array:
    """Words of masks in which one row of blocks sees everything, one nothing, and others little."""
    layout, shape = problem.mask_layout, (problem.queries, problem.keys)
    words = []
    for number in range(problem.heads if problem.masks.are_of_heads else 1):
        live = rng.random((layout.rows, layout.columns)) < 0.12
        live[(1 + number) % layout.rows], live[(2 + number) % layout.rows] = True, False
        words.append(BlockMask.from_blocks(live, (problem.block.rows, problem.block.columns), shape).words)
    return np.stack(words).reshape(problem.operands(0)[3].shape)


def run_split(
    problem: BlockAttentionProblem,
    toolchain: EmulatorToolchain,
    bug: tuple[str, str] | None = None,
    **choices: Any,
) -> Array:
    """Runs the variant twice on one scratch memory, and holds it against the reference; returns the list of parts."""
    config, nobody = FAMILY.config(rows="split", **choices), problem.without_pattern
    source = render(FAMILY, problem, config)
    if bug is not None:
        if bug[0] not in source:
            raise ValueError(f"the source does not contain {bug[0]!r}: plant it in another way")
        source = source.replace(*bug)
    kernel = toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    operands = problem.random_operands(np.random.default_rng(0), 0)
    if problem.has_mask:
        operands["mask"] = uneven_masks(problem, np.random.default_rng(1))
    prepared = call(FAMILY, problem, config, FAMILY.pack(problem, config, nobody), operands, 0)
    first = run_sanitized(kernel.binary, prepared.launch, prepared.arguments)
    second = run_sanitized(kernel.binary, prepared.launch, prepared.again(first).arguments)
    result, lse = prepared.result, prepared.written["lse"]
    assert (
        first[result].tobytes() == second[result].tobytes() and first[lse].tobytes() == second[lse].tobytes()
    )
    exact = problem.written_references(nobody, operands)["lse"]
    errors = worst_error(problem.reference(nobody, operands), first[result]), worst_error(exact, first[lse])
    assert max(errors) <= 1, errors
    counters = first[prepared.scratch[FAMILY.scratch_names.index("counters")]].view(np.int32)
    assert not np.delete(counters[:LIST], TURN).any(), "counters are zero between launches"
    rooms = FAMILY.constants(problem, config)["rooms"]
    return counters[LIST : LIST + PART_WORDS * int(rooms)].reshape(-1, PART_WORDS)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("options", "choices"),
    [
        ({"masks": "heads"}, {}),
        ({"masks": "heads", "block": "16x64"}, {"warpgroups": "single", "queries": "registers"}),
        ({"masks": "all", "block": "128x128", "head_dim": 128, "span": "causal"}, {}),
        (
            {
                "masks": "nobody",
                "span": "causal@start",
                "head_dim": 80,
                "dtype": "bfloat16",
                "order": "tokens",
            },
            {},
        ),
        ({"masks": "heads", "partial_blocks": 20, "scores": "alibi", "sinks": "heads"}, {}),
        ({"masks": "all", "block": "64x64", "head_dim": 192, "value_dim": 128}, {}),
    ],
    ids=str,
)
def test_split_rows_are_right(
    options: dict[str, Any], choices: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    parts = run_split(problem_of(700, 900, **options), emulator_toolchain, **choices)
    assert parts[:, 2].max() > 1, "no row was split"


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "bug",
    [
        ("fast_exp2(reference - largest) : 0.0f", "1.0f : 0.0f"),
        ("rows.total[0] = fmaf(found.z, weights[0], rows.total[0])", "rows.total[0] += found.z"),
        (
            "sums[j][2] = fmaf(values.z, weights[1], sums[j][2])",
            "sums[j][2] = fmaf(values.z, weights[0], sums[j][2])",
        ),
        (
            "for (int i = 0; i < part.count; ++i) {\n      const float4* const from",
            "for (int i = 1; i < part.count; ++i) {\n      const float4* const from",
        ),
        (
            "taken = split.begin_of(part, part.number) * kOfBlock",
            "taken = (split.begin_of(part, part.number) - (part.number > 0)) * kOfBlock",
        ),
        (", counters[kPartCount] = 0", ""),
        ("if (threadIdx.x % 32 == 0) *counter = 0;", ""),
    ],
    ids=[
        "weights of one scale",
        "sums of weights that do not shrink",
        "another row's weights",
        "a part left out",
        "a block twice",
        "a count that stays",
        "arrivals that stay",
    ],
)
def test_a_wrong_merge_is_caught(bug: tuple[str, str], emulator_toolchain: EmulatorToolchain) -> None:
    problem = problem_of(700, 900, masks="heads")
    with pytest.raises((AssertionError, KernelFault)):
        run_split(problem, emulator_toolchain, bug)


@pytest.mark.parametrize(
    ("queries", "options", "rows"),
    [
        (4096, {"masks": "nobody", "span": "causal"}, "split"),
        (4096, {"masks": "nobody"}, "whole"),
        (4096, {"masks": "nobody", "span": "causal", "kv_heads": 16}, "whole"),
        (8192, {"masks": "heads", "kv_heads": 8, "density": 0.1, "block": "128x128"}, "whole"),
        (4096, {"masks": "all", "density": 0.3, "block": "128x128", "span": "causal"}, "split"),
    ],
    ids=str,
)
def test_the_model_splits_rows_where_one_would_outlast_the_others(
    queries: int, options: dict[str, Any], rows: str
) -> None:
    problem = problem_of(queries, queries, head_dim=128, **options)
    features = problem.features(problem.without_pattern)
    found = FAMILY.heuristic(problem, features, H100)
    assert found.rows == ("whole" if problem.has_mask else rows)  # no row of a mask is known to be longer
    ways = (replace(found, rows=way) for way in ("whole", "split"))
    assert min(ways, key=lambda way: FAMILY.analytic_us(problem, features, way, H100)).rows == rows


@pytest.mark.parametrize("tokens", [4096, 131072])
def test_room_for_parts_is_bounded(tokens: int) -> None:
    problem = problem_of(tokens, tokens, kv_heads=32, group=1, head_dim=128, masks="nobody", span="causal")
    packed = FAMILY.pack(problem, FAMILY.config(rows="split"), problem.without_pattern)
    assert packed.scratch["part_memory"] < 40 << 20


@pytest.mark.parametrize(
    ("heads", "tokens", "density", "rows"),
    [
        (2, 16384, "0.06^1", "split"),
        (2, 16384, "0.06", "whole"),
        (16, 8192, "0.1^1", "split"),
        (16, 8192, "0.27^1", "whole"),
    ],
)
def test_rows_are_split_where_one_is_known_to_be_long(
    heads: int, tokens: int, density: str, rows: str
) -> None:
    """The choice is that of the clock: 166 µs for 54, 175 for 135, and 256 for 261."""
    problem = problem_of(
        tokens, tokens, kv_heads=heads, group=1, head_dim=128, block="128x128", density=density
    )
    assert FAMILY.heuristic(problem, problem.features(problem.without_pattern), H100).rows == rows


def test_a_mask_with_a_longer_row_is_drawn() -> None:
    problem = problem_of(4096, 4096, block="64x64", density="0.1^0.75")
    operands = problem.random_operands(np.random.default_rng(0), 0)
    live = problem.mask_of(operands["mask"]).blocks().sum(1)
    assert live.max() > 0.6 * 64 and np.median(live) < 0.2 * 64
    assert str(problem.density) == problem.density.json == "0.1^0.75"
