"""The dense product in a variant's place, by PyTorch on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.options import Dense
from sparsegen.errors import OperandError
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, Layout, SparseOperator, SpmmProblem
from sparsegen.plan.dense_launcher import DenseLauncher
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.verify.bounds import worst_error

torch = pytest.importorskip("torch")
CPU = Device("cpu", "CPU", "cpu", (0, 0), 1, 0, 0, 0)
M, K, N = 9, 14, 6


def operator(problem: SpmmProblem, matrix: CsrMatrix, **options: Any) -> SparseOperator:
    choice = Choice(problem, family("csr_spmm").config(), How.DEFAULT, "dense is faster", policy=Dense.ALWAYS)
    kept = problem.kept(options.pop("kept", {}))
    options.setdefault("pattern", matrix.fingerprint())
    launcher = DenseLauncher(choice, matrix, CPU, kept=kept, **options)
    return SparseOperator(problem, launcher)


@pytest.fixture
def matrix() -> CsrMatrix:
    return random_uniform(M, K, 0.4, seed=1)


def operands(problem: SpmmProblem, matrix: CsrMatrix) -> dict[str, Any]:
    stored = problem.random_operands(np.random.default_rng(0), matrix.nnz)
    return {name: problem.dtype.from_storage(array) for name, array in stored.items()}


def error(problem: SpmmProblem, matrix: CsrMatrix, given: dict[str, Any], result: Any) -> float:
    stored = {name: problem.dtype.to_storage(array) for name, array in given.items()}
    return worst_error(problem.reference(matrix, stored), problem.dtype.to_storage(result))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("epilogue", Epilogue)
def test_it_computes_what_the_problem_says(matrix: CsrMatrix, layout: Layout, epilogue: Epilogue) -> None:
    problem = SpmmProblem(M, K, N, layout=layout, epilogue=epilogue)
    given = operands(problem, matrix)
    op = operator(problem, matrix)
    assert error(problem, matrix, given, op(**given)) <= 1
    out = torch.empty(problem.result(matrix.nnz).shape)
    found = op(**{name: torch.from_numpy(array) for name, array in given.items()}, out=out)
    assert found is out and error(problem, matrix, given, out.numpy()) <= 1
    if epilogue.has_bias:
        kept = operator(problem, matrix, kept={"bias": given["bias"]})
        assert error(problem, matrix, given, kept(**{n: a for n, a in given.items() if n != "bias"})) <= 1
        assert np.array_equal(kept.bias, given["bias"])
        with pytest.raises(OperandError, match="needs bias="):
            op(given["b"], residual=given.get("residual"))
    else:
        assert op.bias is None
        with pytest.raises(OperandError, match="bias= was given"):
            operator(problem, matrix, kept={"bias": np.zeros(M)})


def test_new_values_and_those_of_a_transpose(matrix: CsrMatrix) -> None:
    turned, order = matrix.transposed(), matrix.transposition().source
    problem = SpmmProblem(K, M, N, DType.BFLOAT16)
    op = operator(problem, turned, value_order=order, pattern=matrix.fingerprint())
    given = operands(problem, turned)
    assert error(problem, turned, given, op(**given)) <= 1
    values = np.random.default_rng(3).standard_normal(matrix.nnz).astype(np.float32)
    op.update_values(values)
    assert error(problem, matrix.with_values(values).transposed(), given, op(**given)) <= 1
    with pytest.raises(OperandError, match="values: expected shape"):
        op.update_values(values[1:])
    op.update_values(matrix.with_values(values))
    with pytest.raises(OperandError, match="another pattern"):
        op.update_values(turned)


def test_it_says_what_runs(matrix: CsrMatrix) -> None:
    op = operator(SpmmProblem(M, K, N), matrix)
    assert op.explain().startswith(f"dense: PyTorch's product with the full {M} × {K} matrix, which takes")
    assert "\ncsr_spmm (default)" in op.explain() and "(dense=always)" in op.explain()
    assert op.variant is None and op.source is None and op.nbytes == 4 * M * K
    with pytest.raises(OperandError, match='dense="never"'):
        variant_launcher(op)


def test_wrong_operands_are_refused(matrix: CsrMatrix) -> None:
    op = operator(SpmmProblem(M, K, N), matrix)
    b = torch.zeros(K, N)
    for wrong, words in (
        (torch.zeros(K, N + 1), "b: expected shape"),
        (b.half(), "b: expected dtype"),
        (torch.zeros(N, K).t(), "contiguous"),
        ([1.0], "torch.Tensor or numpy.ndarray"),
    ):
        with pytest.raises(OperandError, match=words):
            op(wrong)
    with pytest.raises(OperandError, match="c: expected shape"):
        op(b, out=torch.zeros(M, N + 1))
    with pytest.raises(OperandError, match="no meaning for NumPy"):
        op(np.zeros((K, N), np.float32), stream=1)
    with pytest.raises(OperandError, match="bias: expected shape"):
        bias = SpmmProblem(M, K, N, epilogue=Epilogue.BIAS)
        operator(replace(bias), matrix, kept={"bias": np.zeros(M + 1)})
