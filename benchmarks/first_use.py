"""What holding a variant's result against the reference takes where it first runs, and in which steps.

    python -m benchmarks.first_use -o first_use.json.xz [--device emulator --size 64]

Every process has a database of its own, so that it checks anew, and all share a cache: the first of a dtype compiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from sparsegen.bench.run.state import state
from sparsegen.system.publish import publish_text

DTYPES = ("float32", "float16")
TIMES = 3  # the last of them profiled, which makes it slower
STEPS = (  # functions: operands, the device's reference, its sample on the host, comparing; compiles, imports
    "random_operands",
    "reference_on",
    "require_sample",
    "worst_error",
    "upload",
    "load",
    "make",
    "exec_module",
)
PREPARE = """
import cProfile, json, pstats, sys
import sparsegen
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure import first_use
from sparsegen.tuning_db.store import Store

size, n, dtype, device, db, steps = json.loads(sys.argv[1])
profile, checked = cProfile.Profile(), first_use.checked

def profiled(*given):
    return profile.runcall(checked, *given)

if steps:
    from sparsegen.measure import preparing
    preparing.checked = profiled
sparsegen.prepare(
    random_uniform(size, size, 0.1, 0), n=n, dtype=dtype, device=device, db=db, dense="never", verify="first-use"
)
with Store.open(db) as store:
    (check,) = store.all_checks()
taken = {}
if steps:
    for (_, _, name), (_, calls, _, cumulative, _) in pstats.Stats(profile).stats.items():
        if name in steps:
            before, seconds = taken.get(name, (0, 0.0))
            taken[name] = (before + calls, seconds + cumulative)
print(json.dumps([str(check.outcome), check.seconds, taken]))
"""


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--device", default="cuda", show_default=True)
@click.option("--size", type=click.IntRange(min=1), default=4096, show_default=True, help="Rows and columns.")
@click.option("-n", type=click.IntRange(min=1), default=256, show_default=True, help="Columns of B.")
def main(output: Path, device: str, size: int, n: int) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            for number in range(TIMES):
                steps = STEPS if number == TIMES - 1 else ()
                db = str(Path(folder) / f"{dtype}-{number}.db")
                done = subprocess.run(
                    [sys.executable, "-c", PREPARE, json.dumps([size, n, dtype, device, db, steps])],
                    env=os.environ | {"SPARSEGEN_CACHE": str(Path(folder) / "cache")},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise click.ClickException(done.stderr.strip())
                outcome, seconds, taken = json.loads(done.stdout)
                what = "profiled" if steps else "with a cache" if number else "first"
                parts = {name: [calls, round(1e3 * own, 1)] for name, (calls, own) in taken.items()}
                rows.append(
                    {
                        "dtype": dtype,
                        "what": what,
                        "outcome": outcome,
                        "ms": round(1e3 * seconds, 1),
                        "steps": parts,
                    }
                )
                click.echo(", ".join(f"{name} {value}" for name, value in rows[-1].items() if value))
    document = {"device": device, "size": size, "n": n, "commit": state(), "rows": rows}
    publish_text(output, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
