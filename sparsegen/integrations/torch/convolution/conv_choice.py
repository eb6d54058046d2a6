"""Choice between our kernel and PyTorch's dense convolution for a convolution with a mask: both are raced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.calls.constant_results import constant_result
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device, kernel_device_of
from sparsegen.integrations.torch.calls.direct import Asked
from sparsegen.integrations.torch.calls.drawn_blocks import drawn_blocks, seeded
from sparsegen.integrations.torch.calls.either import chosen
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.convolution.channels_last import with_channels_last
from sparsegen.integrations.torch.convolution.conv_problem import memory_format_of, problem_of, sides_of
from sparsegen.integrations.torch.convolution.dense_convolution import dense_convolution
from sparsegen.integrations.torch.convolution.masked_conv_kernels import (
    convolution_of,
    launch_convolution,
    live_blocks,
)
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.measure.decision import Entrants, decide, digest_of
from sparsegen.measure.race import Pair
from sparsegen.operators import ConvEpilogue, Given, MaskedConv2dProblem
from sparsegen.tuning_db.records import Task

CALLS = 4  # behind each other, as of a network's layers: the host is ahead of a device that takes longer
_launched = calls.of(4, launch_convolution)


def launch_chosen(
    x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *rest: Any
) -> Callable[..., Tensor]:
    """Returns the function that computes the operator ``masked_conv2d``, whose arguments these are, for tensors like
    these: our kernel, or PyTorch's dense convolution where that takes less time.
    """
    ours = partial(launch_convolution, x, weight, bias, words, *rest)
    if kernel_device(x) is None:
        return ours()
    problem = replace(convolution_of(x, weight, bias, rest), given=Given.LATEST)
    dense = Dense.parse(rest[9] if len(rest) > 9 else Dense.AUTO)  # the dispatcher passes no default
    own = partial(_dense, problem)
    return chosen(partial(decided, problem, x.device, dense), ours, own)


def _dense(
    problem: MaskedConv2dProblem, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor
) -> Tensor:
    """The problem by the dense convolution, with no gradient."""
    p, sides = problem, sides_of(problem)
    mask = live_blocks(words, sides[-1], p.masked_shape)
    given = x, weight, bias, mask, sides, p.groups.count, p.mask_of
    return dense_convolution(*given, p.epilogue is ConvEpilogue.BIAS_RELU, Asked.NOTHING)


def decided(
    problem: MaskedConv2dProblem, device: torch.device, dense: Dense, is_whole: bool = False
) -> Decision | None:
    """Decides whether the kernel takes less time than the dense convolution with its result zeroed outside the mask.

    On a GPU the first call with this problem races both on a random mask of its density, forward, unless the tuning
    database knows; see `sparsegen.measure.decision`. Called from Python the host's time counts, in a CUDA graph the
    device's alone. It needs memory for the operands beside the layer's own, and leaves PyTorch's generators as they
    are. None inside a CUDA graph's capture of problems that were never met: then the kernel runs.

    Args:
        dense: what the caller permits, as `policy_for` gives it.
        is_whole: all blocks of masks are live, so that no dense result is zeroed.
    """
    where, launched, context = kernel_device_of(device), problem, ""
    if dense is Dense.AUTO and (copied := with_channels_last(problem, where)) is not None:
        launched, context = copied, digest_of(problem)  # the kernel is that one's, beside the copies
    if is_whole:
        context = digest_of(context, "all blocks are live")
    entrants = partial(_entrants, problem, launched, device, is_whole)
    return decide(Task.CONVOLUTION, launched, where, entrants, dense, context=context)


def policy_for(dense: Dense | str, x: Tensor) -> Dense:
    """Returns what the caller permits, where the kernel could be compared; tensors on the CPU, and those of dtypes that
    have no kernels, are left to the operator.
    """
    policy = Dense.parse(dense)
    has_choice = x.is_cuda and x.dtype in DTYPES
    return Dense.NEVER if policy is Dense.AUTO and not has_choice else policy


@constant_result
def runs_masked_in_graph(
    dense: str,
    is_whole: bool,
    sizes: tuple[tuple[int, ...], tuple[int, ...]] | None,
    has_bias: bool,
    dtype: torch.dtype,
    device: str,
    order: torch.memory_format,
    *options: Any,
) -> bool:
    """True if the operator with the mask runs, while a graph is traced, to which the answer is a constant.

    Args:
        dense, is_whole: see `decided`.
        sizes: sizes of x and of the weight; None if the caller decided.
        order: x's.
        options: see `problem_of`, tuples in the place of lists.

    Raises:
        OperandError, ConfigError: see `problem_of`.
    """
    if sizes is None:
        return dense != Dense.ALWAYS
    x, weight = (torch.empty(size, dtype=dtype, device="meta") for size in sizes)
    bias = torch.empty(sizes[1][0], dtype=dtype, device="meta") if has_bias else None
    problem = problem_of(x.contiguous(memory_format=order), weight, bias, *options)
    decision = decided(problem, torch.device(device), Dense(dense), is_whole)
    return decision is None or decision.ours_runs()


def sizes_of(x: Tensor, weight: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both sizes as indices: torch.compile makes symbols of sizes that change, and what is faster depends on them."""
    first, second = (tuple(operator.index(size) for size in tensor.shape) for tensor in (x, weight))
    return first, second


def _entrants(
    problem: MaskedConv2dProblem, launched: MaskedConv2dProblem, where: torch.device, is_whole: bool
) -> Entrants:
    """A call of the kernel on a mask of bools, and of the dense convolution.

    Args:
        launched: what the kernel computes for the problem.
    """
    device = kernel_device_of(where)
    assert device is not None
    launcher = operators.get(launched, device).launcher
    return Entrants(launcher.variant, lambda _: _both(problem, where, is_whole), CALLS)


def _both(problem: MaskedConv2dProblem, where: torch.device, is_whole: bool) -> Pair:
    """Both calls, on tensors that are drawn without PyTorch's own generators."""
    p, dtype, generator = problem, getattr(torch, problem.dtype.value), seeded(where)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=where, generator=generator)

    x = drawn(p.batch, p.channels, p.height, p.width).to(memory_format=memory_format_of(p.layout))
    weight = drawn(p.filters, p.group_channels, p.filter_size.rows, p.filter_size.columns)
    bias = drawn(p.filters) if p.epilogue.has_bias else None
    mask = drawn_blocks(p.density, (p.batch, *p.mask_shape), generator)
    whole = PackedMask.of(torch.ones_like(mask)) if is_whole else None
    sides, relu = sides_of(p), p.epilogue is ConvEpilogue.BIAS_RELU
    rest = *sides, p.groups.count, str(p.mask_of), p.density.share, relu

    @torch.no_grad()
    def masked() -> Tensor:
        words = PackedMask.of(mask).words if whole is None else whole.words
        result: Tensor = _launched(x, weight, bias, words, *rest)
        return result

    @torch.no_grad()
    def dense() -> Tensor:
        given = x, weight, bias, mask if whole is None else None, sides, p.groups.count, p.mask_of, relu
        return dense_convolution(*given, Asked.NOTHING)

    return masked, dense
