"""Attention over pages: by a kernel of ours where one computes it, else by PyTorch on gathered pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention.block_attention_kernels import has_kernel, launch
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.calls.tensor_checks import require_real, require_tensors
from sparsegen.operators import Chosen, PageCount, PagedAttentionProblem, PageSize, TokenOrder
from sparsegen.operators.attention.paged_traits import PAGE_SIZES
from sparsegen.operators.masked.masked_problem import Density

MOST_DRAFTS = 32  # queries of a tree, whose bits fit a word
ALIGNMENT = 16  # bytes that divide the addresses of pages


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a call."""

    batch: int
    queries: int
    heads: int
    head_dim: int
    pool: int
    page: int
    kv_heads: int
    slots: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


def _forward_of(*inputs: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    q, pages, counts, scale, by_heads = *inputs[:1], *inputs[5:7], *inputs[8:]
    sizes = checked(*inputs)
    device = kernel_device(q)
    if device is not None and q.numel() and sizes.slots and sizes.page in PAGE_SIZES:
        order = TokenOrder.HEADS if by_heads else TokenOrder.TOKENS
        capacity = 0 if pages is None else pages.shape[2]
        problem = PagedAttentionProblem(
            queries=sizes.queries,
            keys=sizes.slots * sizes.page,
            kv_heads=sizes.kv_heads,
            group=sizes.group,
            head_dim=sizes.head_dim,
            dtype=DTYPES[q.dtype],
            page=PageSize(sizes.page),
            pool=PageCount(sizes.pool),
            density=Density(min(1.0, max(1, capacity) / sizes.slots)),
            capacity=PageCount(capacity),
            chosen=Chosen.ALL if pages is None else Chosen.LISTED,
            order=order,
            batch=sizes.batch,
        )
        if has_kernel(problem, device):
            operator = operators.get(problem, device, is_capturing(q), scale=scale)
            every = None if pages is None or counts is not None else _every(pages)
            return _Forward(problem, operator, every)
    return partial(_plainly, sizes, scale, by_heads)


# O and the log-sum-exp, of the operator ``paged_attention``, whose arguments it takes.
attention = calls.of(8, _forward_of)


@dataclass(frozen=True, slots=True)
class _Forward:
    """Calls with tensors of one kind, prepared; ``every`` are the counts of whole lists."""

    problem: PagedAttentionProblem
    operator: Any
    every: Tensor | None

    def __call__(self, q: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor]:
        names = ("k_pages", "v_pages", "page_table", "lengths", "pages", "counts", "tree")
        given = {"q": q} | {
            name: tensor for name, tensor in zip(names, rest, strict=True) if tensor is not None
        }
        if self.every is not None:
            given["counts"] = self.every
        p = self.problem
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = q.new_empty((p.batch, p.heads, p.queries), dtype=torch.float32)
        if is_capturing(q):
            operators.keep(self)
        launch(p, self.operator, given, {"lse": lse}, out)
        return out, lse


def _every(pages: Tensor) -> Tensor:
    return torch.full(pages.shape[:2], pages.shape[2], dtype=torch.int32, device=pages.device)


def statistics(q: Tensor, sizes: Sizes) -> Tensor:
    """Room for each query's log-sum-exp: float32, of float64 as wide."""
    dtype = q.dtype if q.dtype is torch.float64 else torch.float32
    return q.new_empty((sizes.batch, sizes.heads, sizes.queries), dtype=dtype)


def page_list(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """A list of the places that are true, and how many these are, without waiting for the device.

    Args:
        chosen: bool, of any lead × places.

    Raises:
        OperandError: no tensor of bools.

    Returns:
        int32, the lead × places: the true ones in order, behind them the others; and int32, the lead.
    """
    require_tensors(chosen=chosen)
    if chosen.dtype is not torch.bool or not chosen.dim():
        raise OperandError(
            f"chosen: expected torch.bool, lead × places, got {chosen.dtype} {tuple(chosen.shape)}"
        )
    order = torch.sort(chosen, dim=-1, descending=True, stable=True).indices
    return order.to(torch.int32), chosen.sum(-1, dtype=torch.int32)


def tree_words(tree: Tensor) -> Tensor:
    """Bits of the newest tokens that each query sees, int32, queries × 1.

    Raises:
        OperandError: no square of bools, or one of more queries than a word has bits.
    """
    if tree.dtype is not torch.bool or tree.dim() != 2 or tree.shape[0] != tree.shape[1]:
        raise OperandError(
            f"tree: expected torch.bool, queries × queries, got {tree.dtype} {tuple(tree.shape)}"
        )
    if tree.shape[0] > MOST_DRAFTS:
        raise OperandError(f"tree: expected at most {MOST_DRAFTS} queries, got {tree.shape[0]}")
    bits = torch.arange(tree.shape[0], device=tree.device)
    return (tree.long() << bits).sum(-1, keepdim=True).to(torch.int32)  # of bit 31 the sign


def checked(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    pages: Tensor | None,
    counts: Tensor | None,
    tree: Tensor | None,
    scale: float,
    by_heads: bool,
) -> Sizes:
    """Hold what a call brings against each other.

    Raises:
        OperandError: shapes, dtypes or devices that do not fit, by the operand's name.
    """
    require_real(q, "q")
    inside = "heads × queries" if by_heads else "queries × heads"
    of_page = "heads of keys × tokens" if by_heads else "tokens × heads of keys"
    if q.dim() != 4:
        raise OperandError(
            f"q: expected batch × {inside} × head_dim, got shape {tuple(q.shape)}; q[:, None] adds a missing one"
        )
    batch, head_dim = q.shape[0], q.shape[3]
    heads, queries = (q.shape[1], q.shape[2]) if by_heads else (q.shape[2], q.shape[1])
    for name, tensor in (("k_pages", k_pages), ("v_pages", v_pages)):
        if tensor.dim() != 4 or tensor.shape[3] != head_dim:
            raise OperandError(
                f"{name}: expected pages × {of_page} × {head_dim} (head_dim of q), got {tuple(tensor.shape)}"
            )
        if (tensor.dtype, tensor.device) != (q.dtype, q.device):
            raise OperandError(
                f"{name}: expected {q.dtype} on {q.device}, as q, got {tensor.dtype} on {tensor.device}"
            )
        if not tensor.is_contiguous():
            raise OperandError(f"{name}: expected a contiguous pool, as a copy of it would be large")
    if v_pages.shape != k_pages.shape:
        raise OperandError(
            f"v_pages: expected k_pages' shape {tuple(k_pages.shape)}, got {tuple(v_pages.shape)}"
        )
    kv_heads, page = k_pages.shape[1:3] if by_heads else (k_pages.shape[2], k_pages.shape[1])
    if not kv_heads or heads % kv_heads or not page or not head_dim:
        raise OperandError(
            f"k_pages: its heads ({kv_heads}) do not divide q's ({heads}), or pages are empty: got "
            f"{tuple(k_pages.shape)} for {of_page} of each page"
        )
    slots = page_table.shape[1] if page_table.dim() == 2 else 0
    _check_words(page_table, "page_table", (batch, slots), "batch × places", q)
    _check_words(lengths, "lengths", (batch,), "batch", q)
    if pages is not None:
        listed = (batch, kv_heads, pages.shape[2] if pages.dim() == 3 else 0)
        _check_words(pages, "pages", listed, "batch × heads of keys × numbers", q)
        if counts is not None:
            _check_words(counts, "counts", listed[:2], "batch × heads of keys", q)
        elif not listed[2]:
            raise OperandError("pages: an empty list; pass counts= with it, or no list for all pages")
    if tree is not None:
        _check_words(tree, "tree", (queries, 1), "queries × 1", q)
    return Sizes(batch, queries, heads, head_dim, k_pages.shape[0], page, kv_heads, slots)


def _check_words(tensor: Tensor, name: str, shape: tuple[int, ...], means: str, q: Tensor) -> None:
    if tensor.shape != shape or tensor.dtype != torch.int32 or tensor.device != q.device:
        raise OperandError(
            f"{name}: expected torch.int32 on {q.device} of shape {means} = {' × '.join(map(str, shape))}, got "
            f"{tensor.dtype} on {tensor.device} of shape {tuple(tensor.shape)}"
        )


def _plainly(
    sizes: Sizes,
    scale: float,
    by_heads: bool,
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    pages: Tensor | None,
    counts: Tensor | None,
    tree: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Computes by PyTorch, a sequence at a time."""
    wide = q.dtype if q.dtype is torch.float64 else torch.float32
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = statistics(q, sizes)
    if pages is None:
        pages = torch.arange(sizes.slots, dtype=torch.int32, device=q.device).expand(
            sizes.batch, sizes.kv_heads, -1
        )
    if tree is None:
        tree = tree_words(torch.ones(2 * (sizes.queries,), dtype=torch.bool, device=q.device).tril())
    listed = pages.shape[2]
    head = torch.arange(sizes.kv_heads, device=q.device)[:, None]
    inside = torch.arange(sizes.page, device=q.device)
    with torch.autocast(q.device.type, enabled=False):
        for item in range(sizes.batch):
            own = pages[item].long()
            physical = page_table[item].long()[own.clamp(0, max(0, sizes.slots - 1))]
            tokens = (sizes.kv_heads, listed * sizes.page, sizes.head_dim)
            k, v = (
                (x[physical, head] if by_heads else x[physical, :, head]).reshape(tokens).to(wide)
                for x in (k_pages, v_pages)
            )
            place = own[..., None] * sizes.page + inside
            new = place - (lengths[item] - sizes.queries)
            bits = (
                tree >> new.clamp(0, sizes.queries - 1)[..., None, :] & 1
            )  # heads × numbers × queries × tokens
            seen = (new < 0)[..., None, :] | (bits.bool() & (new < sizes.queries)[..., None, :])
            if counts is not None:
                is_listed = torch.arange(listed, device=q.device) < counts[item][:, None]
                seen = seen & is_listed[..., None, None]
            seen = seen.transpose(1, 2).reshape(sizes.kv_heads, 1, sizes.queries, -1)
            rows = q[item] if by_heads else q[item].transpose(0, 1)
            rows = rows.to(wide).view(sizes.kv_heads, sizes.group, sizes.queries, sizes.head_dim)
            scores = (rows @ k.mT[:, None] * scale).masked_fill(~seen, float("-inf"))
            sums = scores.logsumexp(-1)
            weights = (scores - sums.masked_fill(sums.isinf(), 0.0)[..., None]).exp()
            # Tokens that nobody sees may hold anything, also what is no number.
            v = v.masked_fill(~seen.any(2).view(sizes.kv_heads, -1, 1), 0.0)
            found = (weights @ v[:, None]).view(sizes.heads, sizes.queries, sizes.head_dim).to(q.dtype)
            out[item] = found if by_heads else found.transpose(0, 1)
            lse[item] = sums.view(sizes.heads, sizes.queries)
    return out, lse
