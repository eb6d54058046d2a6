"""Bugs planted into products, sampled and quantised ones, and softmax."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels import family
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    QuantizedSpmmProblem,
    ScaleGroup,
    SddmmEpilogue,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    ValueType,
)
from sparsegen.testing.kinds import Kind
from sparsegen.testing.matrices import csr
from sparsegen.testing.planted import PlantedBugs


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


def few_in_strips() -> CsrMatrix:
    """Returns codes, in other columns in each strip of 32 rows."""
    rng = np.random.default_rng(0)
    return csr(np.where(rng.random((300, 700)) < 0.03, rng.integers(1, 8, (300, 700)), 0).astype(np.float32))


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
        {"tile_m": 64},
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
    "sddmm by warpgroups": PlantedBugs(
        family("mma_sddmm"),
        Kind(SddmmProblem, (("k", 150),), (("dtype", DType.FLOAT32), ("epilogue", SddmmEpilogue.NONE))),
        {
            "tile_m": 64,
            "tile_n": 32,
            "warps_m": 4,
            "warps_n": 1,
            "stages": 2,
            "warpgroups": True,
            "splits": 2,
        },
        {
            "no rest of B": ("tf32_rest(numbers[i].element[e])", "0"),
            "no rest of A": ("left.low[i]", "left.high[i]"),
            "the step before": ("rests + now * kRestBytes", "rests + (1 - now) * kRestBytes"),
            "operands not met": ("sums[0]);\n    __syncthreads();", "sums[0]);"),
            "stage not met": (
                "copy_async_wait<kStages - 2>();\n    __syncthreads();",
                "copy_async_wait<kStages - 2>();",
            ),
            "one block's part": ("rank < kClusterBlocks", "rank < 1"),
            "all of k": ("min(k, begin + share)", "k"),
        },
    ),
    "spmm by warpgroups": PlantedBugs(
        family("mma_spmm"),
        Kind.spmm(72, DType.FLOAT32, Layout.ROW, Epilogue.BIAS_RELU),
        {
            "tile_m": 32,
            "tile_n": 64,
            "tile_k": 32,
            "warps_m": 1,
            "warps_n": 4,
            "storage": "tiles",
            "prefetch": 1,
            "warpgroups": True,
        },
        {
            "no rest of A": ("tf32_rest(numbers[i].element[e])", "0"),
            "rows exchanged": ("e % 2, column", "e / 2, column"),
            "the tile before": ("rests + now * kABytes", "rests + (1 - now) * kABytes"),
            "stage not met": (
                "copy_async_wait<kAhead - 1>();\n    __syncthreads();",
                "copy_async_wait<kAhead - 1>();",
            ),
            "halves exchanged": ("left.high[step][1] = b[1][0]", "left.high[step][1] = b[0][1]"),
        },
        narrow_tiles,
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
    "quantized_spmm with chosen columns": PlantedBugs(
        family("quantized_sparse_mma_spmm"),
        Kind(
            QuantizedSpmmProblem,
            (("n", 9),),
            (
                ("dtype", DType.FLOAT16),
                ("layout", Layout.COLUMN),
                ("epilogue", Epilogue.NONE),
                ("value_type", ValueType.INT8),
                ("scale_group", ScaleGroup.ROW),
            ),
        ),
        {"warps": 4, "parts": 2, "stages": 3, "of_columns": 8},
        {
            "no wait for activations": ("k, n);\n  __syncthreads();", "k, n);"),
            "the first step's columns": ("list >> (step + i) * 8 & 0xff", "list & 0xff"),
            "columns in order": ("(column + second + vector * 2) % 8", "(column + second) % 8"),
            "columns exchanged": ("second != 0 ? 0x7632u", "second == 0 ? 0x7632u"),
            "another layer's columns": ("31 - __clz(layers)", "0"),
            "one tile of tokens": ("fours + j * activations.tile_bytes", "fours"),
            "the strip before": ("metadata += next_strip * kMetadataBytes", "metadata += 0"),
        },
        few_in_strips,
    ),
}
