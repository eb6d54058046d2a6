"""Options of attention with block masks besides Q, K and V: visible keys, the scale, and the operator's problem."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.calls.tensor_checks import require_real
from sparsegen.matrix.block_mask import grid
from sparsegen.operators import BlockAttentionProblem, MasksOf, Room, ScoreChange, SinkLogits, TokenOrder
from sparsegen.operators.attention.scores import ValueColumns
from sparsegen.operators.attention.span import Band, Span
from sparsegen.operators.masked.masked_problem import BLOCK_SIDES, Block, Density

P = TypeVar("P", bound=BlockAttentionProblem)


@dataclass(frozen=True, slots=True)
class Beside:
    """Tensors of a call beside Q, K and V; None for those that there are not.

    Attributes:
        words: of masks, items × heads × words.
        numbers, bits: of partial blocks, as `PartialBlocks` has them.
        slopes, sink_logits: one for each query head.
    """

    words: Tensor | None = None
    numbers: Tensor | None = None
    bits: Tensor | None = None
    slopes: Tensor | None = None
    sink_logits: Tensor | None = None

    def given(self) -> dict[str, Tensor]:
        """Tensors that there are, by the names of the operator's operands."""
        names = {"mask": self.words, "numbers": self.numbers, "bits": self.bits}
        names |= {"slopes": self.slopes, "sink_logits": self.sink_logits}
        return {name: tensor.contiguous() for name, tensor in names.items() if tensor is not None}


class AttentionOptions(NamedTuple):
    """All of a call but its tensors; see `block_attention`.

    Attributes:
        softcap: 0 for none.
        window: 0 for none.
        block_rows, block_columns: sides of the mask's blocks; 0 without a mask.
        density, longest: see `BlockMaskTensor`.
    """

    scale: float
    softcap: float
    causal: bool
    from_start: bool
    window: int
    sinks: int
    block_rows: int
    block_columns: int
    density: float
    deterministic: bool
    longest: float = 0.0

    @property
    def block(self) -> tuple[int, int]:
        return self.block_rows, self.block_columns

    @property
    def span(self) -> Span:
        return Span(self.causal, self.from_start, self.window, self.sinks)

    def band(self, queries: int, keys: int) -> Band:
        """Band of the keys that queries see by position."""
        return self.span.band(queries, keys)

    def problem(self, kind: type[P], q: Tensor, k: Tensor, v: Tensor, more: Beside) -> P:
        """The operator's problem for tensors that were checked, of a dtype that kernels know.

        Args:
            kind: problem class of the forward or of the backward pass.
        """
        batch, heads, queries, head_dim = q.shape
        words, masks, shared = more.words, MasksOf.NOBODY, dict[str, Any]()
        if more.bits is not None:
            shared["partial_blocks"] = Room(more.bits.shape[0])
        shared["scores"] = ScoreChange.of(softcap=self.softcap > 0, slopes=more.slopes is not None)
        if more.sink_logits is not None:
            shared["sinks"] = SinkLogits.HEADS
        if v.shape[3] != head_dim:
            shared["value_dim"] = ValueColumns(v.shape[3])
        if words is not None:
            masks = masks_of(words.shape[0] > 1, words.shape[1] > 1)
            longest = self.longest if kind is BlockAttentionProblem else 0.0  # gradients split no rows
            shared |= {"block": Block.parse(self.block), "density": Density(self.density, longest)}
        return kind(
            queries=queries,
            keys=k.shape[2],
            kv_heads=k.shape[1],
            group=heads // k.shape[1],
            head_dim=head_dim,
            dtype=DTYPES[q.dtype],
            span=self.span,
            masks=masks,
            order=memory_order(q),
            batch=batch,
            **shared,
        )


# What the custom operators of both passes take behind their own tensors: the fields of `Beside`, then the options.
SCHEMA = ", ".join(
    (
        *(f"Tensor? {field.name}" for field in fields(Beside)),
        *(f"{kind.__name__} {name}" for name, kind in get_type_hints(AttentionOptions).items()),
    )
)


def masks_of(are_of_items: bool, are_of_heads: bool) -> MasksOf:
    """Returns the parts of a batch that have masks of their own."""
    if are_of_items:
        return MasksOf.ITEMS_AND_HEADS if are_of_heads else MasksOf.ITEMS
    return MasksOf.HEADS if are_of_heads else MasksOf.ALL


def memory_order(q: Tensor) -> TokenOrder:
    """The order in which batch × heads × tokens × head_dim lie in memory, or lie nearly."""
    is_by_tokens = q.shape[1] > 1 and q.shape[2] > 1 and q.stride(1) < q.stride(2)
    return TokenOrder.TOKENS if is_by_tokens else TokenOrder.HEADS


def empty_like(tensor: Tensor, order: TokenOrder) -> Tensor:
    """A new tensor of the shape batch × heads × tokens × head_dim, without gaps in this order of memory."""
    batch, heads, tokens, head_dim = tensor.shape
    if order is TokenOrder.HEADS:
        return tensor.new_empty((batch, heads, tokens, head_dim))
    strides = tokens * heads * head_dim, head_dim, heads * head_dim, 1
    return tensor.new_empty_strided((batch, heads, tokens, head_dim), strides)


