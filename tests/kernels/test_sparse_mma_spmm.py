"""Families on sparse tensor cores: what they compute, heuristics on other devices, and that nvcc compiles for these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nvcc_builds import GPUS, needs_nvcc, registers
from tuning_samples import H100

import sparsegen
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels.quantized.quantized_sparse_mma_spmm import FAMILY, QuantizedSparseMmaConfig
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    QuantizedSpmmProblem,
    ScaleGroup,
    Symmetry,
    ValueType,
    quantize,
)
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import csr
from sparsegen.testing.variants import Variant


def two_of_four(m: int, k: int, kind: ValueType = ValueType.INT4) -> CsrMatrix:
    """Returns codes, two in every four columns."""
    rng = np.random.default_rng(0)
    codes = kind.rounded(rng.uniform(1, kind.largest, (m, k)) * rng.choice([-1, 1], (m, k)))
    ranks = rng.permuted(np.tile(np.arange(4), (m, k // 4, 1)), axis=-1).reshape(m, k)
    return csr(np.where(ranks < 2, codes, np.float32(0)))


MATRIX = two_of_four(512, 1024)


def decoding(n: int, kind: ValueType = ValueType.INT4, dtype: DType = DType.FLOAT16) -> QuantizedSpmmProblem:
    return QuantizedSpmmProblem(512, 1024, n, dtype, value_type=kind)


@pytest.mark.parametrize("kind", ValueType)
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("k", [1024, 14336])
def test_every_device_has_a_heuristic_for_every_n(name: str, kind: ValueType, k: int) -> None:
    device = GPUS[name]
    for n in (1, 7, 8, 9, 16, 24, 33, 64):
        problem = replace(decoding(n, kind), k=k)
        config = FAMILY.heuristic(problem, problem.features(MATRIX), device)
        broken = FAMILY.broken_constraints(problem, config, device)
        if kind is ValueType.E4M3 and device.compute_capability < (8, 9):
            assert "has compute capability 8.9 or later" in broken[0]
        elif not broken:
            assert FAMILY.analytic_us(problem, problem.features(MATRIX), config, device) > 0
        else:
            assert k * n >= 14336 * 24 and "shared memory" in broken[0]


def test_what_it_does_not_compute_is_said_in_words() -> None:
    wide = QuantizedSpmmProblem(512, 1024, 65, DType.FLOAT32, Layout.ROW, symmetry=Symmetry.ASYMMETRIC)
    with pytest.raises(ConfigError, match=r"have 16 bits.*at most 64; codes are symmetric"):
        FAMILY.require_valid(wide, QuantizedSparseMmaConfig(), H100)
    with pytest.raises(ConfigError, match=r"activations and rings take \d+ bytes of shared memory"):
        FAMILY.require_valid(decoding(8, ValueType.INT8), QuantizedSparseMmaConfig(warps=16, stages=12), H100)


def test_only_matrices_with_two_of_four_suit_it() -> None:
    problem, config = decoding(8), QuantizedSparseMmaConfig()
    assert FAMILY.takes_matrix(problem, problem.features(MATRIX), config)
    dense = csr(np.ones(MATRIX.shape, dtype=np.float32))
    few = csr(np.eye(*MATRIX.shape, dtype=np.float32))
    for matrix in (dense, few):
        [broken] = FAMILY.broken_requirements(problem, problem.features(matrix), config)
        assert broken.startswith("no four columns of a row hold more than two nonzeros")


def test_a_look_up_chooses_it_where_every_four_columns_have_two() -> None:
    quantised = quantize(two_of_four(4096, 4096), "int4", group=128)
    assert sparsegen.lookup(quantised, n=8, device="emulator").family is FAMILY


@needs_nvcc
@pytest.mark.parametrize("kind", ValueType)
@pytest.mark.parametrize(("architecture", "dtype"), [("80", DType.BFLOAT16), ("90a", DType.FLOAT16)])
def test_nvcc_compiles_it_without_spills(
    architecture: str, dtype: DType, kind: ValueType, tmp_path: Path
) -> None:
    device, problem = GPUS[architecture], decoding(32, kind, dtype)
    config = FAMILY.heuristic(problem, problem.features(MATRIX), device)
    assert not FAMILY.broken_constraints(problem, config, device)
    used = registers(render(FAMILY, problem, config), tmp_path, architecture)
    assert used * 32 * config.warps * config.resident_blocks <= 65536


@pytest.mark.sanitizer
@pytest.mark.parametrize("m", [3000, 3001], ids=["whole vectors of scales", "single scales"])
def test_strips_follow_one_another(m: int, emulator_toolchain: EmulatorToolchain) -> None:
    """Several strips for each block, whose warps have unequal shares of each, and rings that go round."""
    config = QuantizedSparseMmaConfig(warps=4, parts=2, stages=3)
    traits = (
        ("dtype", DType.FLOAT16),
        ("layout", Layout.COLUMN),
        ("epilogue", Epilogue.BIAS_RELU),
        ("value_type", ValueType.INT4),
        ("scale_group", ScaleGroup.OF_64),
    )
    of_problem = Kind(QuantizedSpmmProblem, (("n", 5),), traits)
    matrix = two_of_four(m, 1400)
    problem = of_problem.problem(matrix)
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    packed = FAMILY.pack(problem, config, matrix)
    run_and_compare(
        Variant(FAMILY, config, of_problem, (), source), kernel, problem, matrix, packed, where="many strips"
    )
