"""Choice of a model's sparse layers, decided inside the model: by the time of the whole model with and without them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from sparsegen import backends
from sparsegen.integrations.torch.calls.results import agree
from sparsegen.integrations.torch.models.arrangement import PLAIN, Arranger, Form
from sparsegen.integrations.torch.models.example_inputs import arguments_of
from sparsegen.integrations.torch.models.model_trace import trace
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pointwise import Convertible
from sparsegen.kernels.base import Device
from sparsegen.measure.l2 import L2
from sparsegen.measure.race import in_turn, on_default_stream
from sparsegen.plan.executors import shared_executor
from sparsegen.tuning_db.records import Called

log = logging.getLogger(__name__)

ROUNDS = 11  # rounds of both arrangements in turn
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
        kept: true if they became sparse.
        form: form in which they did, or in which the model took least.
    """

    layers: tuple[str, ...]
    dense_us: float
    sparse_us: float
    kept: bool
    form: Form = PLAIN


@dataclass(frozen=True, slots=True)
class InSitu:
    """Decision for a model.

    Attributes:
        dense_us, final_us: microseconds of the dense model and of the converted one, timed in turn at the end; equal
            where all layers are dense.
        captured: true if CUDA graphs were timed; else calls from Python were.
        steps: those tried, in order.
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
        """True if CUDA graphs are timed."""

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        """Median microseconds of ``run`` after each; which was arranged last is not said."""


class TorchClock:
    """Replays captured graphs on a GPU; calls a model that cannot be captured, or that is on a CPU.

    A graph's launches find the L2 as the model itself leaves it. Of a call, the host's time counts too.

    Args:
        device: device of the model; for one on the CPU the emulator's, whose clock is the host's.
        captures: capture graphs if that is possible.
    """

    def __init__(self, device: Device, captures: bool = True) -> None:
        self.captured = device.backend == "cuda" and captures
        self._device = device

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        """See `ModelClock`."""
        replays: list[Run] = []
        if self.captured:
            try:
                replays = [self._graph(run, arrange) for arrange in (first, second)]
            except RuntimeError:  # a model that looks at its data: it is called from Python for good
                torch.cuda.synchronize()
                self.captured = False
        called, runs, before = Called.DEVICE, replays, list[Arrange]()
        executor = shared_executor(self._device)
        with on_default_stream(executor):
            if not self.captured:
                called, runs, before = Called.HOST, [run, run], [first, second]
                for arrange in before:
                    arrange()
                    for _ in range(WARMUP):
                        run()
            times = in_turn(
                *(runs, executor, called, L2.WARM), rounds=ROUNDS, samples=1, warmup=0, before=before
            )
        return times[0], times[1]

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


def decide(
    model: nn.Module,
    dense: Mapping[str, Convertible],
    sparse: Mapping[str, SparseLinear],
    example_inputs: object,
    clock: ModelClock | None = None,
    *,
    fuse: bool = True,
    capture: bool = True,
) -> InSitu:
    """Make those layers of a model sparse with which it gets faster, in place; it is never slower than it was.

    Layers of one shape, one number of tokens and about one density are decided together: what one of many layers saves
    is less than the noise of a model's time. The largest group comes first. One launch for layers that read one tensor,
    and activations as part of the layers before them, are kept where the model is faster with them than without, and
    where its results stay the same but for rounding.

    Args:
        dense, sparse: the layers by name, and what may take their places.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones.
        clock: the clock; by default `TorchClock`.
        fuse: share launches and fuse activations.
        capture: time CUDA graphs if that is possible, else calls from Python.

    Raises:
        OperandError: no inputs. What the model raises is passed on, and it is then as it was.
    """
    positional, named = arguments_of(example_inputs)

    def run() -> Any:
        return model(*positional, **named)

    was_training = model.training
    trained = [p for layer in sparse.values() for p in layer.parameters() if p.requires_grad]
    arranger = Arranger(model, dense, sparse)
    done = False
    try:
        for parameter in trained:  # values that train are brought to the kernels at each call
            parameter.requires_grad_(False)
        model.eval()
        for layer in sparse.values():
            layer.eval()
        with torch.no_grad():
            seen = trace(model, dense, run)
            if fuse:
                arranger = Arranger(model, dense, sparse, seen.sites, seen.shared)
            trials = _Trials(arranger, run, clock or TorchClock(_device_of(model), capture))
            for group in _groups(arranger, seen.tokens):
                trials.group(group)
            found = trials.end()
            done = True
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        if not done:
            arranger.arrange({})
        model.train(was_training)
    return replace(found, uncalled=tuple(name for name in sparse if name not in seen.tokens))


class _Trials:
    """One arrangement of a model after another, each beside the best so far."""

    def __init__(self, arranger: Arranger, run: Run, clock: ModelClock) -> None:
        self._arranger, self._run, self._clock = arranger, run, clock
        self._kept: dict[str, Form] = {}
        self._steps: list[Step] = []

    def group(self, names: tuple[str, ...]) -> None:
        """Try a group in all its forms, and keep the best if the model gets faster."""
        best: Step | None = None
        for form in self._forms(names):
            kept = best is not None and best.kept
            there = self._with(names, best.form) if best is not None and kept else self._kept
            before, after = self._clock.compare(
                self._run, self._arranged(there), self._arranged(self._with(names, form))
            )
            if best is None or not kept:
                step = Step(names, before, after, after < before * (1 - GAIN), form)
                if best is None or step.kept or step.sparse_us < best.sparse_us:
                    best = step
            elif after * (1 - GAIN) <= before:  # the simpler form, unless the other one saves more than noise
                best = replace(best, sparse_us=after, form=form)
        if best is not None:
            self._steps.append(best)
            if best.kept:
                self._kept = self._with(names, best.form)

    def end(self) -> InSitu:
        """Leave the model as it is fastest: all that was kept, or nothing where all together does not pay."""
        before = after = self._steps[0].dense_us if self._steps else 0.0
        if self._kept:
            before, after = self._clock.compare(self._run, self._arranged({}), self._arranged(self._kept))
            if after >= before:
                self._kept, after = {}, before
                self._steps = [replace(step, kept=False) for step in self._steps]
        self._arranger.arrange(self._kept)
        for name, layer in self._arranger.sparse.items():
            if name not in self._kept or self._kept[name].one_launch:
                layer.pattern.forget()  # drops what only trials ran
        return InSitu(before, after, self._clock.captured, tuple(self._steps), ())

    def _forms(self, names: tuple[str, ...]) -> Iterator[Form]:
        """The forms that give what the plain one gives, those that save most first."""
        sites = [set(site.layers) for site in self._arranger.sites]
        fusable = any(site & set(names) and site <= {*names, *self._kept} for site in sites)
        shares = any(set(group) <= set(names) for group in self._arranger.shared)
        for one_launch in (True, False):
            for fused in (True, False):
                form = Form(fused, one_launch)
                if (fused and not fusable) or (one_launch and not shares):
                    continue
                if form == PLAIN or self._agrees(self._with(names, form), self._with(names, PLAIN)):
                    yield form

    def _agrees(self, forms: Mapping[str, Form], plain: Mapping[str, Form]) -> bool:
        """True if the model gives the same in these forms as with plain layers; false for forms that cannot run."""
        self._arranger.arrange(plain)
        expected = self._run()
        self._arranger.arrange(forms)
        try:
            return agree(self._run(), expected)
        except RuntimeError as error:  # a view that needs contiguous memory
            log.info("a form of %s does not run in this model: %s", ", ".join(forms), error)
            return False

    def _with(self, names: Sequence[str], form: Form) -> dict[str, Form]:
        return self._kept | dict.fromkeys(names, form)

    def _arranged(self, forms: Mapping[str, Form]) -> Arrange:
        return lambda: self._arranger.arrange(forms)


def _device_of(model: nn.Module) -> Device:
    gpu = next((p.device for p in model.parameters() if p.is_cuda), None)
    return backends.find_device("emulator" if gpu is None else str(gpu))


def _groups(arranger: Arranger, tokens: Mapping[str, tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Like layers, the group with the most products first; layers that may share a launch are like each other."""
    sparse, groups = arranger.sparse, dict[tuple[Any, ...], list[str]]()
    sharing = {name: names for names in arranger.shared for name in names}
    before = {name: site.activation for site in arranger.sites for name in site.layers}
    for name in sparse:
        if name in tokens:
            together = sharing.get(name, (name,))
            shapes = tuple(_likeness(sparse[n]) for n in together)
            key = (tokens[name], len(together), shapes, before.get(name))
            groups.setdefault(key, []).append(name)

    def work(names: Sequence[str]) -> int:
        return sum(
            sparse[n].pattern.shape[0] * sparse[n].pattern.shape[1] * max(1, sum(tokens[n])) for n in names
        )

    return sorted((tuple(names) for names in groups.values()), key=work, reverse=True)


def _likeness(layer: SparseLinear) -> tuple[Any, ...]:
    density = round((1 - layer.pattern.sparsity) / DENSITY_STEP)
    return layer.pattern.shape, density, layer.bias is None, layer.dtype
