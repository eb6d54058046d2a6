"""Both forms of our backward pass of attention, launched alone on PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsegen import backends
from sparsegen.integrations.torch import BlockMaskTensor, block_attention
from sparsegen.kernels import family
from sparsegen.operators import BlockAttentionBackwardProblem
from sparsegen.operators.attention.span import Span
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.executors import shared_executor

FORMS = {"one_pass": 1, "two_passes": 2}


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
    device = backends.find_device("cuda")
    addresses = [*(tensors[spec.name].data_ptr() for spec in problem.operands(0)), dq.data_ptr()]
    found: dict[str, Callable[[], Any]] = {}
    for name, passes in FORMS.items():
        config = family("tma_attention_backward").config(passes=passes)
        bound = bind_variant(
            config, problem, problem.without_pattern, shared_executor(device), backends.toolchain(device)
        )
        found[name] = _Call(bound, addresses, (*tensors.values(), dq))
    return found


class _Call:
    """One launch on tensors that it keeps."""

    def __init__(self, variant: Any, addresses: list[int], kept: tuple[Tensor, ...]) -> None:
        self._variant, self._addresses, self._kept = variant, addresses, kept
        self._bound = variant.bound()

    def __call__(self) -> None:
        self._bound(torch.cuda.current_stream().cuda_stream, *self._addresses)
