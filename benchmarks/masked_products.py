"""Products with masks of blocks against cuBLAS's dense ones: time over (1 - s) times dense, with a cold L2.

    python -m benchmarks.masked_products                       # about 1 minute
    python -m benchmarks.masked_products --size 4096 --density 0.5 --family tma

Every config of a short list is checked once, then all of them and cuBLAS are timed in turns. The masks are drawn with
independent blocks; ratios are to the share of blocks that live in the drawn mask. Raw output: ``masked_products.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import click
import numpy as np

from benchmarks.common import times_in_turn, write_results
from benchmarks.prepared import WrongResultError, waiting_lead
from sparsegen.backends import find_device, open_executor, toolchain
from sparsegen.backends.executor import Executor
from sparsegen.kernels import families
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.layouts.copied_tiles import CopiedTiles, Order, WalkedTiles
from sparsegen.kernels.layouts.masked_tiles import Side
from sparsegen.measure.baselines import cublas
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    MaskedProblem,
    SddProblem,
)
from sparsegen.plan.binding import BoundVariant, bind_variant
from sparsegen.plan.variants import compile_variant
from sparsegen.verify.variants import UNWRITTEN
from sparsegen.verify.verifier import verifier

KINDS: tuple[type[MaskedProblem], ...] = (DsdProblem, DsdTransposedProblem, SddProblem)
COUNTED, PLACED = Order.COUNTED.value, Order.PLACED.value


def configs(problem: MaskedProblem, device: Device, prefix: str) -> Iterator[Config]:
    """What is timed: of the families whose names begin so their guess, of tiles by the copy engine also others."""
    large = problem.m * problem.k * problem.n > 2**34
    for family in families().values():
        if family.problem_type is not type(problem) or not family.name.startswith(prefix):
            continue
        if not family.computes(problem):
            continue
        guess = family.guess(problem, problem.features(problem.without_pattern), device)
        yield guess
        if not isinstance(family, CopiedTiles):
            continue
        wide = replace(guess, tile_n=256, cluster=1, raster=16, order=COUNTED)
        others = [replace(guess, tile_n=n, cluster=1, raster=8, order=PLACED) for n in (64, 128, 256)]
        if large:
            others = [wide, replace(wide, cluster=2)]
        if large and isinstance(family, WalkedTiles):
            others = [replace(wide, cluster=2, tail=tail) for tail in (2, 4, 16)]
        yield from (config for config in others if config != guess)


class Row:
    """One problem: operands on the device, checked calls."""

    def __init__(self, problem: MaskedProblem, executor: Executor) -> None:
        self.problem, self.executor = problem, executor
        operands = problem.random_operands(np.random.default_rng(7), 0)
        self.live = float(problem.mask_of(operands).blocks().mean())
        self.verifier = verifier(problem, problem.without_pattern, operands, executor)
        self.inputs = [executor.upload(operands[spec.name]) for spec in problem.operands(0)]
        self.output = executor.allocate(problem.result(0).nbytes)
        self.kept: list[BoundVariant] = []

    def call(self, config: Config, device: Device) -> tuple[Callable[[], None], float]:
        """A launch of a config, and its worst error over its bound."""
        variant = bind_variant(
            config, self.problem, self.problem.without_pattern, self.executor, toolchain(device)
        )
        self.kept.append(variant)
        bound, addresses = variant.bound(), [buffer.address for buffer in (*self.inputs, self.output)]
        self.executor.fill(self.output, UNWRITTEN)
        for _ in range(2):  # the second one finds the counters as the first left them
            bound(0, *addresses)
        self.executor.synchronize()
        worst = self.verifier.worst_error(self.output)
        if not worst <= 1:
            raise WrongResultError(f"{config.settings} is wrong: {worst:g} times its error bound")
        return (lambda: bound(0, *addresses)), worst

    def dense(self) -> Callable[[], None]:
        """cuBLAS without a mask."""
        handle = cublas.open_handle()
        a, b = self.inputs[:2]
        return cublas.product_of(handle, self.problem.dtype, Side.of(self.problem), a, b, self.output)


def measured(problem: MaskedProblem, executor: Executor, device: Device, prefix: str) -> dict[str, Any]:
    """One row: microseconds of every config and of cuBLAS."""
    row, calls, errors = Row(problem, executor), dict[str, Callable[[], Any]](), dict[str, float]()
    calls["cublas"] = row.dense()
    for config in configs(problem, device, prefix):
        name = f"{config.declared_by} {config.settings}"
        calls[name], errors[name] = row.call(config, device)
    us = times_in_turn(executor, calls, rounds=3, samples=10, lead=waiting_lead(executor))
    best = min((name for name in us if name != "cublas"), key=us.__getitem__)
    return {
        "case": f"{problem}",
        "live": round(row.live, 4),
        "us": {name: round(time, 2) for name, time in us.items()},
        "best": best,
        "of_dense": round(us[best] / us["cublas"], 4),
        "of_live_dense": round(us[best] / us["cublas"] / row.live, 4),
        "worst_error": round(max(errors.values()), 3),
    }


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--size", "sizes", multiple=True, type=int, default=(1024, 2048, 4096), show_default=True)
@click.option("--density", "densities", multiple=True, type=float, default=(1.0, 0.5), show_default=True)
@click.option("--block", "blocks", multiple=True, default=("128x128",), show_default=True)
@click.option("--dtype", type=click.Choice([str(d) for d in DType]), default="float16", show_default=True)
@click.option("--family", "prefix", default="", help="only families whose names begin so")
@click.option("--output", default="masked_products", show_default=True, help="the file of raw output")
def main(
    name: str,
    sizes: tuple[int, ...],
    densities: tuple[float, ...],
    blocks: tuple[str, ...],
    dtype: str,
    prefix: str,
    output: str,
) -> None:
    device = find_device(name)
    problems = [
        kind(n, n, n, DType(dtype), block=Block.parse(block), density=Density.parse(density))
        for n in sizes
        for block in blocks
        for density in densities
        for kind in KINDS
    ]
    with ThreadPoolExecutor() as pool:  # all sources before the first is timed
        wanted = [(config, problem) for problem in problems for config in configs(problem, device, prefix)]
        list(pool.map(lambda pair: compile_variant(*pair, toolchain(device)), wanted))
    executor, rows = open_executor(device), []
    for problem in problems:
        rows.append(measured(problem, executor, device, prefix))
        found = rows[-1]
        dense, ours = found["us"]["cublas"], found["us"][found["best"]]
        click.echo(
            f"{found['case']}: live {found['live']}, cuBLAS {dense} us, best {ours} us ({found['best']})"
        )
        click.echo(f"    {found['of_dense']} of dense, {found['of_live_dense']} of live dense")
        click.echo(
            "    "
            + ", ".join(f"{key} {time}" for key, time in sorted(found["us"].items(), key=lambda i: i[1]))
        )
    write_results(device, output, rows)


if __name__ == "__main__":
    main()
