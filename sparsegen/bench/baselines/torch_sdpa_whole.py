"""PyTorch's dense attention, of all keys or causal, which computes more than masks of blocks ask for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sparsegen.bench.baseline.baseline import Implementation, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._block_attention import BlockHeads, TorchBlockAttention
from sparsegen.bench.baselines._torch import import_torch
from sparsegen.bench.results.results import Kind

BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")


class TorchSdpaWhole(TorchBlockAttention):
    name, kind = "torch-sdpa-whole", Kind.OTHER

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        heads = BlockHeads(bench)
        import_torch()
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        is_causal = heads.problem.span.is_causal

        def attend(backend: Any) -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    heads.q, heads.k, heads.v, scale=heads.scale, is_causal=is_causal, **heads.shares_keys
                )

        reasons = []
        for name in BACKENDS:
            detail = f"{name.lower().removesuffix('_attention')}{' causal' if is_causal else ''}"
            try:
                yield heads.implementation(
                    detail,
                    partial(attend, getattr(SDPBackend, name)),
                    lambda result: heads.dense_error(result, is_causal),
                )
            except UnsupportedError as error:
                reasons.append(str(error))
        if len(reasons) == len(BACKENDS):
            raise UnsupportedError("; ".join(reasons))


BASELINE = TorchSdpaWhole()
