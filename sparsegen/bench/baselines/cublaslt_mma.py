"""cuBLASLt held to kernels of sm_80, which multiply by `mma.sync`: what the ``mma_*`` families compare to.

No setting of the library says so, and on Hopper its heuristics offer none. Each of its algorithms therefore runs once
under PyTorch's profiler, and those whose kernels' names are of that architecture are tried with all tiles and stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Implementation, Stopwatch, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._live_blocks import WholeProduct
from sparsegen.bench.baselines._torch import import_torch, open_torch, wait
from sparsegen.bench.baselines.cublaslt import CublasLt, product_of
from sparsegen.measure.baselines.libraries import VendorError
from sparsegen.operators import MaskedProblem

OF_SM80 = re.compile(r"sm_?80|ampere|cutlass_80|16816|1688")
MARK = "call "
SHOWN = 3  # names of kernels in a refusal


class CublasLtMma(CublasLt):
    name = "cublaslt-mma"

    def open(self, executor: Executor) -> Mapping[str, str]:
        return {**super().open(executor), **open_torch(executor)}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem = bench.problem
        assert isinstance(problem, MaskedProblem)
        whole = WholeProduct.of(bench, problem)
        watch = Stopwatch()
        product = product_of(bench, problem, whole)
        firsts = [(number, next(product.configs(number), None)) for number in product.numbers()]
        able = [(number, one) for number, one in firsts if one is not None]
        names = kernels_of([one.run for _, one in able])
        elapsed = watch.lap()
        if not any(map(OF_SM80.search, names)):
            others = ", ".join(sorted(set(names))[:SHOWN])
            raise UnsupportedError(f"none of {len(able)} algorithms is of sm_80: {others}")
        for (number, _), name in zip(able, names, strict=True):
            if OF_SM80.search(name):
                for one in product.configs(number):
                    detail = f"{whole.detail}, {one.detail} ({name})"
                    yield Implementation(
                        detail, one.run, whole.result.clear, whole.read, elapsed, one.workspace
                    )


def kernels_of(calls: Sequence[Callable[[], object]]) -> list[str]:
    """The names of the kernels that each call launches; one that fails has none.

    The device waits behind each, so that a kernel is the call's that began last.
    """
    profiler = import_torch().profiler
    both = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=both) as seen:
        for place, call in enumerate(calls):
            with profiler.record_function(f"{MARK}{place}"), suppress(VendorError):
                call()
            wait()
    events = [(event.time_range.start, event.name, _is_kernel(event)) for event in seen.events()]
    return by_call(events, len(calls))


def by_call(events: Iterable[tuple[float, str, bool]], calls: int) -> list[str]:
    """Assigns a profiler's events to calls, by their marks.

    Args:
        events: for each its start, its name, and true if it is a kernel's.
    """
    names: list[list[str]] = [[] for _ in range(calls)]
    current = 0
    for _, name, is_kernel in sorted(events):
        if name.startswith(MARK):
            current = max(current, int(name.removeprefix(MARK)))
        elif is_kernel:
            names[current].append(name)
    return [" + ".join(found) for found in names]


def _is_kernel(event: Any) -> bool:
    return event.device_type.name == "CUDA" and not event.name.startswith("Mem")


BASELINE = CublasLtMma()
