"""`tma_attention_backward` beyond the contract tests: spans, masks by rank, dead rows, what it refuses, and nvcc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_launches import USUAL, check_variant
from nvcc_builds import needs_nvcc, ptxas

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ContractError
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.operators import BlockAttentionBackwardProblem, DType
from sparsegen.render import render
from sparsegen.testing.launches import call
from sparsegen.verify.bounds import worst_error

FAMILY = family("tma_attention_backward")
H100 = Device("h100", "H100", "cuda", (9, 0), 132, 227 * 1024, 228 * 1024, 50 << 20)
PASSES = (1, 2)
FEW = {"queries": 471, "keys": 471, "kv_heads": 1, "density": 0.362}  # tiles: 24, 28, 33 and 41 µs on an H200


def problem_of(queries: int = 200, keys: int = 150, **options: Any) -> BlockAttentionBackwardProblem:
    return BlockAttentionBackwardProblem.of((queries, keys), **USUAL | options)


def outcome(
    problem: BlockAttentionBackwardProblem, passes: int, toolchain: EmulatorToolchain, **given: Any
) -> dict[str, float]:
    """The largest error over its bound of each gradient."""
    config, nobody = FAMILY.config(passes=passes), problem.without_pattern
    kernel = toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, render(FAMILY, problem, config))
    operands = problem.random_operands(np.random.default_rng(2), 0) | given
    prepared = call(FAMILY, problem, config, FAMILY.pack(problem, config, nobody), operands, 0)
    arrays = run_sanitized(kernel.binary, prepared.launch, prepared.arguments)
    found = {"dq": worst_error(problem.reference(nobody, operands), arrays[prepared.result])}
    for name, reference in problem.written_references(nobody, operands).items():
        found[name] = worst_error(reference, arrays[prepared.written[name]])
    return found


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(
    "options",
    [
        {"masks": "heads"},
        {"masks": "nobody", "span": "full:90", "head_dim": 128, "order": "tokens"},
        {"masks": "items", "batch": 2, "block": "64x128", "span": "causal:100+70", "dtype": "bfloat16"},
        {"masks": "all", "density": 0.1, "queries": 520, "keys": 64, "block": "128x64"},
        {"masks": "heads", "partial_blocks": 9, "queries": 300},
        {
            "masks": "items",
            "batch": 2,
            "block": "128x128",
            "partial_blocks": 5,
            "span": "causal",
            "head_dim": 128,
        },
        {"masks": "heads", "scores": "softcap", "head_dim": 128},
        {"masks": "heads", "scores": "softcap", "order": "tokens", "dtype": "bfloat16", "span": "causal"},
        {"masks": "heads", "scores": "alibi", "block": "64x128", "partial_blocks": 4, "sinks": "heads"},
        {"masks": "nobody", "scores": "alibi", "span": "causal", "head_dim": 128},
        {"masks": "nobody", "sinks": "heads", "batch": 2, "span": "full:20"},
        {"masks": "heads", "head_dim": 96},
        {"masks": "nobody", "head_dim": 16, "order": "tokens", "span": "causal"},
        {"masks": "heads", "head_dim": 104, "value_dim": 72, "order": "tokens", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_gradients_are_right(
    passes: int,
    options: dict[str, Any],
    emulator_toolchain: EmulatorToolchain,
    bug: tuple[str, str] = ("", ""),
    **choices: Any,
) -> None:
    check_variant(FAMILY, problem_of(**options), emulator_toolchain, changed=bug, passes=passes, **choices)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(
    "options",
    [
        {"masks": "heads", "queries": 300},
        {"masks": "items", "batch": 2, "span": "causal:100+70", "head_dim": 128, "dtype": "bfloat16"},
        {"masks": "all", "density": 0.1, "queries": 520, "keys": 64, "order": "tokens"},
        {"masks": "heads", "partial_blocks": 9, "scores": "softcap", "head_dim": 128, "queries": 300},
        {"masks": "heads", "partial_blocks": 4, "scores": "alibi", "sinks": "heads"},
    ],
    ids=str,
)
def test_gradients_by_tiles_of_one_warpgroup_are_right(
    passes: int, options: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    test_gradients_are_right(passes, options, emulator_toolchain, warpgroups="single")


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "bug",
    [
        (" row = static_cast<int>(shared.descriptors[now.second()]);", " row = 0;"),
        ("    store_vector(sums + i * 4, Vector<float, 4>{ {0.0f, 0.0f, 0.0f, 0.0f} });\n", ""),
        (
            "at_gradients((steps - ago) % kGradientPlaces)",
            "at_gradients((steps - ago + 1) % kGradientPlaces)",
        ),
    ],
    ids=["another step's rows", "sums that stay", "another step's dS"],
)
def test_sums_that_are_wrong_are_caught(bug: tuple[str, str], emulator_toolchain: EmulatorToolchain) -> None:
    with pytest.raises(ContractError):
        test_gradients_are_right(1, {"masks": "heads", "queries": 300}, emulator_toolchain, bug)


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize("passes", PASSES)
def test_queries_that_see_nothing_give_zeros(passes: int, emulator_toolchain: EmulatorToolchain) -> None:
    problem = problem_of(70, 70, masks="nobody", group=1)
    operands = problem.random_operands(np.random.default_rng(2), 0)
    operands["lse"][:, :40], operands["o"][:, :40] = -np.inf, 0
    given = {"lse": operands["lse"], "o": operands["o"], "band": np.array([-(1 << 30), -40, 0], np.int32)}
    assert max(outcome(problem, passes, emulator_toolchain, **given).values()) <= 1


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize("passes", PASSES)
def test_a_large_gradient_stays_finite(passes: int, emulator_toolchain: EmulatorToolchain) -> None:
    """dP exceeds what float16 holds, dS does not where the differences are small."""
    problem = problem_of(64, 64, masks="nobody", group=1)
    operands = problem.random_operands(np.random.default_rng(2), 0)
    one = np.full(operands["v"].shape, 40.0, np.float32)  # the same for all keys: dP = delta
    given = {
        "v": problem.dtype.to_storage(one),
        "o": problem.dtype.to_storage(one),
        "do": problem.dtype.to_storage(np.full(operands["do"].shape, 30.0, np.float32)),
    }
    found = outcome(problem, passes, emulator_toolchain, **given)
    assert max(found.values()) <= 1, found


@pytest.mark.slow
@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "options",
    [
        {"masks": "heads", "head_dim": 256},
        {"masks": "heads", "head_dim": 192, "order": "tokens", "dtype": "bfloat16"},
        {"masks": "nobody", "span": "causal:100+70", "head_dim": 192, "batch": 2, "sinks": "heads"},
        {"masks": "all", "scores": "softcap", "block": "128x64", "partial_blocks": 5, "head_dim": 256},
        {"masks": "heads", "scores": "alibi", "head_dim": 192, "density": 0.2, "queries": 300},
        {"masks": "heads", "head_dim": 192, "value_dim": 128},
        {
            "masks": "nobody",
            "head_dim": 192,
            "value_dim": 128,
            "span": "causal",
            "order": "tokens",
            "dtype": "bfloat16",
        },
    ],
    ids=str,
)
def test_gradients_of_wide_heads_are_right(
    options: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    test_gradients_are_right(2, options, emulator_toolchain)


def test_one_pass_promises_no_equal_bits() -> None:
    problem = problem_of()
    assert [FAMILY.is_deterministic(problem, FAMILY.config(passes=passes)) for passes in PASSES] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head_dim": 68}, "head_dim"),
        ({"block": "32x64"}, "whole pieces"),
        ({"head_dim": 128, "value_dim": 64}, "value_dim (64)"),
        ({"dtype": "float32"}, "16 bits"),
    ],
)
def test_it_refuses_by_name(options: dict[str, Any], reason: str) -> None:
    broken = FAMILY.broken_constraints(problem_of(**options), FAMILY.config(), H100)
    assert any(reason in sentence for sentence in broken)


@pytest.mark.parametrize(
    ("head_dim", "options", "passes", "tiles"),
    [
        (64, {"block": "128x128", "masks": "heads"}, 1, "together"),
        (128, {"block": "128x128", "masks": "heads"}, 1, "together"),
        (64, {"block": "64x64", "masks": "heads", "density": 0.25}, 1, "single"),
        (128, {"block": "64x64", "masks": "heads", "density": 0.25}, 2, "single"),
        (128, {"span": "causal:2000", "masks": "nobody"}, 1, "together"),
        (128, {"span": "causal:1024+64", "masks": "nobody", "kv_heads": 8}, 2, "together"),
        (128, {"block": "64x64", "masks": "heads", "span": "causal"} | FEW, 2, "single"),
    ],
    ids=str,
)
def test_forms_are_those_that_were_fastest(
    head_dim: int, options: dict[str, Any], passes: int, tiles: str
) -> None:
    """One pass, but for a tile that all queries see and for few tiles, whose longest one takes the time; tiles of one
    warpgroup where those of two compute dead places.
    """
    usual = {"queries": 8192, "keys": 8192, "kv_heads": 16, "group": 1, "head_dim": head_dim}
    problem = problem_of(**usual | options)
    asked = problem, problem.features(problem.without_pattern), H100
    assert FAMILY.heuristic(*asked) == FAMILY.config(passes=passes, warpgroups=tiles)
    others = FAMILY.alternatives(*asked)
    assert FAMILY.config(passes=3 - passes, warpgroups=tiles) in others
    assert {other.warpgroups for other in others} == {tiles, "together"}
    assert all(FAMILY.is_valid(problem, other, H100) for other in others)


def test_wide_heads_have_no_single_pass() -> None:
    problem = problem_of(head_dim=256)
    broken = FAMILY.broken_constraints(problem, FAMILY.config(passes=1), H100)
    assert any("one pass (head_dim 256)" in sentence for sentence in broken)
    assert FAMILY.alternatives(problem, problem.features(problem.without_pattern), H100) == ()


def test_it_needs_hopper_and_fits_its_shared_memory() -> None:
    for passes in PASSES:
        for head_dim in (16, 64, 96, 128, 192, 208, 256) if passes == 2 else (16, 64, 96, 128):
            problem, config = problem_of(head_dim=head_dim), FAMILY.config(passes=passes)
            assert FAMILY.is_valid(problem, config, H100)
            launch = FAMILY.launch(problem, config, {}, H100)
            assert launch.together and launch.shared_memory_bytes <= H100.shared_memory_per_block


def test_tiles_of_one_warpgroup_are_proposed_where_they_fit_shared_memory() -> None:
    """Two rings of 128 columns and the sums of one pass do not on every device."""
    problem = problem_of(head_dim=128, block="64x64", span="full:20")
    for less in range(0, 2049, 512):
        device = replace(H100, shared_memory_per_block=H100.shared_memory_per_block - less)
        features = problem.features(problem.without_pattern)
        forms = (FAMILY.heuristic(problem, features, device), *FAMILY.alternatives(problem, features, device))
        assert all(FAMILY.is_valid(problem, form, device) for form in forms)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    ("passes", "head_dim", "dtype"),
    [
        (1, 64, DType.FLOAT16),
        (1, 128, DType.FLOAT16),
        (1, 128, DType.BFLOAT16),
        (2, 64, DType.BFLOAT16),
        (2, 128, DType.FLOAT16),
        (2, 192, DType.BFLOAT16),
        (2, 256, DType.FLOAT16),
    ],
)
def test_nvcc_lets_products_overlap(passes: int, head_dim: int, dtype: DType, tmp_path: Path) -> None:
    problem = problem_of(head_dim=head_dim, dtype=dtype)
    said = ptxas(render(FAMILY, problem, FAMILY.config(passes=passes)), tmp_path)
    fences = "(C7519)" if head_dim == 192 else "(none)"  # ptxas adds one before the second of two products
    assert "(C75" not in said.replace(fences, ""), said


def test_times_are_those_of_the_longest_tile_where_there_are_few() -> None:
    """An H200 took 58 and 93 µs (one pass adds up dQ step by step); 70 tiles of keys leave half of it idle."""
    usual = {"queries": 4440, "keys": 4440, "kv_heads": 2, "group": 1, "head_dim": 128, "dtype": "bfloat16"}
    problem = problem_of(**usual, block="128x128", density=0.191)
    features = problem.features(problem.without_pattern)
    found = [
        FAMILY.analytic_us(problem, features, FAMILY.config(passes=p), H100.typical_rated) for p in PASSES
    ]
    assert 0.8 < found[0] / 92.7 < 1.25 and 0.8 < found[1] / 58.5 < 1.25
