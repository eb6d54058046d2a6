"""Shifts of scores change no softmax: by every family, in the emulator, and by PyTorch alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen
from sparsegen.attention.choice import AttentionImplementation
from sparsegen.operators import DType, SoftmaxProblem
from sparsegen.verify.bounds import worst_error

SEEN = sp.random(48, 200, 0.4, format="csr", dtype=np.float32, random_state=3)
STEPS = np.round(np.random.default_rng(0).standard_normal(SEEN.nnz) * 3 * 64) / 64
OFFSETS = (0.0, -(2.0**11), -(2.0**17), 2.0**17)
SCALES = (1.0, 0.125, -0.5, 0.0)


def softmax(x: Any, scale: float) -> Any:
    found = np.zeros(SEEN.nnz)
    for begin, end in zip(SEEN.indptr[:-1], SEEN.indptr[1:], strict=True):
        z = x[begin:end].astype(np.float64) * scale
        powers = np.exp(z - z.max(initial=-np.inf))
        found[begin:end] = powers / powers.sum()
    return found


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("kept", [1, 4])
def test_a_softmax_of_shifted_scores(offset: float, scale: float, kept: int) -> None:
    """Vectors that registers keep are covered, and those that are read twice."""
    x = (STEPS + offset).astype(np.float32)
    op = sparsegen.prepare(
        SEEN, operator="sparse_softmax", scale=scale, device="emulator", family="row_softmax",
        config={"vectors_kept": kept, "threads_per_row": 8, "vector_width": 4, "rows_per_block": 16},
    )  # fmt: skip
    np.testing.assert_allclose(op(x), softmax(x, scale), rtol=2e-6)


@pytest.mark.parametrize("offset", OFFSETS)
def test_pytorch_alone(offset: float) -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.integrations.torch import SparsePattern
    from sparsegen.integrations.torch.pattern import plain

    x = (STEPS + offset).astype(np.float32)
    for scale in SCALES:
        found = plain.softmax(SparsePattern(SEEN), torch.from_numpy(x), scale)
        np.testing.assert_allclose(found, softmax(x, scale), rtol=2e-6)


@pytest.mark.parametrize("offset", [0.0, 2.0**20, -(2.0**20)])
def test_fused_attention_with_shifted_scores(offset: float) -> None:
    """Scores are whole numbers that float32 holds, so that nothing but the softmax could make a difference."""
    rng, head_dim, heads = np.random.default_rng(1), 16, 1
    q, k, v = (rng.integers(-3, 4, (heads, rows, head_dim)).astype(np.float16) for rows in (48, 200, 200))
    k[0, :, 0] = 5 * (np.arange(200) // 20)  # grows from tile to tile, so that references move
    q[0, :, 0], q[..., 1] = 1, np.sqrt(abs(offset))
    k[..., 1] = np.sign(offset) * np.sqrt(abs(offset))
    scale = 0.25
    op = sparsegen.prepare_attention(
        SEEN,
        head_dim=head_dim,
        heads=heads,
        dtype="float16",
        scale=scale,
        implementation=AttentionImplementation.FUSED,
        device="emulator",
    )
    wide = [x.astype(np.float64)[0] for x in (q, k, v)]
    scores = np.where(SEEN.toarray() != 0, wide[0] @ wide[1].T, -np.inf) * scale
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = powers / powers.sum(axis=1, keepdims=True) @ wide[2]
    np.testing.assert_allclose(op(q, k, v)[0], want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", DType)
def test_verification_refuses_a_scale_before_the_difference(dtype: DType) -> None:
    """Its scores are far from zero, so that the error of a product with them shows."""
    problem = SoftmaxProblem(*SEEN.shape, dtype)
    matrix = sparsegen.as_csr(SEEN)
    operands = problem.random_operands(np.random.default_rng(2), SEEN.nnz)
    x, scale = dtype.from_storage(operands["x"]), operands["scale"][0]
    reference = problem.reference(matrix, operands)
    assert abs(np.median(x)) > 1.5 and np.unique(x).size > 20
    assert worst_error(reference, dtype.to_storage(softmax(x, float(scale)))) <= 1
    z = (x * (scale * np.float32(1.4426950408889634))).astype(np.float32)
    early = np.zeros(SEEN.nnz, dtype=np.float32)
    for begin, end in zip(SEEN.indptr[:-1], SEEN.indptr[1:], strict=True):
        powers = np.exp2(z[begin:end] - z[begin:end].max())
        early[begin:end] = powers / powers.sum()
    if dtype is DType.FLOAT32:
        assert worst_error(reference, dtype.to_storage(early)) > 1
