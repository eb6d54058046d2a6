"""``paged_attention``: attention of a few queries over a paged cache of keys and values, with its log-sum-exp.

Pages: Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from sparsegen.errors import ConfigError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators.attention.paged_traits import Chosen, PageCount, PageSize
from sparsegen.operators.attention.reference import attention_of
from sparsegen.operators.attention.scores import HeadScores
from sparsegen.operators.attention.traits import TokenOrder
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import DType, WordType
from sparsegen.operators.base.fields import batch_size, element_type, parameter, size, trait
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import Reference
from sparsegen.operators.base.scale import kept_scale
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.masked.masked_problem import USUAL_DENSITY, Density
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.numpy_types import Array
from sparsegen.system.threads import in_threads

SHORTEST = 0.5  # of the longest sequence that operands are drawn for
STEEP = 3.0  # standard deviation of scores of random operands, in units of the exponent
MOST_CHECKED = 4096  # tokens of a sequence where a variant first runs
SMALL = ("lengths", "counts", "scale", "tree", "lse")  # operands of which calls read or write all
WORD = 32  # queries of a word of the tree


class PagedAttentionOperator(Operator):
    """softmax(scale · Q · Kᵀ over chosen pages) · V; a query that sees no key gets zeros, and -inf as its LSE."""

    problem: PagedAttentionProblem

    def __call__(
        self,
        q: object,
        k_pages: object,
        v_pages: object,
        page_table: object,
        lengths: object,
        pages: object = None,
        counts: object = None,
        out: object = None,
        stream: object = None,
        scale: object = None,
        tree: object = None,
        lse: object = None,
    ) -> object:
        """Attend; see `Operator` for ``out``, ``stream``, the result and the errors. Kernels trust numbers of pages.

        Args:
            q: contiguous, of the problem's dtype, in its order of tokens and heads (`TokenOrder`); with a batch one for
                each sequence.
            k_pages, v_pages: pages × an order's page, of all sequences. Nothing behind a sequence's last
                token is read.
            page_table: int32, the page that holds each page's worth of a sequence's tokens; with a batch one row for
                each sequence.
            lengths: int32, the tokens of a sequence, its queries' own the last of them; at least 0.
            pages, counts: int32, for each head of keys numbers of chosen pages among the sequence's (columns of
                ``page_table``), in any order, each once; and the number of those that count. None if all pages count.
            scale: one float32, an array of q's kind; by default what `prepare` was given, else 1 / √head_dim.
            tree: int32, for each query bits of the last ``queries`` tokens that it sees (`tree_words`);
                by default its own and those before.
            lse: float32, heads × queries (with a batch one for each sequence), which the call writes: the natural
                logarithm of each query's sum of exponentials.
        """
        chosen = () if self.problem.chosen is Chosen.ALL else (pages, counts)
        given = (q, k_pages, v_pages, page_table, lengths, *chosen, scale, tree, lse)
        return self._run(given, out, stream)


@dataclass(frozen=True, slots=True)
class PagedAttentionProblem(Problem):
    """O = softmax(s · Q · Kᵀ) · V for the newest tokens of sequences whose keys and values lie in pages.

    Query heads h · group to h · group + group - 1 share the key head h. The queries of a sequence are its last tokens:
    query i sees all tokens before the first of them, and of these those that row i of the tree names. Where pages are
    chosen, tokens of others are hidden; a query without a visible token gets zeros and -inf.

    Tables, lengths, lists, trees and the scale are data of the call. Tuning draws lengths between half of ``keys`` and
    all, and pages at the expected density, independently for each head.
    """

    operator: ClassVar[str] = "paged_attention"
    title: ClassVar[str] = "attention over pages"
    summary: ClassVar[str] = "softmax(s · Q · Kᵀ over chosen pages) · V, for few queries"
    matrix_sizes: ClassVar[tuple[str, str]] = ("queries", "keys")
    dense_sizes: ClassVar[tuple[str, ...]] = ("kv_heads", "group", "head_dim")
    keeps: ClassVar[tuple[str, ...]] = ("scale", "tree")
    has_pattern: ClassVar[bool] = False
    operator_type: ClassVar[type[PagedAttentionOperator]] = PagedAttentionOperator

    queries: int = size("newest tokens of a sequence, which attend", usual=1)
    keys: int = size("most tokens of a sequence, queries among them")
    kv_heads: int = size("heads of K and V", usual=8)
    group: int = size("query heads that share a head of K and V", usual=4)
    head_dim: int = size("columns of Q, K and V, of a head", usual=128, flags=("--head-dim",))
    dtype: DType = element_type()
    page: PageSize = parameter(PageSize(64), "tokens of a page")
    pool: PageCount = parameter(PageCount(0), "pages of all sequences; 0: as many as they need at most")
    density: Density = parameter(USUAL_DENSITY, "expected share of chosen pages")
    capacity: PageCount = parameter(PageCount(0), "places of a list of chosen pages; 0: one for each page")
    chosen: Chosen = trait(Chosen.LISTED, "which pages queries attend to", near=True)
    order: TokenOrder = trait(TokenOrder.TOKENS, "memory order of tokens and heads, of pages too", near=True)
    batch: int = batch_size()

    # --- its sizes ---

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group

    @property
    def slots(self) -> int:
        """Places of a sequence in the page table."""
        return ceil_div(self.keys, self.page.count)

    @property
    def pool_pages(self) -> int:
        """Pages of the pool."""
        return self.pool.count or self.batch * self.slots

    @property
    def list_places(self) -> int:
        """Places of a list of chosen pages."""
        return self.capacity.count or self.slots

    @property
    def alone(self) -> Self:
        """The problem of one sequence, whose pool is that of all."""
        return self if self.batch == 1 else replace(self, batch=1, pool=PageCount(self.pool_pages))

    # --- its sparsity ---

    @property
    def live_share(self) -> float:
        """The expected part of the pages that are chosen."""
        return self.density.share if self.chosen is Chosen.LISTED else 1.0

    @property
    def live_tokens(self) -> float:
        """The expected tokens that a head of a sequence attends to."""
        return self.live_share * self.keys * (1 + SHORTEST) / 2

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the expected features of what queries see."""
        return Density(self.live_share).features(self.queries, self.keys, self.slots)

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """A name of the choices that are expected; there is no pattern to have one."""
        text = f"{self.queries} queries on pages of {self.page} of {self.keys} tokens, {self.live_share:g} chosen"
        return hashlib.sha256(text.encode()).hexdigest()

    def in_words(self, density: float) -> str:
        """The problem for people; it knows its density itself."""
        return f"{self}, {self.live_share:.1%} of the pages chosen"

    def computed_share(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> float:
        """Tokens that heads attend to over those that are expected; may be above 1."""
        tokens = 0
        for _, own in self.batch_elements(matrix, operands):
            tokens += sum(self._visible(own, head).size for head in range(self.kv_heads))
        return float(tokens / max(1.0, self.live_tokens * self.kv_heads * self.batch))

    # --- its operands ---

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        pages = (self.pool_pages, *self.order.shape(self.kv_heads, self.page.count, self.head_dim))
        lists = (
            ("pages", (self.kv_heads, self.list_places)),
            ("counts", (self.kv_heads,)),
        )
        words = (
            ("page_table", (self.slots,)),
            ("lengths", (1,)),
            *(lists if self.chosen is Chosen.LISTED else ()),
        )
        return (
            self._tokens("q"),
            *(TensorSpec(name, pages, self.dtype, 16) for name in ("k_pages", "v_pages")),
            *(TensorSpec(name, self.of_batch(shape), WordType.INT32, 4) for name, shape in words),
            TensorSpec("scale", (1,), DType.FLOAT32),
            TensorSpec("tree", (self.queries, ceil_div(self.queries, WORD)), WordType.INT32, 4),
            TensorSpec("lse", self.of_batch((self.heads, self.queries)), DType.FLOAT32, 4, is_written=True),
        )

    def result(self, nnz: int) -> TensorSpec:
        return self._tokens("o")

    def _tokens(self, name: str) -> TensorSpec:
        shape = self.order.shape(self.heads, self.queries, self.head_dim)
        return TensorSpec(name, self.of_batch(shape), self.dtype, 16)

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The scale, by default 1 / √head_dim, the tree, by default the causal one, and room for the LSE."""
        tree = np.asarray(given.get("tree", causal_tree(self.queries)))
        wanted = (self.queries, ceil_div(self.queries, WORD))
        if tree.shape != wanted or tree.dtype.kind not in "iu":
            raise ConfigError(
                f"tree: expected words of {wanted[0]} x {wanted[1]} (`tree_words`), got {tree!r}"
            )
        lse = np.zeros(self.of_batch((self.heads, self.queries)), np.float32)
        return kept_scale(given, self.head_dim**-0.5) | {"tree": tree.astype(np.int32), "lse": lse}

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Pages in any order, lengths from half of the keys to all, a tree, and normal numbers.

        The first sequence is the longest, and the last one ends within a page where it can.
        """
        specs = {spec.name: spec for spec in self.operands(nnz)}
        lengths = np.linspace(self.keys, max(1.0, SHORTEST * self.keys), self.batch).astype(np.int32)
        found = {
            name: normal_numbers(rng, specs[name], scale=STEEP**0.5 if name != "v_pages" else 1.0)
            for name in ("q", "k_pages", "v_pages")
        }
        found["lengths"] = lengths.reshape(specs["lengths"].shape)
        used = self.batch * self.slots
        table = rng.permutation(self.pool_pages)[np.arange(used) % self.pool_pages]
        found["page_table"] = table.astype(np.int32).reshape(specs["page_table"].shape)
        if self.chosen is Chosen.LISTED:
            found |= self._drawn_lists(rng, lengths, specs["pages"].shape, specs["counts"].shape)
        seen = (rng.random((self.queries, self.queries)) < 0.5) | np.eye(self.queries, dtype=bool)
        found["tree"] = tree_words(np.tril(seen))
        found["scale"] = np.array([self.head_dim**-0.5], np.float32)
        found["lse"] = np.full(specs["lse"].shape, np.nan, np.float32)
        return {name: found[name] for name in specs}

    def _drawn_lists(
        self, rng: np.random.Generator, lengths: Array, shape: tuple[int, ...], of_counts: tuple[int, ...]
    ) -> dict[str, Array]:
        """Independent pages of each sequence and head, at least one, in any order; behind them are others."""
        lists = np.zeros((self.batch, self.kv_heads, self.list_places), np.int32)
        counts = np.zeros((self.batch, self.kv_heads), np.int32)
        for i, head in np.ndindex(counts.shape):
            live = self.density.drawn(rng, (ceil_div(int(lengths[i]), self.page.count),))
            order = rng.permutation(live.size)
            order = order[np.argsort(~live[order], kind="stable")]
            lists[i, head] = np.resize(order, self.list_places)
            counts[i, head] = min(int(live.sum()), self.list_places)
        return {"pages": lists.reshape(shape), "counts": counts.reshape(of_counts)}

    def cost(self, nnz: int) -> Cost:
        """Two products of length head_dim for each visible pair; live tokens of K and V once for each head."""
        live = self.live_tokens * self.kv_heads * self.batch
        small = sum(spec.nbytes for spec in self.operands(nnz) if spec.name in SMALL)
        moved = 2 * self.head_dim * self.dtype.itemsize * (live + self.heads * self.queries * self.batch)
        return Cost(
            flop=round(4 * live * self.group * self.queries * self.head_dim), bytes=round(moved) + small
        )

    def to_check(self) -> Self:
        """See `Problem.to_check`: few sequences on a pool of their own, of fewer tokens than `MOST_CHECKED`."""
        return replace(
            self,
            batch=min(self.batch, 3),
            keys=min(self.keys, MOST_CHECKED),
            pool=PageCount(0),
            capacity=PageCount(0),
        )

    # --- what it computes ---

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference` and `attention_of`."""
        return self._references(operands, threads)[0]

    def written_references(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> dict[str, Reference]:
        """The LSE; see `Problem.written_references`."""
        found = [self.alone._references(own, threads)[1] for _, own in self.batch_elements(matrix, operands)]
        shape = self.of_batch((self.heads, self.queries))
        exact, magnitude = (
            np.stack([getattr(r, name) for r in found]).reshape(shape) for name in ("exact", "magnitude")
        )
        return {"lse": Reference(exact, magnitude, found[0].terms, DType.FLOAT32)}

    def _references(self, operands: Mapping[str, Array], threads: int) -> tuple[Reference, Reference]:
        """O and the LSE of a sequence."""
        by_heads = self.order is TokenOrder.HEADS
        real = {name: self.dtype.from_storage(operands[name]) for name in ("q", "k_pages", "v_pages")}
        q, k, v = (a if by_heads else a.swapaxes(-3, -2) for a in real.values())
        scale, length = float(operands["scale"][0]), int(operands["lengths"].reshape(-1)[0])
        exact, magnitude = np.zeros(q.shape), np.zeros(q.shape)
        lse, lse_magnitude = np.zeros(q.shape[:2]), np.zeros(q.shape[:2])

        tree = np.unpackbits(operands["tree"].view(np.uint8), axis=1, bitorder="little").astype(bool)
        lse[:] = -np.inf

        def attend(head: int) -> None:
            places = self._visible(operands, head)
            if not places.size:
                return
            page, row = (
                operands["page_table"].reshape(-1)[places // self.page.count],
                places % self.page.count,
            )
            new = places - (length - self.queries)  # number among the newest tokens, below 0 for those before
            seen = (new < 0) | tree[:, np.maximum(new, 0)]
            fewer = math.sqrt((places.size + 2) / (self.keys + 2))  # terms than those that are told
            for of in range(head * self.group, (head + 1) * self.group):
                found = attention_of(
                    q[of], k[page, head, row], v[page, head, row], seen, HeadScores(scale), self.dtype, 0
                )
                exact[of], magnitude[of] = found[0], found[1] * fewer
                lse[of], lse_magnitude[of] = found[2], found[3] * fewer

        in_threads(attend, list(range(self.kv_heads)), threads)
        if not by_heads:
            exact, magnitude = (np.ascontiguousarray(a.swapaxes(0, 1)) for a in (exact, magnitude))
        terms = self.terms(self.without_pattern)
        return (
            Reference(exact, magnitude, terms, self.dtype),
            Reference(lse, lse_magnitude, terms, DType.FLOAT32),
        )

    def _visible(self, operands: Mapping[str, Array], head: int) -> Array:
        """Places of a sequence's tokens on the pages that a head attends to."""
        length = int(operands["lengths"].reshape(-1)[0])
        places = np.arange(length)
        if self.chosen is Chosen.ALL:
            return places
        chosen = operands["pages"][head, : operands["counts"][head]]
        return places[np.isin(places // self.page.count, chosen)]

    def terms(self, matrix: CsrMatrix) -> Array:
        """The most keys; the magnitude knows how many of them are visible."""
        return np.full(1, self.keys)


def tree_words(seen: Array) -> Array:
    """Words of a tree, int32: bits of the newest tokens that each query sees.

    Args:
        seen: bool, queries × queries; each query sees at least its own token.
    """
    queries = seen.shape[0]
    padded = np.zeros((queries, round_up(queries, WORD)), bool)
    padded[:, :queries] = seen
    words: Array = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    return words


def causal_tree(queries: int) -> Array:
    """Words of the tree in which each query sees its own token and those before."""
    return tree_words(np.tril(np.ones((queries, queries), bool)))


PROBLEMS = (PagedAttentionProblem,)
