"""The baselines that sparsegen brings: what they say they compute, without a device."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from sparsegen.bench.baseline.baseline import Baseline
from sparsegen.bench.baselines import baselines
from sparsegen.bench.patterns.generators import blocks, independent
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import (
    OPERATORS,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    Layout,
    Problem,
    SddmmEpilogue,
    SddmmProblem,
    SddProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    SpmmProblem,
)

SCATTERED = Features.of(independent(128, 128, 0.3, seed=0))
BLOCKS = Features.of(blocks(128, 128, 32, 0.3, seed=0))


def spmm(dtype: DType, layout: Layout = Layout.ROW, m: int = 128) -> SpmmProblem:
    return SpmmProblem(m, 128, 64, dtype, layout)


SDDMM = SddmmProblem(128, 128, 64)


def willing(problem: Problem, features: Features) -> set[str]:
    return {name for name, c in baselines().items() if c.refusal(problem, features) is None}


OURS, DENSE = {"sparsegen", "sparsegen-untuned", "sparsegen-default", "sparsegen-graph"}, {"cublas"}
IN_TF32 = {"cublas-tf32", "cublaslt", "cublaslt-mma", "torch-dropout"}
ATTENTIONS = {"sparsegen-steps", "torch-flex", "torch-sdpa", "torch-sdpa-causal"}
BLOCKED = {"cusparse-blocked-ell", "cusparse-bsr"}
BY_NONZEROS = {"cusparse-csr", "cusparse-coo"}


def test_who_computes_what() -> None:
    half = OURS | DENSE | BY_NONZEROS | {"torch-2to4"}
    assert willing(spmm(DType.FLOAT32), SCATTERED) == OURS | DENSE | BY_NONZEROS | {"cublas-tf32"}
    assert willing(spmm(DType.FLOAT16), SCATTERED) == half
    assert willing(spmm(DType.FLOAT16), BLOCKS) - {"torch-2to4"} == (
        OURS | DENSE | BLOCKED | BY_NONZEROS | {"torch-bsr"}
    )
    assert "torch-bsr" not in willing(spmm(DType.FLOAT16, Layout.COLUMN), BLOCKS)
    assert willing(SDDMM, SCATTERED) - OURS == DENSE | {
        "cublas-tf32",
        "cusparse-sddmm",
        "torch-sampled-addmm",
    }


def test_ours_alone_take_batches() -> None:
    batch = replace(spmm(DType.FLOAT32), batch=4)
    refusals = {name: c.refusal(batch, SCATTERED) for name, c in baselines().items()}
    assert {name for name, why in refusals.items() if why is None} == OURS
    assert refusals["cublas"] == "a call of it computes one batch element, not 4"


@pytest.mark.parametrize(
    ("problem", "refusal"),
    [
        (
            replace(spmm(DType.FLOAT32), epilogue=Epilogue.BIAS_RELU),
            "it computes epilogue none alone, not bias_relu",
        ),
        (replace(SDDMM, epilogue=SddmmEpilogue.SCALE), "it computes epilogue none alone, not scale"),
        (SoftmaxProblem(128, 128), "it computes spmm, sddmm and products with masks"),
    ],
    ids=str,
)
def test_few_take_epilogues_and_other_operators(problem: Problem, refusal: str) -> None:
    others = willing(problem, SCATTERED) - OURS
    assert others == (
        {"torch-linear"}
        if isinstance(problem, SpmmProblem)
        else {"copy", "torch-softmax"}
        if isinstance(problem, SoftmaxProblem)
        else set()
    )
    assert baselines()["cublas"].refusal(problem, SCATTERED) == refusal


def test_who_computes_products_with_masks() -> None:
    blocked = {"torch-masked-bsr", "triton-blocks"}
    for problem in (DsdProblem(128, 128, 64), DsdTransposedProblem(128, 128, 64), SddProblem(128, 128, 64)):
        half = replace(problem, dtype=DType.FLOAT16)
        with_dropout = set() if isinstance(problem, DsdTransposedProblem) else {"torch-dropout"}
        dense = DENSE | {"cublaslt", "cublaslt-mma"} | with_dropout
        assert willing(half, SCATTERED) == OURS | dense | blocked, problem


def test_networks_go_layer_by_layer() -> None:
    network = SparseNetworkProblem(2 * 4096, 4099, 64, DType.FLOAT16)
    layers = {"torch-csr-layers", "cusparse-layers"}
    assert willing(replace(network, dtype=DType.FLOAT32), SCATTERED) - OURS >= layers | {"csr-network"}
    assert willing(network, SCATTERED) - OURS == layers | {"cublas-layers"}
    wide = SparseNetworkProblem(120 * 16384, 16387, 64, DType.FLOAT16)
    assert willing(wide, SCATTERED) - OURS == layers
    refusal = baselines()["cublas-layers"].refusal(wide, SCATTERED)
    assert refusal == "the dense layers would take 60 GiB"


def test_what_none_of_our_families_computes_is_said() -> None:
    attention = SparseAttentionProblem(128, 128, 64)
    reason = baselines()["sparsegen"].refusal(attention, SCATTERED)
    assert reason is not None and reason.startswith("fused_attention: it must hold: "), reason
    assert willing(attention, SCATTERED) == ATTENTIONS, "the three steps take any type"
    assert willing(replace(attention, dtype=DType.FLOAT16), SCATTERED) == OURS | ATTENTIONS


def test_a_dense_matrix_that_does_not_fit_is_not_tried() -> None:
    huge = SpmmProblem(169_343, 169_343, 32)
    assert baselines()["cublas"].why_not(huge, SCATTERED) == "the dense matrix would take 107 GiB"


def test_ours_come_first_and_are_not_their_own_peers() -> None:
    names = list(baselines())
    assert names[:5] == ["sparsegen", "sparsegen-untuned", "sparsegen-default", "sparsegen-graph", "cublas"]
    kinds = {name: c.kind for name, c in baselines().items()}
    assert {name for name, kind in kinds.items() if kind is Kind.OURS} == OURS | {"sparsegen-steps"}
    assert {name for name, kind in kinds.items() if kind is Kind.DENSE} == {
        "cublas",
        "cublas-layers",
        "cublas-tf32",
        "cublaslt",
        "cublaslt-mma",
        "torch-conv2d",
        "torch-conv2d-weights",
        "torch-dropout",
        "torch-linear",
        "torch-scaled-mm",
        "torch-sdpa",
        "torch-softmax",
    }
    assert {name for name, kind in kinds.items() if kind is Kind.OTHER} == {
        "copy",
        "torch-sdpa-causal",
        "torch-sdpa-whole",
    }


def test_nobody_computes_what_it_is_not_started_for() -> None:
    """A baseline gets a process only where a row is of its ``operators``."""
    for kind in OPERATORS.values():
        sizes = dict.fromkeys((*kind.matrix_sizes, *kind.dense_sizes), 64)
        for dtype in DType:
            problem = kind(**sizes, dtype=dtype)
            for baseline in baselines().values():
                taken = baseline.refusal(problem, BLOCKS) is None
                assert not taken or isinstance(problem, baseline.operators), (baseline.name, problem)


@pytest.mark.parametrize("baseline", baselines().values(), ids=lambda c: c.name)
def test_every_baseline_travels(baseline: Baseline) -> None:
    again = pickle.loads(pickle.dumps(baseline))
    assert (again.name, again.kind) == (baseline.name, baseline.kind)
    arithmetic = baseline.arithmetic(spmm(DType.FLOAT32))
    assert arithmetic is (Arithmetic.TF32 if baseline.name in IN_TF32 else Arithmetic.FLOAT32)
