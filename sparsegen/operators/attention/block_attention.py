"""``block_attention``: attention over the live blocks of masks that every call brings, with its log-sum-exp."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError, OperandError
from sparsegen.matrix.block_mask import BlockMask, BlockMaskLayout, grid
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.partial_blocks import expanded, words_of_block
from sparsegen.operators.attention.operands import SOFTCAP, random_partial_blocks, random_slopes
from sparsegen.operators.attention.reference import attention_of
from sparsegen.operators.attention.scores import AS_KEYS, NO_ROOM, HeadScores, Room, ValueColumns
from sparsegen.operators.attention.span import FULL, Band, Span, kept_band
from sparsegen.operators.attention.traits import MasksOf, ScoreChange, SinkLogits, TokenOrder
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import DType, WordType
from sparsegen.operators.base.fields import batch_size, element_type, parameter, size, trait
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import Reference
from sparsegen.operators.base.scale import kept_scale
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.masked.masked_problem import USUAL_BLOCK, USUAL_DENSITY, Block, Density
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array
from sparsegen.system.threads import in_threads

ROWS = 256  # queries of which the reference is computed together
_WITHOUT = {
    "mask": 'masks of nobody; prepare it with masks="all"',
    "numbers": "no room for partial blocks; prepare it with partial_blocks=",
    "bits": "no room for partial blocks; prepare it with partial_blocks=",
    "softcap": 'no capped scores; prepare it with scores="softcap"',
    "slopes": 'no biases; prepare it with scores="alibi"',
    "sink_logits": 'no learned logits; prepare it with sinks="heads"',
}
STEEP = 24.0  # growth of scores, in units of the exponent, over the keys of random operands


class BlockAttentionOperator(Operator):
    """softmax(scale · Q · Kᵀ at the live places) · V; a query that sees no key gets zeros, and -inf as its LSE."""

    problem: BlockAttentionProblem

    def __call__(
        self,
        q: object,
        k: object,
        v: object,
        mask: object = None,
        out: object = None,
        stream: object = None,
        scale: object = None,
        band: object = None,
        lse: object = None,
        numbers: object = None,
        bits: object = None,
        softcap: object = None,
        slopes: object = None,
        sink_logits: object = None,
    ) -> Any:
        """Attend; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            q, k, v: contiguous, of the problem's dtype, in its order of tokens and heads (`TokenOrder`); with a batch
                one for each element. Keys and values must be finite also where no query sees them, or their block is
                dead for every query of a tile.
            mask: the words of a `BlockMask` over queries × keys, or of as many as the problem's `MasksOf` says.
            scale: one float32, an array of q's kind; by default what `prepare` was given, else 1 / √head_dim.
            band: three int32 (`Band.words`), an array of q's kind; by default those of the problem's span.
            lse: float32, heads × queries (with a batch one for each element), which the call writes: the natural
                logarithm of each query's sum of exponentials.
            numbers, bits: partial blocks (`sparsegen.matrix.partial_blocks`), where the problem has room for some:
                int32, as many matrices of rows × columns of blocks as there are masks, and uint64, room × words of a
                block.
            softcap: one float32, where scores are capped; may be given to `prepare`.
            slopes: float32, one for each query head, where scores have ALiBi's biases.
            sink_logits: float32, one for each query head, where the problem has them.
        """
        of_call = self.problem.given_of_call(
            mask=mask,
            numbers=numbers,
            bits=bits,
            scale=scale,
            band=band,
            softcap=softcap,
            slopes=slopes,
            sink_logits=sink_logits,
        )
        return self._run((q, k, v, *of_call, lse), out, stream)


@dataclass(frozen=True, slots=True)
class BlockAttentionProblem(Problem):
    """O = softmax(s · Q · Kᵀ at the live places) · V for heads of tokens, and the log-sum-exp of each query's scores.

    Query heads h · group to h · group + group - 1 share the key head h. A place (i, j) is live where its block of the
    mask is, and the `Band` lets query i see key j. A query without a live place gets zeros and -inf.

    Masks, the band, the scale are data of the call, so that variants serve all of them, and captured graphs follow what
    lies in their buffers. Tuning draws masks with independent blocks at the expected density.
    """

    operator: ClassVar[str] = "block_attention"
    title: ClassVar[str] = "attention by blocks"
    summary: ClassVar[str] = "softmax(s · Q · Kᵀ at live blocks) · V, a mask for every call"
    matrix_sizes: ClassVar[tuple[str, str]] = ("queries", "keys")
    dense_sizes: ClassVar[tuple[str, ...]] = ("kv_heads", "group", "head_dim")
    keeps: ClassVar[tuple[str, ...]] = ("scale", "band", "softcap")
    has_pattern: ClassVar[bool] = False
    operator_type: ClassVar[type[BlockAttentionOperator]] = BlockAttentionOperator

    queries: int = size("query tokens of a head")
    keys: int = size("key tokens of a head")
    kv_heads: int = size("heads of K and V, of a batch element", usual=8)
    group: int = size("query heads that share a head of K and V", usual=1)
    head_dim: int = size("columns of Q, K and V, of a head", usual=128, flags=("--head-dim",))
    dtype: DType = element_type()
    block: Block = parameter(USUAL_BLOCK, "rows and columns of a block of the mask")
    density: Density = parameter(USUAL_DENSITY, "expected share of live blocks")
    span: Span = parameter(FULL, "what queries see by their places")
    masks: MasksOf = trait(MasksOf.ALL, "who has a mask of its own", near=True)
    order: TokenOrder = trait(TokenOrder.HEADS, "memory order of tokens and heads", near=True)
    partial_blocks: Room = parameter(
        NO_ROOM, "partial blocks that there is room for; 0: live blocks are full"
    )
    scores: ScoreChange = trait(ScoreChange.PLAIN, "what becomes of scores", near=True, unsaid=True)
    sinks: SinkLogits = trait(SinkLogits.NONE, "learned logits in the sum", near=True, unsaid=True)
    value_dim: ValueColumns = parameter(AS_KEYS, "columns of V and O, of a head; 0: those of Q and K")
    batch: int = batch_size()

    # --- its sizes ---

    @property
    def heads(self) -> int:
        """Query heads of a batch element."""
        return self.kv_heads * self.group

    @property
    def value_columns(self) -> int:
        """Columns of V and O, of a head."""
        return self.value_dim.count or self.head_dim

    @property
    def has_mask(self) -> bool:
        return self.masks is not MasksOf.NOBODY

    @property
    def has_partial(self) -> bool:
        """True if live blocks may be partial."""
        return self.has_mask and self.partial_blocks.blocks > 0

    @property
    def has_options(self) -> bool:
        """True with partial blocks, changed scores or learned logits."""
        plain = ScoreChange.PLAIN, SinkLogits.NONE
        return self.has_partial or (self.scores, self.sinks) != plain

    @property
    def mask_layout(self) -> BlockMaskLayout:
        """Layout of the parts of a mask in its buffer."""
        return grid((self.queries, self.keys), (self.block.rows, self.block.columns))

    @property
    def band(self) -> Band:
        """The band that is expected."""
        return self.span.band(self.queries, self.keys)

    # --- its sparsity ---

    @property
    def live_share(self) -> float:
        """The expected part of all places that are live."""
        return (self.density.share if self.has_mask else 1.0) * self.span.share(self.queries, self.keys)

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the expected features of the live places: rows of blocks differ as independent ones do."""
        dense = self.density.features(self.queries, self.keys, self.mask_layout.columns)
        mean = self.live_share * self.keys
        return Features(
            m=self.queries,
            k=self.keys,
            nnz=min(MAX_INDEX, round(mean * self.queries)),
            row_mean=mean,
            row_cov=dense.row_cov if self.has_mask else 0.0,
            row_max=self.keys,
            block_fill=1.0,
        )

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """A name of the masks and spans that are expected; there is no pattern to have one."""
        masks = f"blocks of {self.block}, {self.density} live" if self.has_mask else "no masks"
        text = f"attention over {self.queries} x {self.keys}, {masks}, {self.span}"
        return hashlib.sha256(text.encode()).hexdigest()

    def in_words(self, density: float) -> str:
        """The problem for people; it knows its density itself."""
        return f"{self}, {self.live_share:.1%} of the places live"

    def computed_share(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> float:
        """Live places of the masks that were drawn over those that are expected; may be above 1."""
        band = Band(*(int(word) for word in operands["band"]))
        seen = band.seen_of_blocks(self.queries, self.keys, self.block.columns)
        of_blocks = np.add.reduceat(seen, np.arange(0, self.queries, self.block.rows), axis=0)
        if not self.has_mask:
            return float(of_blocks.sum()) / max(1.0, self.live_share * self.queries * self.keys)
        masks = operands["mask"].reshape(-1, self.mask_layout.words)
        live = [int(of_blocks[self.mask_of(words).blocks()].sum()) for words in masks]
        return float(np.mean(live)) / max(1.0, self.live_share * self.queries * self.keys)

    # --- its masks ---

    def mask_of(self, words: Array) -> BlockMask:
        """The mask whose words these are."""
        return BlockMask((self.queries, self.keys), (self.block.rows, self.block.columns), words)

    def mask_words(self, mask: Any) -> Any:
        """The buffer of masks, of whatever library; None stays None.

        Raises:
            OperandError: a mask of other sizes or blocks, or a buffer on the host that no mask has.
        """
        words = getattr(mask, "words", None)
        if words is not None:
            wanted = (self.queries, self.keys), (self.block.rows, self.block.columns)
            if (mask.shape, mask.block) != wanted:
                (rows, columns), (p, q) = wanted
                raise OperandError(
                    f"mask: expected {rows} × {columns} places in blocks of {p} × {q}, got {mask.shape[0]} × "
                    f"{mask.shape[1]} in blocks of {mask.block[0]} × {mask.block[1]}"
                )
            return words
        if isinstance(mask, np.ndarray) and mask.dtype == WordType.UINT64.storage and mask.ndim:
            for one in mask.reshape(-1, mask.shape[-1]) if mask.shape[-1] == self.mask_layout.words else ():
                try:
                    self.mask_of(one)
                except MatrixError as error:
                    raise OperandError(f"mask: {error}") from error
        return mask

    def given_of_call(self, **given: Any) -> tuple[Any, ...]:
        """Puts what a call gives of `of_call` in order; None where nothing is given.

        Raises:
            OperandError: an operand that this problem has not, or a mask that does not fit.
        """
        names = [spec.name for spec in self.of_call()]
        for name, value in given.items():
            if value is not None and name not in names:
                raise OperandError(f"{name}: expected none, as the problem has {_WITHOUT[name]}")
        if "mask" in names:
            given["mask"] = self.mask_words(given["mask"])
        return tuple(given[name] for name in names)

    # --- its operands ---

    def dense(self, name: str, heads: int, tokens: int, *, is_written: bool = False) -> TensorSpec:
        """Q, K, V, O or the gradient of one."""
        columns = self.value_columns if name[-1] in "vo" else self.head_dim
        shape = self.order.shape(heads, tokens, columns)
        return TensorSpec(name, self.of_batch(shape), self.dtype, 16, is_written=is_written)

    def of_call(self) -> tuple[TensorSpec, ...]:
        """Operands of forward and backward besides Q, K and V: masks, partial blocks, scale, band and changes of
        scores.
        """
        found = []
        if self.has_mask:
            found.append(TensorSpec("mask", self._of_masks((self.mask_layout.words,)), WordType.UINT64, 8))
        if self.has_partial:
            layout, words = self.mask_layout, words_of_block((self.block.rows, self.block.columns))
            found += [
                TensorSpec("numbers", self._of_masks((layout.rows, layout.columns)), WordType.INT32, 4),
                TensorSpec("bits", (self.partial_blocks.blocks, words), WordType.UINT64, 8),
            ]
        found += [TensorSpec("scale", (1,), DType.FLOAT32), TensorSpec("band", (3,), WordType.INT32)]
        if self.scores.has_softcap:
            found.append(TensorSpec("softcap", (1,), DType.FLOAT32))
        if self.scores.has_slopes:
            found.append(TensorSpec("slopes", (self.heads,), DType.FLOAT32))
        if self.sinks is SinkLogits.HEADS:
            found.append(TensorSpec("sink_logits", (self.heads,), DType.FLOAT32))
        return tuple(found)

    def _of_masks(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of as many arrays as there are masks."""
        if self.masks.are_of_heads:
            shape = (self.heads, *shape)
        return self.of_batch(shape) if self.masks.are_of_items else shape

    def statistics(self, name: str, *, is_written: bool = False) -> TensorSpec:
        """A float32 for each query of each head, such as the LSE."""
        shape = self.of_batch((self.heads, self.queries))
        return TensorSpec(name, shape, DType.FLOAT32, 4, is_written=is_written)

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            self.dense("q", self.heads, self.queries),
            self.dense("k", self.kv_heads, self.keys),
            self.dense("v", self.kv_heads, self.keys),
            *self.of_call(),
            self.statistics("lse", is_written=True),
        )

    def result(self, nnz: int) -> TensorSpec:
        return self.dense("o", self.heads, self.queries)

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The scale, by default 1 / √head_dim, the band, by default the span's, and room for the LSE."""
        lse = np.zeros(self.statistics("lse").shape, np.float32)
        return self._kept_of_call(given) | {"lse": lse}

    def _kept_of_call(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The scale, the band and, where it was given, the softcap."""
        found = kept_scale(given, self.head_dim**-0.5) | {"band": kept_band(given, self.band)}
        if "softcap" in given:
            if not self.scores.has_softcap:
                raise OperandError(f"softcap: expected none, as the problem has {_WITHOUT['softcap']}")
            found["softcap"] = np.array([arguments.factor(given["softcap"], "softcap")], np.float32)
        return found

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Masks at the expected density, the usual scale and the span's band, and normal numbers.

        Beside them a ramp: keys have more and more of one direction, and a third of the queries much of it, another
        third of the opposite one, so that their scores grow or shrink over the keys by many powers of e.
        """
        found = {}
        for spec in self.operands(nnz):
            if spec.name in ("q", "k", "v"):
                found[spec.name] = normal_numbers(rng, spec)
            elif spec.name == "mask":
                count = math.prod(spec.shape[:-1])
                found["mask"] = np.stack([self._random_mask(rng) for _ in range(count)]).reshape(spec.shape)
            else:
                found[spec.name] = np.full(spec.shape, np.nan, np.float32)
        found |= {"scale": np.array([self.head_dim**-0.5], np.float32), "band": self.band.words}
        found |= self._random_changes(rng)
        self._slope(found, rng)
        return found

    def _random_changes(self, rng: np.random.Generator) -> dict[str, Array]:
        """Partial blocks, and what changes scores."""
        found = {}
        for spec in self.of_call():
            if spec.name == "numbers":
                block = self.block.rows, self.block.columns
                drawn = random_partial_blocks(rng, spec.shape, self.partial_blocks.blocks, block)
                found["numbers"], found["bits"] = drawn
            elif spec.name == "softcap":
                found["softcap"] = np.array([SOFTCAP], np.float32)
            elif spec.name == "slopes":
                found["slopes"] = random_slopes(self.heads)
            elif spec.name == "sink_logits":
                found["sink_logits"] = rng.normal(0.0, 2.0, self.heads).astype(np.float32)
        return found

    def _slope(self, operands: dict[str, Array], rng: np.random.Generator) -> None:
        """Add the ramp to Q and K."""
        direction = rng.choice((-1.0, 1.0), self.head_dim) / math.sqrt(self.head_dim)  # a vector of length 1
        height = math.sqrt(
            STEEP * math.sqrt(self.head_dim)
        )  # height of the ramp: its square / √head_dim is that of scores after the scale
        for name, tokens in (("q", self.queries), ("k", self.keys)):
            if name == "q":
                part = height * np.array([1.0, -1.0, 0.0])[np.arange(tokens) % 3]
            else:
                part = height * np.linspace(-0.5, 0.5, tokens)
            lead = part[:, None, None] if self.order is TokenOrder.TOKENS else part[None, :, None]
            real = self.dtype.from_storage(operands[name]).astype(np.float32, copy=False)
            operands[name] = self.dtype.to_storage(real + (lead * direction).astype(np.float32))

    def _random_mask(self, rng: np.random.Generator) -> Array:
        layout = self.mask_layout
        live = self.density.drawn(rng, (layout.rows, layout.columns))
        words: Array = BlockMask.from_blocks(
            live, (self.block.rows, self.block.columns), (self.queries, self.keys)
        ).words
        return words

    def cost(self, nnz: int) -> Cost:
        """A product of length head_dim and one of V's columns for each live place; every array once."""
        live = self.batch * self.heads * round(self.live_share * self.queries * self.keys)
        moved = sum(spec.nbytes for spec in (*self.operands(nnz), self.result(nnz)))
        return Cost(flop=2 * live * (self.head_dim + self.value_columns), bytes=moved)

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
        one = self.alone
        found = [one._references(given, threads)[1] for _, given in self.batch_elements(matrix, operands)]
        shape = self.statistics("lse").shape
        exact, magnitude = (
            np.stack([getattr(r, name) for r in found]).reshape(shape) for name in ("exact", "magnitude")
        )
        return {"lse": Reference(exact, magnitude, found[0].terms, DType.FLOAT32)}

    def _references(self, operands: Mapping[str, Array], threads: int) -> tuple[Reference, Reference]:
        """O and the LSE of a batch element."""
        q, k, v = (self.by_heads(operands[name]) for name in ("q", "k", "v"))
        sees, scores = self.sees(operands), self.scores_of_heads(operands)
        exact, magnitude = (np.zeros((*q.shape[:2], self.value_columns)) for _ in range(2))
        lse, lse_magnitude = np.zeros(q.shape[:2]), np.zeros(q.shape[:2])

        def attend(place: tuple[int, int]) -> None:
            head, start = place
            part = slice(start, min(start + ROWS, self.queries))
            of_key = head // self.group
            found = attention_of(
                q[head, part], k[of_key], v[of_key], sees(head, part), scores[head], self.dtype, start
            )
            exact[head, part], magnitude[head, part] = found[:2]
            lse[head, part], lse_magnitude[head, part] = found[2:]

        places = [(head, start) for head in range(self.heads) for start in range(0, self.queries, ROWS)]
        in_threads(attend, places, threads)
        if self.order is TokenOrder.TOKENS:
            exact, magnitude = (np.ascontiguousarray(a.swapaxes(0, 1)) for a in (exact, magnitude))
        terms = self.terms(self.without_pattern)
        return (
            Reference(exact, magnitude, terms, self.dtype),
            Reference(lse, lse_magnitude, terms, DType.FLOAT32),
        )

    def by_heads(self, stored: Array) -> Array:
        """A batch element's Q, K, V or the like as real numbers, heads × tokens × head_dim."""
        real = self.dtype.from_storage(stored)
        return real if self.order is TokenOrder.HEADS else real.swapaxes(0, 1)

    def scores_of_heads(self, operands: Mapping[str, Array]) -> list[HeadScores]:
        """The scores of each query head."""
        return [HeadScores.of(operands, head, self.keys - self.queries) for head in range(self.heads)]

    def sees(self, operands: Mapping[str, Array]) -> Callable[[int, slice], Array]:
        """A function of a query head and some queries, which begin with a block: bool, queries × keys."""
        band = Band(*(int(word) for word in operands["band"]))
        masks, (rows, columns) = (
            self._live_of_heads(operands.get("mask")),
            (self.block.rows, self.block.columns),
        )
        numbers = operands.get("numbers")

        def found(head: int, part: slice) -> Array:
            seen = band.seen(part, self.keys)
            if masks is not None:
                own = masks[head][np.arange(part.start, part.stop) // rows]
                seen &= own.repeat(columns, axis=1)[:, : self.keys]
            if numbers is not None:
                layout = self.mask_layout
                own = numbers.reshape(-1, layout.rows, layout.columns)[head if self.masks.are_of_heads else 0]
                own = own[part.start // rows : ceil_div(part.stop, rows)]
                seen &= expanded(own, operands["bits"], (rows, columns), seen.shape)
            return seen

        return found

    def _live_of_heads(self, words: Array | None) -> list[Array] | None:
        """Returns the live blocks of each query head of a batch element; None if all are live."""
        if words is None:
            return None
        masks = [self.mask_of(one).blocks() for one in words.reshape(-1, self.mask_layout.words)]
        return masks if self.masks.are_of_heads else masks * self.heads

    def terms(self, matrix: CsrMatrix) -> Array:
        """The number of keys; the magnitude knows how many of them are live."""
        return np.full(1, self.keys)


PROBLEMS = (BlockAttentionProblem,)
