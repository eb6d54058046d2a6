"""Products with a mask of blocks whose two factors are 8-bit tensors with a scale for each, as custom operators.

As `dsd` and `sdd`, for ``torch.float8_e4m3fn`` and ``torch.float8_e5m2`` in any pair, with results of more bits
(Micikevicius et al., FP8 Formats for Deep Learning, 2022). There are no gradients of numbers that were rounded so: a
training step calls these three products itself. Its third one, the gradient of the weight, is a `scaled_dsd` too: its
factors are copies of Xᵀ and Dᵀ, which tensor cores need along the contraction, and its mask is ``mask.transposed()``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.mask_launches import blocks_of, expanded
from sparsegen.integrations.torch.blocks.masked_products import check_words
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.integrations.torch.calls.prepared import aligned, is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.calls.tensor_checks import require_dtype, require_tensors
from sparsegen.matrix.block_mask import grid
from sparsegen.operators import Block, Density, DsdProblem, FactorType, Layout, MaskedProblem, SddProblem

NAMES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def scaled_dsd(
    x: Tensor,
    weight: Tensor,
    mask: BlockMaskTensor,
    scale_x: Tensor,
    scale_weight: Tensor,
    *,
    scale: float = 1.0,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """scale · scale_x · scale_weight · (X ⊙ mask) · Wᵀ; dead blocks of X are never read.

    Args:
        x: tokens × in features, 8-bit, contiguous.
        weight: out × in features, 8-bit, contiguous.
        mask: over X, in blocks of 128 or 256 features.
        scale_x, scale_weight: float32, one number each, on x's device: what a 1 in the tensor stands for.
        dtype: of the result: float16, bfloat16 or float32.

    Returns:
        tokens × out features, without a gradient.

    Raises:
        OperandError: shapes, dtypes, devices or memory orders that do not fit.
        NoVariantError: a GPU without warpgroups' tensor cores, or sizes that are no whole chunks of 16 bytes.
    """
    check_mask(mask)
    require_tensors(x=x, weight=weight, scale_x=scale_x, scale_weight=scale_weight)
    require_dtype(dtype)
    number = arguments.factor(scale, "scale", OperandError)
    both = _scales(scale_x, scale_weight, number, x)
    result: Tensor = _scaled_dsd(x, weight, both, mask.words, *mask.block, mask.density, dtype)
    return result


def scaled_sdd(
    d: Tensor,
    weight: Tensor,
    mask: BlockMaskTensor,
    scale_d: Tensor,
    scale_weight: Tensor,
    *,
    scale: float = 1.0,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """scale · scale_d · scale_weight · (D · W) ⊙ mask, tokens × in features; see `scaled_dsd`.

    Args:
        d: tokens × out features, 8-bit, contiguous.
        weight: out × in features, 8-bit, whose transpose is contiguous: ``weight.t().contiguous().t()``.
        mask: over the result.
    """
    check_mask(mask)
    require_tensors(d=d, weight=weight, scale_d=scale_d, scale_weight=scale_weight)
    require_dtype(dtype)
    number = arguments.factor(scale, "scale", OperandError)
    both = _scales(scale_d, scale_weight, number, d)
    result: Tensor = _scaled_sdd(d, weight, both, mask.words, *mask.block, mask.density, dtype)
    return result


def _dsd_of(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    words: Tensor,
    block_rows: int,
    block_columns: int,
    density: float,
    dtype: torch.dtype,
) -> Tensor:
    (m, k), n = _shape(x, "x"), _shape(weight, "weight")[0]
    _check_factors(x, weight, "x", (n, k), weight.is_contiguous(), "expected a contiguous tensor")
    call = _Call(m, k, n, (block_rows, block_columns), density, dtype)
    return call.run(DsdProblem, Layout.COLUMN, (m, n), x, weight, scale, words)


def _sdd_of(
    d: Tensor,
    weight: Tensor,
    scale: Tensor,
    words: Tensor,
    block_rows: int,
    block_columns: int,
    density: float,
    dtype: torch.dtype,
) -> Tensor:
    (m, n), k = _shape(d, "d"), _shape(weight, "weight")[1]
    wanted = "expected one whose transpose is contiguous, such as weight.t().contiguous().t()"
    _check_factors(d, weight, "d", (n, k), weight.t().is_contiguous(), wanted)
    call = _Call(m, k, n, (block_rows, block_columns), density, dtype)
    return call.run(SddProblem, Layout.ROW, (m, k), d, weight, scale, words)


@dataclass(frozen=True, slots=True)
class _Call:
    """A product but for its tensors: sizes and blocks of its mask, columns, the expected density, the result's type."""

    m: int
    k: int
    n: int
    block: tuple[int, int]
    density: float
    dtype: torch.dtype

    def run(
        self,
        kind: type[MaskedProblem],
        layout: Layout,
        shape: tuple[int, int],
        first: Tensor,
        weight: Tensor,
        scale: Tensor,
        words: Tensor,
    ) -> Tensor:
        """The product, of this shape."""
        if self.dtype not in DTYPES:
            raise OperandError(f"dtype: results are float16, bfloat16 or float32, not {self.dtype}")
        if not (self.m and self.k and self.n):
            return first.new_zeros(shape, dtype=self.dtype)
        check_words((self.m, self.k), self.block, words, first)
        device = kernel_device(first)
        if device is None:
            return self._plain(kind, first, weight, scale, words)
        names = [NAMES[tensor.dtype] for tensor in (first, weight)]
        problem = kind(  # type: ignore[call-arg]
            m=self.m, k=self.k, n=self.n, dtype=DTYPES[self.dtype], w_layout=layout,
            block=Block.parse(self.block), density=Density.parse(self.density),
            factor_type=FactorType("-".join(dict.fromkeys(names))),
        )  # fmt: skip
        operator = operators.get(problem, device, is_capturing(first))
        stored = aligned(first), aligned(weight if layout is Layout.COLUMN else weight.t())
        if first.is_cuda:
            result: Tensor = operator(*stored, words, scale=scale)
            return result
        found = operator(*(t.float().numpy() for t in stored), words.numpy(), scale=scale.numpy())
        return torch.from_numpy(found).to(self.dtype)

    def _plain(
        self, kind: type[MaskedProblem], first: Tensor, weight: Tensor, scale: Tensor, words: Tensor
    ) -> Tensor:
        """By PyTorch alone, in float32."""
        live = expanded(blocks_of(words, grid((self.m, self.k), self.block)), self.block, (self.m, self.k))
        left, right = first.float(), weight.float()
        if kind is SddProblem:
            return torch.where(live, left @ right * scale, 0).to(self.dtype)
        return (torch.where(live, left, 0) @ right.t() * scale).to(self.dtype)


