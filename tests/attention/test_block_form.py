"""Fixed masks as blocks: no place is lost or added, attention by them is right, and they run where they are faster."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen import masks
from sparsegen.attention.block_form import BLOCKS, block_forms
from sparsegen.attention.choice import AttentionImplementation, Request, decide_blocks, expected_times
from sparsegen.dispatch.options import OnMiss
from sparsegen.errors import NoVariantError
from sparsegen.kernels.attention.fused_attention import FusedAttention, FusedAttentionConfig
from sparsegen.kernels.attention.key_tiles import tile_counts
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.formats import as_mask
from sparsegen.matrix.generators import random_blocks, random_uniform
from sparsegen.operators import BlockAttentionProblem, DType, Span, SparseAttentionProblem
from sparsegen.tuning.prediction.targets import find_target

pytestmark = pytest.mark.usefixtures("on_emulator")
TOKENS, HEADS, HEAD_DIM = 200, 2, 64
MEASURED = (
    Path(__file__).parents[2] / "benchmarks" / "results" / "nvidia-h200-sm90" / "attention_masks_381.json.xz"
)


def of_bools(seen: Any) -> CsrMatrix:
    return as_mask(np.asarray(seen, np.float32))


def seen_of(rows: int, columns: int, rule: Any) -> CsrMatrix:
    return of_bools(rule(np.arange(rows)[:, None], np.arange(columns)))


def scattered(seed: int, rows: int = TOKENS, columns: int = TOKENS) -> CsrMatrix:
    rng = np.random.default_rng(seed)
    blocks = rng.random((-(-rows // 64), -(-columns // 64))) < 0.5
    seen = blocks.repeat(64, 0).repeat(64, 1)[:rows, :columns] & (rng.random((rows, columns)) < 0.9)
    seen[70:140, 64:128] = True
    return of_bools(seen)


SPANS = {
    "full": (seen_of(130, 70, lambda i, j: (i >= 0) & (j >= 0)), Span()),
    "causal": (seen_of(70, 130, lambda i, j: j <= i + 60), Span(is_causal=True)),
    "window": (masks.sliding_window(TOKENS, 70), Span(is_causal=True, window=70)),
    "sinks": (masks.sliding_window(TOKENS, 70, 3), Span(is_causal=True, window=70, sinks=3)),
    "both sides": (seen_of(90, 90, lambda i, j: abs(i - j) < 20), Span(window=20)),
}
BY_BLOCKS = {
    "blocks": masks.blocks(TOKENS, 64, 1, 1),
    "band with holes": masks.band(TOKENS, 64, 0.5),
    "scattered": scattered(0),
    "cut blocks": scattered(1, 150, 210),
    "queries that see nothing": of_bools(np.tril(np.ones((TOKENS, TOKENS)), -140)),
}


@pytest.mark.parametrize(("mask", "span"), SPANS.values(), ids=SPANS)
def test_a_mask_that_is_a_span_has_no_blocks(mask: CsrMatrix, span: Span) -> None:
    [form] = block_forms(mask)
    assert form.span == span and form.block is None and not form.operands()


@pytest.mark.parametrize("mask", [mask for mask, _ in SPANS.values()] + list(BY_BLOCKS.values()))
def test_forms_let_the_same_places_live(mask: CsrMatrix) -> None:
    for form in block_forms(mask):
        problem = form.problem(BlockAttentionProblem, HEADS, HEAD_DIM, DType.FLOAT16)
        operands = form.operands() | {"band": problem.band.words}
        seen = problem.sees(operands)(0, slice(0, mask.shape[0]))
        np.testing.assert_array_equal(seen, mask.to_dense() != 0)
        assert {spec.name: spec.shape for spec in problem.of_call() if spec.name in operands} == {
            name: array.shape for name, array in operands.items()
        }


def test_blocks_at_the_edge_of_causal_masks_need_no_bits() -> None:
    wide, narrow = block_forms(masks.blocks(512, 128, 1, 1))
    assert (wide.block, narrow.block) == BLOCKS and set(wide.operands()) == {"mask"}
    assert wide.span.is_causal and wide.density.share == narrow.density.share < 1


def test_a_row_that_is_longer_than_others_is_known() -> None:
    seen = np.zeros((2048, 2048))
    seen[:128], seen[:, :128] = 1, 1
    assert str(block_forms(of_bools(seen))[0].density) == "0.121^1"


@pytest.mark.parametrize("mask", [SPANS["sinks"][0], *BY_BLOCKS.values()])
def test_attention_by_blocks_is_dense_attention_with_the_mask(mask: CsrMatrix) -> None:
    attention = sparsegen.prepare_attention(
        mask, heads=HEADS, head_dim=HEAD_DIM, dtype="float16", implementation="blocks"
    )
    rng, (queries, keys) = np.random.default_rng(0), mask.shape
    q, k, v = (
        rng.standard_normal((HEADS, rows, HEAD_DIM)).astype(np.float16) for rows in (queries, keys, keys)
    )
    wide = [array.astype(np.float64) for array in (q, k, v)]
    scores = np.where(mask.to_dense() != 0, wide[0] @ wide[1].swapaxes(1, 2) * HEAD_DIM**-0.5, -np.inf)
    powers = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    right = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300) @ wide[2]
    np.testing.assert_allclose(attention(q, k, v), right, rtol=0, atol=4e-3)
    assert "blocks: named by the caller" in attention.explain()


def asked(
    mask: Any, dtype: DType = DType.FLOAT16, head_dim: int = 128, device: Device | None = None
) -> Request:
    where = device or find_target("nvidia-h200").device
    return Request(as_mask(mask), 8, 8, head_dim, dtype, OnMiss.NEAREST, where, None)


@pytest.mark.parametrize(
    ("mask", "block"),
    [
        (masks.sliding_window(12288, 512, 4), None),
        (masks.blocks(12288, 128, 1, 3), (128, 128)),
        (masks.blocks(12288, 64, 1, 3), (64, 64)),
    ],
    ids=["window", "blocks of 128", "blocks of 64"],
)
def test_masks_of_whole_blocks_run_by_them(mask: CsrMatrix, block: tuple[int, int] | None) -> None:
    found = decide_blocks(asked(mask))
    assert found is not None and found.form.sides == (block or (0, 0))
    assert found.decision.on_device and found.decision.why.startswith("blocks take ")
    assert "fused" in found.decision.why and "steps" in found.decision.why


def test_other_masks_keep_other_ways() -> None:
    few = random_uniform(4096, 4096, 0.015, seed=0)
    assert decide_blocks(asked(few)) is None
    whole = masks.blocks(4096, 128, 1, 3)
    for request in (asked(whole, DType.FLOAT32), asked(whole, head_dim=12)):
        assert decide_blocks(request) is None


def test_what_no_kernel_takes_is_refused_by_name() -> None:
    with pytest.raises(NoVariantError, match=r"16-bit|16 bits"):
        sparsegen.prepare_attention(SPANS["window"][0], head_dim=HEAD_DIM, implementation="blocks")
    nothing = CsrMatrix.without_nonzeros((64, 64))
    with pytest.raises(NoVariantError, match="a place that lives"):
        sparsegen.prepare_attention(nothing, head_dim=HEAD_DIM, dtype="float16", implementation="blocks")


def test_steps_alone_have_gradients() -> None:
    """The fused kernel counts where nothing is trained."""
    mask = masks.blocks(4096, 128, 1, 3)
    forward, both = decide_blocks(asked(mask)), decide_blocks(asked(mask), trains=True)
    assert forward is not None and "fused" in forward.decision.why
    assert both is not None and "fused" not in both.decision.why


def mask_of(row: dict[str, Any]) -> CsrMatrix:
    """The mask of a row of `benchmarks.attention_masks` --part fixed."""
    tokens, share, seed = row["tokens"], row["share"], row["seed"]
    if row["window"]:
        return masks.sliding_window(tokens, row["window"])
    if row["block"]:
        return random_blocks(tokens, tokens, row["block"], share, seed)
    return random_uniform(tokens, tokens, share, seed)


def fixed_rows() -> list[dict[str, Any]]:
    """Measured rows of masks that do not change, on an H200."""
    rows = json.loads(lzma.decompress(MEASURED.read_bytes()))["rows"]
    return [row for row in rows if row["part"] == "fixed"]


def test_what_was_fastest_is_chosen() -> None:
    """And predicted times of blocks and steps are near those that were found."""
    rows = fixed_rows()
    assert len(rows) == 8
    for row in rows:
        request = asked(mask_of(row), head_dim=row["head_dim"])
        for name, trains in (("forward_us", False), ("training_us", True)):
            found = {implementation: row[name][implementation] for implementation in row[f"expected_{name}"]}
            expected = expected_times(request, trains=trains)
            assert min(expected, key=lambda one: expected[one].us) == min(
                found, key=lambda one: found[one]
            ), row
            for one in (AttentionImplementation.BLOCKS, AttentionImplementation.STEPS):
                assert 0.7 < expected[one].us / found[one] < 1.5, (row, expected)


def test_the_fused_kernels_time_follows_from_counted_tiles() -> None:
    """The configs are those that were measured then."""
    fused = FusedAttention()
    for row in fixed_rows():
        config = (
            FusedAttentionConfig(tile_m=256, warps=8) if row["block"] else FusedAttentionConfig(tile_m=128)
        )
        tokens = row["tokens"]
        kind = {"k": row["head_dim"], "dtype": DType.FLOAT16, "batch": row["heads"]}
        problem = SparseAttentionProblem(m=tokens, n=tokens, **kind)
        counts = tile_counts(mask_of(row), config.tile_m, config.tile_n)
        expected = fused.counted_us(problem, counts, config, find_target("nvidia-h200").device)
        assert expected == pytest.approx(row["forward_us"]["fused"], rel=0.15), row
