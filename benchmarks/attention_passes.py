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

    def usual(self, device: Device, name: str = "tma_attention") -> Any:
        """The heuristic config of a family of either pass; by default of the forward pass on warpgroups."""
        chosen = family(name)
        problem: Any = self.problem(chosen.problem_type)
        return chosen.heuristic(problem, problem.features(problem.without_pattern), device)


def compile_all(rows: Iterable[Attended], device: Device, others: Iterable[str] = ()) -> None:
    """Compile both passes on all cores, so that they are found in the cache; also by other families of either pass."""
    with ThreadPoolExecutor() as pool:
        for row in rows:
            forward = row.problem(BlockAttentionProblem)
            pool.submit(compile_variant, row.usual(device), forward, backends.toolchain(device))
            if row.block is None or min(row.block) >= STEP:
                backward = row.problem(BlockAttentionBackwardProblem)
                for config in row.passes().values():
                    pool.submit(compile_variant, config, backward, backends.toolchain(device))
            for name in others:
                problem: Any = row.problem(family(name).problem_type)
                pool.submit(compile_variant, row.usual(device, name), problem, backends.toolchain(device))


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
    q, k, v, _ = given
    if not q.is_cuda:
        return {}
    launches = Launches.of(given, mask, Span(causal, False, window or 0, sinks))
    out, lse = block_attention(q, k, v, mask, causal=causal, window=window, sinks=sinks, return_lse=True)
    launches.tensors.update(o=out, lse=lse)
    return {name: launches.backward(config) for name, config in launches.row.passes().items()}


def row_forms(
    q: Tensor, k: Tensor, v: Tensor, mask: BlockMaskTensor, out: Tensor
) -> dict[str, Callable[[], Any]]:
    """Calls of the forward pass with rows left whole and split, by name; each writes to ``out``.

    Args:
        q, k, v: 1 × heads × tokens × head_dim, in float16, where our kernels run.
        mask: one for each head.
    """
    launches, device = Launches.of([q, k, v, out], mask), kernel_device(q)
    assert device is not None, "the emulator is asked for by torch_place"
    launches.tensors["o"] = out
    usual = launches.row.usual(device)
    return {rows: launches.forward(replace(usual, rows=rows)) for rows in ROWS}


@dataclass(frozen=True)
class Launches:
    """Launches of both passes on one row's tensors.

    Attributes:
        tensors: by name: Q, K, V, the gradient by O, O and the log-sum-exp, gradients, and what describes the row.
    """

    row: Attended
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, given: list[Tensor], mask: BlockMaskTensor | None, span: Span = ALL_KEYS) -> Launches:
        """Launches on Q, K, V and the gradient by O, 1 × heads × tokens × head_dim, in float16.

        Args:
            mask: one for each head.
        """
        q, k, v, dout = given
        row = Attended.of(q, mask, span)
        tensors = {"q": q, "k": k, "v": v, "do": dout}
        tensors |= {f"d{name}": torch.empty_like(tensors[name]) for name in "qkv"}
        tensors |= {"o": torch.empty_like(q), "lse": torch.empty(q.shape[:3], device=q.device)}
        tensors["scale"] = torch.tensor([q.shape[-1] ** -0.5], device=q.device)
        tensors["band"] = torch.from_numpy(row.problem(BlockAttentionProblem).band.words).to(q.device)
        if mask is not None:
            tensors["mask"] = mask.words
        return cls(row, tensors)

    def forward(self, config: Config) -> Callable[[], None]:
        """A call that writes O and the log-sum-exp."""
        return _Call(self.row.problem(BlockAttentionProblem), config, self.tensors, self.tensors["o"])

    def backward(self, config: Config) -> Callable[[], None]:
        """A call that reads them, and writes the gradients by Q, K and V."""
        return _Call(
            self.row.problem(BlockAttentionBackwardProblem), config, self.tensors, self.tensors["dq"]
        )

    def results(self) -> list[Tensor]:
        """Copies of O and the gradients; NaN stands where they were, for a call that writes less than it should."""
        written = [self.tensors[name] for name in ("o", "dq", "dk", "dv")]
        copies = [tensor.clone() for tensor in written]
        for tensor in written:
            tensor.fill_(torch.nan)
        return copies


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
