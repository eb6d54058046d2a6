"""`prepare`, `lookup` and `tune` take a problem, or an operator's name and the fields of its problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.errors import ConfigError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import (
    OPERATORS,
    BlockAttentionProblem,
    DType,
    Epilogue,
    Problem,
    QuantizedSpmmProblem,
    ScoreChange,
    SddmmOperator,
    SddmmProblem,
    SoftmaxOperator,
    SoftmaxProblem,
    SparseOperator,
    SpmmProblem,
    Symmetry,
)

pytestmark = pytest.mark.usefixtures("on_emulator")
M, K, N = 12, 17, 8


@pytest.fixture
def matrix() -> CsrMatrix:
    return random_uniform(M, K, 0.3, seed=2)


SAME: list[tuple[Problem, type[sparsegen.Operator], dict[str, Any]]] = [
    (SpmmProblem(M, K, N), SparseOperator, {"n": N}),
    (SddmmProblem(M, K, 16), SddmmOperator, {"operator": "sddmm", "k": 16, "epilogue": None}),
    (SoftmaxProblem(M, K), SoftmaxOperator, {"operator": "sparse_softmax", "scale": 2.0}),
]


@pytest.mark.parametrize(("problem", "kind", "options"), SAME, ids=lambda p: getattr(p, "operator", None))
def test_a_problem_says_what_options_say(
    matrix: CsrMatrix, problem: Problem, kind: type[sparsegen.Operator], options: dict[str, Any]
) -> None:
    kept = {"scale": options["scale"]} if "scale" in options else {}
    found = sparsegen.prepare(matrix, problem, **kept), sparsegen.prepare(matrix, **options)
    operands = [
        problem.dtype.from_storage(array)
        for name, array in problem.random_operands(np.random.default_rng(0), matrix.nnz).items()
        if name != "scale"
    ]
    assert [type(op) for op in found] == [kind, kind] and found[0].problem == found[1].problem == problem
    assert np.array_equal(found[0](*operands), found[1](*operands))
    fields = {name: value for name, value in options.items() if name != "scale"}
    assert sparsegen.lookup(matrix, problem) == sparsegen.lookup(matrix, **fields)


def test_a_problem_may_be_of_the_transpose(matrix: CsrMatrix) -> None:
    op = sparsegen.prepare(matrix, SpmmProblem(K, M, N), transpose=True)
    b = np.random.default_rng(0).standard_normal((M, N)).astype(np.float32)
    np.testing.assert_allclose(op(b), matrix.to_scipy().toarray().T @ b, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"the matrix is \(17, 12\), but the problem's is \(12, 17\)"):
        sparsegen.prepare(matrix, SpmmProblem(M, K, N), transpose=True)
    with pytest.raises(ConfigError, match="sddmm takes no transpose; spmm does"):
        sparsegen.prepare(matrix, SddmmProblem(K, M, N), transpose=True)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"problem": SpmmProblem(M, K, N), "operator": "sddmm"}, "the problem is of spmm, not of sddmm"),
    ({"problem": SpmmProblem(M, K, N), "n": 4}, "says all but the operands: drop n"),
    ({"problem": SddmmProblem(M, K, N), "bias": [1.0]}, "sddmm takes no bias; spmm, quantized_spmm do"),
    ({"problem": SpmmProblem(K, M, N)}, "the problem's is"),
    ({"n": N, "odd": 1}, "spmm takes no odd; it takes n, dtype"),
    ({}, "spmm needs n"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_does_not_fit_is_refused(matrix: CsrMatrix, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sparsegen.prepare(matrix, **options)
    if "bias" not in options:
        for ask in (sparsegen.lookup, sparsegen.tune):
            with pytest.raises(ConfigError, match=words):
                ask(matrix, **options)


CAPPED = BlockAttentionProblem(M, K, 1, 1, 16, DType.FLOAT16, scores=ScoreChange.SOFTCAP)
ASYMMETRIC = QuantizedSpmmProblem(M, K, N, symmetry=Symmetry.ASYMMETRIC)


def test_operators_say_all_that_commands_and_documents_need() -> None:
    for operator, kind in OPERATORS.items():
        problem = kind.of((M, K), **dict.fromkeys(kind.dense_sizes, N), dtype=DType.FLOAT16)
        assert kind.title and kind.summary and kind.operator_type.__doc__ and operator in str(problem)
        assert set(kind.keeps) <= {
            spec.name
            for some in (problem, SpmmProblem(M, K, N, epilogue=Epilogue.BIAS), CAPPED, ASYMMETRIC)
            for spec in some.operands(3)
        }
        for field in problem.fields.values():
            assert field.doc and not field.doc.endswith(".") and field.flags[0].startswith("-")
            assert (field.default is None) == (field.name in (*kind.matrix_sizes, *kind.dense_sizes))
            assert field.is_trait or not field.unsaid
