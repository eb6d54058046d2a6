"""Choice of a model's sparse layers, decided inside the model: by the time of the whole model with and without them.

Each trial is a race of two arrangements (`sparsegen.measure.decision.decide_model`), which the tuning database keeps:
the same conversion of an equal model, in this process or another, times nothing again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from sparsegen import backends
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.calls.example_inputs import arguments_of
from sparsegen.integrations.torch.calls.replacement import Replacement
from sparsegen.integrations.torch.models.arrangement import PLAIN, Arranger, Form
from sparsegen.integrations.torch.models.model_clock import (
    ROUNDS,
    Arrange,
    CompiledClock,
    CompileMode,
    ModelClock,
    Run,
    TorchClock,
)
from sparsegen.integrations.torch.models.model_facts import ModelFacts
from sparsegen.integrations.torch.models.model_trace import agree, trace
from sparsegen.integrations.torch.pattern.pointwise import Convertible
from sparsegen.kernels.base import Device
from sparsegen.measure.decision import Times, decide_model
from sparsegen.tuning_db.records import Called

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """A group of like layers that was tried.

    Attributes:
        dense_us, sparse_us: microseconds of the whole model, with all that was decided before, timed in turn.
        kept: true if they became sparse.
        form: form in which they did, or the last in which they were tried.
        why: the reason in words.
        dropped: true if they were kept until all that were lost together at the end.
    """

    layers: tuple[str, ...]
    dense_us: float
    sparse_us: float
    kept: bool
    form: Form = PLAIN
    why: str = ""
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class InSitu:
    """Decision for a model.

    Attributes:
        dense_us, final_us: microseconds of the dense model and of the converted one, timed in turn at the end; equal
            where all layers are dense.
        captured: true if CUDA graphs were timed; else calls from Python were.
        steps: those tried, in order.
        uncalled: layers that the example inputs do not reach.
        slower: layers that were not tried, as their dense products are measured or estimated to be faster.
        compile_mode: mode in which both models of the end were compiled; None if they were not.
    """

    dense_us: float
    final_us: float
    captured: bool
    steps: tuple[Step, ...]
    uncalled: tuple[str, ...]
    compile_mode: CompileMode | None = None
    slower: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The layers that became sparse."""
        return tuple(name for step in self.steps if step.kept for name in step.layers)


def decide(
    model: nn.Module,
    dense: Mapping[str, Convertible],
    sparse: Mapping[str, Replacement],
    example_inputs: object,
    clock: ModelClock | None = None,
    *,
    fuse: bool = True,
    capture: bool = True,
    compile_mode: CompileMode | None = None,
    holders: Mapping[str, nn.Module] = MappingProxyType({}),
) -> InSitu:
    """Make those layers of a model sparse with which it gets faster, in place; it is never slower than it was.

    Layers of one shape, one number of tokens and about one density are decided together: what one of many layers saves
    is less than the noise of a model's time. The largest group comes first. One launch for layers that read one tensor,
    and activations as part of the layers before them, are kept where the model is faster with them than without, and
    where its results stay the same but for rounding. A group is not tried whose dense products are surely faster.

    Args:
        dense, sparse: the layers by name, and what may take their places.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of named ones.
        clock: the clock; by default `TorchClock`.
        fuse: share launches and fuse activations.
        capture: time CUDA graphs if that is possible, else calls from Python.
        compile_mode: time both models of the end as `torch.compile` compiles them in this mode, called from Python.
        holders: see `Arranger`.

    Raises:
        OperandError: no inputs. What the model raises is passed on, and it is then as it was.
    """
    positional, named = arguments_of(example_inputs)

    def run() -> Any:
        return model(*positional, **named)

    was_training = model.training
    trained = [p for layer in sparse.values() for p in layer.parameters() if p.requires_grad]
    arranger = Arranger(model, dense, sparse, holders=holders)
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
                arranger = Arranger(model, dense, sparse, seen.sites, seen.shared, holders)
            facts = ModelFacts(model, example_inputs, sparse, seen.tokens, captures=capture)
            groups = _groups(arranger, seen.tokens)
            slower = [group for group in groups if facts.is_slower(group) and not arranger.may_share(group)]
            groups = [group for group in groups if group not in slower]
            tried = {name for group in groups for name in group}
            facts.compile(tried, {name: site.activation for site in arranger.sites for name in site.layers})
            device = _device_of(model)
            trials = _Trials(arranger, run, clock or TorchClock(device, capture), facts)
            with _never_dense(sparse.values()):
                for group in groups:
                    trials.group(group)
                if compile_mode is not None:
                    trials.call_by(CompiledClock(device, compile_mode), facts.also(compile_mode))
                found = replace(trials.end(), compile_mode=compile_mode)
            done = True
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        if not done:
            arranger.arrange({})
        model.train(was_training)
    return replace(
        found,
        uncalled=tuple(name for name in sparse if name not in seen.tokens),
        slower=tuple(name for group in slower for name in group),
    )


