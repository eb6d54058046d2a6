"""Attention over a paged cache for PyTorch: dense attention's results on the tokens that queries see."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import masks, paged_attention  # noqa: E402

BATCH, QUERIES, KV_HEADS, GROUP, HEAD_DIM, PAGE, SLOTS = 3, 2, 2, 3, 16, 16, 5
LENGTHS = (PAGE * SLOTS, 37, 0)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
TREE = torch.tensor([[True, False], [False, True]])


def operands(dtype: Any = torch.float32, *, order: str = "tokens", queries: int = QUERIES) -> dict[str, Any]:
    """Made operands; what lies behind the last token of a sequence is no number."""
    random = torch.Generator().manual_seed(1)
    heads, tokens = (GROUP * KV_HEADS, queries), (KV_HEADS, PAGE)
    if order == "tokens":
        heads, tokens = heads[::-1], tokens[::-1]
    pool = BATCH * SLOTS + 1
    table = torch.randperm(pool, generator=random)[: BATCH * SLOTS].view(BATCH, SLOTS)
    pages = [torch.randn(pool, *tokens, HEAD_DIM, generator=random, dtype=torch.float64) for _ in range(2)]
    for sequence, length in enumerate(LENGTHS):
        for slot in range(SLOTS):
            left = max(0, length - slot * PAGE)
            for x in pages:
                own = x[table[sequence, slot]]
                (own if order == "tokens" else own.transpose(0, 1))[left:] = torch.nan
    return {
        "q": torch.randn(BATCH, *heads, HEAD_DIM, generator=random, dtype=torch.float64).to(dtype),
        "k_pages": pages[0].to(dtype),
        "v_pages": pages[1].to(dtype),
        "page_table": table.int(),
        "lengths": torch.tensor(LENGTHS, dtype=torch.int32),
    }


def chosen() -> Any:
    """Pages of each head, none of the last one's of the first sequence."""
    found = torch.rand(BATCH, KV_HEADS, SLOTS, generator=torch.Generator().manual_seed(2)) < 0.6
    found[:, 0, 0], found[0, -1] = True, False
    return found


def dense(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    page_table: Any,
    lengths: Any,
    live: Any,
    tree: Any,
    order: str,
    scale: float,
) -> tuple[Any, Any]:
    """The same a head of a sequence at a time, in float64."""
    if order == "tokens":
        q, k_pages, v_pages = (x.transpose(1, 2) for x in (q, k_pages, v_pages))
    out, lse = (
        torch.zeros(q.shape, dtype=torch.float64),
        torch.full(q.shape[:3], -torch.inf, dtype=torch.float64),
    )
    for sequence, length in enumerate(lengths.tolist()):
        for head in range(q.shape[1]):
            of_keys = head // GROUP
            k, v = (
                x[page_table[sequence].long(), of_keys].flatten(0, 1).double() for x in (k_pages, v_pages)
            )
            seen = torch.zeros(q.shape[2], len(k), dtype=torch.bool)
            old = length - q.shape[2]
            seen[:, : max(0, old)] = True
            for i in range(q.shape[2]):
                for j in range(q.shape[2]):
                    if old + j >= 0:
                        seen[i, old + j] = tree[i, j]
            seen &= live[sequence, of_keys].repeat_interleave(PAGE)
            for i in range(q.shape[2]):
                if seen[i].any():
                    scores = q[sequence, head, i].double() @ k[seen[i]].T * scale
                    out[sequence, head, i] = scores.softmax(-1) @ v[seen[i]]
                    lse[sequence, head, i] = scores.logsumexp(-1)
    return (out.transpose(1, 2) if order == "tokens" else out), lse


