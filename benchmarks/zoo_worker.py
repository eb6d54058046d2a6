"""A model of the zoo in a process of its own: what breaks or ends there takes no other model with it.

Steps of the work are asked for one by one, so that whoever asks has the GPU to himself where times are taken.
"""

from __future__ import annotations

import copy
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.graph_capture import captured
from benchmarks.study import times_in_turn, torch_place
from benchmarks.zoo_cuts import Cut, pruned
from benchmarks.zoo_models import Images, Size, Text
from sparsegen.backends import find_device
from sparsegen.integrations.torch import ConversionReport, convert
from sparsegen.tuning_db.records import Called

CPU = "cpu"  # PyTorch's products alone
# Shares of the largest number of a dense result, behind many layers.
FAR = {torch.float16: 0.02, torch.float32: 1e-4}
SECONDS = 300.0  # most that a step may take
WARM_UP = 3  # calls of a compiled model, until its graph is there
PATIENCE = 5.0  # seconds in which a process may end by itself
Facts = dict[str, Any]


class Step(StrEnum):
    """Steps of a model, in order; the last three are ways of calling it."""

    MADE = "made"
    EAGER = "eager"
    GRAPH = "graph"
    COMPILED = "compiled"
    TIMED = "timed"

    @property
    def is_alone(self) -> bool:
        """True if nothing else may run on the machine."""
        return self in (Step.EAGER, Step.GRAPH, Step.TIMED)


class Subject:
    """A pruned model and its converted copies."""

    def __init__(self, one: Images | Text, cut: Cut, name: str, size: Size) -> None:
        """
        Args:
            name: of the device.
        """
        self._one, self._cut, self._size = one, cut, size
        self._place = torch.device("cpu") if name == CPU else torch_place(find_device(name))
        self._dtype = torch.float16 if self._is_timed else torch.float32
        self._calls: dict[Step, list[Callable[[], Tensor]]] = {}
        self._is_captured = False

    @property
    def _is_timed(self) -> bool:
        return self._place.type == "cuda"

    def take(self, step: Step) -> Facts:
        """Facts of a step, and the seconds that it took.

        Raises:
            ValueError: results that differ.
        """
        began = time.perf_counter()
        with torch.no_grad():
            match step:
                case Step.MADE:
                    found = self._made()
                case Step.GRAPH if not self._is_timed:
                    found = {}  # there is none on a CPU
                case Step.EAGER | Step.GRAPH:
                    found = self._converted(step)
                case Step.COMPILED:
                    found = self._compiled()
                case Step.TIMED:
                    found = self._timed(Step.COMPILED)
        return found | {f"{step}_s": round(time.perf_counter() - began, 1)}

    def _made(self) -> Facts:
        torch.manual_seed(0)
        model, inputs = self._one.made(self._size)
        self._inputs = {
            key: tensor.to(self._place, self._dtype if tensor.is_floating_point() else None)
            for key, tensor in inputs.items()
        }
        self._dense = pruned(model.requires_grad_(False).to(self._place, self._dtype), self._cut)
        self._wanted = _call(self._dense, self._inputs)()
        if not 0 < float(self._wanted.abs().max()) < float("inf"):
            raise ValueError("the dense result is zeros, or not finite: nothing can be compared with it")
        return {"parameters": sum(p.numel() for p in model.parameters())}

    def _converted(self, step: Step) -> Facts:
        """Converted by the model's own time, called and compared; without a clock, with every layer sparse too."""
        model = copy.deepcopy(self._dense)
        began = time.perf_counter()
        report = convert(model, example_inputs=self._inputs, capture=step is Step.GRAPH)
        found = {f"{step}_convert_s": round(time.perf_counter() - began, 1), **_layers(step, report)}
        found |= self._compared(step, _call(model, self._inputs))
        if not self._is_timed:  # times of the host would leave most layers dense
            model = copy.deepcopy(self._dense)
            report = convert(model, dense="never")
            found |= _layers(step, report)
            found |= self._compared(step, _call(model, self._inputs))
        self._calls[step] = [_call(one, self._inputs) for one in (self._dense, model)]
        self._model, self._sparse = model, len(report.converted)
        timed = self._timed(step) if self._is_timed else {}
        self._is_captured = step is Step.GRAPH and f"{step}_us" in timed
        return found | timed

    def _compiled(self) -> Facts:
        """Both compiled: as a graph, where the model was captured as one, or else for calls from Python."""
        compiler: Callable[[nn.Module], Any] = _traced
        if self._is_timed:
            mode = "reduce-overhead" if self._is_captured else "default"
            self._model = copy.deepcopy(self._dense)
            given: dict[str, Any] = {"example_inputs": self._inputs, "capture": self._is_captured}
            report = convert(self._model, **given, compile_mode=mode)
            self._sparse, compiler = len(report.converted), partial(torch.compile, mode=mode)
        models = self._dense, self._model
        calls = self._calls[Step.COMPILED] = [_call(compiler(one), self._inputs) for one in models]
        for call in calls * WARM_UP:
            call()
        facts = {"compiled_as_graph": self._is_captured, "compiled_sparse_layers": self._sparse}
        return facts | self._compared(Step.COMPILED, calls[1])

    def _compared(self, step: Step, call: Callable[[], Tensor]) -> Facts:
        far = float((call() - self._wanted).abs().max() / self._wanted.abs().max())
        if not far <= FAR[self._dtype]:
            raise ValueError(f"{step}: results differ by {far:.3g} of the largest")
        return {f"{step}_difference": far}

    def _timed(self, step: Step) -> Facts:
        """Microseconds of dense and converted in turn, and the one over the other."""
        if not self._is_timed:
            return {}
        runs: list[Callable[[], Any]] = list(self._calls[step])
        if step is Step.GRAPH:
            try:
                runs = [captured(call, self._place)[0] for call in runs]
            except RuntimeError as error:  # a model that looks at its data
                torch.cuda.synchronize()
                return {"graph_not_captured": str(error).splitlines()[0]}
        dense, ours = times_in_turn(runs, called=Called.DEVICE if step is Step.GRAPH else Called.HOST)
        return {
            f"{step}_dense_us": round(dense, 1),
            f"{step}_us": round(ours, 1),
            f"{step}_ratio": round(ours / dense, 4),
        }


