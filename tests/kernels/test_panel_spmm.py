"""`panel_spmm`: the order of nonzeros, by which threads meet in different banks; batches; and that nvcc takes it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from nvcc_builds import needs_nvcc, registers
from tuning_samples import H100

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels.spmm.panel_spmm import FAMILY, PanelSpmmConfig
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, ItemValues, Layout, SpmmProblem
from sparsegen.render import render
from sparsegen.testing.kinds import BATCH, Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import csr, matrices
from sparsegen.testing.variants import Variant

CHUNKS_PER_CYCLE = 8  # 16-byte loads of different banks that shared memory serves at once
M = K = 512


def wavefronts(config: PanelSpmmConfig, offsets: np.ndarray, run_offsets: np.ndarray) -> float:
    """Mean wavefronts of a quarter-warp's 16-byte loads of B, by the kernel's addressing; 1 is conflict-free."""
    threads = config.threads_per_row // config.row_splits
    row_chunks = config.tile_n * 4 // 16
    chunks = row_chunks // threads
    groups = 32 // config.threads_per_row
    taken = []
    for first_group in range(0, M, groups):
        lengths = np.diff(run_offsets[first_group : first_group + groups + 1])
        for turn in range(min(4, lengths.min() // config.step // config.row_splits)):
            for place in range(config.step):
                addresses = []
                for lane in range(8):
                    group, split = (
                        first_group + lane // config.threads_per_row,
                        lane // threads % config.row_splits,
                    )
                    position = run_offsets[group] + (turn * config.row_splits + split) * config.step + place
                    chunk = lane % threads + threads * (lane // threads % chunks)
                    addresses.append(int(offsets[position]) + chunk)
                banks = [address % CHUNKS_PER_CYCLE for address in set(addresses)]
                taken.append(max(banks.count(bank) for bank in set(banks)))
    return float(np.mean(taken))


@pytest.mark.parametrize(
    ("tile_n", "threads_per_row", "row_splits"), [(8, 4, 2), (8, 8, 8), (16, 4, 1), (16, 8, 4)]
)
def test_short_rows_of_a_panel_are_read_nearly_without_conflicts(
    tile_n: int, threads_per_row: int, row_splits: int
) -> None:
    config = PanelSpmmConfig(tile_n=tile_n, threads_per_row=threads_per_row, row_splits=row_splits, step=8)
    packed = FAMILY.pack(SpmmProblem(M, K, 32), config, random_uniform(M, K, 0.3, 0))
    offsets, run_offsets = packed.arrays["offsets"], packed.arrays["run_offsets"]
    ordered = wavefronts(config, offsets, run_offsets)
    by_column = offsets.copy()
    for begin, end in pairwise(run_offsets):
        by_column[begin:end].sort()
    assert ordered < 1.3
    assert wavefronts(config, by_column, run_offsets) > 1.4, "the order makes no difference"


# --- batches ---

TURNS = PanelSpmmConfig(
    tile_n=16, panel_k=64, stages=2, warps=4, threads_per_row=4, row_splits=2, rows_per_group=2, step=2
)
KEPT = PanelSpmmConfig(tile_n=32, warps=32, threads_per_row=32, row_splits=4)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("matrix_name", "config", "n", "layout", "epilogue"),
    [
        ("few_long_rows", TURNS, 7, Layout.COLUMN, Epilogue.BIAS_RESIDUAL),
        ("every_row_length", KEPT, 40, Layout.ROW, Epilogue.BIAS),
    ],
    ids=["panels in turn", "a panel kept"],
)
def test_items_with_values_of_their_own(
    matrix_name: str,
    config: PanelSpmmConfig,
    n: int,
    layout: Layout,
    epilogue: Epilogue,
    emulator_toolchain: EmulatorToolchain,
) -> None:
    kind = Kind.spmm(n, DType.FLOAT32, layout, epilogue)
    kind = replace(kind, batch=BATCH, traits=(*kind.traits, ("item_values", ItemValues.OWN)))
    matrix = matrices()[matrix_name]
    problem = kind.problem(matrix)
    FAMILY.require_valid(problem, config, device())
    packed = FAMILY.pack(problem, config, matrix)
    if config is KEPT:
        blocks = FAMILY.launch(problem, config, packed.sizes, device()).grid[0]
        assert packed.sizes["groups"] > blocks * config.warps, "a block takes several turns"
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    variant = Variant(FAMILY, config, kind, (), source)
    run_and_compare(variant, kernel, problem, matrix, packed, where=matrix_name)


@pytest.mark.sanitizer
@pytest.mark.parametrize("stages", [1, 3])
def test_local_blocks_skip_panels(stages: int, emulator_toolchain: EmulatorToolchain) -> None:
    """A window with sinks: panels without nonzeros lie between others, in more panels than `UsedPanels` has bits."""
    rows, columns = np.arange(80)[:, None], np.arange(64 * 70 + 9)[None, :]
    matrix = csr(((columns < 3) | (abs(columns - 56 * rows) < 40)) * np.float32(0.5) * (rows != 7))
    config = PanelSpmmConfig(
        tile_n=8, panel_k=64, stages=stages, warps=4, threads_per_row=4, row_splits=2, row_order="local"
    )
    kind = Kind.spmm(8, DType.FLOAT32, Layout.ROW, Epilogue.NONE)
    problem = kind.problem(matrix)
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    packed = FAMILY.pack(problem, config, matrix)
    assert packed.sizes["panels"] > 64
    variant = Variant(FAMILY, config, kind, (), source)
    run_and_compare(variant, kernel, problem, matrix, packed, where="a window")


def test_blocks_that_keep_their_panel_fit_the_device_at_once() -> None:
    config = PanelSpmmConfig(tile_n=32, threads_per_row=4)
    for batch, blocks in ((1, 64), (8, 8), (200, 1)):
        problem = SpmmProblem(8192, 512, 128, batch=batch)
        launch = FAMILY.launch(problem, config, {"groups": problem.m, "panels": 1}, H100)
        assert launch.grid == (blocks, 4, batch)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("layout", Layout)
def test_every_attention_has_a_heuristic(dtype: DType, layout: Layout) -> None:
    features = Features.of(matrices()["dense"])
    for k, n in itertools.product((1, 700, 12288), (1, 3, 8, 16, 24, 64, 100, 1000)):
        problem = SpmmProblem(M, k, n, dtype, layout, batch=8, item_values=ItemValues.OWN)
        config = FAMILY.heuristic(problem, features, H100)
        assert not FAMILY.broken_constraints(problem, config, H100)
        assert (config.row_order == "local") == bool(config.panel_k)


@needs_nvcc
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_nvcc_compiles_the_heuristic_for_an_attention_without_spills(dtype: DType, tmp_path: Path) -> None:
    problem = SpmmProblem(M, 12288, 128, dtype, batch=8, item_values=ItemValues.OWN)
    config = FAMILY.heuristic(problem, Features.of(random_uniform(M, 12288, 0.01, 0)), H100)
    assert config.panel_k and not FAMILY.broken_constraints(problem, config, H100)
    assert registers(render(FAMILY, problem, config), tmp_path) > 0
