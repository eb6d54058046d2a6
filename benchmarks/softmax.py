"""The sparse softmax and its gradient on masks of attention, against a copy of the same bytes and a dense softmax.

    python -m benchmarks.softmax --db tuned.db                  # about 3 minutes
    python -m benchmarks.softmax --device emulator --shrink 48 --seconds 0 --db tuned.db

Each mask is tuned first for a few seconds. Then our kernel, copies within the device that move as many bytes as the
operator must (``Problem.cost``; half of them read, half written), by the driver and by a kernel, and ``torch.softmax``
over the rows padded with -inf to the longest one are timed in turn, L2 cold. The share of the copy's bandwidth is the
faster copy's time over ours. Raw output: ``softmax.json``, written anew after every mask; what it holds is not run
again without ``--again``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

import sparsegen
from benchmarks.common import known_rows, times_in_turn, write_results
from benchmarks.prepared import checked_call, torch_place, tune_all, waiting_lead
from sparsegen import masks
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure.timing_kernels import COPY_BYTES_PER_STEP, Copier
from sparsegen.operators import DType, Problem, SoftmaxBackwardProblem, SoftmaxProblem
from sparsegen.plan.executors import shared_executor

NAME = "softmax"
KINDS = ("band", "sliding", "random")
MOST_PADDED_BYTES = 8 << 30
OPERATORS: tuple[type[Problem], ...] = (SoftmaxProblem, SoftmaxBackwardProblem)


@dataclass(frozen=True)
class Mask:
    """A named pattern of length × length, made when it is needed."""

    name: str
    make: Callable[[], CsrMatrix]


def all_masks(shrink: int = 1) -> Iterator[Mask]:
    """The paper's mask at two lengths, a sliding window, and random ones; all lengths and widths over ``shrink``."""
    for length in (4096 // shrink, 12288 // shrink):
        yield Mask(f"band {length}", lambda n=length: masks.band(n, max(1, 256 // shrink)))
    longest = 12288 // shrink
    yield Mask(
        f"sliding {longest}", lambda: masks.sliding_window(longest, window=max(1, 512 // shrink), sinks=4)
    )
    for sparsity in (0.9, 0.95):
        yield Mask(
            f"random {longest} {sparsity:.2f}", lambda s=sparsity: random_uniform(longest, longest, 1 - s, 0)
        )


@click.command()
@click.option("--db", required=True, type=click.Path())
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--mask", "kinds", multiple=True, type=click.Choice(KINDS), help="default: all")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice([str(d) for d in DType]),
              default=("float32", "float16"), show_default=True)  # fmt: skip
@click.option("--seconds", default=5.0, help="for the search of each operator; 0: none")
@click.option("--jobs", default=4, help="searches side by side")
@click.option("--shrink", default=1, help="divides every length, for a test")
@click.option("--again", is_flag=True, help="also masks that the result file holds")
@click.option("--limit", default=400.0, help="begin no mask later, seconds")
def main(
    db: str,
    name: str,
    kinds: tuple[str, ...],
    dtypes: tuple[str, ...],
    seconds: float,
    jobs: int,
    shrink: int,
    again: bool,
    limit: float,
) -> None:
    began, device = time.monotonic(), find_device(name)
    torch_place(device)
    rows = {} if again else known_rows(device, NAME, "case")
    for mask in all_masks(shrink):
        if kinds and mask.name.split()[0] not in kinds:
            continue
        wanted = [DType(d) for d in dtypes if f"{mask.name} {d} {SoftmaxProblem.operator}" not in rows]
        if not wanted:
            continue
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {mask.name} and what follows is left out; run again to go on")
            break
        matrix = mask.make()
        problems = [kind.of(matrix.shape, dtype=dtype) for dtype in wanted for kind in OPERATORS]
        tune_all([(matrix, problem) for problem in problems], device, db, seconds, jobs)
        for problem in problems:
            row: dict[str, Any] = {
                "case": f"{mask.name} {problem.dtype} {problem.operator}",
                "mask": mask.name,
            }
            row |= measured(matrix, problem, device, db)
            rows[row["case"]] = row
            click.echo(
                f"{row['case']:50} {row['us']['ours']:9.1f} us, copy {row['copy_us']:9.1f} us: "
                f"{row['of_copy']:.0%} of its bandwidth; padded {row['us'].get('torch padded', '-')}"
            )
        write_results(device, NAME, list(rows.values()))


def measured(matrix: CsrMatrix, problem: Problem, device: Device, db: str) -> dict[str, Any]:
    """One operator on one mask: what ran, the medians of all contenders, GB/s and the share of the copy's bandwidth."""
    operator = sparsegen.prepare(matrix, operator=problem.operator, dtype=problem.dtype, device=device, db=db)
    ours = checked_call(operator, matrix)
    moved = problem.cost(matrix.nnz).bytes
    copies = copies_of(moved, device)
    calls: dict[str, Callable[[], Any]] = {"ours": ours, **copies}
    if isinstance(problem, SoftmaxProblem) and (padded := padded_softmax(matrix, problem.dtype, device)):
        calls["torch padded"] = padded
    executor = operator.launcher.prepared.executor
    us = times_in_turn(executor, calls, rounds=4, samples=12, lead=waiting_lead(executor))
    copy_us = min(us[name] for name in copies)
    return {
        "operator": problem.operator,
        "dtype": str(problem.dtype),
        "nonzeros": matrix.nnz,
        "bytes": moved,
        "family": operator.choice.family.name,
        "config": operator.choice.config.to_dict(),
        "how": str(operator.choice.how),
        "worst_error": round(ours.worst, 3),
        "us": {contender: round(time_us, 2) for contender, time_us in us.items()},
        "gb_per_s": round(moved / us["ours"] / 1e3, 1),
        "copy_us": round(copy_us, 2),
        "copy_gb_per_s": round(moved / copy_us / 1e3, 1),
        "of_copy": float(f"{copy_us / us['ours']:.4g}"),
    }


def copies_of(moved: int, device: Device) -> dict[str, Callable[[], Any]]:
    """Copies in the device's memory that read and write so many bytes together: the driver's, and a kernel's."""
    import torch

    half = moved // 2
    source, target = (torch.zeros(half, dtype=torch.uint8, device=torch_place(device)) for _ in range(2))
    copies: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source)}
    if device.backend == "cuda":
        copies["copy kernel"] = Copier(
            shared_executor(device), half // COPY_BYTES_PER_STEP * COPY_BYTES_PER_STEP
        )
    return copies


def padded_softmax(matrix: CsrMatrix, dtype: DType, device: Device) -> Callable[[], Any] | None:
    """PyTorch's softmax over rows as long as the longest; None where they would take too much memory."""
    import torch

    lengths = torch.from_numpy(np.diff(matrix.row_offsets))
    longest = int(lengths.max())
    if matrix.shape[0] * longest * dtype.itemsize > MOST_PADDED_BYTES:
        return None
    place = torch_place(device)
    kind = getattr(torch, str(dtype))
    rows = torch.randn((matrix.shape[0], longest), device=place, dtype=kind)
    rows.masked_fill_(torch.arange(longest, device=place) >= lengths.to(place)[:, None], -torch.inf)
    result = torch.empty_like(rows)
    return lambda: torch.softmax(rows, dim=1, out=result)


if __name__ == "__main__":
    main()
