"""nvcc beside NVRTC: the packaged seeds' fastest variants of every family, compiled by both and timed in turn.

    python -m benchmarks.compilers | tee benchmarks/results/<gpu>/compilers.txt

Of each family and dtype two workloads, the median and the second longest, on random matrices of the same size and
number of nonzeros. Each variant is verified before it is timed.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from sparsegen.backends import find_device
from sparsegen.backends.cuda.compiler import CudaToolchain
from sparsegen.backends.cuda.toolkit import Compiler
from sparsegen.bench.results.summary import geometric
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure.session import Session
from sparsegen.measure.worker import Measure
from sparsegen.operators import SddmmProblem, SpmmProblem
from sparsegen.plan.variants import CompiledVariant, compile_variant
from sparsegen.settings import Settings
from sparsegen.tuning_db.records import Measurement
from sparsegen.tuning_db.seeds_reader import packaged

TURNS, SAMPLES = 4, 12
MOST_NONZEROS = 12_000_000
ENOUGH = 5  # workloads of a family and dtype, from which two are taken


def taken() -> list[Measurement]:
    """Of each family and dtype the winners of two workloads, or of the longest one where there are few."""
    fastest: dict[object, Measurement] = {}
    for measurement in packaged().all_measurements():
        workload = measurement.workload
        is_plain = isinstance(workload.problem, SpmmProblem | SddmmProblem) and workload.problem.batch == 1
        if not (measurement.final and measurement.sample and is_plain):
            continue
        if workload.features.nnz <= MOST_NONZEROS:
            best = fastest.setdefault(workload, measurement)
            if best.sample and measurement.sample.median_us < best.sample.median_us:
                fastest[workload] = measurement
    groups: dict[tuple[str, str], list[tuple[float, Measurement]]] = defaultdict(list)
    for measurement in fastest.values():
        assert measurement.sample
        key = measurement.variant.family, str(measurement.workload.problem.dtype)
        groups[key].append((measurement.sample.median_us, measurement))
    found = []
    for _, group in sorted(groups.items()):
        group.sort(key=lambda pair: pair[0])
        places = [len(group) // 2, -2] if len(group) >= ENOUGH else [-1]
        found += [group[place][1] for place in places]
    return found


def compiled(toolchain: CudaToolchain, listed: list[Measurement]) -> list[CompiledVariant]:
    def one(measurement: Measurement) -> CompiledVariant:
        return compile_variant(measurement.variant.config, measurement.workload.problem, toolchain)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, listed))


def times(
    measurement: Measurement, kernels: dict[str, CompiledVariant], toolchain: CudaToolchain
) -> dict[str, float]:
    """Medians in µs, by compiler."""
    workload = measurement.workload
    features = workload.features
    matrix = random_uniform(features.m, features.k, features.density, 0)
    samples: dict[str, list[float]] = {compiler: [] for compiler in kernels}
    session = Session(
        matrix, workload.problem, find_device("cuda"), locks=toolchain.settings.cache / "compilers"
    )
    try:
        for turn in range(TURNS):
            for compiler, kernel in kernels.items():
                asked = Measure(kernel, samples=SAMPLES, verify=turn == 0)
                timing = session.measure(asked).measured.timing
                if timing is None:
                    raise click.ClickException(
                        f"{measurement.variant.family} compiled by {compiler} is not right"
                    )
                samples[compiler] += timing.samples_us
    finally:
        session.close()
    return {compiler: float(np.median(us)) for compiler, us in samples.items()}


@click.command()
def main() -> None:
    device, settings = find_device("cuda"), Settings.from_environment()
    toolchains = {
        "nvcc": CudaToolchain(device.compute_capability, replace(settings, compiler=Compiler.NVCC)),
        "NVRTC": CudaToolchain(
            device.compute_capability, replace(settings, compiler=Compiler.NVRTC, nvrtc=None)
        ),
    }
    listed, kernels = taken(), {}
    for compiler, toolchain in toolchains.items():
        with tempfile.TemporaryDirectory() as cold:
            began = time.monotonic()
            compiled(
                CudaToolchain(device.compute_capability, replace(toolchain.settings, cache=Path(cold))),
                listed,
            )
            click.echo(f"{compiler}: {len(listed)} variants compiled in {time.monotonic() - began:.1f} s")
        kernels[compiler] = compiled(toolchain, listed)
    ratios: dict[str, list[float]] = defaultdict(list)
    for place, measurement in enumerate(listed):
        both = {compiler: kernels[compiler][place] for compiler in toolchains}
        us = times(measurement, both, toolchains["nvcc"])
        ratio, family = us["NVRTC"] / us["nvcc"], measurement.variant.family
        ratios[family].append(ratio)
        registers = ", ".join(f"{compiler} {kernel.registers}" for compiler, kernel in both.items())
        click.echo(
            f"{family:16} {measurement.workload.problem.dtype!s:8} nvcc {us['nvcc']:8.2f} µs  NVRTC "
            f"{us['NVRTC']:8.2f} µs  ratio {ratio:.3f}  registers {registers}"
        )
    for family, of_family in ratios.items():
        click.echo(f"{family:16} {geometric(of_family).value:.3f}")
    every = [ratio for of_family in ratios.values() for ratio in of_family]
    click.echo(f"{'all':16} {geometric(every).value:.3f}")


if __name__ == "__main__":
    main()
