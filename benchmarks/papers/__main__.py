"""All studies, each in a process of its own, again and again until every one is complete.

    python -m benchmarks.papers --data DATA [--hours 10]

A study that its time limit ended goes on in the next turn, and so does one whose process was killed; a point that fails
is left for last, and tried again when the study has no other. Given again after a stop, of whatever kind, the command
goes on: raw files keep what was measured. `python -m benchmarks.papers.page` writes the page.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import click

from benchmarks.papers.page import studies
from benchmarks.papers.study import CPU, INCOMPLETE, LIMIT

MOST_DEATHS = 3  # of a study's process by a signal, after which it is not begun again


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--hours", default=10.0, show_default=True, help="Begin no study later.")
@click.option("--device", default="cuda", show_default=True)
@click.argument("given", nargs=-1, type=click.UNPROCESSED)
def main(hours: float, device: str, given: tuple[str, ...]) -> None:
    """Run all studies; GIVEN are options of theirs, such as --data and --tiny."""
    ends = time.monotonic() + 3600 * hours
    left = {study.name: study for study in studies() if device != CPU or not study.needs_gpu}
    failed: list[str] = []
    deaths: Counter[str] = Counter()
    while left and time.monotonic() < ends:
        for name, study in list(left.items()):
            limit = min(LIMIT, ends - time.monotonic())
            if limit <= 0:
                break
            click.echo(f"== {name}")
            where = CPU if study.on_host else device
            words = [sys.executable, "-m", f"benchmarks.papers.{name}", "--device", where]
            status = subprocess.run([*words, "--limit", f"{limit:.0f}", *given], check=False).returncode
            deaths[name] += status < 0
            if status != INCOMPLETE and not (status < 0 and deaths[name] < MOST_DEATHS):
                del left[name]
                failed += [name] if status else []
    told = [f"{len(left)} not complete: {', '.join(left)}"] if left else []
    told += [f"failed: {', '.join(failed)}"] if failed else []
    click.echo("; ".join(told) or "all complete")
    if told:
        sys.exit(1)


if __name__ == "__main__":
    main()