def _shape(tensor: Tensor, name: str) -> tuple[int, int]:
    if tensor.dim() != 2:
        raise OperandError(f"{name}: expected a matrix, got shape {tuple(tensor.shape)}")
    return tensor.shape[0], tensor.shape[1]


def _check_factors(
    first: Tensor, weight: Tensor, name: str, shape: tuple[int, int], is_in_order: bool, wanted: str
) -> None:
    """Hold both factors against what kernels take.

    Raises:
        OperandError: other types, shapes, devices or memory orders.
    """
    for tensor, called in ((first, name), (weight, "weight")):
        if tensor.dtype not in NAMES:
            kinds = " or ".join(str(kind) for kind in NAMES)
            raise OperandError(
                f"{called}: expected {kinds}, got {tensor.dtype}; dsd and sdd take other types"
            )
    if tuple(weight.shape) != shape:
        raise OperandError(f"weight: expected shape {shape[0]} × {shape[1]}, got {tuple(weight.shape)}")
    if weight.device != first.device:
        raise OperandError(f"weight: expected one on {first.device}, got {weight.device}")
    along = "tensor cores take 8-bit numbers along the contraction"
    if not first.is_contiguous():
        raise OperandError(f"{name}: expected a contiguous tensor: {along}")
    if not is_in_order:
        raise OperandError(f"weight: {wanted}: {along}")


def _scales(one: Tensor, other: Tensor, scale: float, like: Tensor) -> Tensor:
    """The number by which the product is multiplied, on the device.

    Raises:
        OperandError: not one float32 on the device of ``like``.
    """
    for given, name in ((one, "first"), (other, "weight's")):
        if given.numel() != 1 or given.dtype != torch.float32 or given.device != like.device:
            raise OperandError(
                f"the {name} scale: expected one torch.float32 on {like.device}, got {tuple(given.shape)} "
                f"{given.dtype} on {given.device}"
            )
    return (one.detach() * other.detach() * scale).reshape(1)


_SCHEMA = "Tensor words, int block_rows, int block_columns, float density, ScalarType dtype) -> Tensor"
_scaled_dsd = DirectOperator(
    "scaled_dsd",
    f"(Tensor x, Tensor weight, Tensor scale, {_SCHEMA}",
    _dsd_of,
    fake=lambda x, weight, *rest: x.new_empty((x.shape[0], weight.shape[0]), dtype=rest[-1]),
    tensors=4,
)
_scaled_sdd = DirectOperator(
    "scaled_sdd",
    f"(Tensor d, Tensor weight, Tensor scale, {_SCHEMA}",
    _sdd_of,
    fake=lambda d, weight, *rest: d.new_empty((d.shape[0], weight.shape[1]), dtype=rest[-1]),
    tensors=4,
)
