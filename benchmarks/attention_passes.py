"""Forms of our attention that no argument asks for, launched alone on PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparsegen import backends
from sparsegen.integrations.torch import BlockMaskTensor, block_attention
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.plain_launches import stream_of
from sparsegen.kernels import family
from sparsegen.kernels.config import Config
from sparsegen.operators import BlockAttentionBackwardProblem, BlockAttentionProblem
from sparsegen.operators.attention.span import Span
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.executors import shared_executor

PASSES = {"one_pass": 1, "two_passes": 2}  # of the backward pass
TILE = 128  # keys of its tiles, unless each warpgroup has its own: for smaller blocks
ROWS = ("whole", "split")  # of the forward pass


def passes_of(
    given: list[Tensor],
    mask: BlockMaskTensor | None,
    *,
    causal: bool = False,
    window: int | None = None,
    sinks: int = 0,
) -> dict[str, Callable[[], Any]]:
    """Calls of each form, by name; none where there is no GPU.

    Args:
        given: Q, K, V and the gradient by O, 1 × heads × tokens × head_dim, in float16.
        mask: one for each head.
    """
    q, k, v, dout = given
    if not q.is_cuda:
        return {}
    _, heads, tokens, head_dim = q.shape
    options: dict[str, Any] = {"masks": "nobody"}
    if mask is not None:
        options = {"masks": "heads", "block": mask.block, "density": mask.density}
    problem = BlockAttentionBackwardProblem.of(
        (tokens, tokens),
        kv_heads=heads,
        group=1,
        head_dim=head_dim,
        dtype="float16",
        span=Span(causal, False, window or 0, sinks),
        **options,
    )
    out, lse = block_attention(q, k, v, mask, causal=causal, window=window, sinks=sinks, return_lse=True)
    dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
    tensors = {"q": q, "k": k, "v": v, "o": out, "do": dout, "lse": lse, "dk": dk, "dv": dv}
    tensors["scale"] = torch.tensor([head_dim**-0.5], device=q.device)
    tensors["band"] = torch.from_numpy(problem.band.words).to(q.device)
    if mask is not None:
        tensors["mask"] = mask.words
    backward = family("tma_attention_backward")
    configs = {name: backward.config(passes=passes) for name, passes in PASSES.items()}
    if mask is not None and mask.block[1] < TILE:
        configs |= {
            f"{name}_single": replace(config, warpgroups="single") for name, config in configs.items()
        }
    return {name: _Call(problem, config, tensors, dq) for name, config in configs.items()}


def row_forms(q: Tensor, k: Tensor, v: Tensor, mask: BlockMaskTensor, out: Tensor) -> dict[str, _Call]:
    """Calls of the forward pass with rows left whole and split, by name; each writes to ``out``.

    Args:
        q, k, v: 1 × heads × tokens × head_dim, in float16, where our kernels run.
        mask: one for each head.
    """
    _, heads, tokens, head_dim = q.shape
    problem = BlockAttentionProblem.of(
        (tokens, tokens),
        kv_heads=heads,
        group=1,
        head_dim=head_dim,
        dtype="float16",
        masks="heads",
        block=mask.block,
        density=mask.density,
    )
    lse = torch.empty(q.shape[:3], device=q.device)
    tensors = {"q": q, "k": k, "v": v, "lse": lse, "mask": mask.words}
    tensors["scale"] = torch.tensor([head_dim**-0.5], device=q.device)
    tensors["band"] = torch.from_numpy(problem.band.words).to(q.device)
    forward, device = family("tma_attention"), kernel_device(q)
    assert device is not None, "the emulator is asked for by torch_place"
    usual = forward.heuristic(problem, problem.features(problem.without_pattern), device)
    return {rows: _Call(problem, replace(usual, rows=rows), tensors, out) for rows in ROWS}


class _Call:
    """One launch of a config on tensors that it keeps."""

    def __init__(self, problem: Any, config: Config, tensors: dict[str, Tensor], out: Tensor) -> None:
        """Bind them.

        Args:
            tensors: operands by name, and what is written beside the result.
        """
        device = kernel_device(out)
        assert device is not None, "the emulator is asked for by torch_place"
        self._addresses = [*(tensors[spec.name].data_ptr() for spec in problem.operands(0)), out.data_ptr()]
        self._out, self._kept = out, tensors
        self._variant = bind_variant(
            config, problem, problem.without_pattern, shared_executor(device), backends.toolchain(device)
        )
        self._bound = self._variant.bound()

    def __call__(self) -> None:
        self._bound(stream_of(self._out), *self._addresses)
