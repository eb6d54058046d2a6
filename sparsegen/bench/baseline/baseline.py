"""Interface of a baseline: a name, the problems that it can compute, and its implementations of a problem.

Those of one library that differ in little are one file in `sparsegen.bench.baselines`. Each lives in a process of its
own, so that its imports, allocations and failures do not affect the others.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.results.results import Kind
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import Problem
from sparsegen.system.numpy_types import Array


class MissingError(SparsegenError):
    """A baseline is not there (a library, a tuning result); its cell says what would bring it."""


class UnsupportedError(SparsegenError):
    """A baseline does not compute this problem; its cell says why."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation to compute the problem: an algorithm, a layout, a block size.

    Attributes:
        detail: the implementation in words.
        run: launches it on the default stream; it need not be done when this returns.
        clear: fills the result with something that no right result is.
        read: waits, and gives the result in its stored shape and dtype.
        preparation_ms: time from the matrix in host memory to a call that can run; without compiling and tuning.
        memory_bytes: bytes that it keeps on the device for the matrix, workspace included, operands and result not.
        variant: family and config, if it is ours; ``digest`` names its binary.
        tried: variants of this workload that were measured, the one that runs among them; None where none were for it.
        own_error: for an implementation that computes something else than the problem (`Kind.OTHER`), or rounds more on
            its way than the bound allows: after a run, its largest error over a bound of its own, above 1 if it is
            wrong.
        ran: the kind of what it calls where that is another than its baseline's: results of a library have its bounds.
        part: a call that stands for ``run`` while implementations are ranked, ``parts`` of it for a call; one may take
            a minute.
    """

    detail: str
    run: Callable[[], object]
    clear: Callable[[], None]
    read: Callable[[], Array]
    preparation_ms: float
    memory_bytes: int
    variant: Config | None = None
    digest: str = ""
    tried: int | None = None
    own_error: Callable[[], float] | None = None
    ran: Kind | None = None
    part: Callable[[], object] | None = None
    parts: int = 1


class Stopwatch:
    """Milliseconds between laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Milliseconds since the last lap, or since the start."""
        now = time.perf_counter()
        elapsed, self._last = (now - self._last) * 1e3, now
        return elapsed


class Baseline(ABC):
    """Stateless; an instance travels to its process by pickle."""

    name: str
    kind: Kind
    operators: tuple[type[Problem], ...] = (
        Problem,
    )  # operators that it may compute: its process waits for no other rows
    takes_variations: bool = False  # true if one call computes several batch elements, epilogues and the like

    def refusal(self, problem: Problem, features: Features) -> str | None:
        """Returns why it takes no part in a row; None if it does."""
        reason = self.why_not(problem, features)
        return reason if reason is not None or self.takes_variations else _variation(problem)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        """Returns why it cannot compute such a problem, as far as its operator, sizes and features tell; None if it
        may: by default if the problem is of its operators.

        It looks at batches and near traits (`Field.near`) only if it takes variations.
        """
        if isinstance(problem, self.operators):
            return None
        return f"it computes {' and '.join(of.operator for of in self.operators)}"

    def arithmetic(self, problem: Problem) -> Arithmetic:
        """Returns the arithmetic of its products: the dtype's, unless the baseline overrides it."""
        return Arithmetic(problem.dtype.value)

    def runs_on(self, device: Device) -> bool:
        """True if it runs on this kind of device."""
        return device.backend == "cuda"

    @abstractmethod
    def open(self, executor: Executor) -> Mapping[str, str]:
        """Import and load what it needs, once in its process; the versions of it, by the library's name.

        Raises:
            MissingError: it is not installed; the message says how to get it.
        """

    def parts(self, problem: Problem, nnz: int) -> Sequence[Problem]:
        """Problems on the row's pattern that its implementations consist of, to be tuned where the row is."""
        return ()

    def foresee(  # noqa: B027  most have nothing to do
        self, inputs: Inputs, device: Device, db: str | None
    ) -> None:
        """Do in good time, without a device, what would hold a row up: compile. In a process of others."""

    @abstractmethod
    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        """Every implementation that it has for the bench's problem, ready to run.

        Raises:
            UnsupportedError: it has none.
            MissingError: it would, if something were there that is not.
        """


class OwnBaseline(Baseline):
    """A baseline of this package alone: it runs on every device and opens no library."""

    def runs_on(self, device: Device) -> bool:
        return True

    def open(self, executor: Executor) -> Mapping[str, str]:
        return {}


class Explorer(OwnBaseline):
    """A baseline whose implementations are configs, perhaps hundreds: each is bound, checked and timed by itself.

    One that does not compile, is wrong, crashes or hangs is a line of the cell; the fastest stands for the baseline.
    """

    kind = Kind.OURS
    takes_variations = True

    @abstractmethod
    def configs(self, inputs: Inputs, device: Device, db: str | None) -> Sequence[Config]:
        """The configs to try, each once.

        Raises:
            MissingError, UnsupportedError: see `implementations`.
        """

    @abstractmethod
    def implementation(self, bench: Workbench, config: Config) -> Implementation:
        """One of them, bound to the row's matrix.

        Raises:
            CompileError: it does not compile.
        """

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        return (
            self.implementation(bench, config)
            for config in self.configs(bench.inputs, bench.device, bench.db)
        )


def _variation(problem: Problem) -> str | None:
    """Returns the variation that an external routine does not support, in words; None if it supports all."""
    if problem.batch > 1:
        return f"a call of it computes one batch element, not {problem.batch}"
    for name, value in problem.traits.items():
        usual = problem.fields[name].default
        if problem.fields[name].near and value != usual:
            return f"it computes {name} {usual} alone, not {value}"
    return None
