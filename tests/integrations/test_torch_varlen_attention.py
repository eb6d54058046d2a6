"""Attention of sequences behind one another: each as if it were alone, with masks, in kernels too."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    BlockMaskTensor,
    block_attention,
    masks,
    varlen_block_attention,
)

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
LENGTHS = [0, 30, 33, 33, 150, 201]  # an empty sequence among them
OTHERS = [0, 50, 60, 66, 180, 190]


def operands(queries: int, keys: int, dtype: Any = torch.float64) -> list[Any]:
    torch.manual_seed(0)
    shapes = (queries, HEADS), (keys, KV_HEADS), (keys, KV_HEADS)
    return [torch.randn(*shape, HEAD_DIM, dtype=dtype, requires_grad=True) for shape in shapes]


def one_by_one(given: list[Any], of_q: list[int], of_k: list[int], **options: Any) -> Any:
    q, k, v = given
    return torch.cat(
        [
            block_attention(q[None, i:j], k[None, a:b], v[None, a:b], order="tokens", **options)[0]
            for (i, j), (a, b) in zip(pairwise(of_q), pairwise(of_k), strict=True)
        ]
    )


@pytest.mark.parametrize("others", [LENGTHS, OTHERS], ids=["equal", "other keys"])
@pytest.mark.parametrize(
    "span", [{}, {"causal": True}, {"causal": True, "window": 20}, {"window": 9}], ids=str
)
@pytest.mark.parametrize("block", [16, (32, 64)])
def test_each_sequence_as_if_alone(others: list[int], span: dict[str, Any], block: Any) -> None:
    given = operands(LENGTHS[-1], others[-1])
    cu_q, cu_k = (torch.tensor(of, dtype=torch.int32) for of in (LENGTHS, others))
    out, lse = varlen_block_attention(*given, cu_q, cu_k, block=block, return_lse=True, **span)
    right = one_by_one(given, LENGTHS, others, **span)
    torch.testing.assert_close(out, right)
    assert lse.shape == (HEADS, LENGTHS[-1])
    seed = torch.randn_like(out)
    for ours, theirs in zip(
        torch.autograd.grad(out, given, seed), torch.autograd.grad(right, given, seed), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_blocks_of_two_sequences_are_dead() -> None:
    cu = torch.tensor([0, 128, 256, 512], dtype=torch.int32)
    mask, partial = masks.varlen_blocks(cu, None, (512, 512), 64)
    assert mask.blocks().sum() == 2 * 2 + 2 * 2 + 4 * 4 and (partial.numbers < 0).all()


def test_a_mask_of_each_head() -> None:
    given, live = operands(201, 201), torch.rand(HEADS, 13, 13) < 0.6
    mask = BlockMaskTensor.from_blocks(live, 16, (201, 201))
    cu = torch.tensor(LENGTHS)
    out = varlen_block_attention(*given, cu, mask=mask, causal=True)
    of = torch.bucketize(torch.arange(201), cu, right=True)
    seen = mask.expand() & (of[:, None] == of)
    right = block_attention(*(t[None] for t in given), elements=seen, causal=True, order="tokens")[0]
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": torch.randn(1, 201, 4, 16)}, "q: expected tokens × heads × head_dim"),
        ({"cu_seqlens_q": torch.tensor([0.0, 201.0])}, "cu_seqlens_q: expected torch.int32, sequences"),
        ({"cu_seqlens_k": torch.tensor([0, 100, 201])}, "cu_seqlens_k: expected torch.int32, sequences"),
        ({"slopes": torch.ones(4)}, "slopes: varlen_block_attention takes none"),
        ({"window": 0}, "window = 0 is below 1"),
        (
            {"mask": BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool), 64)},
            "mask: expected one over 201 × 201",
        ),
    ],
)
def test_bad_input_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    q, k, v = operands(201, 201)
    usual = {"q": q, "k": k, "v": v, "cu_seqlens_q": torch.tensor(LENGTHS)}
    with pytest.raises(OperandError, match=words):
        varlen_block_attention(**usual | changes)
