"""Masks whose values are ignored: additive ones, whose meaning is inverted, are refused everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen
from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import as_mask

SEEN = np.random.default_rng(0).random((16, 16)) < 0.3


def _attention(mask: Any) -> Any:
    return sparsegen.prepare_attention(mask, head_dim=8, device="emulator")


def _operator(name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda mask: sparsegen.prepare(mask, operator=name, device="emulator", **options)


TAKERS = {
    "as_mask": as_mask,
    "prepare_attention": _attention,
    "sparse_softmax": _operator("sparse_softmax"),
    "sparse_softmax_backward": _operator("sparse_softmax_backward"),
    "sparse_attention": _operator("sparse_attention", k=8, dtype="float16"),
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize("hidden", [-np.inf, -1e9, -1e4, np.finfo(np.float32).min])
def test_additive_masks_are_refused_with_the_line_to_write(take: Callable[[Any], Any], hidden: float) -> None:
    with pytest.raises(MatrixError, match=r"additive.*mask == 0"):
        take(np.where(SEEN, 0, hidden).astype(np.float32))


@pytest.mark.parametrize(
    "mask",
    [
        SEEN,
        SEEN.astype(np.int8),
        sp.csr_array(SEEN),
        np.where(SEEN, -0.5, 0),
        np.where(SEEN, -5e3, 0) + SEEN * 6e3,
    ],
    ids=["booleans", "integers", "sparse", "negative", "large"],
)
def test_other_masks_are_their_nonzeros(mask: Any) -> None:
    np.testing.assert_array_equal(as_mask(mask).to_dense() != 0, SEEN)


def test_pytorch_masks() -> None:
    torch = pytest.importorskip("torch")
    from sparsegen.integrations.torch import SparseAttention, SparsePattern

    seen = torch.from_numpy(SEEN)
    assert SparsePattern(seen).nnz == SEEN.sum()
    additive = torch.zeros(16, 16).masked_fill(~seen, torch.finfo(torch.float32).min)
    with pytest.raises(MatrixError, match="mask == 0"):
        SparsePattern(additive)
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    found = SparseAttention(additive == 0, 2, 8)(q, k, v)
    seen_rows = seen.any(1)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=additive)
    torch.testing.assert_close(found[:, :, seen_rows], wanted[:, :, seen_rows])
    with pytest.raises(MatrixError, match="mask == 0"):
        SparseAttention(additive.masked_fill(~seen, -torch.inf), 2, 8)


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(MatrixError, match="nan"):
        as_mask(np.where(SEEN, np.nan, 0))
