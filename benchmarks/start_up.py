"""Seconds of the clock that what runs first takes: quick searches alone and two at once, short commands, a look-up.

    python -m benchmarks.start_up -o start_up.json.xz [--device emulator --tiny] [--part searches|commands|look-up]

Every search has a cache and a database of its own, empty at the start; two at once share the cache. The first one says
what a machine takes that was just started, where this is the first that runs on it. docs/notes/start-up.md has figures.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import scipy.sparse

from sparsegen.backends.cuda.remembered_gpus import FOLDER
from sparsegen.bench.run.state import state
from sparsegen.matrix.generators import random_uniform
from sparsegen.system.publish import publish_text

TIMES = 3  # of each command and look-up
PARTS = ("searches", "commands", "look-up")
LOOK_UP = """
import sys, time, numpy
began = time.perf_counter()
import sparsegen
matrix = sparsegen.load_matrix(sys.argv[1])
given = {"dtype": sys.argv[2], "device": sys.argv[3]}
ready = time.perf_counter()
sparsegen.lookup(matrix, n=int(sys.argv[4]), **given)
first = time.perf_counter()
sparsegen.lookup(matrix, n=2 * int(sys.argv[4]), **given)
print(ready - began, first - ready, time.perf_counter() - first)
"""


@dataclass(frozen=True)
class Case:
    """A random matrix and the columns of B."""

    m: int
    k: int
    density: float
    n: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.m}x{self.k} {self.density:g} n={self.n} {self.dtype}"

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.m}x{self.k}_{self.density:g}.npz"
        scipy.sparse.save_npz(path, random_uniform(self.m, self.k, self.density, 0).to_scipy())
        return path


ALONE = (Case(2048, 1024, 0.2, 128, "float16"), Case(512, 2048, 0.1, 256, "float32"))
TOGETHER = (Case(1024, 1024, 0.1, 128, "float16"), Case(2048, 512, 0.2, 256, "float32"))
TINY = (Case(48, 32, 0.2, 8, "float32"), Case(32, 48, 0.2, 8, "float32"))


class Runs:
    """Commands in processes of their own, with a cache and a database that are theirs."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device

    def _environment(self, cache: str, db: str) -> dict[str, str]:
        own = {"SPARSEGEN_CACHE": str(self._folder / cache), "SPARSEGEN_DB": str(self._folder / f"{db}.db")}
        return os.environ | own

    def search(self, case: Case, cache: str, db: str, limits: tuple[str, ...]) -> subprocess.Popen[str]:
        words = (
            "tune", "--matrix", str(case.save(self._folder)), "-n", str(case.n), "--dtype", case.dtype,
            *limits, "--device", self._device, "--json",
        )  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "sparsegen", *words],
            env=self._environment(cache, db),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ended(self, name: str, case: Case, running: subprocess.Popen[str], began: float) -> dict[str, Any]:
        """Returns the facts of a search that has ended; raises if it failed."""
        said, _ = running.communicate()
        wall = time.perf_counter() - began
        if running.returncode:
            raise click.ClickException(f"{name}: sparsegen tune ended with status {running.returncode}")
        told = json.loads(said)
        return {
            "what": name, "case": str(case), "tried": told["trials"]["done"], "failed": told["trials"]["failed"],
            "call_seconds": told["seconds"], "seconds": wall,
        }  # fmt: skip

    def command(self, name: str, path: Path, case: Case) -> dict[str, Any]:
        words = [name, "--matrix", path, "-n", case.n, "--dtype", case.dtype, "--device", self._device]
        words += ["--rounds", 1] if name == "verify" else []
        taken = []
        for _ in range(TIMES):
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "sparsegen", *map(str, words)],
                env=self._environment("alone-1", "alone-1"),
                capture_output=True,
                text=True,
                check=False,
            )
            taken.append(time.perf_counter() - began)
            if done.returncode:
                raise click.ClickException(f"sparsegen {name}: {done.stderr.strip()}")
        return {"what": f"sparsegen {name}", "case": str(case), "seconds": taken}

    def look_up(self, path: Path, case: Case, *, remembers: bool) -> dict[str, Any]:
        """Two look-ups in a process, whose GPU an earlier process described, or none did."""
        words = [sys.executable, "-c", LOOK_UP, path, case.dtype, self._device, case.n]
        parts = []
        for _ in range(TIMES):
            if not remembers:
                shutil.rmtree(self._folder / "alone-1" / FOLDER, ignore_errors=True)
            done = subprocess.run(
                list(map(str, words)),
                env=self._environment("alone-1", "nothing"),
                capture_output=True,
                text=True,
                check=True,
            )
            parts.append([float(word) for word in done.stdout.split()])
        names = ("import_and_load", "first_look_up", "next_look_up")
        what = "look-up, GPU remembered" if remembers else "look-up, GPU not remembered"
        return {"what": what, "case": str(case)} | dict(zip(names, zip(*parts, strict=True), strict=True))


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--device", default="cuda", show_default=True)
@click.option(
    "--tiny", is_flag=True, help="Small matrices and four trials, on any device: times mean nothing."
)
@click.option(
    "--part", "parts", type=click.Choice(PARTS), multiple=True, help="May be repeated; default all of them."
)
def main(output: Path, device: str, tiny: bool, parts: tuple[str, ...]) -> None:
    parts = parts or PARTS
    alone, together = (TINY, TINY) if tiny else (ALONE, TOGETHER)
    limits = ("--trials", "4") if tiny else ("--effort", "quick")
    rows = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        click.echo(", ".join(f"{name} {_shown(value)}" for name, value in row.items()))
        facts = {"device": device, "python": platform.python_version(), "cores": os.cpu_count(), "tiny": tiny}
        publish_text(output, json.dumps({**facts, "commit": state(), "rows": rows}, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), device)
        if "searches" in parts:
            for row in searches(runs, alone, together, limits):
                add(row)
        path = alone[0].save(Path(folder))
        for name in ("lookup", "source", "verify") if "commands" in parts else ():
            add(runs.command(name, path, alone[0]))
        if "look-up" in parts:
            for remembers in (False, True):
                add(runs.look_up(path, alone[0], remembers=remembers))


def searches(
    runs: Runs, alone: Sequence[Case], together: Sequence[Case], limits: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """One after another, then two at once."""
    for number, case in enumerate(alone, 1):
        began = time.perf_counter()
        running = runs.search(case, f"alone-{number}", f"alone-{number}", limits)
        yield runs.ended("first search" if number == 1 else "search", case, running, began)
    began = time.perf_counter()
    both = [runs.search(case, "together", f"together-{i}", limits) for i, case in enumerate(together)]
    with ThreadPoolExecutor(len(both)) as pool:  # each is waited for beside the others
        ends = [
            pool.submit(runs.ended, "two at once", case, running, began)
            for case, running in zip(together, both, strict=True)
        ]
        for end in ends:
            yield end.result()


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list | tuple):
        return "/".join(map(_shown, value))
    return str(value)


if __name__ == "__main__":
    main()
