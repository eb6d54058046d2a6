"""Products with a mask of blocks whose two factors are 8-bit tensors with a scale for each, as custom operators.

As `dsd` and `sdd`, for ``torch.float8_e4m3fn`` and ``torch.float8_e5m2`` in any pair, with results of more bits
(Micikevicius et al., FP8 Formats for Deep Learning, 2022). There are no gradients of numbers that were rounded so: a
training step calls these three products itself. Its third one, the gradient of the weight, is a `scaled_dsd` too: its
factors are copies of Xᵀ and Dᵀ, which tensor cores need along the contraction, and its mask is ``mask.transposed()``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.mask_launches import expanded
from sparsegen.integrations.torch.blocks.masked_products import check_words
from sparsegen.integrations.torch.blocks.plain_masks import blocks_of
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device_of
from sparsegen.integrations.torch.calls.launched_operator import LaunchedOperator
from sparsegen.integrations.torch.calls.launches import Result, launch_of
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.calls.tensor_checks import require_dtype, require_tensors
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
        dtype: type of the result: float16, bfloat16 or float32.

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
    result: Tensor = _scaled_dsd(x, weight, both, mask.words, *mask.shape, *mask.block, mask.density, dtype)
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
    result: Tensor = _scaled_sdd(d, weight, both, mask.words, *mask.shape, *mask.block, mask.density, dtype)
    return result


def _launch_dsd(
    x: Tensor, weight: Tensor, scale: Tensor, words: Tensor, *rest: object
) -> Callable[..., Tensor]:
    (m, k), n = _shape(x, "x"), _shape(weight, "weight")[0]
    _check_factors(x, weight, "x", (n, k), weight.is_contiguous(), "expected a contiguous tensor")
    places = {"x": 0, "w": 1, "mask": 3, "scale": 2}
    return _launch(DsdProblem, (m, k, n), Layout.COLUMN, (m, n), places, (x, weight, scale, words), rest)


def _launch_sdd(
    d: Tensor, weight: Tensor, scale: Tensor, words: Tensor, *rest: object
) -> Callable[..., Tensor]:
    (m, n), k = _shape(d, "d"), _shape(weight, "weight")[1]
    wanted = "expected one whose transpose is contiguous, such as weight.t().contiguous().t()"
    _check_factors(d, weight, "d", (n, k), weight.t().is_contiguous(), wanted)
    places = {"d": 0, "w": (1, Tensor.t), "mask": 3, "scale": 2}
    return _launch(SddProblem, (m, k, n), Layout.ROW, (m, k), places, (d, weight, scale, words), rest)


def _launch(
    kind: type[MaskedProblem],
    sizes: tuple[int, int, int],
    layout: Layout,
    shape: tuple[int, int],
    places: dict[str, Any],
    tensors: tuple[Tensor, ...],
    rest: tuple[Any, ...],
) -> Callable[..., Tensor]:
    """Returns the function that computes the product, of this shape, for tensors like these.

    Args:
        sizes: rows and columns of the mask, and the third one.
        layout: layout of W as k × n.
        rest: rows and columns of the mask and of a block, the expected density, and the result's type.
    """
    first, weight, _, words = tensors
    over, block, density, dtype = rest[:2], rest[2:4], rest[4], rest[5]
    if dtype not in DTYPES:
        raise OperandError(f"dtype: results are float16, bfloat16 or float32, not {dtype}")
    if not all(sizes):
        return lambda first, *_: first.new_zeros(shape, dtype=dtype)
    check_words(sizes[:2], over, block, words, first)
    names = [NAMES[tensor.dtype] for tensor in (first, weight)]
    problem = kind(  # type: ignore[call-arg]
        *(*sizes, DTYPES[dtype], Block.parse(block), Density.parse(density)),
        w_layout=layout,
        factor_type=FactorType("-".join(dict.fromkeys(names))),
    )
    device = kernel_device_of(first.device)
    if device is None:
        return partial(_plain, problem, dtype)
    operator = operators.get(problem, device)
    return launch_of(operator, problem, tensors, places, Result(shape, dtype=dtype))


def _plain(
    problem: MaskedProblem, dtype: torch.dtype, first: Tensor, weight: Tensor, scale: Tensor, words: Tensor
) -> Tensor:
    """Computes the product by PyTorch alone, in float32."""
    block = problem.block.rows, problem.block.columns
    live = expanded(blocks_of(words, problem.mask_layout), block, (problem.m, problem.k))
    left, right = first.float(), weight.float()
    if isinstance(problem, SddProblem):
        return torch.where(live, left @ right * scale, 0).to(dtype)
    return (torch.where(live, left, 0) @ right.t() * scale).to(dtype)


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


_SCHEMA = (
    "Tensor words, SymInt rows, SymInt columns, int block_rows, int block_columns, float density, "
    "ScalarType dtype) -> Tensor"
)
_scaled_dsd = LaunchedOperator(
    "scaled_dsd",
    f"(Tensor x, Tensor weight, Tensor scale, {_SCHEMA}",
    _launch_dsd,
    fake=lambda x, weight, *rest: x.new_empty((x.shape[0], weight.shape[0]), dtype=rest[-1]),
    tensors=4,
)
_scaled_sdd = LaunchedOperator(
    "scaled_sdd",
    f"(Tensor d, Tensor weight, Tensor scale, {_SCHEMA}",
    _launch_sdd,
    fake=lambda d, weight, *rest: d.new_empty((d.shape[0], weight.shape[1]), dtype=rest[-1]),
    tensors=4,
)
