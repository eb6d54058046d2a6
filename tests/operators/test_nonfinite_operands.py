"""Infinities and NaN in what a mask leaves out: attention, masked products and convolutions, and softmax's own −∞."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegen

SEEN = np.tril(np.ones((64, 64), dtype=np.float32))
HEAD = 16


def _expected(q: Any, k: Any, v: Any) -> Any:
    """For each query, over the keys that it sees."""
    rows = []
    for i, query in enumerate(q.astype(np.float64)):
        scores = k[: i + 1].astype(np.float64) @ query * HEAD**-0.5
        weights = np.exp(scores - scores.max())
        rows.append(weights @ v[: i + 1] / weights.sum())
    return np.array(rows)


@pytest.mark.parametrize("implementation", ["steps", "fused"])
@pytest.mark.parametrize("unseen", [np.inf, np.nan])
def test_keys_that_a_query_does_not_see_may_hold_anything(implementation: str, unseen: float) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((64, HEAD)).astype(np.float16) for _ in range(3))
    wanted = _expected(q, k, v)
    k[50:] = unseen
    op = sparsegen.prepare_attention(
        SEEN, head_dim=HEAD, dtype="float16", implementation=implementation, device="emulator"
    )
    np.testing.assert_allclose(op(q, k, v)[:50], wanted[:50], atol=2e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [1.0, -1.0, 2.0])
def test_a_softmax_takes_infinities_as_pytorch_does(dtype: str, scale: float) -> None:
    torch = pytest.importorskip("torch")
    scores = np.random.default_rng(1).standard_normal((5, 700)).astype(dtype)
    scores[0, :640], scores[1, 64:], scores[2], scores[3, 5] = -np.inf, -np.inf, -np.inf, np.inf
    op = sparsegen.prepare(
        np.ones_like(scores), operator="sparse_softmax", dtype=dtype, scale=scale, device="emulator"
    )
    wanted = torch.softmax(torch.from_numpy(scores).double() * scale, -1).numpy()
    np.testing.assert_allclose(op(scores.ravel()).reshape(scores.shape), wanted, atol=1e-3)


@pytest.mark.usefixtures("on_emulator")
def test_dead_blocks_are_not_read() -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.integrations import torch as integration

    live = torch.rand(4, 4) > 0.5
    is_live = live.repeat_interleave(16, 0).repeat_interleave(16, 1)
    x = torch.randn(64, 64, dtype=torch.float16)
    w = torch.randn(48, 64, dtype=torch.float16)
    mask = integration.BlockMaskTensor.from_blocks(live, (16, 16))
    found = integration.dsd(x.masked_fill(~is_live, torch.nan), w, mask)
    torch.testing.assert_close(found.float(), x.float().mul(is_live) @ w.float().t(), rtol=1e-2, atol=5e-2)
