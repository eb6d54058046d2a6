"""Which layers become sparse, decided inside the model: by how long the whole of it takes, with and without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.linear import SparseLinear

ROUNDS = 11  # of both arrangements in turn
WARMUP = 3  # calls before one is captured: the first ones prepare, probe and check
GAIN = 0.005  # share of the model's time that a group has to save: less is noise
DENSITY_STEP = 0.05  # layers whose densities round to the same multiple are decided together

Run = Callable[[], Any]
Arrange = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Step:
    """A group of like layers that was tried.

    Attributes:
        dense_us, sparse_us: microseconds of the whole model, with all that was decided before, timed in turn.
        kept: whether they became sparse.
    """

    layers: tuple[str, ...]
    dense_us: float
    sparse_us: float
    kept: bool


@dataclass(frozen=True, slots=True)
class InSitu:
    """What became of a model.

    Attributes:
        dense_us, final_us: microseconds of the dense model and of the converted one, timed in turn at the end; equal
            where all layers are dense.
        captured: whether CUDA graphs were timed; else calls from Python.
        steps: in the order in which they were tried.
        uncalled: layers that the example inputs do not reach.
    """

    dense_us: float
    final_us: float
    captured: bool
    steps: tuple[Step, ...]
    uncalled: tuple[str, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """The layers that became sparse."""
        return tuple(name for step in self.steps if step.kept for name in step.layers)


class ModelClock(Protocol):
    """Times two arrangements of one model in turn."""

    @property
    def captured(self) -> bool:
        """Whether CUDA graphs are timed."""

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        """Median microseconds of ``run`` after each; which was arranged last is not said."""


class TorchClock:
    """Replays captured graphs on a GPU; calls a model that cannot be captured, or that is on a CPU.

    A graph's launches find the L2 as the model itself leaves it.
    """

    def __init__(self, on_gpu: bool) -> None:
        self.captured = on_gpu
        self._on_gpu = on_gpu

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        """See `ModelClock`."""
        times: tuple[list[float], list[float]] = ([], [])
        if self.captured:
            try:
                replays = [self._graph(run, arrange) for arrange in (first, second)]
            except RuntimeError:  # a model that looks at its data: it is called from Python for good
                torch.cuda.synchronize()
                self.captured = False
        for arrange in (first, second):
            if not self.captured:
                arrange()
                for _ in range(WARMUP):
                    run()
        for _ in range(ROUNDS):
            for i, arrange in enumerate((first, second)):
                if self.captured:
                    times[i].append(self._timed(replays[i]))
                else:
                    arrange()
                    times[i].append(self._timed(run))
        return median(times[0]), median(times[1])

    @staticmethod
    def _graph(run: Run, arrange: Arrange) -> Run:
        arrange()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def _timed(self, run: Run) -> float:
        if not self._on_gpu:
            began = time.perf_counter()
            run()
            return (time.perf_counter() - began) * 1e6
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3


def decide(
    model: nn.Module,
    dense: Mapping[str, nn.Linear],
    sparse: Mapping[str, SparseLinear],
    example_inputs: Any,
    clock: ModelClock | None = None,
) -> InSitu:
    """Make those layers of a model sparse with which it gets faster, in place; it is never slower than it was.

    Layers of one shape, one number of tokens and about one density are decided together: what one of many layers saves
    is less than the noise of a model's time. The largest group comes first.

    Args:
        dense, sparse: the layers by name, and what may take their places.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones.
        clock: by default `TorchClock`.

    Raises:
        OperandError: no inputs. What the model raises is passed on, and it is then as it was.
    """
    positional, named = _arguments(example_inputs)

    def run() -> Any:
        return model(*positional, **named)

    def arrange(names: Sequence[str]) -> Arrange:
        return lambda: _arrange(model, dense, sparse, names)

    was_training = model.training
    trained = [p for layer in sparse.values() for p in layer.parameters() if p.requires_grad]
    done = False
    try:
        for parameter in trained:  # values that train are brought to the kernels at each call
            parameter.requires_grad_(False)
        model.eval()
        with torch.no_grad():
            tokens = _tokens(dense, run)
            clock = clock or TorchClock(any(p.is_cuda for p in model.parameters()))
            kept: list[str] = []
            steps = []
            for group in _groups(sparse, tokens):
                before, after = clock.compare(run, arrange(kept), arrange([*kept, *group]))
                pays = after < before * (1 - GAIN)
                steps.append(Step(group, before, after, pays))
                kept += group if pays else ()
            before, after = clock.compare(run, arrange([]), arrange(kept)) if kept else (0.0, 0.0)
            if after >= before:  # all together they do not pay, whatever each seemed to save
                kept = []
                steps = [Step(s.layers, s.dense_us, s.sparse_us, False) for s in steps]
                before = before or (steps[0].dense_us if steps else 0.0)
                after = before
            _arrange(model, dense, sparse, kept)
            done = True
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        if not done:
            _arrange(model, dense, sparse, [])
        model.train(was_training)
    return InSitu(before, after, clock.captured, tuple(steps), tuple(n for n in sparse if n not in tokens))


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, tuple) and example_inputs:
        return example_inputs, {}
    if isinstance(example_inputs, dict) and all(isinstance(name, str) for name in example_inputs):
        return (), example_inputs
    raise OperandError(
        f"example_inputs: expected a tensor, a tuple of arguments or a dict of named ones, got "
        f"{type(example_inputs).__name__}"
    )


def _arrange(
    model: nn.Module,
    dense: Mapping[str, nn.Linear],
    sparse: Mapping[str, SparseLinear],
    names: Sequence[str],
) -> None:
    """Have these layers sparse, all others dense."""
    chosen = set(names)
    for name, layer in sparse.items():
        holder, _, own_name = name.rpartition(".")
        module: nn.Module = layer if name in chosen else dense[name]
        setattr(model.get_submodule(holder), own_name, module.train(model.training))


def _tokens(dense: Mapping[str, nn.Linear], run: Run) -> dict[str, tuple[int, ...]]:
    """For each layer that a call reaches, the numbers of tokens that it gets, in order."""
    found: dict[str, tuple[int, ...]] = {}
    with ExitStack() as hooks:
        for name, layer in dense.items():

            def note(module: nn.Module, inputs: tuple[Any, ...], name: str = name) -> None:
                count = inputs[0].numel() // inputs[0].shape[-1] if inputs[0].numel() else 0
                found[name] = (*found.get(name, ()), count)

            hooks.callback(layer.register_forward_pre_hook(note).remove)
        run()
    return found


def _groups(
    sparse: Mapping[str, SparseLinear], tokens: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, ...]]:
    """Like layers, the group with the most products first."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, layer in sparse.items():
        if name in tokens:
            density = round((1 - layer.pattern.sparsity) / DENSITY_STEP)
            key = (layer.pattern.shape, tokens[name], density, layer.bias is None, layer.values.dtype)
            groups.setdefault(key, []).append(name)

    def work(names: Sequence[str]) -> int:
        return sum(
            sparse[n].pattern.shape[0] * sparse[n].pattern.shape[1] * max(1, sum(tokens[n])) for n in names
        )

    return sorted((tuple(names) for names in groups.values()), key=work, reverse=True)
