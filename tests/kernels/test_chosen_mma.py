"""V:N:M sparsity on sparse tensor cores: what suits it, its lists, and products of several strips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nvcc_builds import GPUS, needs_nvcc, registers
from tuning_samples import H100

import sparsegen
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels.quantized.quantized_sparse_mma_spmm import FAMILY, QuantizedSparseMmaConfig
from sparsegen.matrix.chosen_columns import chosen_of
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Epilogue, Layout, QuantizedSpmmProblem, ScaleGroup, ValueType, quantize
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import csr
from sparsegen.testing.variants import Variant


def of_chosen(m: int, k: int, of: int, rows: int = 64, kind: ValueType = ValueType.INT4) -> CsrMatrix:
    """Codes, two in every four of ``of`` columns that blocks of rows choose."""
    rng = np.random.default_rng(0)
    codes = kind.rounded(rng.uniform(1, kind.largest, (m, k)) * rng.choice([-1, 1], (m, k)))
    ranks = rng.permuted(np.tile(np.arange(of), (-(-m // rows), -(-k // of), 1)), axis=-1)
    is_chosen = np.repeat(ranks < 4, rows, axis=0)[:m]
    drawn = np.where(is_chosen, rng.random(is_chosen.shape), 2).argsort(axis=-1).argsort(axis=-1)
    kept = ((drawn < 2) & is_chosen).reshape(m, -1)[:, :k]
    return csr(np.where(kept, codes, np.float32(0)))


@pytest.mark.parametrize("of", [8, 16])
def test_matrices_that_choose_are_found(of: int) -> None:
    matrix = of_chosen(130, 1024, of)
    assert chosen_of(matrix) == of
    changed = matrix.to_dense()
    changed[97, np.flatnonzero(changed[97, :of] == 0)[:1]] = 1  # a third one
    assert chosen_of(csr(changed)) != of
    assert chosen_of(csr((np.random.default_rng(0).random((128, 1024)) < 1.5 / of).astype(np.float32))) == 0
    assert chosen_of(of_chosen(130, 1024, of, rows=33)) != of


def test_a_look_up_chooses_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    quantised = quantize(of_chosen(2048, 2048, 8), "int4", group=128)
    found = sparsegen.lookup(quantised, n=8, device="emulator")
    assert found.family is FAMILY and found.config.of_columns == 8


@pytest.mark.parametrize("of", [8, 16])
def test_bytes_of_a_weight(of: int) -> None:
    matrix = of_chosen(128, 2048, of)
    problem = QuantizedSpmmProblem(128, 2048, 8)
    packed = FAMILY.pack(problem, QuantizedSparseMmaConfig(of_columns=of), matrix)
    nbytes = sum(packed.arrays[name].nbytes for name in ("codes", "metadata"))
    assert nbytes * 8 / (128 * 2048) == (3 + 0.25) * 4 / of and packed.sizes["layers"] == 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("of", [8, 16])
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "group"),
    [
        (3000, 1400, 5, ValueType.INT4, ScaleGroup.OF_128),
        (301, 1403, 17, ValueType.INT8, ScaleGroup.ROW),
        (96, 2048, 8, ValueType.E4M3, ScaleGroup.OF_128),
    ],
)
def test_strips_follow_one_another(
    of: int, m: int, k: int, n: int, kind: ValueType, group: ScaleGroup, emulator_toolchain: EmulatorToolchain
) -> None:
    config = QuantizedSparseMmaConfig(warps=4, parts=2, stages=3, of_columns=of)
    traits = (
        *(("dtype", DType.FLOAT16), ("layout", Layout.COLUMN), ("epilogue", Epilogue.BIAS_RELU)),
        *(("value_type", kind), ("scale_group", group)),
    )
    of_problem, matrix = Kind(QuantizedSpmmProblem, (("n", n),), traits), of_chosen(m, k, of, kind=kind)
    problem = of_problem.problem(matrix)
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    packed = FAMILY.pack(problem, config, matrix)
    assert packed.sizes["layers"] == 1
    run_and_compare(
        Variant(FAMILY, config, of_problem, (), source), kernel, problem, matrix, packed, where="strips"
    )


@pytest.mark.parametrize("device", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("of", [8, 16])
@pytest.mark.parametrize("kind", [ValueType.INT4, ValueType.INT8, ValueType.E4M3])
def test_products_are_those_of_the_numbers(
    of: int, kind: ValueType, device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whole operators: more rows than blocks share on a small GPU, tokens of one tile and of two."""
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    rng = np.random.default_rng(1)
    m, k = (9000, 4096) if device == "cuda" else (300, 1024)
    weight = quantize(of_chosen(m, k, of), kind, group=128)
    exact = weight.dequantized().to_dense().astype(np.float64)
    for n in (8, 16):
        b = rng.standard_normal((n, k)).astype(np.float16)
        operator = sparsegen.prepare(weight, n=n, dtype="float16", layout="column", device=device)
        variant = operator.variant
        assert variant is not None and variant.family == FAMILY.name and variant.config.of_columns == of
        expected = b.astype(np.float64) @ exact.T
        error = np.linalg.norm(operator(b) - expected) / np.linalg.norm(expected)
        assert error < 1e-3, (n, error)


@needs_nvcc
@pytest.mark.parametrize("n", [8, 32])
def test_nvcc_compiles_it_without_spills(n: int, tmp_path: object) -> None:
    problem = QuantizedSpmmProblem(512, 1024, n)
    config = replace(FAMILY.heuristic(problem, problem.features(of_chosen(512, 1024, 8)), H100), of_columns=8)
    used = registers(render(FAMILY, problem, config), tmp_path, "90a")  # type: ignore[arg-type]
    assert used * 32 * config.warps * config.resident_blocks <= 65536 and "90a" in GPUS