@contextmanager
def _never_dense(layers: Iterable[Replacement]) -> Iterator[None]:
    """Lets layers run our kernels alone, as the dense ones are in the model beside which they are timed.

    Rounded layers race dense products of their codes, which the model has not.
    """
    before = [(layer, layer.run_dense) for layer in layers if layer.rounding is None]
    for layer, _ in before:
        layer.run_dense = Dense.NEVER
    try:
        yield
    finally:
        for layer, policy in before:
            layer.run_dense = policy


class _Trials:
    """One arrangement of a model after another, each beside the best so far."""

    def __init__(self, arranger: Arranger, run: Run, clock: ModelClock, facts: ModelFacts) -> None:
        self._arranger, self._run, self._clock, self._facts = arranger, run, clock, facts
        self._pinned: dict[str, Form] = {}
        self._kept: dict[str, Form] = {}
        self._steps: list[Step] = []
        self._called = Called.DEVICE if clock.captured else Called.HOST

    def group(self, names: tuple[str, ...]) -> None:
        """Try a group in all its forms, and keep the best if the model gets faster; what is pinned is kept."""
        best: Step | None = None
        pinned = self._facts.pinned(names)
        for form in (PLAIN,) if pinned else self._forms(names):
            if best is not None and best.kept:
                # The simpler form, unless the other one saves more than noise.
                decision, times = self._raced(self._with(names, best.form), self._with(names, form))
                if not decision.on_device:
                    best = replace(best, sparse_us=times.other_us, form=form, why=decision.why)
                continue
            decision, times = self._raced(self._with(names, form), self._kept, pinned)
            step = Step(names, times.other_us, times.ours_us, decision.on_device, form, decision.why)
            best = step
        if best is not None:
            self._steps.append(best)
            if best.kept:
                self._kept = self._with(names, best.form)
            if pinned:
                self._pinned |= dict.fromkeys(names, PLAIN)

    def call_by(self, clock: ModelClock, facts: ModelFacts) -> None:
        """Time what follows by another clock."""
        self._clock, self._facts = clock, facts

    def end(self) -> InSitu:
        """Leave the model as it is fastest: all that was kept, or what is pinned where all together does not pay."""
        before = after = self._steps[0].dense_us if self._steps else 0.0
        for kept in (self._kept, self._pinned):
            self._kept, after = kept, before
            if not kept:
                break
            decision, times = self._raced(kept, {})
            before, after = times.other_us, times.ours_us
            if decision.on_device:
                break
        for number, step in enumerate(self._steps):
            stays = step.layers[0] in self._kept
            self._steps[number] = replace(step, kept=stays, dropped=step.kept and not stays)
        self._arranger.arrange(self._kept)
        for name, layer in self._arranger.sparse.items():
            if name not in self._kept or self._kept[name].one_launch:
                layer.forget()
        return InSitu(before, after, self._called is Called.DEVICE, tuple(self._steps), ())

    def _raced(
        self, ours: Mapping[str, Form], other: Mapping[str, Form], pinned: str = ""
    ) -> tuple[Decision, Times]:
        """The decision between an arrangement and a simpler one, by a race or by why the first is pinned."""

        def timed() -> Times:
            times = self._clock.compare(self._run, self._arranged(other), self._arranged(ours))
            return Times(times[1], times[0], Called.DEVICE if self._clock.captured else Called.HOST)

        layer, context = self._facts.race(ours, other)
        decision, times = decide_model(layer, context, timed, ROUNDS, pinned)
        self._called = times.called
        return decision, times

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
        return _Arrangement(self._arranger, forms)


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Arrangement of a model, made by a call; equal where the forms are."""

    arranger: Arranger
    forms: Mapping[str, Form]

    def __call__(self) -> None:
        self.arranger.arrange(self.forms)


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
            shapes = tuple(sparse[n].likeness() for n in together)
            key = (tokens[name], len(together), shapes, before.get(name))
            groups.setdefault(key, []).append(name)

    def work(names: Sequence[str]) -> int:
        return sum(math.prod(sparse[n].size()[0]) * max(1, sum(tokens[n])) for n in names)

    return sorted((tuple(names) for names in groups.values()), key=work, reverse=True)
