"""Operators of block-masked products, prepared when a call first needs them; without a device of ours PyTorch's own."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from sparsegen import api
from sparsegen.integrations.torch.mask_launches import blocks_of, expanded
from sparsegen.integrations.torch.pattern import DTYPES, kernel_device
from sparsegen.integrations.torch.plain import WIDE
from sparsegen.integrations.torch.prepared import aligned, is_capturing
from sparsegen.kernels.base import Device
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
    Problem,
    Rest,
    SddProblem,
)

MOST_PREPARED = 128  # of this process, beside those that a graph was captured with


class Masked(StrEnum):
    """What is computed with a mask over X of m × k, and W of n × k."""

    DSD = "dsd"  # (X ⊙ mask) · Wᵀ, m × n
    DSD_TRANSPOSED = "dsd_transposed"  # its gradient with respect to W: Dᵀ · (X ⊙ mask), n × k
    SDD = "sdd"  # its gradient with respect to X: (D · W) ⊙ mask, m × k


@dataclass(frozen=True, slots=True)
class Call:
    """What a masked product is besides its tensors.

    Attributes:
        m, k, n: rows and columns of the mask, and the third size.
        scale: multiplies the result.
        density: the share of live blocks that is expected.
        epilogue: of ``dsd``.
        rest: what becomes of dead blocks of ``sdd``.
    """

    product: Masked
    m: int
    k: int
    n: int
    block: tuple[int, int]
    density: float
    scale: float = 1.0
    epilogue: Epilogue = Epilogue.NONE
    rest: Rest = Rest.FILLED

    def problem(self, dtype: DType, layout: Layout) -> MaskedProblem:
        """The operator's problem.

        Args:
            layout: of W as k × n; of ``dsd_transposed`` that of its result.
        """
        shared: dict[str, Any] = {"m": self.m, "k": self.k, "n": self.n, "dtype": dtype}
        shared |= {"block": Block.parse(self.block), "density": Density.parse(self.density)}
        match self.product:
            case Masked.DSD:
                return DsdProblem(**shared, w_layout=layout, epilogue=self.epilogue)
            case Masked.DSD_TRANSPOSED:
                return DsdTransposedProblem(**shared, y_layout=layout)
            case Masked.SDD:
                return SddProblem(**shared, w_layout=layout, rest=self.rest)


@dataclass(slots=True)
class _Prepared:
    operator: Any
    was_captured: bool = False


class Operators:
    """The latest operators, `MOST_PREPARED` of them and all that a CUDA graph was captured with.

    Attributes:
        found: by what they were prepared for.
    """

    def __init__(self) -> None:
        self.found: OrderedDict[tuple[Any, ...], _Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, problem: Problem, device: Device, captures: bool, **kept: Any) -> Any:
        """The operator of a problem, prepared unless it is there.

        Args:
            captures: a CUDA graph captures the call.
            kept: what `sparsegen.prepare` takes beside the problem.
        """
        key = problem, device.backend, device.index, *kept.items()
        with self._lock:
            if key not in self.found:
                self.found[key] = _Prepared(api.prepare(problem=problem, device=device, **kept))
                free = [old for old, prepared in self.found.items() if not prepared.was_captured]
                for old in free[: max(0, len(self.found) - MOST_PREPARED)]:
                    del self.found[old]
            found = self.found[key]
            found.was_captured |= captures
            self.found.move_to_end(key)
            return found.operator


operators = Operators()


def called(
    operator: Any, given: Sequence[Tensor], words: Tensor, out: Tensor | None = None, **added: Tensor
) -> Tensor:
    """What an operator makes of tensors and of what names live places, in ``out`` if it is given.

    The emulator takes NumPy arrays, and float32 for bfloat16, which NumPy has not.
    """
    tensors = [aligned(tensor) for tensor in given]
    more = {name: tensor.contiguous() for name, tensor in added.items()}
    result: Tensor
    if words.is_cuda:
        result = operator(*tensors, words, out=out, **more)
        return result
    dtype = given[0].dtype
    sent = torch.float32 if dtype is torch.bfloat16 else dtype
    arrays = [tensor.to(sent).numpy() for tensor in tensors]
    into = None if out is None else out.to(sent).numpy()
    found = operator(
        *arrays, words.numpy(), out=into, **{name: t.to(sent).numpy() for name, t in more.items()}
    )
    result = torch.from_numpy(found).to(dtype)
    return result if out is None else out.copy_(result)


@dataclass(frozen=True, slots=True)
class Ready:
    """What calls with tensors of one kind go to.

    Attributes:
        is_turned: whether it takes the transpose of the second factor.
    """

    operator: Any
    is_turned: bool

    def __call__(
        self, x: Tensor, other: Tensor, words: Tensor, bias: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """See `run`."""
        given = x, other.t() if self.is_turned else other
        added = {} if bias is None else {"bias": bias}
        return called(self.operator, given, words, out, **added)


Operands = tuple[Tensor, Tensor, Tensor, Tensor | None]  # both factors, the mask's buffer, and a bias
Computed = tuple[Tensor, Ready | None]  # a result and what computed it, if calls like this one may go there


class ReadyCalls:
    """What calls go to, by all that tells them apart: one that is like one before it needs no checks.

    There are at most `MOST_PREPARED`; one more takes the place of all.
    """

    def __init__(self) -> None:
        self._ready: dict[Hashable, Ready] = {}

    def run(
        self, product: Masked, operands: Operands, rest: tuple[Any, ...], first: Callable[..., Computed]
    ) -> Tensor:
        """The product by what a call like it went to, else by ``first``.

        While a CUDA graph captures that is ``first`` too, which keeps what the graph launches.

        Args:
            operands: tensors, the first one as `kind_of` wants it.
            rest: all other arguments.
            first: takes operands and rest, with all checks.
        """
        key = product, kind_of(*operands), rest
        ready = self._ready.get(key)
        if ready is not None and not is_capturing(operands[0]):
            return ready(*operands)
        result, ready = first(*operands, *rest)
        if ready is not None:
            if len(self._ready) >= MOST_PREPARED:
                self._ready.clear()
            self._ready[key] = ready
        return result


def kind_of(*tensors: Tensor | None) -> Hashable:
    """All of tensors that checks and the choice of a kernel look at; the first one says where kernels run."""
    [first, *_] = tensors
    assert first is not None
    device = kernel_device(first)
    return None if device is None else device.backend, *map(_kind_of_one, tensors)


def _kind_of_one(tensor: Tensor | None) -> Hashable:
    if tensor is None:
        return None
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.device


def run(
    call: Call,
    x: Tensor,
    other: Tensor,
    words: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Computed:
    """The product of tensors that fit the call, and what computed it; PyTorch's own without a device of ours.

    Args:
        x: X of the first two products, D of ``sdd``.
        other: W (n × k) of ``dsd`` and ``sdd``, D (m × n) of ``dsd_transposed``.
        words: the mask's buffer.
        out: the result's tensor, contiguous; by default a new one.
    """
    device = kernel_device(x)
    if device is None:
        return _plain(call, x, other, words, bias, out), None
    is_turned = (
        call.product is not Masked.DSD_TRANSPOSED
        and not other.is_contiguous()
        and other.t().is_contiguous()  # as k × n, where it lies
    )
    problem = call.problem(DTYPES[x.dtype], Layout.ROW if is_turned else Layout.COLUMN)
    ready = Ready(operators.get(problem, device, is_capturing(x), scale=call.scale), is_turned)
    return ready(x, other, words, bias, out), ready


def _plain(
    call: Call, x: Tensor, other: Tensor, words: Tensor, bias: Tensor | None, out: Tensor | None
) -> Tensor:
    """By PyTorch alone; 16-bit numbers are multiplied and summed as float32."""
    wide = x.dtype if x.dtype in WIDE else torch.float32
    left, right = x.detach().to(wide), other.detach().to(wide)
    live = expanded(blocks_of(words, grid((call.m, call.k), call.block)), call.block, (call.m, call.k))
    match call.product:
        case Masked.DSD:
            result = torch.where(live, left, 0) @ right.t() * call.scale
        case Masked.DSD_TRANSPOSED:
            result = right.t() @ torch.where(live, left, 0) * call.scale
        case Masked.SDD:
            dead = out.to(wide) if out is not None and call.rest is Rest.KEPT else 0
            result = torch.where(live, left @ right * call.scale, dead)
    if bias is not None:
        result = result + bias.detach().to(wide)
    if call.epilogue is Epilogue.BIAS_RELU:
        result = result.relu()
    return result.to(x.dtype) if out is None else out.copy_(result)
