"""Time of the first look-up in a process, and of the command, where the GPU is remembered and where it is not.

    python -m benchmarks.first_look_up

Every figure is of fresh processes: by the clock; and by the processor time of the thread that looks up, or of the
command's whole process. Modules have their byte code, as installed ones do, whatever this process's environment says.
The cache and the user's database are the study's own: the packaged results answer, and the database has no rows.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

import click
from scipy.sparse import save_npz

from benchmarks.study import Rows, write_results
from sparsegen import backends
from sparsegen.matrix.generators import random_uniform
from sparsegen.tuning_db.store import Store

SHAPE, DENSITY, COLUMNS = (2048, 1024), 0.2, 128
PROCESS = """
import json, sys, time

def now():
    return time.perf_counter(), time.thread_time()

moments = [now()]
import sparsegen
from sparsegen.matrix.generators import random_uniform
matrices = [random_uniform(2048, 1024, 0.2, 0), random_uniform(1024, 1024, 0.2, 0)]
moments.append(now())
for matrix in matrices:
    found = sparsegen.lookup(matrix, n=128, dtype="float16", device=sys.argv[1])
    moments.append(now())
from sparsegen.backends.cuda import early_init
clock, processor = ([after - before for before, after in zip(each, each[1:])] for each in zip(*moments))
print(json.dumps({"clock": clock, "processor": processor, "asked_driver": early_init.is_loaded(), "how": found.how}))
"""
PARTS = "import and matrices", "first look-up", "next look-up"


@click.command()
@click.option("--device", "name", default="cuda:0", show_default=True, help="Device that is looked up for.")
@click.option("--processes", default=10, show_default=True, type=click.IntRange(1), help="Of each kind.")
def main(name: str, processes: int) -> None:
    device = backends.find_device(name)
    rows: Rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in _rows(name, processes, Path(folder)):
            rows.append(row)
            told = f"{row['clock']:7.3f} s by the clock, {row['processor']:.3f} s of the processor"
            click.echo(f"{row['what']:42} {told}")
    summary = {row["what"]: {kind: row[kind] for kind in ("clock", "processor")} for row in rows}
    write_results(device, "first_look_up", rows, summary=summary, cores=os.cpu_count())


def _rows(name: str, processes: int, folder: Path) -> Iterator[dict[str, object]]:
    """Rows of medians, with all times in seconds."""
    environment = os.environ | {
        "SPARSEGEN_CACHE": str(folder / "cache"),
        "SPARSEGEN_DB": str(folder / "tuning.db"),
        "PYTHONPYCACHEPREFIX": str(folder / "code"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    Store.open(folder / "tuning.db").close()
    matrix = folder / "matrix.npz"
    save_npz(matrix, random_uniform(*SHAPE, DENSITY, 0).to_scipy())
    command = ["-m", "sparsegen", "lookup", "--matrix", str(matrix), "-n", str(COLUMNS), "--dtype", "float16"]
    api, command = ["-c", PROCESS, name], [*command, "--device", name]
    for call in (api, command):  # byte code and the packaged results' file are made
        _run(call, environment)
    for knows in (True, False):
        said = "remembered" if knows else "not remembered"
        found, commands = [], []
        for _ in range(processes):
            for call, results in ((api, found), (command, commands)):
                if not knows:
                    shutil.rmtree(folder / "cache" / "devices", ignore_errors=True)
                results.append(_run(call, environment))
        parsed = [json.loads(output) for output, *_ in found]
        for part, what in enumerate(PARTS):
            yield _row(
                f"{what}, GPU {said}",
                [one["clock"][part] for one in parsed],
                [one["processor"][part] for one in parsed],
                asked_driver=[one["asked_driver"] for one in parsed],
                how=parsed[0]["how"],
            )
        yield _row(f"sparsegen lookup, GPU {said}", *zip(*(times for _, *times in commands), strict=True))


def _run(call: list[str], environment: Mapping[str, str]) -> tuple[str, float, float]:
    """Output of a Python process, and its seconds: by the clock, and of the processor by all of its threads."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *call], env=dict(environment), capture_output=True, text=True, check=True
    )
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _row(what: str, clock: Iterable[float], processor: Iterable[float], **facts: object) -> dict[str, object]:
    clocks, processors = list(clock), list(processor)
    return {
        "what": what,
        "clock": round(median(clocks), 4),
        "processor": round(median(processors), 4),
        "clocks": [round(seconds, 4) for seconds in clocks],
        "processors": [round(seconds, 4) for seconds in processors],
        **facts,
    }


if __name__ == "__main__":
    main()
