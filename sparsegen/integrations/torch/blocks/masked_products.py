"""Three differentiable products with a mask of blocks for every call, as custom operators of PyTorch.

With X of tokens × in features, a mask M over it, W of out × in features and a number s:

- `dsd`: s · (X ⊙ M) · Wᵀ + bias, a linear layer behind structured dropout;
- `sdd`: s · (D · W) ⊙ M, its gradient with respect to X, for D of tokens × out features;
- `dsd_transposed`: s · Dᵀ · (X ⊙ M), its gradient with respect to W.

The gradient of each is made of the other two, so that derivatives of any order exist (A. Lo, Efficient Sparse Training
with Structured Dropout). `torch.compile` sees each as one operator; a new mask prepares and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.concurrent_gradients import GradientLaunches, beside_another
from sparsegen.integrations.torch.blocks.plain_products import PlainProduct
from sparsegen.integrations.torch.blocks.product_launch import Product
from sparsegen.integrations.torch.calls.column_sums import column_sums, sums_like
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.direct import PLAIN, Asked, Context, asked
from sparsegen.integrations.torch.calls.launched_operator import LaunchedOperator
from sparsegen.integrations.torch.calls.launches import (
    Gradients,
    Launch,
    TensorLaunch,
    View,
    calls,
)
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.tensor_checks import check_tensor, require_tensors
from sparsegen.matrix.block_mask import grid
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    Layout,
    MaskedProblem,
    Rest,
    SddProblem,
)
from sparsegen.operators.masked.masked_problem import BLOCK_SIDES

LARGEST = torch.finfo(torch.float32).max


def dsd(
    x: Tensor,
    weight: Tensor,
    mask: BlockMaskTensor,
    bias: Tensor | None = None,
    *,
    scale: float = 1.0,
    relu: bool = False,
    dense: Dense | str = "auto",
) -> Tensor:
    """scale · (X ⊙ mask) · Wᵀ + bias; whatever dead blocks of X hold plays no part.

    Args:
        x: tokens × in features.
        weight: out × in features, of x's dtype and device; a transpose of in × out ones is read where it lies.
        mask: over X.
        bias: out features, likewise.
        relu: set negative results to zero. It needs a bias.
        dense: permission of PyTorch's own product of X with its dead blocks set to zero: ``"auto"`` if it takes less
            time, which is tried when sizes are first met on a GPU (`sparsegen.measure.decision`), ``"never"`` or
            ``"always"``. Gradients go by it too, each by its own times.

    Returns:
        tokens × out features. Of float32 tensor cores take the 19 highest bits of each factor (TF32), those of kernels
        and of PyTorch's product alike.

    Raises:
        OperandError: shapes, dtypes or devices that do not fit.
        ConfigError: a word for ``dense`` that is none.
    """
    if type(x) not in PLAIN or type(weight) not in PLAIN or (bias is not None and type(bias) not in PLAIN):
        require_tensors(x=x, weight=weight, bias=bias)
    if type(mask) is not BlockMaskTensor or type(scale) is not float or not abs(scale) <= LARGEST:
        scale = _checked(mask, scale)
    if type(relu) is not bool or (relu and bias is None):
        relu = _checked_relu(relu, bias)
    if type(dense) is not str:
        dense = str(Dense.parse(dense))
    result: Tensor = _dsd(
        x, weight, bias, mask.words, scale, *mask.shape, *mask.block, mask.density, relu, dense
    )
    return result


def dsd_transposed(
    x: Tensor, d: Tensor, mask: BlockMaskTensor, *, scale: float = 1.0, dense: Dense | str = "auto"
) -> Tensor:
    """scale · Dᵀ · (X ⊙ mask), out × in features, for D of tokens × out features; see `dsd`."""
    if type(x) not in PLAIN or type(d) not in PLAIN:
        require_tensors(x=x, d=d)
    if type(mask) is not BlockMaskTensor or type(scale) is not float or not abs(scale) <= LARGEST:
        scale = _checked(mask, scale)
    if type(dense) is not str:
        dense = str(Dense.parse(dense))
    result: Tensor = _dsd_transposed(x, d, mask.words, scale, *mask.shape, *mask.block, mask.density, dense)
    return result


def sdd(
    d: Tensor, weight: Tensor, mask: BlockMaskTensor, *, scale: float = 1.0, dense: Dense | str = "auto"
) -> Tensor:
    """scale · (D · W) ⊙ mask, tokens × in features, for D of tokens × out features: live blocks alone are computed, the
    others are zero; see `dsd`.
    """
    if type(d) not in PLAIN or type(weight) not in PLAIN:
        require_tensors(d=d, weight=weight)
    if type(mask) is not BlockMaskTensor or type(scale) is not float or not abs(scale) <= LARGEST:
        scale = _checked(mask, scale)
    if type(dense) is not str:
        dense = str(Dense.parse(dense))
    result: Tensor = _sdd(d, weight, mask.words, scale, *mask.shape, *mask.block, mask.density, dense)
    return result


def sdd_into(out: Tensor, d: Tensor, weight: Tensor, mask: BlockMaskTensor, *, scale: float = 1.0) -> Tensor:
    """The live blocks of scale · (D · W) written into ``out``, whose dead blocks stay as they are; see `sdd`.

    There is no gradient: inputs are taken as `torch.no_grad` does.

    Args:
        out: tokens × in features, contiguous, of d's dtype and device, on 16 bytes.

    Returns:
        ``out``.
    """
    require_tensors(out=out, d=d, weight=weight)
    scale = _checked(mask, scale)
    torch.ops.sparsegen.sdd_into(out, d, weight, mask.words, scale, *mask.shape, *mask.block, mask.density)
    return out


def _checked(mask: Any, scale: object) -> float:
    """The scale as a number; what is usual is not looked at by more functions than a call itself."""
    check_mask(mask)
    return arguments.factor(scale, "scale", OperandError)


def _checked_relu(relu: object, bias: Tensor | None) -> bool:
    relu = arguments.flag(relu, "relu", OperandError)
    if relu and bias is None:
        raise OperandError("relu=True needs a bias: use torch.relu on the result without one")
    return relu


_MASK = (
    "Tensor words, float scale, SymInt rows, SymInt columns, int block_rows, int block_columns, float density"
)


def _launch_dsd(
    x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *rest: Any
) -> Callable[..., Tensor]:
    *mask, relu, dense = rest
    check_tensor(x, "x", (None, None), x)
    check_tensor(weight, "weight", (None, x.shape[1]), x, free="out features")
    (m, k), n = x.shape, weight.shape[0]
    if bias is not None:
        check_tensor(bias, "bias", (n,), x)
    if not (m and n and k):
        return partial(_without_terms, (m, n), relu)
    epilogue = Epilogue.NONE if bias is None else Epilogue.BIAS_RELU if relu else Epilogue.BIAS
    layout, w = _weight(weight)
    problem = problem_of(DsdProblem, (m, k, n), x, words, *mask, w_layout=layout, epilogue=epilogue)
    places = {"x": 0, "w": (1, w), "mask": 3} | ({} if bias is None else {"bias": 2})
    return Product(problem, mask[0], (x, weight, bias, words), places, (m, n)).launch(dense)


def _without_terms(
    shape: tuple[int, int], relu: bool, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor
) -> Tensor:
    """The result where nothing is multiplied."""
    empty = x.new_zeros(shape) if bias is None else bias.detach().expand(shape).clone()
    return empty.relu() if relu else empty


def _launch_transposed(x: Tensor, d: Tensor, words: Tensor, *rest: Any) -> Callable[..., Tensor]:
    *mask, dense = rest
    check_tensor(x, "x", (None, None), x)
    check_tensor(d, "d", (x.shape[0], None), x, free="out features")
    if not (x.numel() and d.numel()):
        shape = d.shape[1], x.shape[1]
        return lambda x, d, words: x.new_zeros(shape)
    return _transposed_product(x, d, words, *mask).launch(dense)


def _transposed_product(x: Tensor, d: Tensor, words: Tensor, *mask: Any) -> Product:
    (m, k), n = x.shape, d.shape[1]
    problem = problem_of(DsdTransposedProblem, (m, k, n), x, words, *mask, y_layout=Layout.COLUMN)
    return Product(problem, mask[0], (x, d, words), {"x": 0, "d": 1, "mask": 2}, (n, k))


def _launch_sdd(
    d: Tensor, weight: Tensor, words: Tensor, *others: Any, rest: Rest = Rest.FILLED
) -> Callable[..., Tensor]:
    *mask, dense = others
    check_tensor(d, "d", (None, None), d)
    check_tensor(weight, "weight", (d.shape[1], None), d, free="in features")
    (m, n), k = d.shape, weight.shape[1]
    if not (m and k):
        return lambda d, weight, words, out=None: d.new_zeros((m, k)) if out is None else out
    if not n:
        problem = problem_of(SddProblem, (m, k, 1), d, words, *mask, rest=rest)
        return PlainProduct(problem, mask[0], kernel_device(d))
    return _sdd_product(d, weight, words, *mask, rest=rest).launch(dense)


def _sdd_product(d: Tensor, weight: Tensor, words: Tensor, *mask: Any, rest: Rest = Rest.FILLED) -> Product:
    (m, n), k = d.shape, weight.shape[1]
    layout, w = _weight(weight)
    problem = problem_of(SddProblem, (m, k, n), d, words, *mask, w_layout=layout, rest=rest)
    return Product(problem, mask[0], (d, weight, words), {"d": 0, "w": (1, w), "mask": 2}, (m, k))


def _launch_sdd_into(
    out: Tensor, d: Tensor, weight: Tensor, words: Tensor, *mask: object
) -> Callable[..., Tensor]:
    launch = _launch_sdd(d, weight, words, *mask, Dense.NEVER, rest=Rest.KEPT)
    check_tensor(out, "out", (d.shape[0], weight.shape[1]), d)
    if not out.is_contiguous():
        raise OperandError("out: expected a contiguous tensor, which is written in place")
    return lambda out, d, weight, words: launch(d, weight, words, out=out)


def _weight(weight: Tensor) -> tuple[Layout, View]:
    """Returns the layout of W, out × in features, as k × n, and the function that views it so."""
    if not weight.is_contiguous() and weight.t().is_contiguous():
        return Layout.ROW, Tensor.t
    return Layout.COLUMN, Tensor.contiguous


def problem_of(
    kind: type[MaskedProblem],
    sizes: tuple[int, int, int],
    first: Tensor,
    words: Tensor,
    scale: float,
    rows: int,
    columns: int,
    block_rows: int,
    block_columns: int,
    density: float,
    **traits: Any,
) -> MaskedProblem:
    """The problem that tensors ask for; float64 as float32, which PyTorch computes itself.

    Args:
        sizes: rows and columns of the mask, and the third one.
        first: the first operand.
        rows, columns: of elements, those that the mask was made over.

    Raises:
        OperandError: words of another mask, or of one whose blocks no product takes.
    """
    block = block_rows, block_columns
    check_words(sizes[:2], (rows, columns), block, words, first)
    dtype = DTYPES.get(first.dtype, DType.FLOAT32)
    return kind(*sizes, dtype, Block.parse(block), Density.parse(density), **traits)


_sdd_into_of = calls.of(4, _launch_sdd_into)


@torch.library.custom_op(
    "sparsegen::sdd_into",
    mutates_args=("out",),
    schema=f"(Tensor(a!) out, Tensor d, Tensor weight, {_MASK}) -> ()",
)
def _sdd_into(out: Tensor, *inputs: object) -> None:
    _sdd_into_of(out, *inputs)


def check_words(
    shape: tuple[int, int], over: tuple[int, int], block: tuple[int, int], words: Tensor, like: Tensor
) -> None:
    """Hold a mask over some elements and its buffer against the sizes, and against the device of another tensor.

    Raises:
        OperandError: it is of another mask, or of one whose blocks no product takes.
    """
    if not set(block) <= set(BLOCK_SIDES):
        sides = ", ".join(map(str, BLOCK_SIDES))
        raise OperandError(f"mask: products take blocks whose sides are {sides}, not {block[0]} × {block[1]}")
    layout = grid(shape, block)
    is_buffer = tuple(words.shape) == (layout.words,) and words.dtype == torch.uint64
    if over != shape or not is_buffer or words.device != like.device:
        raise OperandError(
            f"mask: expected one over {shape[0]} × {shape[1]} elements in blocks of {block[0]} × {block[1]} on "
            f"{like.device} ({layout.words} torch.uint64), got one over {over[0]} × {over[1]}: {tuple(words.shape)} "
            f"{words.dtype} on {words.device}"
        )


@_sdd_into.register_fake
def _(out: Tensor, *_: object) -> None:
    return None


# --- gradients ---


def _remember_dsd(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, words, *mask, relu, dense = inputs
    ctx.save_for_backward(x, weight, words, output if relu else None)
    ctx.mask = *mask, dense


def _dsd_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, words, y = ctx.saved_tensors
    return (*dsd_gradients(dy, x, weight, words, y, ctx.mask, ctx.needs_input_grad), *[None] * 9)


def dsd_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    words: Tensor,
    y: Tensor | None,
    mask: tuple[Any, ...],
    needs: Sequence[bool],
) -> Gradients:
    """The gradients of `dsd` by x, the weight and the bias, those that are needed.

    Args:
        y: the result of one with a ReLU.
        mask: what the operators take behind the mask's words.
    """
    if y is not None:
        dy = torch.where(y > 0, dy, 0)
    what = asked(dy, x, weight)
    if what is Asked.NOTHING:
        return gradient_launches(dy, x, weight, words, mask, needs)(dy, x, weight, words)
    return (
        _sdd.by(what, dy, weight, words, *mask) if needs[0] else None,
        _dsd_transposed.by(what, x, dy, words, *mask) if needs[1] else None,
        column_sums.by(what, dy) if needs[2] else None,
    )


def product_launch(*inputs: Any) -> Launch:
    """The launch of `dsd` for its operator's arguments."""
    return calls.launch(4, _launch_dsd, inputs)


