"""Models and data for `benchmarks.training`: a sparse one and its masked-dense twin, from the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss, scaled_dot_product_attention

from sparsegen import masks
from sparsegen.integrations.torch import SparseAttention, SparseLinear, convert
from sparsegen.matrix.csr import CsrMatrix

TASK_SEED = 1234  # of what is to be learnt, which is the same for every model

Batch = tuple[Tensor, Tensor]  # inputs, targets


@dataclass(frozen=True)
class Sizes:
    """Sizes of both models; `TINY` is for tests.

    Attributes:
        width, hidden: sizes of the multilayer perceptron; tokens: rows of a batch.
        model_width, heads, length, sequences, symbols: sizes of the transformer, whose hidden layers are four times as
            wide.
        window, sinks: parameters of its mask.
        sparsity: sparsity of every linear layer but the transformer's last.
    """

    width: int = 512
    hidden: int = 2048
    tokens: int = 256
    model_width: int = 128
    heads: int = 4
    length: int = 256
    sequences: int = 8
    symbols: int = 64
    window: int = 48
    sinks: int = 4
    sparsity: float = 0.9

    @property
    def mask(self) -> CsrMatrix:
        return masks.sliding_window(self.length, window=self.window, sinks=self.sinks)


TINY = Sizes(16, 32, 8, 16, 2, 16, 2, 8, 4, 1, 0.5)


class MaskedLinear(nn.Module):
    """A dense linear layer whose weight is multiplied with a fixed mask, forwards and backwards."""

    mask: Tensor

    def __init__(self, dense: nn.Linear, mask: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = dense.weight, dense.bias
        self.register_buffer("mask", mask.to(dense.weight))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight * self.mask, self.bias)


class DenseAttention(nn.Module):
    """Dense attention that is kept from what a mask does not hold."""

    seen: Tensor

    def __init__(self, mask: CsrMatrix) -> None:
        super().__init__()
        self.register_buffer("seen", torch.from_numpy(mask.to_scipy().toarray() != 0))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=self.seen)


class Block(nn.Module):
    """A layer of a transformer, normalised before each half."""

    def __init__(self, width: int, heads: int, attention: nn.Module) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.first_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Two blocks; predicts the next symbol at each place."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.symbols = nn.Embedding(s.symbols, s.model_width)
        self.places = nn.Parameter(0.02 * torch.randn(s.length, s.model_width))
        self.blocks = nn.ModuleList(Block(s.model_width, s.heads, DenseAttention(s.mask)) for _ in range(2))
        self.norm, self.last = nn.LayerNorm(s.model_width), nn.Linear(s.model_width, s.symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.symbols(symbols) + self.places
        for block in self.blocks:
            x = block(x)
        return self.last(self.norm(x))  # type: ignore[no-any-return]


def perceptron(s: Sizes) -> nn.Module:
    """Two linear layers with a ReLU between."""
    return nn.Sequential(nn.Linear(s.width, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.width))


def twins(model: nn.Module, s: Sizes) -> tuple[nn.Module, nn.Module]:
    """A dense model as a sparse one and as a masked-dense one: the same layers, weights and masks."""
    sparse, dense = copy.deepcopy(model), model
    convert(sparse, "unstructured", s.sparsity, exclude=("last",))
    for name, module in list(sparse.named_modules()):
        holder_name, _, own_name = name.rpartition(".")
        if isinstance(module, SparseLinear):
            kept = torch.from_numpy(module.pattern.matrix.to_scipy().toarray() != 0)
            setattr(dense.get_submodule(holder_name), own_name, MaskedLinear(dense.get_submodule(name), kept))  # type: ignore[arg-type]
        elif isinstance(module, DenseAttention):
            attention = SparseAttention(s.mask, s.heads, s.model_width // s.heads)
            setattr(sparse.get_submodule(holder_name), own_name, attention)
    return sparse, dense


@dataclass(frozen=True)
class Task:
    """A model, what it learns, and how that is said in a result file."""

    name: str
    data: str
    make: Callable[[Sizes], nn.Module]
    batches: Callable[[Sizes, int, torch.device], Iterator[Batch]]
    loss: Callable[[Tensor, Tensor], Tensor]


def _of_teacher(s: Sizes, seed: int, place: torch.device) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(TASK_SEED)
    first, second = (
        torch.randn(shape, generator=generator) * shape[1] ** -0.5 for shape in ((s.width, s.width),) * 2
    )
    first, second = first.to(place), second.to(place)
    generator = torch.Generator().manual_seed(seed)
    while True:
        x, noise = (torch.randn(s.tokens, s.width, generator=generator).to(place) for _ in range(2))
        yield x, torch.tanh(x @ first.T) @ second.T + 0.1 * noise


def _of_chain(s: Sizes, seed: int, place: torch.device) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(TASK_SEED)
    chances = torch.softmax(2 * torch.randn(s.symbols, s.symbols, s.symbols, generator=generator), dim=2)
    ends = chances.cumsum(2)
    generator = torch.Generator().manual_seed(seed)
    while True:
        drawn = torch.rand(s.length + 1, s.sequences, generator=generator)
        symbols = torch.randint(s.symbols, (2, s.sequences), generator=generator)
        found = [symbols[0], symbols[1]]
        for row in drawn[2:]:
            of_two = ends[found[-2], found[-1]].contiguous()
            found.append(torch.searchsorted(of_two, row[:, None])[:, 0].clamp(max=s.symbols - 1))
        sequence = torch.stack(found, dim=1).to(place)
        yield sequence[:, :-1], sequence[:, 1:]


def _next_symbol_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _squared_error(found: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(found.float(), targets)


TASKS: dict[str, Task] = {
    "mlp": Task(
        "mlp",
        "regression: normal inputs, targets of a fixed random network (tanh between two matrices) with noise of 0.1",
        perceptron,
        _of_teacher,
        _squared_error,
    ),
    "transformer": Task(
        "transformer",
        "next symbols of a fixed random Markov chain of order two",
        Transformer,
        _of_chain,
        _next_symbol_loss,
    ),
}


def parameters_of(model: nn.Module) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]
