"""Sparse attention for PyTorch by blocks: dense attention's results and gradients, whatever traces or captures it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen import masks  # noqa: E402
from sparsegen.attention import choice  # noqa: E402
from sparsegen.integrations.torch import SparseAttention, SparsePattern, sparse_attention  # noqa: E402
from sparsegen.integrations.torch.attention.pattern_blocks import pattern_blocks, runs_by_blocks  # noqa: E402
from sparsegen.integrations.torch.pattern.carried_patterns import HELD  # noqa: E402

IN_THIS_PROCESS = ("test_schema", "test_autograd_registration", "test_faketensor")
TOKENS, HEADS, HEAD_DIM = 200, 2, 64
MASKS = {
    "window": masks.sliding_window(TOKENS, 70, 3),
    "blocks": masks.blocks(TOKENS, 64, 1, 1),
    "partial blocks": masks.band(TOKENS, 64, 0.5),
}


@pytest.fixture(autouse=True)
def by_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other way takes less time."""
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(choice, "_other_times", lambda *_: {})


def operands(dtype: Any = torch.float16, *, grad: bool = True) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(HEADS, TOKENS, HEAD_DIM, dtype=dtype, requires_grad=grad) for _ in range(3)]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_results_and_gradients_are_those_of_dense_attention(mask: Any) -> None:
    pattern, given = SparsePattern(mask), operands()
    wide = [t.detach().double().requires_grad_() for t in given]
    seen = torch.from_numpy(mask.to_dense() != 0)
    out = sparse_attention(*given, pattern)
    right = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=seen)
    torch.testing.assert_close(out.double(), right, rtol=0, atol=4e-3)
    assert runs_by_blocks(pattern, given[0], trains=True) and not pattern._prepared
    seed = torch.randn_like(out)
    gradients = torch.autograd.grad(out, given, seed)
    for ours, theirs in zip(gradients, torch.autograd.grad(right, wide, seed.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(sparse_attention(*given, pattern), out, rtol=0, atol=4e-3)
    assert out.relu_() is out, "it is no view, which autograd would refuse"


def test_the_log_sum_exp_is_kept_in_the_place_of_weights() -> None:
    mask, (q, k, v) = MASKS["partial blocks"], operands(grad=False)
    pattern = SparsePattern(mask)
    blocks = pattern_blocks(pattern, q, 0.3, trains=True)
    assert blocks is not None
    seen = torch.from_numpy(mask.to_dense() != 0)
    scores = (q.double() @ k.double().mT * 0.3).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(blocks.forward(q, k, v)[1].double(), scores.logsumexp(-1), rtol=0, atol=1e-3)
    _, kept = torch.ops.sparsegen.attention(q, k, v, 0.3, True, pattern.handle)
    assert kept.shape == (HEADS, TOKENS) and kept.dtype is torch.float32


def test_the_operators_keep_pytorchs_rules() -> None:
    pattern, given, ops = SparsePattern(MASKS["blocks"]), operands(), torch.ops.sparsegen
    torch.library.opcheck(ops.attention, (*given, 0.3, True, pattern.handle), test_utils=IN_THIS_PROCESS)
    out, kept = ops.attention(*given, 0.3, True, pattern.handle)
    detached = [t.detach() for t in (torch.ones_like(out), *given, kept, out)]
    torch.library.opcheck(ops.attention_backward, (*detached, 0.3, pattern.handle))
    torch.library.opcheck(ops.attention_backward_carried, (*detached, 0.3, *HELD.carried(pattern)))


def test_a_compiled_module_is_one_graph() -> None:
    layer, given = SparseAttention(MASKS["partial blocks"], HEADS, HEAD_DIM), operands()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for ours, theirs in zip(
        torch.autograd.grad(compiled(*given).square().sum(), given),
        torch.autograd.grad(layer(*given).square().sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=4e-3)
