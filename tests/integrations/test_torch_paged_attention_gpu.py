"""Attention over a paged cache on a GPU: results, and a graph that follows new lists, lengths and tables."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_database")]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("pycuda")

from cuda_graphs import captured  # noqa: E402

from sparsegen.integrations.torch import masks, paged_attention  # noqa: E402

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAMES = ("page_table", "lengths", "pages", "counts")
REPLAYS = 1000


def operands(
    dtype: Any,
    head_dim: int,
    *,
    batch: int = 5,
    queries: int = 1,
    group: int = 4,
    page: int = 64,
    slots: int = 40,
) -> dict[str, Any]:
    torch.manual_seed(0)
    kv_heads, pool = 2, batch * slots
    given = {
        "q": torch.randn(batch, queries, kv_heads * group, head_dim, device="cuda", dtype=dtype),
        "k_pages": torch.randn(pool, page, kv_heads, head_dim, device="cuda", dtype=dtype),
        "v_pages": torch.randn(pool, page, kv_heads, head_dim, device="cuda", dtype=dtype),
    }
    return given | drawn(0, batch, kv_heads, page, slots)


def drawn(seed: int, batch: int = 5, kv_heads: int = 2, page: int = 64, slots: int = 40) -> dict[str, Any]:
    random = torch.Generator("cuda").manual_seed(seed)
    table = torch.randperm(batch * slots, device="cuda", generator=random).view(batch, slots).int()
    lengths = torch.randint(0, page * slots + 1, (batch,), device="cuda", generator=random).int()
    live = torch.rand(batch, kv_heads, slots, device="cuda", generator=random) < 0.4
    return dict(zip(NAMES, (table, lengths, *masks.page_list(live)), strict=True))


def exactly(given: dict[str, Any], **options: Any) -> Any:
    """The same in float64, by PyTorch."""
    wide = {n: t.double() if t.is_floating_point() else t for n, t in given.items()}
    return paged_attention(**wide, return_lse=True, **options)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    ("queries", "group", "page"), [(1, 4, 16), (1, 1, 64), (4, 8, 32), (16, 4, 128), (1, 16, 256)]
)
def test_results(queries: int, group: int, page: int, head_dim: int, dtype: Any) -> None:
    given = operands(dtype, head_dim, queries=queries, group=group, page=page)
    given |= drawn(1, page=page)
    lists = {n: given[n] for n in ("q", "k_pages", "v_pages", "page_table", "lengths")}
    tree = torch.rand(queries, queries, device="cuda") < 0.5
    tree = (tree | torch.eye(queries, dtype=torch.bool, device="cuda")).tril()
    for some, options in ((given, {}), (given, {"tree": tree}), (lists, {})):
        found, right = paged_attention(**some, return_lse=True, **options), exactly(some, **options)
        torch.testing.assert_close(found[0].double(), right[0], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        torch.testing.assert_close(found[1].double(), right[1], rtol=1e-3, atol=1e-3)


def test_a_graph_follows_what_lies_in_the_tensors() -> None:
    given = operands(torch.float16, 128)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph, out = captured(lambda: paged_attention(**given), stream)
        for seed in range(REPLAYS):
            for name, tensor in drawn(seed).items():
                given[name].copy_(tensor)
            graph.replay()
            replayed = out.clone()
            assert torch.equal(replayed, paged_attention(**given)), seed
    stream.synchronize()