def gradient_launches(
    dy: Tensor, x: Tensor, weight: Tensor, words: Tensor, mask: tuple[Any, ...], needs: Sequence[bool]
) -> GradientLaunches:
    """The launches of its gradients by x, the weight and the bias, those that are needed."""
    given, rest = (dy, x, weight, words), (mask, tuple(needs[:3]))
    found: GradientLaunches = calls.target(
        (_launch_gradients, rest), given, _launch_gradients, (*given, *rest)
    )
    return found


def _launch_gradients(
    dy: Tensor, x: Tensor, weight: Tensor, words: Tensor, mask: tuple[Any, ...], needs: tuple[bool, ...]
) -> GradientLaunches:
    in_turn = (
        calls.launch(3, _launch_sdd, (dy, weight, words, *mask)) if needs[0] else None,
        calls.launch(3, _launch_transposed, (x, dy, words, *mask)) if needs[1] else None,
        sums_like(dy) if needs[2] else None,
    )
    both = None
    if needs[0] and needs[1] and not is_capturing(dy):  # when nothing can be prepared
        given = dy, x, weight, words
        both = calls.target((_launch_both, mask), given, _launch_both, (*in_turn[:2], *given, mask))
    return GradientLaunches(in_turn, both)


def _launch_both(
    by_x: Launch,
    by_weight: Launch,
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    words: Tensor,
    mask: tuple[Any, ...],
) -> tuple[TensorLaunch, TensorLaunch] | None:
    """The same by kernels that leave each other room; None if there are none."""
    *rest, _ = mask
    beside_x = _beside_another(by_x, partial(_sdd_product, dy, weight, words, *rest))
    beside_weight = _beside_another(by_weight, partial(_transposed_product, x, dy, words, *rest))
    return None if beside_x is None or beside_weight is None else (beside_x, beside_weight)


