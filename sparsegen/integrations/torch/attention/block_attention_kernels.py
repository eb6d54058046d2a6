"""Attention with masks of blocks, and its gradients: by a kernel of ours where one computes it, else by PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparsegen.integrations.torch.attention import plain_block_attention as plain
from sparsegen.integrations.torch.attention.attention_options import (
    AttentionOptions,
    check_grid,
    check_operands,
    empty_like,
    statistics_like,
)
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared import aligned, array_of, is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.operators import BlockAttentionBackwardProblem, BlockAttentionProblem, Problem, TokenOrder

P = TypeVar("P", bound=BlockAttentionProblem)

log = logging.getLogger(__name__)


def _forward_of(
    q: Tensor, k: Tensor, v: Tensor, words: Tensor | None, elements: Tensor | None, *rest: Any
) -> Callable[..., tuple[Tensor, Tensor]]:
    options = AttentionOptions(*rest)
    check(q, k, v, words, elements, options)
    found = _kernel(BlockAttentionProblem, q, k, words, elements, options)
    return partial(_plainly, plain.attention, options) if found is None else _Forward(*found)


# O and the log-sum-exp, of the operator ``block_attention``, whose arguments it takes.
forward = calls.of(5, _forward_of)


@dataclass(frozen=True, slots=True)
class _Forward:
    """Forward pass prepared for calls with tensors of one kind."""

    problem: BlockAttentionProblem
    operator: Any

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, words: Tensor | None, elements: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        order, out, lse = self.problem.order, empty_like(q, self.problem.order), statistics_like(q)
        given = {name: stored(tensor, order) for name, tensor in (("q", q), ("k", k), ("v", v))}
        if is_capturing(q):
            operators.keep(self)
        launch(self.problem, self.operator, given, words, {"lse": lse}, stored(out, order))
        return out, lse


def _backward_of(*inputs: Any) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    (_, q, k, _, _, _, words, elements), options = inputs[:8], AttentionOptions(*inputs[8:])
    found = _kernel(BlockAttentionBackwardProblem, q, k, words, elements, options)
    return partial(_plainly, plain.attention_backward, options) if found is None else _Backward(*found)


# The gradients by Q, K and V, of the operator ``block_attention_backward``, whose arguments it takes.
backward = calls.of(8, _backward_of)


def _plainly(compute: Callable[..., Any], options: AttentionOptions, *tensors: Tensor | None) -> Any:
    """Computes by PyTorch in the place of a kernel."""
    return compute(*tensors, options)


@dataclass(frozen=True, slots=True)
class _Backward:
    """Backward pass prepared for tensors of one kind."""

    problem: BlockAttentionBackwardProblem
    operator: Any

    def __call__(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        words: Tensor | None,
        elements: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        order = self.problem.order
        given = {"q": q, "k": k, "v": v, "o": out, "do": dout}
        given = {name: stored(tensor, order) for name, tensor in given.items()} | {"lse": lse.contiguous()}
        dq, dk, dv = (empty_like(tensor, order) for tensor in (q, k, v))
        written = {"dk": stored(dk, order), "dv": stored(dv, order)}
        if is_capturing(q):
            operators.keep(self)
        launch(self.problem, self.operator, given, words, written, stored(dq, order))
        return dq, dk, dv


def launch(
    problem: Problem,
    operator: Any,
    given: Mapping[str, Tensor],
    words: Tensor | None,
    written: Mapping[str, Tensor],
    out: Tensor,
) -> None:
    """Run an operator on tensors by their operands' names, each seen in the shape that the problem says.

    Args:
        given: contiguous; those at addresses that vectors do not divide are copied.
        words: words of the masks, if there are any.
        written: new tensors that the call writes beside its result.
        out: the result, a new tensor.
    """
    shapes = {spec.name: spec.shape for spec in problem.operands(0)}
    tensors = {name: aligned(tensor).view(shapes[name]) for name, tensor in given.items()}
    tensors |= {name: tensor.view(shapes[name]) for name, tensor in written.items()}
    if words is not None:
        tensors["mask"] = words.contiguous().view(shapes["mask"])
    result = out.view(problem.result(0).shape)
    if out.is_cuda:
        operator(**tensors, out=result)
        return
    arrays = {name: array_of(tensor) for name, tensor in tensors.items()}
    result.copy_(torch.from_numpy(operator(**arrays)))
    for name in written:  # the array was a copy if NumPy lacks the dtype
        tensors[name].copy_(torch.from_numpy(arrays[name]))


def stored(tensor: Tensor, order: TokenOrder) -> Tensor:
    """Batch × heads × tokens × head_dim as it lies in memory in this order; a copy of one with other strides."""
    return (tensor if order is TokenOrder.HEADS else tensor.transpose(1, 2)).contiguous()


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    words: Tensor | None,
    elements: Tensor | None,
    options: AttentionOptions,
) -> None:
    """Hold what a call brings against each other; raises OperandError for what does not fit, by its name."""
    check_operands(q, k, v, words, elements)
    if words is not None:
        check_grid(words, options.block, (q.shape[0], q.shape[1]), (q.shape[2], k.shape[2]))


def _kernel(
    kind: type[P],
    q: Tensor,
    k: Tensor,
    words: Tensor | None,
    elements: Tensor | None,
    options: AttentionOptions,
) -> tuple[P, Any] | None:
    """The problem of such a call and its operator; None where no kernel of ours computes it."""
    device = kernel_device(q)
    if device is None or not (q.numel() and k.numel()):
        return None
    why = options.what_no_kernel_takes(elements)
    if why is not None:
        _say_once(f"{why} yet")
        return None
    problem = options.problem(kind, q, k, words)
    if not has_kernel(problem, device):
        return None
    kept = {"scale": options.scale, "deterministic": options.deterministic or None}
    return problem, operators.get(problem, device, is_capturing(q), **kept)


@lru_cache(maxsize=1024)
def has_kernel(problem: Problem, device: Device) -> bool:
    """True if some family computes the problem on the device; if none does, the log says why, once."""
    reasons = []
    for family in families_of(problem.operator):
        broken = [one.sentence for one in family.scope(problem) if not one.holds]
        if not broken:  # a heuristic is of problems in its family's scope
            config = family.heuristic(problem, problem.features(problem.without_pattern), device)
            broken = family.broken_constraints(problem, config, device)
        if not broken:
            return True
        reasons.append(f"{family.name}: {broken[0]}")
    _say_once(f"{problem}: no kernel computes it on {device.name} ({'; '.join(reasons) or 'there is none'})")
    return False


@lru_cache(maxsize=1024)
def _say_once(why: str) -> None:
    log.warning("PyTorch computes this attention, in float32 and in parts, which takes longer: %s", why)
