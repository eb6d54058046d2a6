"""PyTorch's scaled_dot_product_attention: with the mask as a dense one, and dense attention beside the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparsegen.bench.baseline.baseline import Implementation, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._attention import Heads, TorchAttention
from sparsegen.bench.baselines._block_attention import BlockHeads
from sparsegen.bench.baselines._torch import import_torch
from sparsegen.bench.results.results import Kind
from sparsegen.operators import BlockAttentionProblem, Problem, SparseAttentionProblem

MASKED = ("EFFICIENT_ATTENTION", "MATH")  # the backends that take any mask
DENSE = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")


@dataclass(frozen=True)
class Asked:
    """A row's attention as PyTorch is asked for it.

    Attributes:
        options: arguments of `scaled_dot_product_attention` beside Q, K, V and the scale.
        own_error: see `Implementation`, of the result.
        also: what the detail says behind the backend.
    """

    heads: Heads | BlockHeads
    options: dict[str, Any]
    own_error: Callable[[Any], float] | None = None
    also: str = ""


@dataclass(frozen=True)
class TorchSdpa(TorchAttention):
    """An attention by each of some backends, as a row asks for it."""

    name: str
    kind: Kind
    backends: tuple[str, ...]
    asked: Callable[[Workbench], Asked]
    operators: tuple[type[Problem], ...] = (SparseAttentionProblem,)

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        yield from backend_implementations(self.asked(bench), self.backends)


def masked(bench: Workbench) -> Asked:
    """Attention to what the pattern has."""
    heads = Heads(bench)
    return Asked(heads, {"attn_mask": heads.mask})


def causal(bench: Workbench) -> Asked:
    """Dense causal attention."""
    heads = Heads(bench)
    return Asked(heads, {"is_causal": True}, heads.causal_error)


def whole(bench: Workbench) -> Asked:
    """Dense attention, causal where the row's is."""
    heads = BlockHeads(bench)
    is_causal = heads.problem.span.is_causal
    options = {"is_causal": is_causal, **heads.shares_keys}
    error = partial(heads.dense_error, is_causal=is_causal)
    return Asked(heads, options, error, " causal" if is_causal else "")


def backend_implementations(asked: Asked, backends: Sequence[str]) -> Iterator[Implementation]:
    """One implementation for each backend that PyTorch has for these operands.

    Raises:
        UnsupportedError: it has none; with each one's reason.
    """
    import_torch()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    heads = asked.heads

    def attend(backend: Any) -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(heads.q, heads.k, heads.v, scale=heads.scale, **asked.options)

    reasons = []
    for name in backends:
        detail = name.lower().removesuffix("_attention") + asked.also
        try:
            yield heads.implementation(detail, partial(attend, getattr(SDPBackend, name)), asked.own_error)
        except UnsupportedError as error:
            reasons.append(str(error))
    if len(reasons) == len(backends):
        raise UnsupportedError("; ".join(reasons))


BASELINES = (
    TorchSdpa("torch-sdpa", Kind.DENSE, MASKED, masked),
    TorchSdpa("torch-sdpa-causal", Kind.OTHER, DENSE, causal),
    TorchSdpa("torch-sdpa-whole", Kind.OTHER, DENSE, whole, (BlockAttentionProblem,)),
)
