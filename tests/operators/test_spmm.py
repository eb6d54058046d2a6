"""Results of ``spmm``, against sums that are written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsegen.matrix.formats import as_csr
from sparsegen.operators import Epilogue, Layout, SpmmProblem
from sparsegen.verify.bounds import ErrorBound

A = np.array([[0.5, 0, -2], [0, 0, 0]], dtype=np.float32)
B = np.array([[1, -3], [4, 4], [0.25, 1]], dtype=np.float32)
BIAS = np.array([0.125, -1.5], dtype=np.float32)
RESIDUAL = np.array([[7, -7], [0.5, 0.25]], dtype=np.float32)
AFTER = {
    Epilogue.NONE: lambda c, bias, residual: c,
    Epilogue.BIAS: lambda c, bias, residual: c + bias,
    Epilogue.BIAS_RELU: lambda c, bias, residual: max(c + bias, 0.0),
    Epilogue.BIAS_GELU: lambda c, bias, residual: (c + bias) / 2 * (1 + math.erf((c + bias) / math.sqrt(2))),
    Epilogue.BIAS_RESIDUAL: lambda c, bias, residual: c + bias + residual,
}


@pytest.mark.parametrize("layout", Layout)
def test_a_lone_row_is_as_in_its_matrix(layout: Layout) -> None:
    """It is computed without SciPy, which the other rows are computed with."""
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((3, 40)) < 0.3, rng.standard_normal((3, 40)), 0).astype(np.float32)
    dense[1] = 0
    b = rng.standard_normal((40, 5) if layout is Layout.ROW else (5, 40)).astype(np.float32)
    whole = SpmmProblem(3, 40, 5, layout=layout).reference(as_csr(dense), {"b": b})
    for row in range(3):
        lone = SpmmProblem(1, 40, 5, layout=layout).reference(as_csr(dense[row : row + 1]), {"b": b})
        rows = slice(row, row + 1)
        places = rows if layout is Layout.ROW else (slice(None), rows)
        np.testing.assert_allclose(lone.exact, whole.exact[places], rtol=1e-14)
        np.testing.assert_allclose(lone.magnitude, whole.magnitude[places], rtol=1e-14)
        np.testing.assert_array_equal(lone.terms.reshape(-1), whole.terms.reshape(-1)[rows])


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("epilogue", Epilogue)
def test_every_epilogue(epilogue: Epilogue, layout: Layout) -> None:
    problem = SpmmProblem(2, 3, 2, layout=layout, epilogue=epilogue)
    given = {"b": B, "bias": BIAS, "residual": RESIDUAL}
    operands = {}
    for spec in problem.operands(nnz=2):
        stored = given[spec.name].T if layout is Layout.COLUMN else given[spec.name]
        operands[spec.name] = np.ascontiguousarray(stored)
        assert operands[spec.name].shape == spec.shape
    reference = problem.reference(as_csr(A), operands)
    exact = reference.exact.T if layout is Layout.COLUMN else reference.exact
    for row in range(2):
        for column in range(2):
            c = sum(float(A[row, i]) * float(B[i, column]) for i in range(3))
            right = AFTER[epilogue](c, float(BIAS[row]), float(RESIDUAL[row, column]))
            assert exact[row, column] == pytest.approx(right, abs=1e-14)
    bound = ErrorBound.ours(problem.dtype).of(reference.exact, reference.magnitude, reference.terms)
    assert (bound > 0).all() and (bound < 1e-4).all()


def test_operands_of_an_epilogue_count_as_bytes_moved() -> None:
    plain, residual = (
        SpmmProblem(8, 6, 4, epilogue=epilogue).cost(10)
        for epilogue in (Epilogue.BIAS, Epilogue.BIAS_RESIDUAL)
    )
    assert residual.bytes - plain.bytes == 8 * 4 * 4 and residual.flop == plain.flop
