"""`quantized_stream_spmm`: long streams, its heuristics on other devices, and that nvcc compiles it for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nvcc_builds import GPUS, needs_nvcc, registers
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels.quantized.quantized_stream_spmm import FAMILY, QuantizedStreamConfig, partition_of
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import uniform_rows
from sparsegen.operators import DType, Epilogue, Layout, QuantizedSpmmProblem, ScaleGroup, Symmetry, ValueType
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import csr
from sparsegen.testing.variants import Variant

MATRIX = uniform_rows(512, 1024, 300, 0)


def decoding(n: int, kind: ValueType = ValueType.INT4, dtype: DType = DType.FLOAT16) -> QuantizedSpmmProblem:
    return QuantizedSpmmProblem(512, 1024, n, dtype, value_type=kind)


@pytest.mark.parametrize("kind", ValueType)
@pytest.mark.parametrize("name", GPUS)
def test_every_device_has_a_heuristic_for_every_n(name: str, kind: ValueType) -> None:
    device, features = GPUS[name], Features.of(MATRIX)
    for n in range(1, 65):
        problem = decoding(n, kind)
        config = FAMILY.heuristic(problem, features, device)
        broken = FAMILY.broken_constraints(problem, config, device)
        if kind is ValueType.E4M3 and device.compute_capability < (8, 9):
            assert "has compute capability 8.9 or later" in broken[0]
        else:
            assert not broken and config.blocks <= device.multiprocessors


@pytest.mark.parametrize(
    ("rows", "columns", "n", "shape"),
    [(4096, 4096, 8, (1, 8)), (4096, 4096, 9, (2, 4)), (4096, 14336, 8, (1, 8))],
)
def test_short_strips_are_a_block_s_each(rows: int, columns: int, n: int, shape: tuple[int, int]) -> None:
    problem = QuantizedSpmmProblem(rows, columns, n)
    features = replace(Features.of(MATRIX), m=rows, k=columns, nnz=rows * columns // 2)
    config = FAMILY.heuristic(problem, features, H100)
    assert (config.warps_m, config.warps_k) == shape and config.blocks == 128
    assert (partition_of(problem, config).groups == 128) == (shape == (1, 8))


def test_what_it_does_not_compute_is_said_in_words() -> None:
    wide = QuantizedSpmmProblem(512, 1024, 65, DType.FLOAT32, Layout.ROW)
    with pytest.raises(ConfigError, match=r"have 16 bits.*column-major: tokens by features.*at most 64"):
        FAMILY.require_valid(wide, QuantizedStreamConfig(), H100)
    with pytest.raises(ConfigError, match=r"ring_chunks \(8\) are at least 6, .* depth \(4\)"):
        FAMILY.require_valid(decoding(8, ValueType.INT8), QuantizedStreamConfig(ring_chunks=8, depth=4), H100)


def test_zero_points_are_of_integers() -> None:
    problem = replace(decoding(8, ValueType.E4M3), symmetry=Symmetry.ASYMMETRIC)
    with pytest.raises(ConfigError, match=r"codes with zero points are integers \(e4m3 is not\)"):
        FAMILY.require_valid(problem, QuantizedStreamConfig(), H100)


def test_units_take_a_bit_each_and_their_codes() -> None:
    """A unit of two 4-bit weights is stored where one of both is there: 1 - 0.707² of them are."""
    weights = 512 * 1024
    for kind, floor in (
        (ValueType.E4M3, weights / 8 + MATRIX.nnz),
        (ValueType.INT4, weights / 16 + weights / 2 * 0.5),
    ):
        packed = FAMILY.pack(decoding(8, kind), QuantizedStreamConfig(blocks=8, warps_m=1), MATRIX)
        assert packed.nbytes < 1.25 * floor


@needs_nvcc
@pytest.mark.parametrize("kind", ValueType)
@pytest.mark.parametrize(("architecture", "dtype"), [("80", DType.BFLOAT16), ("90a", DType.FLOAT16)])
def test_nvcc_compiles_it_without_spills(
    architecture: str, dtype: DType, kind: ValueType, tmp_path: Path
) -> None:
    device, problem = GPUS[architecture], decoding(32, kind, dtype)
    if kind is not ValueType.E4M3:
        problem = replace(problem, symmetry=Symmetry.ASYMMETRIC)  # takes more registers
    config = FAMILY.heuristic(problem, Features.of(MATRIX), device)
    assert not FAMILY.broken_constraints(problem, config, device)
    used = registers(render(FAMILY, problem, config), tmp_path, architecture)
    assert used * 32 * (config.warps_m * config.warps_k + 1) <= 65536


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (ValueType.INT4, QuantizedStreamConfig(blocks=8, warps_m=1, warps_k=2, depth=4, slots=2)),
        (ValueType.E4M3, QuantizedStreamConfig(blocks=8, warps_m=2, depth=1, row_order="balanced")),
    ],
    ids=["int4", "e4m3"],
)
def test_long_streams_go_round_their_rings(
    kind: ValueType, config: QuantizedStreamConfig, emulator_toolchain: EmulatorToolchain
) -> None:
    """Rows from nearly empty to full: lanes drift apart again and again while the rings fill several times over."""
    rng = np.random.default_rng(0)
    codes = kind.rounded(rng.uniform(-kind.largest, kind.largest, (64, 16384)))
    matrix = csr(
        np.where(rng.random(codes.shape) < np.linspace(0.02, 1.0, 64)[:, None], codes, np.float32(0))
    )
    traits = {
        "dtype": DType.FLOAT16,
        "layout": Layout.COLUMN,
        "epilogue": Epilogue.BIAS_RELU,
        "value_type": kind,
        "scale_group": ScaleGroup.OF_64,
    }
    of_problem = Kind(QuantizedSpmmProblem, (("n", 5),), tuple(traits.items()))
    problem = of_problem.problem(matrix)
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    packed = FAMILY.pack(problem, config, matrix)
    assert np.diff(packed.arrays["starts"]).max() > 3 * config.ring_chunks
    run_and_compare(
        Variant(FAMILY, config, of_problem, (), source), kernel, problem, matrix, packed, where="long streams"
    )


@pytest.mark.parametrize("columns", [333, 334, 332])
def test_columns_of_b_may_begin_anywhere(columns: int, emulator_toolchain: EmulatorToolchain) -> None:
    """Elements, or copies of 4 or 8 bytes, as far as k is a multiple of them; the last ones of a column are zeros."""
    rng = np.random.default_rng(1)
    codes = ValueType.INT8.rounded(rng.uniform(-127, 127, (70, columns)))
    matrix = csr(np.where(rng.random(codes.shape) < 0.3, codes, np.float32(0)))
    traits = {"dtype": DType.FLOAT16, "layout": Layout.COLUMN, "value_type": ValueType.INT8}
    of_problem = Kind(QuantizedSpmmProblem, (("n", 3),), tuple(traits.items()))
    problem, config = of_problem.problem(matrix), QuantizedStreamConfig(blocks=8, warps_m=1, warps_k=2)
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    variant, packed = Variant(FAMILY, config, of_problem, (), source), FAMILY.pack(problem, config, matrix)
    run_and_compare(variant, kernel, problem, matrix, packed, where=f"{columns} columns")