def result_like(q: Tensor, v: Tensor) -> Tensor:
    """Room for O: q's shape and order in memory, and v's columns."""
    columns = v.shape[3]
    return empty_like(
        q if columns == q.shape[3] else q[..., :1].expand(*q.shape[:3], columns), memory_order(q)
    )


def statistics_like(q: Tensor) -> Tensor:
    """Room for a number for each query, such as its log-sum-exp: float32, of float64 as wide."""
    return q.new_empty(q.shape[:3], dtype=q.dtype if q.dtype is torch.float64 else torch.float32)


def sink_gradient_like(q: Tensor, sink_logits: Tensor | None) -> Tensor:
    """Room for the gradient by the sinks' logits; without any, no number."""
    count = 0 if sink_logits is None else sink_logits.shape[0]
    return q.new_empty(count, dtype=q.dtype if q.dtype is torch.float64 else torch.float32)


def check_operands(q: Tensor, k: Tensor, v: Tensor, more: Beside) -> None:
    """Hold Q, K, V and what masks them against each other.

    Raises:
        OperandError: shapes, dtypes or devices that do not fit, by the operand's name.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        require_real(tensor, name)
        if tensor.dim() != 4:
            raise OperandError(
                f"{name}: expected batch × heads × tokens × head_dim, got shape {tuple(tensor.shape)}; "
                f"{name}[None] makes heads a batch of one"
            )
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise OperandError(
                f"{name}: expected {q.dtype} on {q.device}, got {tensor.dtype} on {tensor.device}"
            )
    batch, heads, _, head_dim = q.shape
    if not head_dim:
        raise OperandError("head_dim: expected at least one column of q, got 0")
    if k.shape[0] != batch or k.shape[3] != head_dim:
        wanted = f"{batch} × any heads × any keys × {head_dim}"
        raise OperandError(f"k: expected shape {wanted}, as q has, got {tuple(k.shape)}")
    if v.shape[:3] != k.shape[:3] or not v.shape[3]:
        wanted = " × ".join(map(str, k.shape[:3]))
        raise OperandError(f"v: expected shape {wanted} × any columns, as k has, got {tuple(v.shape)}")
    if (heads % k.shape[1]) if k.shape[1] else heads:
        raise OperandError(
            f"k: its heads ({k.shape[1]}) do not divide q's ({heads}): as many query heads share each of them"
        )
    words = more.words
    if words is not None and words.device != q.device:
        raise OperandError(f"mask: expected one on {q.device}, where q is, got one on {words.device}")
    if more.bits is not None and more.bits.device != q.device:
        raise OperandError(f"elements: expected them on {q.device}, where q is, got {more.bits.device}")
    for name, numbers in (("slopes", more.slopes), ("sink_logits", more.sink_logits)):
        if numbers is not None and (numbers.shape != (heads,) or numbers.device != q.device):
            raise OperandError(
                f"{name}: expected one number for each of {heads} query heads on {q.device}, got shape "
                f"{tuple(numbers.shape)} on {numbers.device}"
            )


def check_elements(elements: Tensor, shape: tuple[int, ...], q: Tensor) -> None:
    """Hold bools against batch × heads × queries × keys; raises OperandError."""
    if elements.dtype != torch.bool or elements.device != q.device:
        raise OperandError(
            f"elements: expected torch.bool on {q.device}, true where a query sees a key, got {elements.dtype} on "
            f"{elements.device}"
        )
    fits = elements.dim() == 4 and all(n in (1, m) for n, m in zip(elements.shape, shape, strict=True))
    if not fits:
        raise OperandError(
            f"elements: expected a shape that broadcasts to batch × heads × queries × keys = "
            f"{' × '.join(map(str, shape))}, got {tuple(elements.shape)}"
        )


def check_grid(words: Tensor, block: tuple[int, int], lead: tuple[int, int], places: tuple[int, int]) -> None:
    """Checks the buffers of masks, batch elements × heads × words, against what they lie over.

    Args:
        lead: batch and query heads.
        places: queries and keys.

    Raises:
        OperandError: another grid, other blocks than the operator takes, or a number of masks that is neither 1 nor
            that of batch and heads.
    """
    if not set(block) <= set(BLOCK_SIDES):
        sides = ", ".join(map(str, BLOCK_SIDES))
        raise OperandError(
            f"mask: attention takes blocks whose sides are {sides}, not {block[0]} × {block[1]}"
        )
    expected = grid(places, block).words
    fits = words.dim() == 3 and all(n in (1, m) for n, m in zip(words.shape, lead, strict=False))
    if not fits or words.dtype != torch.uint64 or words.shape[-1] != expected:
        raise OperandError(
            f"mask: expected one over {places[0]} queries × {places[1]} keys in blocks of {block[0]} × {block[1]} "
            f"({expected} torch.uint64), for all, for each of {lead[0]} items, each of {lead[1]} query heads, or both; "
            f"got {words.dtype} of shape {tuple(words.shape)}"
        )
