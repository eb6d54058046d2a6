"""``quantized_spmm``: codes and scales, their exact products, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sparsegen
from sparsegen.errors import ConfigError, MatrixError, OperandError
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, Layout, QuantizedSpmmProblem, ScaleGroup, ValueType
from sparsegen.operators.base.float8 import Float8

M, K = 64, 200
GROUPS = [ScaleGroup.ROW, ScaleGroup.OF_128, ScaleGroup.OF_32]


def weights(seed: int = 0) -> CsrMatrix:
    return random_uniform(M, K, 0.4, seed)


def activations(n: int = 3) -> Array:
    return np.random.default_rng(1).standard_normal((n, K)).astype(np.float16)


@pytest.mark.parametrize("kind", ValueType)
def test_codes_stand_for_their_numbers(kind: ValueType) -> None:
    """All of them, the sign turned: as the kernel's conversions want it."""
    numbers = np.unique(kind.rounded(np.linspace(-kind.largest, kind.largest, 5001)))
    codes = kind.to_codes(numbers)
    assert codes.dtype == np.uint8 and np.unique(codes).size == codes.size
    np.testing.assert_array_equal(kind.rounded(numbers), numbers)
    np.testing.assert_array_equal(-numbers[::-1], numbers)
    if kind is ValueType.E4M3:
        np.testing.assert_array_equal(Float8.E4M3.from_storage(codes), numbers)
        np.testing.assert_array_equal(
            kind.to_codes([0.3, 1e-9, 400.1]), Float8.E4M3.to_storage([0.3, 1e-9, 400.1])
        )
    else:
        zero = 1 << kind.bits - 1
        assert kind.to_codes([0.0, 1.0, -1.0]).tolist() == [zero, zero + 1, zero - 1]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", ValueType)
def test_rounding_errs_by_half_a_step_of_its_group(kind: ValueType, group: ScaleGroup) -> None:
    matrix = weights()
    quantised = sparsegen.quantize(matrix, kind, group=group)
    assert quantised.scales.shape == (group.number(K), M) and quantised.shape == matrix.shape
    made, given = quantised.dequantized().to_dense(), matrix.to_dense()
    assert quantised.codes.fingerprint() == matrix.fingerprint()
    step = np.repeat(quantised.scales.T, group.size(K), axis=1)[:, :K]
    # Half a step, and what the rounding of the scale makes of the largest code; of e4m3 half of the last bit of three.
    allowed = np.abs(given) / 16 + step * 2**-9 if kind is ValueType.E4M3 else 0.505 * step
    assert (np.abs(made - given) <= allowed + step * kind.largest * 2**-10).all()
    assert (np.abs(quantised.codes.values).max() == kind.largest).all()


def test_groups_of_zeros_and_of_tiny_weights_have_finite_codes() -> None:
    dense = np.zeros((2, 64), dtype=np.float32)
    dense[0, :40], dense[1, 3] = 1e-9, 5.0
    quantised = sparsegen.quantize(dense, "int4", group=32)
    assert np.isfinite(quantised.codes.values).all()
    np.testing.assert_array_equal(quantised.scales[:, 1] > 0, [True, False])
    assert quantised.dequantized().to_dense()[1, 3] == pytest.approx(5.0, rel=1e-3)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("group", GROUPS)
def test_the_reference_is_the_product_of_the_dequantised_weights(group: ScaleGroup, layout: Layout) -> None:
    quantised = sparsegen.quantize(weights(), "int8", group=group)
    problem = QuantizedSpmmProblem(M, K, 3, DType.FLOAT16, layout, Epilogue.BIAS, 1, ValueType.INT8, group)
    b, bias = activations(), np.arange(M, dtype=np.float16)
    stored = b.T.copy() if layout is Layout.ROW else b
    operands = {"b": stored, "scales": quantised.scales.astype(np.float16), "bias": bias}
    exact = problem.reference(quantised.codes, operands).exact
    wanted = b.astype(np.float64) @ quantised.dequantized().to_dense().T.astype(np.float64) + bias
    np.testing.assert_allclose(exact.T if layout is Layout.ROW else exact, wanted, rtol=1e-12, atol=1e-12)
    for row in (0, 17):
        alone = problem.lone_row(quantised.codes, operands, row, np.random.default_rng(0))
        found = alone.problem.reference(alone.matrix, alone.operands).exact.ravel()
        np.testing.assert_allclose(found, exact.ravel()[alone.places], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ValueType)
def test_prepare_takes_a_quantised_matrix(kind: ValueType, dtype: str) -> None:
    quantised = sparsegen.quantize(weights(), kind, group=32, dtype=dtype)
    operator = sparsegen.prepare(quantised, n=3, device="emulator")
    b = activations().astype(np.float32 if dtype == "bfloat16" else np.float16)
    exact = activations().astype(np.float64) @ quantised.dequantized().to_dense().T.astype(np.float64)
    error = np.linalg.norm(operator(b) - exact) / np.linalg.norm(exact)
    assert error < (4e-3 if dtype == "bfloat16" else 4e-4)
    doubled = operator(b, scales=(2 * quantised.scales).astype(b.dtype))
    np.testing.assert_allclose(doubled, 2 * operator(b), rtol=1e-2)
    assert sparsegen.lookup(quantised, n=3, device="emulator").family.name == "quantized_stream_spmm"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [ValueType.INT8, ValueType.INT4])
