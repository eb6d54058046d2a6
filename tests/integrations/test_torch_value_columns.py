"""`block_attention` of values with other columns than keys, as DeepSeek's heads have (192 and 128)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import BlockMaskTensor, block_attention  # noqa: E402

SPANS: list[dict[str, Any]] = [{}, {"causal": True}, {"order": "tokens"}, {"softcap": 5.0}]


def operands(
    dtype: Any,
    columns: tuple[int, int] = (24, 16),
    order: str = "heads",
    sizes: tuple[int, int, int] = (2, 40, 56),
) -> list[Any]:
    torch.manual_seed(3)
    batch, queries, keys = sizes
    shapes = ((4, queries, columns[0]), (2, keys, columns[0]), (2, keys, columns[1]))
    tensors = [torch.randn(batch, *shape, dtype=dtype) for shape in shapes]
    if order == "tokens":
        tensors = [tensor.transpose(1, 2).contiguous() for tensor in tensors]
    return [tensor.requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("options", SPANS, ids=str)
def test_derivatives(options: dict[str, Any]) -> None:
    given = operands(torch.float64, (6, 4), options.get("order", "heads"), (1, 18, 20))
    torch.manual_seed(1)
    mask = BlockMaskTensor.from_blocks(torch.rand(4, 2, 2) < 0.7, (16, 16), (18, 20))
    torch.autograd.gradcheck(lambda q, k, v: block_attention(q, k, v, mask, **options), given, fast_mode=True)


def test_it_is_dense_attention() -> None:
    q, k, v = operands(torch.float32)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    found = block_attention(q, k, v)
    assert found.shape == (2, 4, 40, 16)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_result_lies_as_q_does() -> None:
    q, k, v = operands(torch.float16, order="tokens")
    assert block_attention(q, k, v, order="tokens").is_contiguous()


def test_the_operators_keep_pytorchs_rules() -> None:
    q, k, v = operands(torch.float32)
    compiled = torch.compile(block_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, causal=True), block_attention(q, k, v, causal=True))


def test_values_of_other_tokens_are_refused() -> None:
    q, k, v = operands(torch.float32)
    with pytest.raises(OperandError, match="v: expected shape 2 × 2 × 56 × any columns, as k has"):
        block_attention(q, k, v[:, :, :50])
