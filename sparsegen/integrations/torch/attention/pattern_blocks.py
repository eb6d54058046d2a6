"""Attention on a pattern by blocks: the masks and options with which `block_attention`'s kernels compute it."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from sparsegen.attention.block_form import BlockForm
from sparsegen.attention.choice import Request, decide_blocks
from sparsegen.attention.steps import at_once
from sparsegen.dispatch.options import OnMiss
from sparsegen.integrations.torch.attention import block_attention_kernels as kernels
from sparsegen.integrations.torch.attention.attention_options import AttentionOptions
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.prepared_calls import PreparedCall
from sparsegen.integrations.torch.pattern.pattern import SparsePattern

TAKEN = torch.float16, torch.bfloat16  # of no other elements there are kernels
USUAL_HEADS = 8  # where a trace leaves their number open

_forward = calls.of(3 + kernels.BESIDE, kernels.forward_of)
_backward = calls.of(6 + kernels.BESIDE, kernels.backward_of)
_forms: WeakKeyDictionary[SparsePattern, dict[Hashable, BlockForm | None]] = WeakKeyDictionary()
_inputs: WeakKeyDictionary[SparsePattern, dict[Hashable, PatternBlocks]] = WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class PatternBlocks:
    """Inputs of block attention beside Q, K and V of heads × tokens × head_dim, which are a batch of one."""

    beside: tuple[Tensor | None, ...]
    options: AttentionOptions

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """O and the log-sum-exp of each query."""
        out, lse = _forward(q[None], k[None], v[None], *self.beside, *self._options())
        return out.squeeze_(0), lse.squeeze_(0)  # no views, which autograd would not let be changed

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients by Q, K and V."""
        given = (tensor[None] for tensor in (dout, q, k, v, out, lse))
        dq, dk, dv, _ = _backward(*given, *self.beside, *self._options())
        return dq.squeeze_(0), dk.squeeze_(0), dv.squeeze_(0)

    def prepared(self, q: Tensor, k: Tensor, v: Tensor) -> PreparedCall | None:
        """The forward kernel, whose result is O; None where PyTorch computes it."""
        found = kernels.prepared(q[None], k[None], v[None], *self.beside, *self._options())
        if found is None:
            return None
        beside: Any = self.beside

        def out_of(written: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
            results: Any = found.results(written, [inputs[0][None]])
            out: Tensor = results[0][0]
            return out

        return PreparedCall(
            found.operator,
            lambda inputs: found.operands([*(tensor[None] for tensor in inputs[:3]), *beside]),
            out_of,
        )

    def _options(self) -> AttentionOptions:
        return self.options._replace(deterministic=torch.are_deterministic_algorithms_enabled())


def runs_by_blocks(pattern: SparsePattern, q: Tensor, *, trains: bool) -> bool:
    """True if attention by blocks runs for Q like this, heads × queries × head_dim; Q may have no data.

    It is decided at the first call, as `sparsegen.prepare_attention` does. Where there are gradients, the number of
    heads plays no part later, as the kept tensors of a trace are to serve any.
    """
    return _form(pattern, q, trains=trains) is not None


def pattern_blocks(pattern: SparsePattern, q: Tensor, scale: float, *, trains: bool) -> PatternBlocks | None:
    """The masks on Q's device, and the options; None where another way runs (`runs_by_blocks`)."""
    form = _form(pattern, q, trains=trains)
    if form is None:
        return None
    found, key = _inputs.setdefault(pattern, {}), (form, q.device, scale)
    if key not in found:
        found[key] = _on_device(form, q.device, scale)
    return found[key]


def _form(pattern: SparsePattern, q: Tensor, *, trains: bool) -> BlockForm | None:
    device = kernel_device(q) if q.dtype in TAKEN else None
    if device is None or not isinstance(pattern, SparsePattern):  # an outline knows no places
        return None
    heads = q.shape[0] if isinstance(q.shape[0], int) else USUAL_HEADS
    head_dim, known = int(q.shape[-1]), _forms.setdefault(pattern, {})
    key = 0 if trains else heads, head_dim, q.dtype, device, trains
    if key not in known:
        with _lock:
            together = at_once(heads, pattern.nnz * q.element_size())
            kind = head_dim, DTYPES[q.dtype], OnMiss.NEAREST, device, pattern.db
            blocks = decide_blocks(Request(pattern.matrix, heads, together, *kind), trains=trains)
            known[key] = None if blocks is None else blocks.form
    return known[key]


def _on_device(form: BlockForm, device: torch.device, scale: float) -> PatternBlocks:
    operands = {name: torch.from_numpy(np.array(array)).to(device) for name, array in form.operands().items()}
    mask, numbers = (operands[name][None, None] if name in operands else None for name in ("mask", "numbers"))
    options = AttentionOptions(
        scale=scale,
        softcap=0.0,
        causal=form.span.is_causal,
        from_start=False,
        window=form.span.window,
        sinks=form.span.sinks,
        block_rows=form.sides[0],
        block_columns=form.sides[1],
        density=form.density.share,
        longest=form.density.longest,
        deterministic=False,
    )
    return PatternBlocks((mask, numbers, operands.get("bits"), None, None), options)
