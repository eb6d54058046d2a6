"""Attention with masks of blocks, and its gradients: by a kernel of ours where one computes it, else by PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparsegen.integrations.torch.attention import plain_block_attention as plain
from sparsegen.integrations.torch.attention.attention_options import (
    AttentionOptions,
    Beside,
    check_grid,
    check_operands,
    empty_like,
    result_like,
    sink_gradient_like,
    statistics_like,
)
from sparsegen.integrations.torch.attention.united_blocks import UnitedBlocks
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.prepared import aligned, array_of, is_capturing
from sparsegen.integrations.torch.calls.prepared_calls import PreparedCall
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.operators import BlockAttentionBackwardProblem, BlockAttentionProblem, Problem, TokenOrder

BESIDE = len(fields(Beside))
P = TypeVar("P", bound=BlockAttentionProblem)

log = logging.getLogger(__name__)


def forward_of(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """The function that computes O and the log-sum-exp, for the arguments of the operator ``block_attention``."""
    more, options = Beside(*inputs[:BESIDE]), AttentionOptions(*inputs[BESIDE:])
    check(q, k, v, more, options)
    found = _kernel(BlockAttentionProblem, q, k, v, more, options)
    return partial(_plainly, plain.attention, options, 3) if found is None else _Forward(*found)


@dataclass(frozen=True, slots=True)
class _Forward:
    """Forward pass prepared for calls with tensors of one kind."""

    problem: BlockAttentionProblem
    operator: Any

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor | None) -> tuple[Tensor, Tensor]:
        order, out, lse = self.problem.order, result_like(q, v), statistics_like(q)
        given = {name: stored(tensor, order) for name, tensor in (("q", q), ("k", k), ("v", v))}
        if is_capturing(q):
            operators.keep(self)
        given |= Beside(*more).given()
        launch(self.problem, self.operator, given, {"lse": lse}, stored(out, order))
        return out, lse


def prepared(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> PreparedCall | None:
    """The kernel of the operator ``block_attention``, whose arguments these are; None where PyTorch computes it.

    Args:
        q, k, v: may have no data, as all tensors.
    """
    more, options = Beside(*inputs[:BESIDE]), AttentionOptions(*inputs[BESIDE:])
    check(q, k, v, more, options)
    found = _kernel(BlockAttentionProblem, q, k, v, more, options)
    if found is None:
        return None
    problem, operator = found

    def operands(given: Sequence[Any]) -> dict[str, Tensor]:
        dense = {name: stored(tensor, problem.order) for name, tensor in zip("qkv", given[:3], strict=True)}
        return dense | Beside(*given[3 : 3 + BESIDE]).given()

    def results(written: Mapping[str, Tensor], given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        batch, heads, tokens, head_dim = given[0].shape
        by_heads = problem.order is TokenOrder.HEADS
        out = written["o"].reshape(batch, *((heads, tokens) if by_heads else (tokens, heads)), head_dim)
        return out if by_heads else out.transpose(1, 2), written["lse"].reshape(batch, heads, tokens)

    return PreparedCall(operator, operands, results)


def backward_of(*inputs: Any) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The function of the gradients by Q, K, V and learned sinks, for those of ``block_attention_backward``."""
    (_, q, k, v, *_), more = inputs[:6], Beside(*inputs[6 : 6 + BESIDE])
    options = AttentionOptions(*inputs[6 + BESIDE :])
    united = UnitedBlocks.of(options, (q.shape[2], k.shape[2]), more)
    by_kernel = (more, options) if united is None else (united.described(more), united.options(options))
    found = _kernel(BlockAttentionBackwardProblem, q, k, v, *by_kernel)
    if found is None:
        return partial(_plainly, plain.attention_backward, options, 6)
    return _Backward(*found, united)


def _plainly(
    compute: Callable[..., Any], options: AttentionOptions, own: int, *tensors: Tensor | None
) -> Any:
    """Computes by PyTorch in the place of a kernel, of ``own`` tensors and what is `Beside` them."""
    return compute(*tensors[:own], Beside(*tensors[own:]), options)


@dataclass(frozen=True, slots=True)
class _Backward:
    """Backward pass prepared for tensors of one kind.

    Attributes:
        united: what the kernel takes in the place of a mask of small blocks; None for other masks.
    """

    problem: BlockAttentionBackwardProblem
    operator: Any
    united: UnitedBlocks | None

    def __call__(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        *more: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        order = self.problem.order
        given = {"q": q, "k": k, "v": v, "o": out, "do": dout}
        given = {name: stored(tensor, order) for name, tensor in given.items()} | {"lse": lse.contiguous()}
        beside = Beside(*more)
        given |= (beside if self.united is None else self.united.beside(beside)).given()
        dq, dk, dv = (empty_like(tensor, order) for tensor in (q, k, v))
        d_sink_logits = sink_gradient_like(q, given.get("sink_logits"))
        written = {"dk": stored(dk, order), "dv": stored(dv, order)}
        if "sink_logits" in given:
            written["d_sink_logits"] = d_sink_logits
        if is_capturing(q):
            operators.keep(self)
        launch(self.problem, self.operator, given, written, stored(dq, order))
        return dq, dk, dv, d_sink_logits


def launch(
    problem: Problem,
    operator: Any,
    given: Mapping[str, Tensor],
    written: Mapping[str, Tensor],
    out: Tensor,
) -> None:
    """Run an operator on tensors by their operands' names, each seen in the shape that the problem says.

    Args:
        given: contiguous; those at addresses that vectors do not divide are copied.
        written: new tensors that the call writes beside its result.
        out: the result, a new tensor.
    """
    shapes = {spec.name: spec.shape for spec in problem.operands(0)}
    tensors = {name: aligned(tensor).view(shapes[name]) for name, tensor in given.items()}
    tensors |= {name: tensor.view(shapes[name]) for name, tensor in written.items()}
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
    more: Beside,
    options: AttentionOptions,
) -> None:
    """Hold what a call brings against each other; raises OperandError for what does not fit, by its name."""
    check_operands(q, k, v, more)
    if more.words is not None:
        check_grid(more.words, options.block, (q.shape[0], q.shape[1]), (q.shape[2], k.shape[2]))


def _kernel(
    kind: type[P],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    more: Beside,
    options: AttentionOptions,
) -> tuple[P, Any] | None:
    """The problem of such a call and its operator; None where no kernel of ours computes it."""
    device = kernel_device(q)
    if device is None or not (q.numel() and k.numel()):
        return None
    problem = options.problem(kind, q, k, v, more)
    if not has_kernel(problem, device):
        return None
    kept = {"scale": options.scale, "deterministic": options.deterministic or None}
    if options.softcap:
        kept["softcap"] = options.softcap
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
