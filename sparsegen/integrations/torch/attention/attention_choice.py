"""Choice of attention without gradients: the fused kernel or the steps, for each way of being called."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sparsegen.attention.choice import Request, decide_implementation
from sparsegen.attention.steps import CALLS, at_once
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import OnMiss
from sparsegen.integrations.torch.attention.attention_passes import by_fused, by_steps
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.prepared import Prepared
from sparsegen.integrations.torch.pattern.pattern import Product, SparsePattern
from sparsegen.kernels.base import Device
from sparsegen.measure.decision import Entrants, make_ready
from sparsegen.system.cuda_graphs import is_capturing

_decisions: WeakKeyDictionary[SparsePattern, dict[Hashable, Decision]] = WeakKeyDictionary()
_lock = threading.Lock()


def fused_runs(pattern: SparsePattern, q: Tensor, scale: float) -> bool:
    """True if the fused kernel runs for Q like this, heads × queries × head_dim, as the call comes now.

    It is decided at the first call, as `sparsegen.prepare_attention` does; the steps run where PyTorch computes them.
    """
    device = kernel_device(q)
    if device is None:
        return False
    kind = q.shape[0], q.shape[-1], q.dtype, device.backend, device.index, scale
    decision = _decisions.get(pattern, {}).get(kind)
    if decision is None:
        with _lock:
            decision = _decided(pattern, q, scale, device)
            if not is_capturing():
                _decisions.setdefault(pattern, {})[kind] = decision
    return decision.ours_runs()


def _decided(pattern: SparsePattern, q: Tensor, scale: float, device: Device) -> Decision:
    heads, _, head_dim = q.shape
    together = at_once(heads, pattern.nnz * q.element_size())
    wanted = Request(
        *(pattern.matrix, heads, together, head_dim, DTYPES[q.dtype], OnMiss.NEAREST, device, pattern.db)
    )
    enter = partial(_entrants, pattern, q, scale)
    decision = decide_implementation(wanted, None, enter)
    if not decision.is_settled and not is_capturing():
        make_ready(enter())
    return decision


def _entrants(pattern: SparsePattern, like: Tensor, scale: float) -> Entrants:
    """Both passes on tensors that are drawn without PyTorch's own generators."""
    heads, queries, head_dim = like.shape
    generator = torch.Generator(like.device)
    generator.manual_seed(0)
    q, k, v = (
        torch.randn((heads, rows, head_dim), dtype=like.dtype, device=like.device, generator=generator)
        for rows in (queries, pattern.shape[1], pattern.shape[1])
    )
    fused = pattern.prepared(Product.ATTENTION, head_dim, q, scale=scale, batch=heads)
    assert isinstance(fused, Prepared)
    inputs = pattern, q, k, v, scale, torch.empty_like(q)
    pair = partial(by_fused, *inputs), partial(by_steps, *inputs)
    return Entrants(fused.operator.variant, lambda _: pair, CALLS)
