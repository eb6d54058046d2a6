"""Operators of block-masked products, prepared when a call first needs them; without a device of ours PyTorch's own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.mask_launches import blocks_of, expanded
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import called, operators
from sparsegen.integrations.torch.calls.ready_calls import Computed
from sparsegen.integrations.torch.pattern.plain import WIDE
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


@dataclass(frozen=True, slots=True)
class _Ready:
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
    ready = _Ready(operators.get(problem, device, is_capturing(x), scale=call.scale), is_turned)
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
