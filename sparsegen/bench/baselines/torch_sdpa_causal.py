"""PyTorch's dense causal attention, which computes more than a sparse mask asks for, and something else."""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._attention import Heads, TorchAttention
from sparsegen.bench.baselines.torch_sdpa import backend_implementations
from sparsegen.bench.results.results import Kind

BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")


class TorchSdpaCausal(TorchAttention):
    name, kind = "torch-sdpa-causal", Kind.OTHER

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        heads = Heads(bench)
        yield from backend_implementations(heads, BACKENDS, own_error=heads.causal_error, is_causal=True)


BASELINE = TorchSdpaCausal()
