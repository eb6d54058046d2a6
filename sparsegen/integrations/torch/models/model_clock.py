"""Clock of whole models: two arrangements of one model, timed in turn by the clock that times all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from statistics import median
from types import FunctionType
from typing import Protocol

import torch

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.measure.l2 import L2
from sparsegen.measure.race import in_turn, on_default_stream
from sparsegen.plan.executors import shared_executor
from sparsegen.tuning_db.records import Called


class CompileMode(StrEnum):
    """Modes of `torch.compile`."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max-autotune-no-cudagraphs"

    @classmethod
    def parse(cls, mode: CompileMode | str | None) -> CompileMode | None:
        """Raises OperandError for a word that is none of these; None of None."""
        return None if mode is None else arguments.word(cls, mode, "compile_mode", OperandError)


ROUNDS = 11  # rounds of both arrangements in turn
FEW = 4  # after which a race is over if the second arrangement is not ahead
WARMUP = 3  # calls before one is captured: the first ones prepare, probe and check

Run = Callable[[], object]
Arrange = Callable[[], None]


class ModelClock(Protocol):
    """Times two arrangements of one model in turn."""

    @property
    def captured(self) -> bool:
        """True if CUDA graphs are timed."""

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        """Median microseconds of ``run`` after each; which was arranged last is not said. Arrangements that are equal
        make the same model.
        """


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
        self._graphs: list[tuple[Arrange, Run]] = []  # of the race before

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        """See `ModelClock`."""
        if self.captured:
            try:
                replays = self._replays(run, (first, second))
            except RuntimeError:  # a model that looks at its data: it is called from Python for good
                torch.cuda.synchronize()
                self.captured, self._graphs = False, []
            else:
                return _in_turn(replays, self._device, Called.DEVICE)
        with on_default_stream(shared_executor(self._device)):
            for arrange in (first, second):
                arrange()
                for _ in range(WARMUP):
                    run()
        return _in_turn([run, run], self._device, Called.HOST, before=[first, second])

    def _replays(self, run: Run, arrangements: Sequence[Arrange]) -> list[Run]:
        """Replays of each arrangement; one that the race before had is not captured again."""
        self._graphs = [known for known in self._graphs if known[0] in arrangements]
        found = []
        for arrange in arrangements:
            graph = next((graph for one, graph in self._graphs if one == arrange), None)
            if graph is None:
                graph = self._graph(run, arrange)
                self._graphs.append((arrange, graph))
            found.append(graph)
        return found

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


class CompiledClock:
    """Calls from Python a model that is compiled once in each arrangement, by `torch.compile`.

    Args:
        device: device of the model; for one on the CPU the emulator's.
    """

    captured = False

    def __init__(self, device: Device, mode: CompileMode) -> None:
        self._device, self._mode = device, mode

    def compare(self, run: Run, first: Arrange, second: Arrange) -> tuple[float, float]:
        """See `ModelClock`."""
        runs = [self._compiled(run, arrange) for arrange in (first, second)]
        return _in_turn(runs, self._device, Called.HOST, warmup=1, before=[first, second])

    def _compiled(self, run: Run, arrange: Arrange) -> Run:
        """Compiles the model as it is arranged, for code of its own: what is compiled for one is looked up by code, and
        the second arrangement would pay for a look at the first.
        """

        def call() -> object:
            return run()

        arrange()
        own = FunctionType(call.__code__.replace(), globals(), call.__name__, None, call.__closure__)
        compiled: Run = torch.compile(own, mode=self._mode.value)
        for _ in range(WARMUP):  # the first ones compile, and capture
            compiled()
        return compiled


def _in_turn(
    runs: Sequence[Run], device: Device, called: Called, *, warmup: int = 0, before: Sequence[Arrange] = ()
) -> tuple[float, float]:
    """Median microseconds of two runs in turn; a race in which the second is not ahead ends early. See `in_turn`."""
    executor = shared_executor(device)
    with on_default_stream(executor):
        first, second = in_turn(
            runs,
            executor,
            called,
            L2.WARM,
            rounds=ROUNDS,
            samples=1,
            warmup=warmup,
            before=before,
            is_over=_is_lost,
        )
    return first, second


def _is_lost(times: Sequence[Sequence[float]]) -> bool:
    """True if the second is not ahead after some rounds: it would have to win by more than a model's noise."""
    first, second = times
    return len(second) == FEW and median(second) >= median(first)
