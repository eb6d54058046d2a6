"""Forms of our attention that no argument asks for, launched alone on PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparsegen import backends
from sparsegen.integrations.torch import BlockMaskTensor, block_attention
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.plain_launches import stream_of
from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.operators import BlockAttentionBackwardProblem, BlockAttentionProblem
from sparsegen.operators.attention.span import Span
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variants import compile_variant

PASSES = {"one_pass": 1, "two_passes": 2}  # of the backward pass
TILE = 128  # keys of its tiles, unless each warpgroup has its own: for smaller blocks
STEP = 64  # rows and columns of the least blocks of the backward pass
ROWS = ("whole", "split")  # of the forward pass
ALL_KEYS = Span()
Asked = TypeVar("Asked", BlockAttentionProblem, BlockAttentionBackwardProblem)


@dataclass(frozen=True)
class Attended:
    """Heads of tokens × head_dim in float16, and the blocks of each head's mask: what kernels depend on."""

    heads: int
    tokens: int
    head_dim: int
    block: tuple[int, int] | None = None
    density: float = 1.0
    span: Span = ALL_KEYS

    @classmethod
    def of(cls, q: Tensor, mask: BlockMaskTensor | None, span: Span = ALL_KEYS) -> Attended:
        """Heads as Q has them, 1 × heads × tokens × head_dim."""
        _, heads, tokens, head_dim = q.shape
        if mask is None:
            return cls(heads, tokens, head_dim, span=span)
        return cls(heads, tokens, head_dim, mask.block, mask.density, span)

    def problem(self, kind: type[Asked]) -> Asked:
        """The forward or backward problem."""
        options: dict[str, Any] = {"masks": "nobody"}
        if self.block is not None:
            options = {"masks": "heads", "block": self.block, "density": self.density}
        return kind.of(
            (self.tokens, self.tokens),
            kv_heads=self.heads,
            group=1,
            head_dim=self.head_dim,
            dtype="float16",
            span=self.span,
            **options,
        )

    def passes(self) -> dict[str, Config]:
        """Configs of the backward pass by name."""
        backward = family("tma_attention_backward")
        configs = {name: backward.config(passes=passes) for name, passes in PASSES.items()}
        if self.block is not None and self.block[1] < TILE:
            configs |= {
                f"{name}_single": replace(config, warpgroups="single") for name, config in configs.items()
            }
        return configs

    def usual(self, device: Device) -> Any:
        """The heuristic config of the forward pass."""
        problem = self.problem(BlockAttentionProblem)
        features = problem.features(problem.without_pattern)
        return family("tma_attention").heuristic(problem, features, device)


def compile_all(rows: Iterable[Attended], device: Device) -> None:
    """Compile both passes on all cores, so that they are found in the cache."""
    with ThreadPoolExecutor() as pool:
        for row in rows:
            forward = row.problem(BlockAttentionProblem)
            pool.submit(compile_variant, row.usual(device), forward, backends.toolchain(device))
            if row.block is None or min(row.block) >= STEP:
                backward = row.problem(BlockAttentionBackwardProblem)
                for config in row.passes().values():
                    pool.submit(compile_variant, config, backward, backends.toolchain(device))


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
    row = Attended.of(q, mask, Span(causal, False, window or 0, sinks))
    problem = row.problem(BlockAttentionBackwardProblem)
    out, lse = block_attention(q, k, v, mask, causal=causal, window=window, sinks=sinks, return_lse=True)
    dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
    tensors = {"q": q, "k": k, "v": v, "o": out, "do": dout, "lse": lse, "dk": dk, "dv": dv}
    tensors["scale"] = torch.tensor([q.shape[-1] ** -0.5], device=q.device)
    tensors["band"] = torch.from_numpy(problem.band.words).to(q.device)
    if mask is not None:
        tensors["mask"] = mask.words
    return {name: _Call(problem, config, tensors, dq) for name, config in row.passes().items()}


def row_forms(q: Tensor, k: Tensor, v: Tensor, mask: BlockMaskTensor, out: Tensor) -> dict[str, _Call]:
    """Calls of the forward pass with rows left whole and split, by name; each writes to ``out``.

    Args:
        q, k, v: 1 × heads × tokens × head_dim, in float16, where our kernels run.
        mask: one for each head.
    """
    row, device = Attended.of(q, mask), kernel_device(q)
    assert device is not None, "the emulator is asked for by torch_place"
    problem = row.problem(BlockAttentionProblem)
    lse = torch.empty(q.shape[:3], device=q.device)
    tensors = {"q": q, "k": k, "v": v, "lse": lse, "mask": mask.words}
    tensors["scale"] = torch.tensor([q.shape[-1] ** -0.5], device=q.device)
    tensors["band"] = torch.from_numpy(problem.band.words).to(q.device)
    usual = row.usual(device)
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
