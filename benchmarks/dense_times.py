"""Fit the model of dense products to the cuBLAS times of the packaged seeds, and hold it against shapes left out.

    python -m benchmarks.dense_times

A shape has many baselines, one for each pattern that was tuned: their median counts. Left out are an eighth of the
shapes at a time; the constants are then fitted to the others, and the nearest of these puts them right, as in dispatch.
Beside it stands what dispatch did before: the nearest shape's time, in proportion to m · k · n.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import click
import numpy as np
from scipy.optimize import least_squares

from sparsegen.dispatch import dense_time
from sparsegen.dispatch.dense_time import Constants, Known, modelled_us
from sparsegen.kernels.base import Device
from sparsegen.operators import SpmmProblem
from sparsegen.tuning_db.seeds_reader import packaged

PARTS = 8
START = Constants(5.0, 0.8, 1.0, 0.3, 1.0, 0.2)


def measured() -> tuple[Device, list[Known]]:
    """The seeds' device, and the median time of each shape, dtype and layout."""
    times: dict[SpmmProblem, list[float]] = defaultdict(list)
    device = None
    for b in packaged().all_baselines():
        problem = b.workload.problem
        if b.name == "cublas" and isinstance(problem, SpmmProblem) and problem.batch == 1:
            plain = SpmmProblem(problem.m, problem.k, problem.n, problem.dtype, problem.layout)
            times[plain].append(b.sample.median_us)
            device = b.device
    assert device is not None, "the seeds hold dense times"
    return device, [Known(problem, median(found)) for problem, found in times.items()]


def fit(known: Sequence[Known], device: Device) -> Constants:
    """The constants that are least off, in logs; a few shapes that are far off count less."""

    def off(values: Sequence[float]) -> list[float]:
        constants = Constants(*(abs(value) for value in values))
        return [math.log(modelled_us(one.problem, device, constants) / one.time_us) for one in known]

    found = least_squares(off, START, loss="soft_l1", f_scale=0.1, diff_step=1e-3)
    return Constants(*(round(abs(float(value)), 3) for value in found.x))


def by_volume(problem: SpmmProblem, known: Sequence[Known]) -> float:
    nearest = min(known, key=lambda one: dense_time._octaves(one.problem, problem))
    sizes = ((p.m * p.k * p.n) for p in (problem, nearest.problem))
    return nearest.time_us * next(sizes) / next(sizes)


def told(logs: Sequence[float]) -> str:
    off = np.abs(np.array(logs))
    return f"{np.sqrt((off**2).mean()):.3f} | {np.exp(np.quantile(off, 0.9)):.2f} | {np.exp(off.max()):.2f}"


@click.command()
def main() -> None:
    device, listed = measured()
    click.echo("| bytes of an element | shapes | estimate | log error, rms | 9 of 10 within × | worst × |")
    click.echo("|---|---|---|---|---|---|")
    for itemsize in sorted(dense_time.FITTED):
        known = [one for one in listed if one.problem.dtype.itemsize == itemsize]
        errors: dict[str, list[float]] = defaultdict(list)
        for part in range(PARTS):
            others = [one for i, one in enumerate(known) if i % PARTS != part]
            constants = fit(others, device)
            before, dense_time.FITTED[itemsize] = dense_time.FITTED[itemsize], constants
            for one in known[part::PARTS]:
                implementations = {
                    "the model": modelled_us(one.problem, device),
                    "the model and the nearest shape": dense_time.dense_time_us(one.problem, device, others),
                    "the nearest shape by m · k · n": by_volume(one.problem, others),
                }
                for implementation, us in implementations.items():
                    errors[implementation].append(math.log(us / one.time_us))
            dense_time.FITTED[itemsize] = before
        for implementation, logs in errors.items():
            click.echo(f"| {itemsize} | {len(known)} | {implementation} | {told(logs)} |")
    for itemsize in sorted(dense_time.FITTED):
        known = [one for one in listed if one.problem.dtype.itemsize == itemsize]
        click.echo(f"{itemsize}: {fit(known, device)}")


if __name__ == "__main__":
    main()
