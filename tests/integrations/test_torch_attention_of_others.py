"""FlexAttention's function and Hugging Face's by `block_attention`, beside PyTorch's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as flex  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    BlockMaskTensor,
    block_attention,
    flex_attention,
    hugging_face_attention,
    to_flex,
)

BATCH, HEADS, KV_HEADS, TOKENS, HEAD_DIM = 2, 4, 2, 96, 16


def operands(kv_heads: int = HEADS, queries: int = TOKENS) -> list[Any]:
    torch.manual_seed(0)
    sizes = (HEADS, queries), (kv_heads, TOKENS), (kv_heads, TOKENS)
    return [torch.randn(BATCH, heads, tokens, HEAD_DIM, requires_grad=True) for heads, tokens in sizes]


def same(found: Any, right: Any, given: list[Any]) -> None:
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    if not right.requires_grad:  # FlexAttention has no gradients on the CPU
        return
    seed = torch.randn_like(right)
    for one, other in zip(
        torch.autograd.grad(found, given, seed), torch.autograd.grad(right, given, seed), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# --- FlexAttention ---


def test_a_mask_with_partial_blocks() -> None:
    def seen(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (q - kv <= 20 + 10 * h)

    block_mask = flex.create_block_mask(seen, None, HEADS, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=(16, 32))
    given = operands()
    found = flex_attention(*given, block_mask=block_mask, scale=0.3)
    detached = [tensor.detach() for tensor in given]
    with torch.no_grad():
        right = flex.flex_attention(*detached, block_mask=block_mask, scale=0.3)
    same(found, right, given)


def test_a_mask_of_whole_blocks_and_groups() -> None:
    live = torch.rand(BATCH, HEADS, 6, 3) < 0.6
    live[..., 0] = True
    block_mask = to_flex(BlockMaskTensor.from_blocks(live, (16, 32)))
    given = operands(KV_HEADS)
    found, lse = flex_attention(*given, block_mask=block_mask, enable_gqa=True, return_lse=True)
    detached = [tensor.detach() for tensor in given]
    with torch.no_grad():
        right, right_lse = flex.flex_attention(
            *detached, block_mask=block_mask, enable_gqa=True, return_lse=True
        )
    same(found, right, given)
    torch.testing.assert_close(lse, right_lse, rtol=1e-4, atol=1e-5)


def test_what_is_returned_beside_the_result() -> None:
    given = [tensor.detach() for tensor in operands()]
    asked = flex.AuxRequest(lse=True)
    out, aux = flex_attention(*given, return_aux=asked)
    right, right_aux = flex.flex_attention(*given, return_aux=asked)
    torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(aux.lse, right_aux.lse, rtol=1e-4, atol=1e-5)
    assert flex_attention(*given, return_aux=flex.AuxRequest())[1].lse is None
    with pytest.raises(OperandError, match="return_aux: kernels give no largest scores"):
        flex_attention(*given, return_aux=flex.AuxRequest(max_scores=True))


def test_no_mask() -> None:
    given = operands()
    same(flex_attention(*given), scaled_dot_product_attention(*given), given)


def test_what_flex_attention_has_and_kernels_do_not() -> None:
    with pytest.raises(OperandError, match="score_mod: kernels take masks alone"):
        flex_attention(*operands(), score_mod=lambda score, b, h, q, kv: score)
    with pytest.raises(OperandError, match="key: expected query's 4 heads, got 2; enable_gqa=True"):
        flex_attention(*operands(KV_HEADS))


# --- Hugging Face ---

LAYER = SimpleNamespace(is_causal=True)


def right_of(given: list[Any], **options: Any) -> Any:
    return scaled_dot_product_attention(*given, enable_gqa=True, **options).transpose(1, 2)


def causal(queries: int = TOKENS, window: int = TOKENS) -> Any:
    i, j = torch.arange(TOKENS - queries, TOKENS)[:, None], torch.arange(TOKENS)
    return (j <= i) & (j > i - window)


@pytest.mark.parametrize("queries", [TOKENS, 5, 1])
def test_causal_beside_a_cache(queries: int) -> None:
    given = operands(KV_HEADS, queries)
    found, weights = hugging_face_attention(LAYER, *given, None, scaling=0.2)
    assert weights is None and found.is_contiguous()
    same(found, right_of(given, attn_mask=causal(queries), scale=0.2), given)


def test_windows_and_layers_that_are_not_causal() -> None:
    given = operands(KV_HEADS)
    found, _ = hugging_face_attention(LAYER, *given, None, sliding_window=7)
    same(found, right_of(given, attn_mask=causal(window=7)), given)
    one = operands(KV_HEADS, 1)
    found, _ = hugging_face_attention(LAYER, *one, None, sliding_window=7)
    same(found, right_of(one, attn_mask=causal(1, 7)), one)
    found, _ = hugging_face_attention(SimpleNamespace(is_causal=False), *given, None)
    same(found, right_of(given), given)
    with pytest.raises(OperandError, match=r"sliding_window: .* needs is_causal=True"):
        hugging_face_attention(LAYER, *given, None, is_causal=False, sliding_window=7)


def test_padding_and_exact_masks() -> None:
    given = operands(KV_HEADS)
    padding = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    padding[1, 80:] = 0
    found, _ = hugging_face_attention(LAYER, *given, padding)
    same(found, right_of(given, attn_mask=causal() & (padding != 0)[:, None, None]), given)
    exact = torch.rand(BATCH, 1, TOKENS, TOKENS + 8) < 0.5
    exact[..., 0] = True
    found, _ = hugging_face_attention(LAYER, *given, exact)
    same(found, right_of(given, attn_mask=exact[..., :TOKENS]), given)


def test_a_mask_of_blocks() -> None:
    given = operands(KV_HEADS)
    live = torch.rand(HEADS, 6, 3) < 0.6
    live[..., 0] = True
    mask = BlockMaskTensor.from_blocks(live, (16, 32))
    found, _ = hugging_face_attention(LAYER, *given, None, block_mask=mask, cache_position=None)
    same(found, right_of(given, attn_mask=mask.expand() & causal()), given)


def test_learned_sinks() -> None:
    given, logits = operands(KV_HEADS), torch.randn(HEADS)
    found, _ = hugging_face_attention(LAYER, *given, None, s_aux=logits)
    right = block_attention(*given, causal=True, sink_logits=logits).transpose(1, 2)
    same(found, right, given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout": 0.1}, "dropout = 0.1: block_attention drops no weights"),
        ({"head_mask": torch.ones(HEADS)}, "head_mask: block_attention takes none"),
        (
            {"attention_mask": torch.zeros(BATCH, 1, TOKENS, TOKENS)},
            "attention_mask: expected torch.bool .* sdpa_mask",
        ),
    ],
)
def test_what_would_change_the_result_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OperandError, match=words):
        hugging_face_attention(LAYER, *operands(), **options)