def test_zero_points(kind: ValueType, dtype: str, tmp_path: Path) -> None:
    given = weights().with_values(np.abs(weights().values) + 1)
    made = sparsegen.quantize(given, kind, group=64, dtype=dtype, symmetric=False)
    assert made.rounding_error(given) < 0.6 * sparsegen.quantize(given, kind, group=64).rounding_error(given)
    assert "scales and zero points of 64" in repr(made)
    operator = sparsegen.prepare(made, n=3, device="emulator")
    b = activations().astype(np.float32 if dtype == "bfloat16" else np.float16)
    exact = b.astype(np.float64) @ made.dequantized().to_dense().T.astype(np.float64)
    assert np.linalg.norm(operator(b) - exact) / np.linalg.norm(exact) < (
        4e-3 if dtype == "bfloat16" else 4e-4
    )
    moved = operator(b, zero_points=(made.zero_points + 1).astype(b.dtype))
    assert np.linalg.norm(moved - exact) > 1e-3 * np.linalg.norm(exact)
    np.savez(tmp_path / "layer.npz", allow_pickle=False, **made.arrays())
    found = sparsegen.load_quantized(tmp_path / "layer.npz")
    assert repr(found) == repr(made)
    np.testing.assert_array_equal(found.dequantized().values, made.dequantized().values)
    np.savez(
        tmp_path / "bad.npz", allow_pickle=False, **made.arrays() | {"zero_points": made.zero_points + 0.5}
    )
    with pytest.raises(MatrixError, match="zero points are codes"):
        sparsegen.load_quantized(tmp_path / "bad.npz")
    with pytest.raises(ConfigError, match="symmetry = symmetric, but the quantised matrix has asymmetric"):
        sparsegen.prepare(made, n=3, symmetry="symmetric", device="emulator")


def test_what_is_refused_is_named() -> None:
    quantised, matrix = sparsegen.quantize(weights(), "int4", group=128), weights()
    with pytest.raises(ConfigError, match=r"value_type = int8, but the quantised matrix has int4"):
        sparsegen.prepare(quantised, n=3, value_type="int8", device="emulator")
    with pytest.raises(ConfigError, match="a quantised matrix is for quantized_spmm, not for sddmm"):
        sparsegen.prepare(quantised, operator="sddmm", k=3, device="emulator")
    with pytest.raises(MatrixError, match=r"beyond int4 .*sparsegen.quantize makes them of weights"):
        beyond = matrix.with_values(np.full(matrix.nnz, 100.0))
        sparsegen.prepare(beyond, operator="quantized_spmm", n=3, device="emulator")
    with pytest.raises(OperandError, match=r"needs scales= of shape \(2, 64\)"):
        codes = sparsegen.prepare(quantised.codes, operator="quantized_spmm", n=3, device="emulator")
        codes(activations())
    with pytest.raises(OperandError, match="bias= was given"):
        sparsegen.prepare(quantised, n=3, device="emulator")(activations(), bias=np.zeros(M, np.float16))
    with pytest.raises(OperandError, match="zero_points= are for symmetry=asymmetric"):
        sparsegen.prepare(quantised, n=3, zero_points=quantised.scales, device="emulator")
    with pytest.raises(ConfigError, match="e4m3 is symmetric"):
        sparsegen.quantize(matrix, "e4m3", symmetric=False)
    with pytest.raises(OperandError, match="pass new scales= to the call"):
        sparsegen.prepare(quantised, n=3, device="emulator").update_values(quantised.codes)
    with pytest.raises(ConfigError, match="group"):
        sparsegen.quantize(matrix, "int4", group=48)
    with pytest.raises(ConfigError, match="scales are float16 or bfloat16"):
        sparsegen.quantize(matrix, "int4", dtype="float32")
    with pytest.raises(ConfigError, match="infinite in float16"):
        sparsegen.quantize(matrix.with_values(matrix.values * 1e7), "int4")


@pytest.mark.parametrize("kind", ValueType)
def test_files_of_codes_and_scales_come_back(kind: ValueType, tmp_path: Path) -> None:
    quantised = sparsegen.quantize(weights(), kind, group=128, dtype="bfloat16")
    np.savez(tmp_path / "layer.npz", allow_pickle=False, **quantised.arrays())
    found = sparsegen.load_quantized(tmp_path / "layer.npz")
    assert repr(found) == repr(quantised)
    np.testing.assert_array_equal(found.scales, quantised.scales)
    np.testing.assert_array_equal(found.codes.to_dense(), quantised.codes.to_dense())
    for name, array, message in (
        ("scales", None, "no quantised matrix: scales is missing"),
        ("scales", np.full((2, M), np.nan), "expected finite scales"),
        ("data", np.full(quantised.codes.nnz, 0.3), "some values are no codes"),
    ):
        arrays = {**quantised.arrays(), name: array}
        np.savez(tmp_path / "other.npz", **{key: value for key, value in arrays.items() if value is not None})
        with pytest.raises(MatrixError, match=message):
            sparsegen.load_quantized(tmp_path / "other.npz")