def _layers(step: Step, report: ConversionReport) -> Facts:
    """Counts layers that became sparse, in how many groups they were tried, and why others did not."""
    reasons = Counter(layer.reason.partition(":")[0] for layer in report.dense)
    found: Facts = {f"{step}_sparse_layers": len(report.converted), f"{step}_dense_layers": dict(reasons)}
    if report.in_situ is not None:
        found |= {f"{step}_groups": len(report.in_situ.steps), f"{step}_captured": report.in_situ.captured}
    return found


def _call(model: Callable[..., Any], inputs: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """A call whose first result is a tensor."""

    def call() -> Tensor:
        found = model(**inputs)
        result: Tensor = found if isinstance(found, Tensor) else found[0]
        return result

    return call


def _traced(model: nn.Module) -> Any:
    """A model traced as for PyTorch's compiler, without code made of it."""
    return torch.compile(model, backend="aot_eager")


class Worker:
    """The process of a model, as it is seen from outside."""

    def __init__(self, one: Images | Text, cut: Cut, device: str, size: Size, threads: int) -> None:
        spawn = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
        self._connection, other = spawn.Pipe()
        given = other, one, cut, device, size, threads
        self._process = spawn.Process(target=_serve, args=given)
        self._process.start()
        other.close()

    def ask(self, step: Step) -> None:
        """Have a step begin."""
        self._connection.send(step)

    def answer(self) -> Facts:
        """Facts of the step that was asked for; ``failed`` among them if it did, and the process is gone."""
        if not self._connection.poll(SECONDS):
            self.close()
            return {"failed": f"a step took longer than {SECONDS:g} s"}
        try:
            found: Facts = self._connection.recv()
        except EOFError:
            self._process.join()
            found = {"failed": f"the process ended with exit status {self._process.exitcode}"}
        if "failed" in found:
            self.close()
        return found

    def close(self) -> None:
        """End the process; one that waits whose caller is gone ends by itself."""
        self._connection.close()
        self._process.join(PATIENCE)
        self._process.kill()
        self._process.join()


def _serve(
    connection: Connection, one: Images | Text, cut: Cut, device: str, size: Size, threads: int
) -> None:
    """Take steps until the caller is gone."""
    torch.set_num_threads(threads)
    torch._inductor.config.compile_threads = threads
    subject = Subject(one, cut, device, size)
    while True:
        try:
            step = connection.recv()
        except EOFError:
            return
        try:
            connection.send(subject.take(step))
        except Exception:  # whatever it is, other models are to be measured
            connection.send({"failed": traceback.format_exc()[-3000:]})
