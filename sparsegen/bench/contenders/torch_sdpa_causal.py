"""PyTorch's dense causal attention, which computes more than a sparse mask asks for, and something else."""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen.bench.contender.contender import Way
from sparsegen.bench.contender.workbench import Workbench
from sparsegen.bench.contenders._attention import Heads, TorchAttention
from sparsegen.bench.contenders.torch_sdpa import backend_ways
from sparsegen.bench.results.results import Kind

BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")


class TorchSdpaCausal(TorchAttention):
    name, kind = "torch-sdpa-causal", Kind.OTHER

    def ways(self, bench: Workbench) -> Iterator[Way]:
        heads = Heads(bench)
        yield from backend_ways(heads, BACKENDS, own_error=heads.causal_error, is_causal=True)


CONTENDER = TorchSdpaCausal()
