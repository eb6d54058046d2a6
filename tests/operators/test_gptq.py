"""`quantize` with a calibration: codes that make up for each other's rounding, on the pattern as it is."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegen
from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import Array
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import QuantizedMatrix, ValueType

M, K = 48, 200
WEIGHT = random_uniform(M, K, 0.5, 0)


def inputs(seed: int, samples: int = 400) -> Array:
    """Samples that lie near a space of few dimensions, some inputs much larger than others, as activations do."""
    mixing = np.random.default_rng(0).standard_normal((40, K)) * np.geomspace(1, 0.05, K)
    rng = np.random.default_rng(seed)
    return rng.standard_normal((samples, 40)) @ mixing + 0.01 * rng.standard_normal((samples, K))


def error(matrix: QuantizedMatrix) -> float:
    """Error of the layer's results for other inputs than those of the calibration."""
    x, weight = inputs(2), WEIGHT.to_dense().astype(np.float64)
    return float(
        np.linalg.norm(x @ (matrix.dequantized().to_dense() - weight).T) / np.linalg.norm(x @ weight.T)
    )


@pytest.mark.parametrize("kind", ValueType)
@pytest.mark.parametrize("group", ["row", 64])
@pytest.mark.parametrize("symmetric", [True, False])
def test_results_err_less(kind: ValueType, group: str | int, symmetric: bool) -> None:
    if kind is ValueType.E4M3 and not symmetric:
        return
    nearest = sparsegen.quantize(WEIGHT, kind, group=group, symmetric=symmetric)
    made = sparsegen.quantize(WEIGHT, kind, group=group, symmetric=symmetric, calibration=inputs(1))
    assert made.codes.fingerprint() == WEIGHT.fingerprint()
    np.testing.assert_array_equal(made.scales, nearest.scales)
    np.testing.assert_array_equal(kind.rounded(made.codes.values), made.codes.values)
    assert error(made) < 0.7 * error(nearest)
    assert made.rounding_error(WEIGHT) > nearest.rounding_error(WEIGHT)


def test_inputs_that_are_independent_change_nothing() -> None:
    given = sparsegen.quantize(WEIGHT, "int4", group=64, calibration=np.eye(K))
    nearest = sparsegen.quantize(WEIGHT, "int4", group=64)
    np.testing.assert_array_equal(given.codes.values, nearest.codes.values)
    silent = sparsegen.quantize(WEIGHT, "int4", group=64, calibration=np.zeros((3, K)))
    np.testing.assert_array_equal(silent.codes.values, nearest.codes.values)


def test_a_calibration_of_other_inputs_is_refused() -> None:
    for wrong in (np.zeros((3, K + 1)), np.zeros(K), np.full((2, K), np.nan)):
        with pytest.raises(MatrixError, match=f"expected a finite calibration of samples × {K}"):
            sparsegen.quantize(WEIGHT, "int4", calibration=wrong)