def close(found: Any, wanted: Any, dtype: Any) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("order", ["tokens", "heads"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("given_as", ["all", "bools", "list", "whole list"])
def test_results_are_those_of_dense_attention(given_as: str, dtype: Any, order: str) -> None:
    live, given = chosen(), operands(dtype, order=order)
    lists: dict[str, Any] = {}
    if given_as == "all":
        live = torch.ones_like(live)
    elif given_as == "bools":
        lists["pages"] = live
    elif given_as == "list":
        lists["pages"], lists["counts"] = masks.page_list(live)
    else:
        lists["pages"] = torch.tensor([3, 0, 2], dtype=torch.int32).expand(BATCH, KV_HEADS, 3).contiguous()
        live = torch.zeros_like(live)
        live[..., [3, 0, 2]] = True
    out, lse = paged_attention(**given, **lists, order=order, return_lse=True)
    causal = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
    right, right_lse = dense(**given, live=live, tree=causal, order=order, scale=HEAD_DIM**-0.5)
    assert out.dtype is dtype and out.shape == given["q"].shape and out.is_contiguous()
    close(out, right, dtype)
    close(lse, right_lse, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_tree_of_drafts_and_another_scale(dtype: Any) -> None:
    given = operands(dtype)
    out = paged_attention(**given, pages=chosen(), tree=TREE, scale=-0.7)
    close(out, dense(**given, live=chosen(), tree=TREE, order="tokens", scale=-0.7)[0], dtype)


def test_kernels_of_ours_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(torch.float16)
    plainly = paged_attention(**given, pages=chosen(), tree=TREE, return_lse=True)
    whole = paged_attention(**given, return_lse=True)
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    pages, counts = masks.page_list(chosen())
    for lists in ({}, {"pages": chosen(), "tree": TREE}, {"pages": pages, "counts": counts, "tree": TREE}):
        found = paged_attention(**given, **lists, return_lse=True)
        right = plainly if lists else whole
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=4e-3, atol=4e-3)


def test_lists_of_bools_keep_their_order() -> None:
    numbers, counts = masks.page_list(torch.tensor([[False, True, True, False], [True, False, False, True]]))
    assert [row[:n].tolist() for row, n in zip(numbers, counts.tolist(), strict=True)] == [[1, 2], [0, 3]]


def test_the_operator_keeps_pytorchs_rules() -> None:
    given = operands(torch.float32)
    numbers, counts = masks.page_list(chosen())
    words = torch.tensor([[1], [3]], dtype=torch.int32)
    torch.library.opcheck(
        torch.ops.sparsegen.paged_attention, (*given.values(), numbers, counts, words, 0.25, False)
    )


def test_compiled_whole() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    given = operands(torch.float32)
    compiled = torch.compile(
        lambda live: paged_attention(**given, pages=live), fullgraph=True, backend=counter
    )
    for live in (chosen(), chosen().roll(1, -1)):
        torch.testing.assert_close(compiled(live), paged_attention(**given, pages=live))
    assert counter.frame_count == 1


def test_there_is_no_gradient() -> None:
    given = operands(torch.float32)
    out = paged_attention(**given | {"q": given["q"].requires_grad_()})
    with pytest.raises(RuntimeError, match="paged_attention"):
        out.sum().backward()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"q": torch.zeros(3, 6, 16)}, "q: expected batch × queries × heads × head_dim"),
    ({"q": torch.zeros(3, 2, 5, 16)}, "k_pages: its heads (2) do not divide q's (5)"),
    ({"q": torch.zeros(3, 2, 6, 8)}, "k_pages: expected pages × tokens × heads of keys × 8"),
    ({"k_pages": torch.zeros(16, 16, 2, 16).half()}, "k_pages: expected torch.float32"),
    ({"k_pages": torch.zeros(16, 2, 16, 16).transpose(1, 2)}, "k_pages: expected a contiguous pool"),
    ({"v_pages": torch.zeros(15, 16, 2, 16)}, "v_pages: expected k_pages' shape (16, 16, 2, 16)"),
    ({"page_table": torch.zeros(3, 5).long()}, "page_table: expected torch.int32"),
    ({"page_table": torch.zeros(2, 5).int()}, "page_table: expected torch.int32"),
    ({"lengths": torch.zeros(2).int()}, "lengths: expected torch.int32"),
    ({"lengths": [1, 2, 3]}, "lengths: expected a torch.Tensor"),
    ({"pages": torch.zeros(3, 5).int()}, "pages: expected torch.int32"),
    ({"pages": torch.zeros(3, 2, 0).int()}, "pages: an empty list"),
    ({"counts": torch.zeros(3, 2).int()}, "counts: of a list of pages, and there is none"),
    ({"pages": torch.ones(3, 2, 5).bool(), "counts": torch.zeros(3, 2).int()}, "counts: pages of torch.bool"),
    ({"pages": torch.zeros(3, 2, 5).int(), "counts": torch.zeros(3).int()}, "counts: expected torch.int32"),
    ({"tree": torch.ones(2, 2)}, "tree: expected torch.bool"),
    ({"tree": torch.ones(3, 3).bool()}, "tree: expected torch.int32"),
    ({"scale": float("nan")}, "scale"),
    ({"order": "pages"}, "order"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_bad_input_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperandError, match=re.escape(message)):
        paged_attention(**operands() | changes)
