"""Prepared attention on a GPU: PyTorch tensors in place, streams, graphs."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from cuda_graphs import captured

import sparsegen
from sparsegen import masks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_database")]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("pycuda")

HEADS, TOKENS, HEAD_DIM = 4, 512, 64
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def attention(
    dtype: str = "float32", implementation: str = "steps"
) -> sparsegen.AttentionOperator | sparsegen.FusedAttentionOperator:
    mask = masks.band(TOKENS, 32, 0.9)
    return sparsegen.prepare_attention(
        mask, heads=HEADS, head_dim=HEAD_DIM, dtype=dtype, implementation=implementation, device="cuda:0"
    )


def operands(dtype: str = "float32") -> list[Any]:
    shape = (HEADS, TOKENS, HEAD_DIM)
    return [torch.randn(shape, device="cuda").to(getattr(torch, dtype)) for _ in range(3)]


def dense(q: Any, k: Any, v: Any) -> Any:
    seen = torch.as_tensor(masks.band(TOKENS, 32, 0.9).to_scipy().toarray() != 0, device="cuda")
    wide = (t.double() for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=seen)


def close(found: Any, given: list[Any]) -> bool:
    tolerance = TOLERANCE[str(found.dtype).removeprefix("torch.")]
    return bool((found.double() - dense(*given)).abs().max() <= tolerance)


IMPLEMENTATIONS = [
    ("float32", "steps"),
    *(
        (dtype, implementation)
        for dtype in ("float16", "bfloat16")
        for implementation in ("steps", "fused", "blocks")
    ),
]


@pytest.mark.parametrize(("dtype", "implementation"), IMPLEMENTATIONS)
def test_torch(dtype: str, implementation: str) -> None:
    op, given = attention(dtype, implementation), operands(dtype)
    out = op(*given)
    assert out.dtype is given[0].dtype and close(out, given)
    again = torch.empty_like(out)
    assert op(*given, again) is again and torch.equal(again, out)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    on_stream = op(*given, stream=stream)
    stream.synchronize()
    assert torch.equal(on_stream, out)


def test_numpy() -> None:
    op, given = attention(), operands()
    out = op(*(t.cpu().numpy() for t in given))
    assert close(torch.as_tensor(out, device="cuda"), given)


@pytest.mark.parametrize("implementation", ["steps", "fused", "blocks"])
def test_a_captured_graph_sees_new_operands_and_calls_allocate_nothing_but_the_result(
    implementation: str,
) -> None:
    op, given = attention("float16", implementation), operands("float16")
    out = op(*given)
    torch.cuda.synchronize()
    free = [torch.cuda.mem_get_info()[0]]
    for _ in range(20):
        op(*given, out)
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    taken = [before - after for before, after in pairwise(free)]
    assert median(taken) <= 0, "by most calls: other processes take some as well"
    graph, _ = captured(lambda: op(*given, out))
    for tensor in given:
        tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    torch.cuda.synchronize()
    assert close(out, given)
