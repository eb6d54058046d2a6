"""A masked convolution as it is called: its problem, whether our kernel runs, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import Dense
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.direct import Asked
from sparsegen.integrations.torch.calls.launches import WORDS
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.convolution import conv_choice
from sparsegen.integrations.torch.convolution.conv_problem import problem_of, sides_of
from sparsegen.integrations.torch.convolution.dense_convolution import dense_convolution
from sparsegen.integrations.torch.convolution.masked_conv_kernels import launch_convolution
from sparsegen.integrations.torch.convolution.masked_conv_operators import masked_conv2d
from sparsegen.integrations.torch.convolution.packed_masks import packing_of
from sparsegen.matrix.bits import words_for
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import MaskedConv2dProblem, MaskOf


@dataclass(slots=True, eq=False)
class ConvCall:
    """A convolution prepared for calls with tensors of one kind and with equal options.

    Attributes:
        problem: the problem of the tensors.
        rest: the operator's arguments after the tensors.
        dense: what the caller permits.
        is_whole: all blocks of masks are live.
        decision: whether our kernel runs; None until that is known.
        runs_kernel: true if it does, once that no longer depends on how the call comes.
        launch, pack: made when the kernel first runs; pack of masks that come as bools.
    """

    problem: MaskedConv2dProblem
    rest: tuple[Any, ...]
    dense: Dense
    is_whole: bool
    decision: Decision | None = None
    runs_kernel: bool | None = None
    launch: Callable[..., Tensor] | None = None
    pack: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(
        cls,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor,
        words: Tensor | None,
        is_earlier: bool,
        is_whole: bool,
        sides: Sequence[object],
        groups: int,
        mask_of: MaskOf | str,
        density: float,
        relu: bool,
        dense: Dense | str,
    ) -> ConvCall:
        """Look at tensors and options.

        Raises:
            OperandError, ConfigError: shapes, dtypes, devices or options that do not fit.
        """
        check(bias, mask, x, relu)
        problem = problem_of(x, weight, bias, sides, groups, mask_of, density, relu)
        wanted = problem.batch, *problem.mask_shape
        if tuple(mask.shape) != wanted:
            raise OperandError(
                f"mask: expected {wanted} blocks of {problem.mask_block}, got {tuple(mask.shape)}"
            )
        size = problem.batch * wanted[1] * words_for(wanted[2])
        if words is not None and (words.numel() != size or words.dtype not in WORDS):
            raise OperandError(
                f"mask: expected {size} words of 64 bits, got {words.dtype} of shape {tuple(words.shape)}"
            )
        policy = conv_choice.policy_for(dense, x)
        own = problem.groups.count, str(problem.mask_of), problem.density.share, relu, is_earlier, str(policy)
        return cls(problem, (*sides_of(problem), *own), policy, is_whole)

    def __call__(
        self,
        what: Asked,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor,
        words: Tensor | None,
    ) -> Tensor:
        """The convolution.

        Args:
            what: is asked of the call.
            mask: bools.
            words: the mask's, if it is packed.
        """
        runs = self.runs_kernel
        if not (self._decided(x.device) if runs is None else runs):
            if self.runs_kernel is None and self.launch is None and what is not Asked.MORE:
                self._make_ready(what, (x, weight, bias), mask, words)
            groups, mask_of, _, relu, *_ = self.rest[4:]
            live = None if self.is_whole else mask
            given = x, weight, bias, live, self.rest[:4], groups, MaskOf(mask_of), relu
            return dense_convolution(*given, what)
        if what is Asked.MORE:
            words = words_of(mask) if words is None else words
            result: Tensor = masked_conv2d.dispatched(x, weight, bias, words, *self.rest)
            return result
        if words is None:
            if self.pack is None:
                self.pack = packing_of(mask)
            words = self.pack(mask)
        if self.launch is None:
            self.launch = launch_convolution(x, weight, bias, words, *self.rest)
        result = masked_conv2d.launched_by(self.launch, what, x, weight, bias, words, *self.rest)
        return result

    def _make_ready(
        self, what: Asked, operands: Sequence[Tensor | None], mask: Tensor, words: Tensor | None
    ) -> None:
        """Run our kernels once where a call from Python is dense, and one in a CUDA graph is not: what a capture comes
        to first cannot be loaded, so that it would run without the copies that these kernels want.
        """
        if is_capturing(mask):
            return
        given: list[Any] = [t if t is None else t.detach().requires_grad_(t.requires_grad) for t in operands]
        ours = replace(self, runs_kernel=True)
        x, weight, bias = given
        y = ours(what, x, weight, bias, mask, words)
        self.launch, self.pack = ours.launch, ours.pack
        if what is Asked.GRADIENT:
            torch.autograd.grad(y, [t for t in given if t is not None and t.requires_grad], y.detach())

    def _decided(self, device: torch.device) -> bool:
        """True if our kernel runs, given how this call comes; also if that is not known yet."""
        if self.decision is None:
            self.decision = conv_choice.decided(self.problem, device, self.dense, self.is_whole)
        if self.decision is None:
            return True
        if self.decision.is_settled:
            self.runs_kernel = self.decision.on_device
        return self.decision.ours_runs()


def check(bias: Tensor | None, mask: Tensor, x: Tensor, relu: object) -> None:
    """Hold what no problem knows of.

    Raises:
        OperandError: a mask that is none, or a ReLU without a bias.
    """
    if arguments.flag(relu, "relu", OperandError) and bias is None:
        raise OperandError("relu=True needs a bias: use torch.relu on the result without one")
    if mask.dtype != torch.bool or mask.dim() != 3 or mask.device != x.device:
        raise OperandError(
            f"mask: expected bools, images × rows × columns of blocks, on {x.device}, got {mask.dtype} of shape "
            f"{tuple(mask.shape)} on {mask.device}"
        )
