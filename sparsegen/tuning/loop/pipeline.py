"""Compiles candidates ahead on all cores while the measuring worker takes them one by one."""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from sparsegen.backends.executor import Toolchain
from sparsegen.backends.plain import plain_source
from sparsegen.errors import SparsegenError
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.plan.variants import CompiledVariant, RenderedVariant
from sparsegen.tuning.loop import background

Render = Callable[[Config], RenderedVariant]


def cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of compiling a candidate.

    Attributes:
        rendered: None if it could not even be rendered.
        variant: its binary; None if there is none.
        error: the reason if there is none: a `CompileError`, or an error that must end the run.
    """

    candidate: Config
    rendered: RenderedVariant | None
    variant: CompiledVariant | None
    error: SparsegenError | None
    seconds: float


class CompileAhead:
    """A pool of compiling threads; of what is done, what was submitted first comes back first.

    The first proposals are the most trusted: a short budget that ends early has then measured those.

    Args:
        render: gives a candidate's source; by default its template does.

    Attributes:
        jobs: number of simultaneous compiles.
    """

    def __init__(
        self, toolchain: Toolchain, problem: Problem, jobs: int | None = None, *, render: Render | None = None
    ) -> None:
        self.jobs = jobs or cores()
        self._toolchain = toolchain
        self._render = render or partial(RenderedVariant.of, problem=problem, toolchain=toolchain)
        self._pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="compile")
        self._done: queue.PriorityQueue[tuple[int, Compiled]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._pending = 0
        self._recent_seconds: deque[float] = deque(maxlen=2 * self.jobs)
        background.begin(lambda: toolchain.warm_up(self.jobs), "warm up")

    @property
    def pending(self) -> int:
        """Submitted and not yet handed out by `next`."""
        return self._pending

    @property
    def ready(self) -> int:
        """Done, and not yet handed out."""
        return self._done.qsize()

    @property
    def has_free_core(self) -> bool:
        return self.pending - self.ready < self.jobs

    @property
    def typical_seconds(self) -> float:
        """Average seconds of recent compiles; 0 before the first, and nearly 0 if all come from the cache."""
        return sum(self._recent_seconds) / max(1, len(self._recent_seconds))

    @property
    def least_seconds(self) -> float:
        """The shortest compile of late; 0 before there are some beside the first, which wait for compilers to start."""
        return min(self._recent_seconds) if len(self._recent_seconds) > self.jobs else 0.0

    def begin_with(self, *plain: str) -> None:
        """Compiles files of plain kernels into the cache before they are needed; errors show up when they are."""
        for file in plain:
            self._pool.submit(self._toolchain.compile, "plain", file.partition(".")[0], plain_source(file))

    def submit(self, candidate: Config) -> None:
        self._pending += 1
        self._pool.submit(self._compile, next(self._numbers), candidate)

    def rendered(self, candidate: Config) -> RenderedVariant:
        """The source of a candidate, and its digest."""
        return self._render(candidate)

    def next(self, timeout: float) -> Compiled | None:
        """The next result, or None if there is none within ``timeout`` seconds."""
        try:
            _, compiled = self._done.get(timeout=timeout)
        except queue.Empty:
            return None
        self._pending -= 1
        self._recent_seconds.append(compiled.seconds)
        return compiled

    def close(self) -> None:
        """Forget what has not been handed out; compiles under way end on their own, into the cache."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def compile(self, candidate: Config) -> Compiled:
        """Compile one now, in the calling thread."""
        began = time.perf_counter()
        rendered, variant, error = None, None, None
        try:
            rendered = self._render(candidate)
            variant = rendered.compile(self._toolchain)
        except SparsegenError as failure:
            error = failure
        except Exception as failure:
            error = SparsegenError(f"compiling {candidate}: {type(failure).__name__}: {failure}")
            error.__cause__ = failure  # it is raised in another thread
        return Compiled(candidate, rendered, variant, error, time.perf_counter() - began)

    def _compile(self, number: int, candidate: Config) -> None:
        self._done.put((number, self.compile(candidate)))
