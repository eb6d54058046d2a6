"""cuBLASLt: the best of its heuristics' algorithms, and of those whose kernels are made for sm_80 (`mma.sync`).

Of a masked operand it gets the zeros, of a masked result the mask comes when it is read, as `cublas` does. No setting
says which kernels are of sm_80, and on Hopper the heuristics offer none. Each algorithm therefore runs once under
PyTorch's profiler, and those whose kernels' names are of that architecture are tried with all tiles and stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Baseline, Implementation, Stopwatch, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._live_blocks import WholeProduct
from sparsegen.bench.baselines._torch import import_torch, open_torch, wait
from sparsegen.bench.baselines._vendor import require_library
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cublaslt
from sparsegen.measure.baselines.cublas import Compute
from sparsegen.measure.baselines.libraries import VendorError
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, FactorType, MaskedProblem, Problem

OFFERED = 8


class CublasLt(Baseline):
    name, kind = "cublaslt", Kind.DENSE
    operators = (MaskedProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, MaskedProblem):
            return "it stands beside products with masks"
        if problem.factor_type is not FactorType.SAME:
            return "torch-scaled-mm calls it for 8-bit factors"
        return None

    def arithmetic(self, problem: Problem) -> Arithmetic:
        return Arithmetic.TF32 if problem.dtype is DType.FLOAT32 else super().arithmetic(problem)

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cublasLt")
        return {"cublaslt": cublaslt.version(cublaslt.open_handle())}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem = bench.problem
        assert isinstance(problem, MaskedProblem)
        whole = WholeProduct.of(bench, problem)
        watch = Stopwatch()
        found = product_of(bench, problem, whole).offered(OFFERED)
        elapsed = watch.lap()
        for one in found:
            yield Implementation(
                f"{whole.detail}, {one.detail}",
                one.run,
                whole.result.clear,
                whole.read,
                elapsed,
                one.workspace,
            )


def product_of(bench: Workbench, problem: MaskedProblem, whole: WholeProduct) -> cublaslt.Product:
    """The product as cuBLASLt sees it, float32 in TF32."""
    compute = Compute.TF32 if problem.dtype is DType.FLOAT32 else Compute.FLOAT32
    return cublaslt.Product(
        bench.executor, cublaslt.open_handle(), problem.dtype, whole.factors, compute, whole.scale
    )


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


BASELINES = (CublasLt(), CublasLtMma())
