"""The contract tests are themselves tested: a bug planted into a right variant makes them fail."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ContractError, KernelFault
from sparsegen.kernels import family
from sparsegen.matrix.formats import CsrMatrix, as_csr
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.operators import (
    Activation,
    BlockAttentionBackwardProblem,
    BlockAttentionProblem,
    Chosen,
    DType,
    Epilogue,
    Layout,
    MasksOf,
    PagedAttentionProblem,
    QuantizedSpmmProblem,
    Readout,
    ScaleGroup,
    ScoreChange,
    SddmmEpilogue,
    SddmmProblem,
    SinkLogits,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    TokenOrder,
    ValueType,
)
from sparsegen.testing.kinds import Kind
from sparsegen.testing.matrices import csr, matrices
from sparsegen.testing.planted import PlantedBugs


def odd_shape() -> CsrMatrix:
    return matrices()["odd_shape"]


def network() -> CsrMatrix:
    """Layers whose rows share their columns, the last one cut off, with general weights and biases."""
    rng = np.random.default_rng(0)
    layers = radixnet(64, 5).layers
    weights = [layer.with_values(rng.uniform(-0.2, 0.25, layer.nnz).astype(np.float32)) for layer in layers]
    weights[-1] = as_csr(weights[-1].to_scipy()[:37])
    return Network.of(weights, [rng.standard_normal(64) for _ in layers[1:]] + [0.1], 32.0).stacked(
        DType.FLOAT16
    )


def narrow_end() -> CsrMatrix:
    """A layer with many inputs and work for one warp: all others reach the next batch first."""
    rng = np.random.default_rng(0)
    weights = np.where(rng.random((9, 1100)) < 0.2, rng.uniform(-0.2, 0.25, (9, 1100)), 0)
    return Network.of([csr(weights.astype(np.float32))], 0.1, 32.0).stacked(DType.FLOAT16)


def narrow_tiles() -> CsrMatrix:
    """Blocks of 128 rows that have three tiles of 32 columns, none, and two, the last one cut off."""
    rng = np.random.default_rng(0)
    kept = np.zeros((300, 212))
    for rows, panels in ((slice(0, 128), (0, 2, 5)), (slice(256, 300), (1, 6))):
        for panel in panels:
            kept[rows, panel * 32 : panel * 32 + 32] = 1
    return csr(
        np.where(rng.random((300, 212)) < 0.3, kept * rng.standard_normal((300, 212)), 0).astype(np.float32)
    )


def many_strips() -> CsrMatrix:
    """Returns codes, more than two in some four columns, in several strips of 32 rows for each block."""
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 8, (300, 700)) * rng.choice([-1, 1], (300, 700))
    return csr(np.where(rng.random((300, 700)) < 0.5, codes, 0).astype(np.float32))


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
    ("scores", ScoreChange.ALIBI),
    ("sinks", SinkLogits.HEADS),
)
RIGHT = {
    "spmm": PlantedBugs(
        family("csr_spmm"),
        Kind.spmm(20, DType.FLOAT32, Layout.ROW, Epilogue.BIAS_RELU),
        {
            "tile_n": 16,
            "tile_k": 4,
            "rows_per_block": 8,
            "threads_per_row": 4,
            "row_splits": 2,
            "dense_vector_width": 2,
            "sparse_vector_width": 2,
            "row_alignment": "reverse_offset",
            "row_order": "natural",
            "prescale_indices": False,
            "staging": "shared_async",
            "index_bits": 32,
        },
        {
            "missing wait": ("copy_async_wait<1>();", ""),
            "missing barrier": ("__syncthreads();", ""),
            "missing warp barrier": ("__syncwarp(lanes);", ""),
            "row out of bounds": ("task < m", "task <= m"),
            "column out of bounds": ("column < n", "column <= n"),
            "neighbours' nonzeros": ("position + i < begin || ", ""),
            "wrong epilogue": ("fmaxf(x, 0.0f)", "x"),
        },
    ),
    "spmm of narrow tiles in pairs": PlantedBugs(
        family("tma_block_spmm"),
        Kind.spmm(72, DType.FLOAT16, Layout.ROW, Epilogue.BIAS),
        {"tile_k": 32, "tile_n": 64, "cluster": 1},
        {
            "the same rows of B twice": ("panel.element[half] * kTileK", "panel.element[0] * kTileK"),
            "both halves at one place": (" + half * (kPieceBytes / 2)", ""),
            "panels of another stage": ("panels + 2 * at", "panels + at"),
        },
        narrow_tiles,
    ),
    "spmm of small blocks on their side": PlantedBugs(
        family("turned_block_spmm"),
        Kind.spmm(72, DType.FLOAT16, Layout.ROW, Epilogue.BIAS),
        {"tile_m": 64, "cluster": 1},
        {
            "the same rows of B twice": ("step.element[1] * kBlock", "step.element[0] * kBlock"),
            "the first stage's blocks": ("static_cast<long long>(step.element[3])", "0ll"),
            "masks of the first panel": ("masks >> (panel * 8 + block)", "masks >> block"),
            "one row of blocks for all": ("sums[block * (kBlock / 8)]", "sums[0]"),
            "fragments of other rows of B": ("lane / 16 * 8 + lane % 8, chunk", "lane % 16, chunk"),
            "the bias of columns": ("to_float(bias[column])", "to_float(bias[row % n])"),
        },
        narrow_tiles,
    ),
    "sddmm": PlantedBugs(
        family("csr_sddmm"),
        Kind(SddmmProblem, (("k", 20),), (("dtype", DType.FLOAT32), ("epilogue", SddmmEpilogue.SCALE))),
        {"strip": 8, "threads_per_strip": 4, "unroll_k": 2, "reduction": "transpose"},
        {
            "missing warp barrier": ("__syncwarp(lanes);", ""),
            "no end of k": ("at + u * kStride < k", "true"),
            "strip out of bounds": ("number >= tasks", "number > tasks"),
            "neighbours' nonzeros": ("if (nonzero < task.count)", "if (true)"),
            "wrong epilogue": ("x *= to_float(values", "x += to_float(values"),
            "lost lane": ("t < kThreadsPerStrip", "t < kThreadsPerStrip - 1"),
        },
    ),
    "sddmm on tensor cores": PlantedBugs(
        family("mma_sddmm"),
        Kind(SddmmProblem, (("k", 72),), (("dtype", DType.FLOAT16), ("epilogue", SddmmEpilogue.SCALE))),
        {"tile_m": 32, "tile_n": 32, "warps_m": 1, "warps_n": 1, "stages": 2, "step": 2},
        {
            "missing wait": ("copy_async_wait<kStages - 2>();", ""),
            "missing barrier": ("__syncthreads();\n  for (; first", "for (; first"),
            "no end of k": ("kDividesK || column < k", "true"),
            "another panel's rows": ("tile.panel) * kTileM", "0) * kTileM"),
            "neighbours' nonzeros": ("if (nonzero < tile.count)", "if (true)"),
            "the same places again": ("mine + first + 2 * kStride);", "mine + first);"),
            "wrong epilogue": ("* to_float(values", "+ to_float(values"),
        },
    ),
    "sddmm from panels": PlantedBugs(
        family("panel_sddmm"),
        Kind(SddmmProblem, (("k", 20),), (("dtype", DType.FLOAT32), ("epilogue", SddmmEpilogue.SCALE))),
        {"panel_n": 64, "threads_per_strip": 2, "strip": 4, "strips": 4, "warps": 4},
        {
            "missing wait": ("copy_async_wait<0>();", ""),
            "missing barrier": ("__syncthreads();", ""),
            "no end of k": ("kWholeRows || column < k", "true"),
            "no end of n": ("min(kPanelN, n - first_column)", "kPanelN"),
            "another panel's rows": ("(first_column) * k, min", "(0) * k, min"),
            "neighbours' nonzeros": ("&& nonzero < task.count", ""),
            "the same indices again": ("mine += kTasksPerGroup * kStrip;", ""),
            "wrong epilogue": ("* to_float(values", "+ to_float(values"),
        },
    ),
    "sparse_softmax": PlantedBugs(
        family("row_softmax"),
        Kind(SoftmaxProblem, (), (("dtype", DType.FLOAT32),)),
        {"threads_per_row": 64, "rows_per_block": 1, "vector_width": 4, "vectors_kept": 1},
        {
            "missing barrier": ("__syncthreads();", ""),
            "neighbours' values": ("position + i >= begin && ", ""),
            "no largest value": ("subtrahend(row_largest), factor", "0.0f, factor"),
            "unscaled": ("fabsf(given) * kLog2E", "kLog2E"),
        },
    ),
    "sparse_softmax_backward": PlantedBugs(
        family("row_softmax_backward"),
        Kind(SoftmaxBackwardProblem, (), (("dtype", DType.FLOAT32),)),
        {"threads_per_row": 64, "rows_per_block": 1, "vector_width": 4, "vectors_kept": 1},
        {
            "missing barrier": ("__syncthreads();", ""),
            "neighbours' values": ("position + i >= begin && ", ""),
            "no mean": ("(dy[i] - mean)", "dy[i]"),
            "unscaled": ("factor = *scale", "factor = 1.0f"),
        },
    ),
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
            "dS of the step before": ("at_gradients((steps - 1) %", "at_gradients((steps - 2) %"),
            "a step's sums left out": ("add_query_sums(dq, row, static_cast<int>(warpgroup));", ""),
            "dead parts that count": ("is_dead || key >= shape.keys ? -1", "key >= shape.keys ? -1"),
            "no end of the band": ("key < band.sinks ? 64 : key - band.least - column", "64"),
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
    "sparse_network": PlantedBugs(
        family("fused_network"),
        Kind(
            SparseNetworkProblem,
            (("n", 70),),
            (
                ("dtype", DType.FLOAT16),
                ("activation", Activation.NONE),
                ("readout", Readout.NEURONS),
            ),
        ),
        {"inputs": 24, "warps": 4, "run": 1, "parts": 2, "first_check": 0, "checks": 1},
        {
            "missing wait": ("if (pass == 0) rounds.wait(0);", ""),
            "another row's bias": ("bias, row + 8)", "bias, row)"),
            "another block": ("(run.place[0] >> 24)", "(run.place[0] >> 16 & 0xffu)"),
            "the same weights again": ("next.advance();", ""),
            "the same buffer": ("from = to, to = read;", ""),
            "no end of inputs": ("input < count && neuron < stride", "neuron < stride"),
            "no end of outputs": ("if (row >= rows) continue;", ""),
            "no end of inputs of a tile": ("if (input < count) store_vector", "store_vector"),
        },
        network,
    ),
    "sparse_network in a ring": PlantedBugs(
        family("fused_network"),
        Kind(
            SparseNetworkProblem,
            (("n", 90),),
            (
                ("dtype", DType.FLOAT16),
                ("activation", Activation.RELU),
                ("readout", Readout.NEURONS),
            ),
        ),
        {
            "inputs": 96,
            "warps": 4,
            "run": 2,
            "parts": 2,
            "biases": "multiplied",
            "first_check": 0,
            "checks": 1,
        },
        {
            "results stored where others read": ("if (i == 0) steps.wait(2);", ""),
            "another slot": ("int free = ring.before(turn)", "int free = turn"),
            "the same blocks again": ("blocks.load(following, run);", ""),
            "results of another step": ("if (!kFirst) store_clipped(before, place[i], held[i]);", ""),
            "the same weights again": ("next.advance();\n  Blocks blocks;", "Blocks blocks;"),
        },
        network,
    ),
    "sparse_network layer by layer": PlantedBugs(
        family("streamed_network"),
        Kind(
            SparseNetworkProblem,
            (("n", 70),),
            (
                ("dtype", DType.FLOAT16),
                ("activation", Activation.DYING_RELU),
                ("readout", Readout.TOTALS),
            ),
        ),
        {
            "inputs": 16,
            "warps": 4,
            "run": 1,
            "stages": 2,
            "sharing": "layers",
            "sets": 2,
            "first_check": 2,
            "checks": 3,
        },
        {
            "no wait for the grid": (
                "barrier_wait(&turns.open[set], told.of(set) ^ 1);",
                "barrier_wait(&turns.done[set], told.of(set) ^ 1);",
            ),
            "the same buffer in each layer": ("turn ^ (layer - first() & 1)", "turn"),
            "waits for one block": ("arrivals += gridDim.x;", "arrivals += 1;"),
            "no wait for the list of the living": (
                "grid_sync(meetings);\n    for (int i = blockIdx.x * kThreads",
                "for (int i = blockIdx.x * kThreads",
            ),
            "the living of the check before": (
                "i < 2 * count_of_tiles; i += grid_warps * 32) masks[i] = 0;",
                "i < 0; ++i) masks[i] = 0;",
            ),
            "everybody's place before": (
                "listed[to] = from, next_ids[to] = id;",
                "listed[to] = from, next_ids[to] = from;",
            ),
            "places of all inputs": ("i < 2 * tile; i += kThreads) found", "i < 0; i += kThreads) found"),
        },
        network,
    ),
    "sparse_network in batches": PlantedBugs(
        family("streamed_network"),
        Kind(
            SparseNetworkProblem,
            (("n", 132),),
            (
                ("dtype", DType.FLOAT16),
                ("activation", Activation.RELU),
                ("readout", Readout.NEURONS),
            ),
        ),
        {
            "inputs": 16,
            "warps": 4,
            "run": 1,
            "stages": 2,
            "sharing": "layers",
            "sets": 2,
            "first_check": 0,
            "checks": 1,
        },
        {
            "no wait for the grid": (
                "barrier_wait(&turns.open[set], told.of(set) ^ 1);",
                "barrier_wait(&turns.done[set], told.of(set) ^ 1);",
            ),
            "the same buffer in each batch": ("turn ^= layers() + 1 & 1;", "turn = 0;"),
            "blocks that are still multiplied": (
                "barrier_wait(&handed->empty[stage.number], stage.parity ^ 1);",
                "",
            ),
            "the set before": ("batch.tile(set, number) * tile_bytes", "batch.tile(0, number) * tile_bytes"),
        },
        narrow_end,
    ),
    "quantized_spmm of two in four columns": PlantedBugs(
        family("quantized_sparse_mma_spmm"),
        Kind(
            QuantizedSpmmProblem,
            (("n", 5),),
            (
                ("dtype", DType.FLOAT16),
                ("layout", Layout.COLUMN),
                ("epilogue", Epilogue.BIAS),
                ("value_type", ValueType.INT4),
                ("scale_group", ScaleGroup.OF_64),
            ),
        ),
        {"warps": 4, "parts": 2, "stages": 3},
        {
            "missing wait": ("copy_async_wait<kStages - 2>();", ""),
            "missing barrier": ("    __syncthreads();\n    buffer", "    buffer"),
            "one buffer": ("buffer = (buffer + 1) % kBuffers;", ""),
            "metadata of the other tile": ("mma_sparse<1>(to[1]", "mma_sparse<0>(to[1]"),
            "scales of the first group": ("step / (kSteps / kScales) * kStripRows", "0"),
            "activations of the first unit": ("rows[j] + first_byte", "rows[j]"),
            "the strip before": ("values += next_strip * kValueBytes", "values += 0"),
            "one part": ("i < kParts; ++i", "i < 1; ++i"),
        },
        many_strips,
    ),
    "sparse_network in a cluster": PlantedBugs(
        family("cluster_network"),
        Kind(
            SparseNetworkProblem,
            (("n", 70),),
            (
                ("dtype", DType.FLOAT16),
                ("activation", Activation.RELU),
                ("readout", Readout.TOTALS),
            ),
        ),
        {"cluster": 2, "inputs": 24, "warps": 4, "run": 1, "first_check": 0, "checks": 1},
        {
            "missing arrival": ("barrier_arrive_at(barrier, lane);", ""),
            "fewer neurons than are sent": ("neurons * chunks * 16", "neurons * chunks * 16 - 16"),
            "the barrier of the layer before": ("barriers[rounds.number % 2]", "barriers[0]"),
            "no second destination": ("if (__any_sync(kAll, is_copied))", "if (false)"),
            "everybody's outputs": ("result[control.ids[input]] = total;", "result[input] = total;"),
            "totals of one block": ("i < kClusterBlocks; ++i) total", "i < 1; ++i) total"),
        },
        network,
    ),
}
PLANTED = [(name, bug) for name, right in RIGHT.items() for bug in right.planted]


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_variant_passes(emulator_toolchain: EmulatorToolchain, name: str) -> None:
    RIGHT[name].check(toolchain=emulator_toolchain)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("name", "bug"), PLANTED)
def test_a_planted_bug_is_caught(emulator_toolchain: EmulatorToolchain, name: str, bug: str) -> None:
    with pytest.raises((ContractError, KernelFault)):
        RIGHT[name].check(bug, toolchain=emulator_toolchain)