def _beside_another(launch: Launch, product_of: Callable[[], Product]) -> TensorLaunch | None:
    if not isinstance(launch, TensorLaunch):
        return None
    product = product_of()
    operator = beside_another(launch.operator, product.scale)
    found = None if operator is None else product.by(operator)
    return found if isinstance(found, TensorLaunch) else None


def _remember(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, words, *mask, dense = inputs
    ctx.save_for_backward(first, second, words)
    ctx.mask, ctx.dense = mask, dense


def _transposed_backward(ctx: Context, dw: Tensor) -> tuple[Tensor | None, ...]:
    x, d, words = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        _sdd(d, dw, words, *ctx.mask, ctx.dense) if needs[0] else None,
        _dsd(x, dw, None, words, *ctx.mask, False, ctx.dense) if needs[1] else None,
        *[None] * 8,
    )


def _sdd_backward(ctx: Context, dx: Tensor) -> tuple[Tensor | None, ...]:
    d, weight, words = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        _dsd(dx, weight, None, words, *ctx.mask, False, ctx.dense) if needs[0] else None,
        _dsd_transposed(dx, d, words, *ctx.mask, ctx.dense) if needs[1] else None,
        *[None] * 8,
    )


_dsd = LaunchedOperator(
    "dsd",
    f"(Tensor x, Tensor weight, Tensor? bias, {_MASK}, bool relu, str dense) -> Tensor",
    _launch_dsd,
    fake=lambda x, weight, *_: x.new_empty((x.shape[0], weight.shape[0])),
    tensors=4,
    backward=_dsd_backward,
    remember=_remember_dsd,
)
_dsd_transposed = LaunchedOperator(
    "dsd_transposed",
    f"(Tensor x, Tensor d, {_MASK}, str dense) -> Tensor",
    _launch_transposed,
    fake=lambda x, d, *_: x.new_empty((d.shape[1], x.shape[1])),
    tensors=3,
    backward=_transposed_backward,
    remember=_remember,
)
_sdd = LaunchedOperator(
    "sdd",
    f"(Tensor d, Tensor weight, {_MASK}, str dense) -> Tensor",
    _launch_sdd,
    fake=lambda d, weight, *_: d.new_empty((d.shape[0], weight.shape[1])),
    tensors=3,
    backward=_sdd_backward,
    remember=_remember,
)
