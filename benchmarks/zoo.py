"""Forty architectures of `timm` and `transformers`, pruned and converted: none may be slower than its dense self.

    python -m benchmarks.zoo                                     # a GPU; pip install timm transformers
    python -m benchmarks.zoo --size small --device emulator      # a rehearsal; or --device cpu

Weights are random, and are pruned in turn to single zeros (50 to 95 %), to 2:4 and to blocks of 32. Each model is
converted with ``example_inputs`` for the way in which it is then called: from Python, as a CUDA graph, and compiled by
`torch.compile` (as a graph: ``mode="reduce-overhead"``); dense and converted take turns. Results of both are compared,
as are those of a rehearsal. A row says what is slower by more than a hundredth, and the last line how many are. Raw
output: ``zoo.json.xz``, written after every step.

Nothing is tuned: conversion takes variants by look-ups, and the database keeps its races. Each model has a process of
its own. Some at a time are made, and compiled, side by side, which takes the host and not the GPU; each is then alone
while it is converted and timed. ``--size shallow``, the default, leaves out layers that are like the others. The same
command goes on where time, or a kill, ended it (exit status 75).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from benchmarks.papers.study import INCOMPLETE, device_of
from benchmarks.study import geometric_mean, known_rows, write_results
from benchmarks.zoo_cuts import CUTS, Cut
from benchmarks.zoo_models import ZOO, Images, Size, Text
from benchmarks.zoo_worker import Step, Worker

SLOWER = 1.01  # than dense
MODES = (Step.EAGER, Step.GRAPH, Step.COMPILED)
TOGETHER = 4
Row = dict[str, Any]
Batch = Sequence[tuple[Images | Text, Cut]]


@click.command()
@click.option("--device", "name", default="cuda", show_default=True, help="cpu: PyTorch's products alone")
@click.option("--size", default="shallow", show_default=True, type=click.Choice([str(s) for s in Size]))
@click.option("--only", multiple=True, help="names of some architectures")
@click.option("--minutes", default=9.0, show_default=True, help="begin nothing that would end later")
@click.option("--together", default=TOGETHER, show_default=True, help="models side by side")
def main(name: str, size: str, only: tuple[str, ...], minutes: float, together: int) -> None:
    began, longest = time.monotonic(), 0.0
    study = Study(name, Size(size))
    left = [
        pair for pair in zip(ZOO, study.cuts(), strict=True) if study.lacks(pair[0]) and _named(pair[0], only)
    ]
    for first in range(0, len(left), together):
        batch, now = left[first : first + together], time.monotonic()
        if now + longest - began > 60 * minutes:
            click.echo(f"time is up: {len(left) - first} models are left; the same command goes on")
            break
        study.measure(batch, together)
        longest = max(longest, time.monotonic() - now)
    click.echo(study.summary())
    if any(study.lacks(one) for one in ZOO if _named(one, only)):
        sys.exit(INCOMPLETE)


def _named(one: Images | Text, only: Sequence[str]) -> bool:
    return not only or one.name in only


class Study:
    """The rows of a device and size, as the raw file has them."""

    def __init__(self, name: str, size: Size) -> None:
        self._name, self._size, self._device = name, size, device_of(name)
        self._rows = known_rows(self._device, "zoo", "row")

    @staticmethod
    def cuts() -> Iterator[Cut]:
        """The cut of each model."""
        return (CUTS[number % len(CUTS)] for number in range(len(ZOO)))

    def _key(self, one: Images | Text) -> str:
        return f"{one.name} {self._size}"

    def lacks(self, one: Images | Text) -> bool:
        """True if a model is not measured to its end."""
        return f"{Step.TIMED}_s" not in self._rows.get(self._key(one), {})

    def measure(self, batch: Batch, together: int) -> None:
        """Measure some models, each step of all before the next; what failed does without those that follow."""
        threads = max(1, (os.cpu_count() or 1) // together)
        workers: dict[str, Worker] = {}
        try:
            for one, cut in batch:
                self._rows[self._key(one)] = self._row(one, cut)
                workers[self._key(one)] = Worker(one, cut, self._name, self._size, threads)
            for step in Step:
                self._take(step, workers)
        finally:
            for worker in workers.values():
                worker.close()

    def _row(self, one: Images | Text, cut: Cut) -> Row:
        return {
            "row": self._key(one),
            "model": one.name,
            "size": str(self._size),
            "pattern": cut.pattern,
            "sparsity": cut.sparsity,
        }

    def _take(self, step: Step, workers: dict[str, Worker]) -> None:
        """Have all workers take a step, one after the other if it is to be alone; those that fail are dropped."""
        for key, worker in list(workers.items()):
            worker.ask(step)
            if step.is_alone:
                self._answered(key, workers)
        for key in () if step.is_alone else list(workers):
            self._answered(key, workers)

    def _answered(self, key: str, workers: dict[str, Worker]) -> None:
        row = self._rows[key]
        row |= workers[key].answer()
        if "failed" in row:
            workers.pop(key)
            click.echo(f"{key} failed: {row['failed']}")
        elif f"{Step.TIMED}_s" in row:
            row["slower"] = [str(mode) for mode in MODES if is_slower(row, mode)]
            click.echo(
                f"{key}: " + ", ".join(f"{k} {v}" for k, v in row.items() if k.endswith(("ratio", "_s")))
            )
        write_results(self._device, "zoo", list(self._rows.values()))

    def summary(self) -> str:
        """Says how many are slower, and how many failed."""
        rows = [row for row in self._rows.values() if row["size"] == str(self._size)]
        slower = [row["model"] for row in rows if row.get("slower")]
        failed = [row["model"] for row in rows if "failed" in row]
        said = f"{len(rows)} models, {len(slower)} slower than dense {slower}, {len(failed)} failed {failed}"
        for mode in MODES:
            ratios = [row[f"{mode}_ratio"] for row in rows if f"{mode}_ratio" in row]
            said += (
                f"\n{mode}: geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}" if ratios else ""
            )
        return said


def is_slower(row: Row, mode: Step) -> bool:
    """True if a model with sparse layers is; without any it is the dense one, and other times are noise."""
    return row.get(f"{mode}_sparse_layers", 0) > 0 and row.get(f"{mode}_ratio", 0.0) > SLOWER


if __name__ == "__main__":
    main()
