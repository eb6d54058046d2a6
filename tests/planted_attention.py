"""Bugs planted into attention."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels import family
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import (
    BlockAttentionBackwardProblem,
    BlockAttentionProblem,
    Chosen,
    DType,
    MasksOf,
    PagedAttentionProblem,
    ScoreChange,
    SinkLogits,
    SparseAttentionProblem,
    TokenOrder,
)
from sparsegen.testing.kinds import Kind
from sparsegen.testing.matrices import csr
from sparsegen.testing.planted import PlantedBugs


def many_keys() -> CsrMatrix:
    """The shape of attention with several stages of keys, the last of them cut off."""
    return csr(np.zeros((300, 700), np.float32))


def long_sequences() -> CsrMatrix:
    """The shape of four queries on pages, the last of them cut off."""
    return csr(np.zeros((4, 1500), np.float32))


OPTIONS = (
    ("dtype", DType.FLOAT16),
    ("masks", MasksOf.HEADS),
    ("order", TokenOrder.HEADS),
    ("scores", ScoreChange.SOFTCAP_ALIBI),
    ("sinks", SinkLogits.HEADS),
)
RIGHT = {
    "sparse_attention": PlantedBugs(
        family("fused_attention"),
        Kind(SparseAttentionProblem, (("k", 40),), (("dtype", DType.FLOAT16),)),
        {"tile_n": 32, "queries": "shared", "stages": 3, "resident_blocks": 1},
        {
            "missing wait": ("copy_async_wait<kStages - 2>();", ""),
            "missing barrier": ("    __syncthreads();\n    if (at + kStages", "    if (at + kStages"),
            "no end of keys": ("(kAll || static_cast<int>(first) + row < rows)", "true"),
            "no end of queries": ("if (row < rows) {", "if (row <= rows) {"),
            "another lane's bits": ("words.element[w] >> column", "words.element[w]"),
            "sums that do not shrink": ("sums[i][j][half * 2] *= shrinking;", ""),
        },
    ),
    "block_attention": PlantedBugs(
        family("tma_attention"),
        Kind(
            BlockAttentionProblem,
            (("kv_heads", 1), ("group", 2), ("head_dim", 32)),
            (("dtype", DType.FLOAT16), ("masks", MasksOf.HEADS), ("order", TokenOrder.HEADS)),
            parameters=(("block", "64x64"), ("density", 0.6), ("span", "causal:600+20")),
        ),
        {"warpgroups": "together", "queries": "shared", "section": 16},
        {
            "a redo left out": ("!(found[0] <= kMostWeight && found[1] <= kMostWeight)", "false"),
            "sums that do not shrink": ("tile[0] *= shrunk[0], tile[1] *= shrunk[0], ", ""),
            "a row of the mask shifted": (
                "rows_here[u], from) - leader",
                "rows_here[u], from) - leader - 1",
            ),
            "dead parts that count": ("if ((flags & kDead) != 0) hide_dead(descriptor, piece);", ""),
            "no end of the band": ("if ((flags & kBounded) != 0) hide_bounded", "if (false) hide_bounded"),
            "missing wait": ("if (!is_known) barrier_wait(ring.full + stage.number, stage.parity);", ""),
            "the same weights again": (
                "compute(weights[1], weights[0]);",
                "compute(weights[0], weights[1]);",
            ),
            "another head's logarithms": (
                "lse[static_cast<long long>(head) *",
                "lse[static_cast<long long>(head ^ 1) *",
            ),
        },
        many_keys,
    ),
    "block_attention of warps": PlantedBugs(
        family("mma_attention"),
        Kind(
            BlockAttentionProblem,
            (("kv_heads", 2), ("group", 2), ("head_dim", 32)),
            (("dtype", DType.FLOAT16), ("masks", MasksOf.HEADS), ("order", TokenOrder.HEADS)),
            parameters=(("block", "16x32"), ("density", 0.6), ("span", "causal:600+20")),
        ),
        {"warps": 4, "row_tiles": 2, "stage_keys": 64, "stages": 2},
        {
            "a redo left out": ("!(found[0] <= kMostWeight && found[1] <= kMostWeight)", "false"),
            "sums that do not shrink": ("tile[0] *= shrunk[0], tile[1] *= shrunk[0], ", ""),
            "a row of the mask shifted": (
                "rows_here[u], from) - leader",
                "rows_here[u], from) - leader - 1",
            ),
            "dead parts that count": ("if ((flags & kDead) != 0) hide_dead(descriptor, piece);", ""),
            "another row's live blocks": (
                "is_live = (descriptor.parts[part] >> piece(i) & 1)",
                "is_live = (descriptor.parts[part] & 1)",
            ),
            "parts that are not there": ("return blocks[0] & ~kEveryPiece;", "return blocks[0];"),
            "no end of the band": ("if ((flags & kBounded) != 0) hide_bounded", "if (false) hide_bounded"),
            "sinks that are skipped": ("|| first < band.sinks)", ")"),
            "missing wait": (
                "barrier_wait(state.full + stage.number, stage.parity);\n    StageDescriptor",
                "StageDescriptor",
            ),
            "stages that are not free": (
                "barrier_wait(state.empty + stage.number, stage.parity ^ 1);",
                "",
            ),
            "another head's logarithms": (
                "lse[static_cast<long long>(head) *",
                "lse[static_cast<long long>(head ^ 1) *",
            ),
            "another head's keys": ("(k, batch_index, head / group,", "(k, batch_index, head % kv_heads,"),
        },
        many_keys,
    ),
    "block_attention of warps with partial blocks, biases and sinks": PlantedBugs(
        family("mma_attention"),
        Kind(
            BlockAttentionProblem,
            (("kv_heads", 1), ("group", 2), ("head_dim", 32)),
            OPTIONS,
            parameters=(("block", "64x128"), ("density", 0.6), ("partial_blocks", 30)),
        ),
        {"warps": 4, "row_tiles": 2, "stage_keys": 64, "queries": "shared"},
        {
            "halves of blocks that change places": ("kOfBlock - 1 - which % kOfBlock", "0"),
            "another block's bits": ("numbers + static_cast<long long>(first / kBlockRows)", "numbers + (0)"),
            "partial blocks that are full": (
                "if (descriptor.bits[part][piece(i)] >= 0) flags |= kPartial;",
                "",
            ),
            "another head's slope": ("changes.slope(state.head)", "changes.slope(0)"),
        },
        many_keys,
    ),
    "block_attention_backward": PlantedBugs(
        family("tma_attention_backward"),
        Kind(
            BlockAttentionBackwardProblem,
            (("kv_heads", 1), ("group", 2), ("head_dim", 64)),
            (("dtype", DType.FLOAT16), ("masks", MasksOf.HEADS), ("order", TokenOrder.HEADS)),
            parameters=(("block", "64x64"), ("density", 0.6), ("span", "causal:600+20")),
        ),
        {"passes": 1},
        {
            "a column of the mask shifted": (
                "ranks_of(batch_index, head)[shape.query_blocks() + column]",
                "column",
            ),
            "no row's sum": ("kUnshifted, -delta.element[i])", "kUnshifted, 0.0f)"),
            "dS of the step before": ("at_gradients((steps - ago) %", "at_gradients((steps - ago - 1) %"),
            "a step's sums left out": ("add_query_sums(dq, row, static_cast<int>(warpgroup));", ""),
            "dead parts that count": ("is_dead || key >= shape.keys ? -1", "key >= shape.keys ? -1"),
            "no end of the band": ("key < band.sinks ? 64 : key - band.least - column", "64"),
        },
        many_keys,
    ),
    "block_attention_backward of warps": PlantedBugs(
        family("mma_attention_backward"),
        Kind(
            BlockAttentionBackwardProblem,
            (("kv_heads", 2), ("group", 2), ("head_dim", 64)),
            (("dtype", DType.FLOAT16), ("masks", MasksOf.HEADS), ("order", TokenOrder.HEADS)),
            parameters=(("block", "64x64"), ("density", 0.6), ("span", "causal:600+20")),
        ),
        {"tile": 128, "pairs": 2},
        {
            "a column of the mask shifted": (
                "ranks_of(batch_index, head)[shape.query_blocks() + column]",
                "column",
            ),
            "no row's sum": ("kUnshifted, -delta.element[i])", "kUnshifted, 0.0f)"),
            "dead parts that count": ("if (!is_dead(descriptor)) {", "if (true) {"),
            "no end of the band": ("key < band.sinks ? 64 : key - band.least - column", "64"),
            "a head of the group left out": ("head < first_head + heads;", "head < first_head + 1;"),
            "the first head's gradients": (
                "const int row = (tile.batch_index * shape.heads() + head)",
                "const int row = (tile.batch_index * shape.heads())",
            ),
            "missing wait": ("    wait();\n    const ColumnStep", "    const ColumnStep"),
            "stages that are not free": ("barrier_wait(shared.empty + pair.number, pair.parity ^ 1);", ""),
        },
        many_keys,
    ),
    "paged_attention": PlantedBugs(
        family("paged_attention"),
        Kind(
            PagedAttentionProblem,
            (("kv_heads", 2), ("group", 3), ("head_dim", 64)),
            (("dtype", DType.FLOAT16), ("chosen", Chosen.LISTED), ("order", TokenOrder.TOKENS)),
            batch=2,
            parameters=(("page", "32"), ("density", 0.7)),
        ),
        {"tile": 64, "stages": 2, "teams": 2},
        {
            "a part left out of the merge": ("from < parts.count;", "from < parts.count - 1;"),
            "a team left out of the merge": (
                "for (int t = 0; t < kTeams; ++t) {",
                "for (int t = 0; t < kTeams - 1; ++t) {",
            ),
            "teams of one scale": ("share = shrunk(of.power, largest);", "share = 1.0f;"),
            "another part's room": ("2 * (first_block + part)", "2 * (first_block + part) + 1"),
            "a counter that stays": ("if (thread == 0) *counter = 0;", ""),
            "missing wait": ("copy_async_wait<kStages - 2>();", ""),
            "no tree": ("!(trees[i][half] & bit)", "false"),
            "another sequence's page": ("(cursor.sequence) * cache.slots + number]", "(0) + number]"),
            "another head's list": ("(cursor.pair) * cache.capacity + slot]", "(0) + slot]"),
            "no end of the list": ("slot < cache.counts[cursor.pair] ?", "slot < cache.capacity ?"),
            "pages in order": ("place = number * kPage", "place = key / kPage * kPage"),
        },
        long_sequences,
    ),
    "paged_attention of one team": PlantedBugs(
        family("paged_attention"),
        Kind(
            PagedAttentionProblem,
            (("kv_heads", 1), ("group", 5), ("head_dim", 64)),
            (("dtype", DType.BFLOAT16), ("chosen", Chosen.ALL), ("order", TokenOrder.HEADS)),
            parameters=(("page", "16"), ("density", 0.7)),
        ),
        {"tile": 16, "stages": 2, "teams": 1},
        {
            "a part left out of the merge": (
                "is_there = part < parts.count;",
                "is_there = part + 1 < parts.count;",
            ),
            "parts of one scale": ("share = shrunk(part.power, largest);", "share = 1.0f;"),
            "sums that do not shrink": ("before * sums[i][j][e] + share", "sums[i][j][e] + share"),
            "no end of the sequence": ("1u << new_token : 0u;", "1u << new_token : 0xffffffffu;"),
        },
        long_sequences,
    ),
    "block_attention with partial blocks, biases and sinks": PlantedBugs(
        family("tma_attention"),
        Kind(
            BlockAttentionProblem,
            (("kv_heads", 1), ("group", 2), ("head_dim", 32)),
            OPTIONS,
            parameters=(("block", "64x64"), ("density", 0.6), ("partial_blocks", 60)),
        ),
        {"warpgroups": "single", "queries": "shared", "section": 16},
        {
            "another row's bits": ("row = (first_query + lane / 4) % kBlockRows", "row = lane / 4"),
            "the first word of bits": ("__ldg(own + 8 * kRowWords + word)", "__ldg(own + word)"),
            "another head's partial blocks": (
                "own = head_masks == 0 ? 0 : head % element_heads",
                "own = 0",
            ),
            "partial blocks that are full": (
                "if ((flags & kPartial) != 0) hide_partial",
                "if (false) hide_partial",
            ),
            "keys of another row": ("e % 2 - e / 2 * 8)", "e % 2)"),
            "another head's slope": ("slopes + head % element_heads", "slopes"),
            "scores that are not capped": ("scores.bend(changes.inner);", ""),
            "a sink that takes no part": ("(sink > -INFINITY ? fast_exp2(sink - largest) : 0.0f)", "0.0f"),
            "another head's sink": ("sink_logits + head % element_heads", "sink_logits"),
        },
        many_keys,
    ),
    "block_attention_backward with partial blocks, biases and sinks": PlantedBugs(
        family("tma_attention_backward"),
        Kind(
            BlockAttentionBackwardProblem,
            (("kv_heads", 1), ("group", 2), ("head_dim", 64)),
            OPTIONS,
            parameters=(("block", "64x64"), ("density", 0.6), ("partial_blocks", 60)),
        ),
        {"passes": 1},
        {
            "another query's bits": ("words + query * kWords", "words"),
            "partial blocks that are full": ("return words == nullptr || ", "return true || "),
            "another head's partial blocks": ("numbers + (mask_number(batch_index, head)", "numbers + (0"),
            "no derivative of the cap": ("slope[i] = p[i] * fmaf(-t, t, 1.0f);", "slope[i] = p[i];"),
            "another head's slope": (
                "consumer.fall(row / consumer.shape.query_steps() % consumer.shape.heads())",
                "consumer.fall(0)",
            ),
            "a logit of another head": ("sink_logits + head) * kLog2E", "sink_logits) * kLog2E"),
            "half of the sum over rows": (
                "for (int w = 0; w < kThreads / 32; ++w) all",
                "for (int w = 0; w < 1; ++w) all",
            ),
        },
        many_keys,
    ),
}
