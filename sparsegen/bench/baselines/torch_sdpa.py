"""PyTorch's `scaled_dot_product_attention` with the mask as a dense one of bool."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sparsegen.bench.baseline.baseline import Implementation, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._attention import Heads, TorchAttention
from sparsegen.bench.baselines._torch import import_torch
from sparsegen.bench.results.results import Kind

MASKED = ("EFFICIENT_ATTENTION", "MATH")  # the backends that take any mask


class TorchSdpa(TorchAttention):
    name, kind = "torch-sdpa", Kind.DENSE

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        heads = Heads(bench)
        yield from backend_implementations(heads, MASKED, attn_mask=heads.mask)


def backend_implementations(
    heads: Heads, backends: tuple[str, ...], own_error: Any = None, **options: Any
) -> Iterator[Implementation]:
    """One implementation for each backend that PyTorch has for these operands.

    Raises:
        UnsupportedError: it has none; with each one's reason.
    """
    import_torch()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def attend(backend: Any) -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(heads.q, heads.k, heads.v, scale=heads.scale, **options)

    reasons, count = [], 0
    for name in backends:
        backend = getattr(SDPBackend, name)
        detail = name.lower().removesuffix("_attention")
        try:
            yield heads.implementation(detail, partial(attend, backend), own_error)
            count += 1
        except UnsupportedError as error:
            reasons.append(str(error))
    if not count:
        raise UnsupportedError("; ".join(reasons))


BASELINE = TorchSdpa()
