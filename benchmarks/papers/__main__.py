"""All studies, each in a process of its own, turn by turn until every one is complete or time is up.

    python -m benchmarks.papers --data DATA [--hours 10 | --minutes 8] [--together 8]
    python -m benchmarks.papers --list [--json]      # what is there, what is left, and how long it should take

In the first turn each study has at most 40 seconds, for the rows that tell most; later turns are longer. No point is
begun that should end too late. A study whose process was killed goes on in the next turn; a point that fails is left
for last, and tried again when the study has no other. With ``--together``, several points that time nothing are
measured at a time, on all GPUs that are there, before those that do: each of these has its GPU to itself. Given again
after a stop, of whatever kind, the command goes on: raw files keep what was measured, and ``papers_turns`` how long it
took beside what was expected.
`python -m benchmarks.papers.page` writes the page. Studies that need no GPU run with ``--device cpu`` alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from benchmarks.markdown import table
from benchmarks.papers.budget import START
from benchmarks.papers.data import Data
from benchmarks.papers.page import studies
from benchmarks.papers.study import (
    CPU,
    INCOMPLETE,
    LIMIT,
    Progress,
    Setting,
    Study,
    device_of,
    setting_options,
)
from sparsegen.tuning.prediction.targets import find_target

MOST_DEATHS = 3  # of a study's process by a signal, after which it is not begun again
FIRST_TURN = 40.0  # seconds of each study at most, after its process began; each later turn is twice as long
EXPECTED_ON = "nvidia-h200"  # for which seconds are expected


@click.command()
@click.option("--hours", type=float, help="Begin nothing later; default 10.")
@click.option("--minutes", type=float, help="The same in minutes.")
@setting_options
@click.option("--study", "names", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--list", "lists", is_flag=True, help="Measure nothing: what is left, of one H200 with --device cuda."
)
@click.option("--json", "as_json", is_flag=True, help="With --list: JSON.")
def main(
    hours: float | None,
    minutes: float | None,
    device: str,
    data: Path | None,
    names: tuple[str, ...],
    tiny: bool,
    together: int,
    lists: bool,
    as_json: bool,
) -> None:
    """Run all studies, or some, in turns."""
    chosen = [study for study in studies() if study.name in (names or (study.name,))]
    chosen = [study for study in chosen if _runs_on(study, device)]
    if not chosen or len({*names}) > len(chosen):
        raise click.UsageError(f"of {', '.join(names)}, some are no studies that run on {device}; see --list")
    if lists:
        _list(chosen, _setting(device, data, tiny), as_json)
        return
    if hours is not None and minutes is not None:
        raise click.UsageError("give --hours or --minutes")
    seconds = 60 * minutes if minutes is not None else 3600 * (10.0 if hours is None else hours)
    given = ["--device", device, *(["--data", str(data)] if data else []), *(["--tiny"] if tiny else [])]
    given += ["--together", str(together)] if together > 1 else []
    told = _in_turns([study.name for study in chosen], given, seconds)
    click.echo(told or "all complete")
    if told:
        sys.exit(1)


def _runs_on(study: Study, device: str) -> bool:
    """True if a study has rows on a device; the emulator's have no times, and the CPU takes what times nothing."""
    return not study.needs_gpu if device == CPU else not study.on_host


def _in_turns(names: Sequence[str], given: Sequence[str], seconds: float) -> str:
    """Run studies until all are complete or time is up; what is not complete, or failed, in words."""
    # A tenth is for first rows that take longer than a turn.
    ends, turn = time.monotonic() + seconds, min(FIRST_TURN, max(1.0, 0.9 * seconds / len(names) - START))
    left = [*names]
    failed: list[str] = []
    deaths: Counter[str] = Counter()
    while left and ends - time.monotonic() > START:
        for name in [*left]:
            within = ends - time.monotonic()
            if within <= START:
                break
            click.echo(f"== {name}", err=True)
            words = [sys.executable, "-m", f"benchmarks.papers.{name}", *given]
            words += ["--limit", f"{min(turn, within):.0f}", "--within", f"{within - START:.0f}"]
            status = subprocess.run(words, check=False).returncode
            deaths[name] += status < 0
            if status != INCOMPLETE and not (status < 0 and deaths[name] < MOST_DEATHS):
                left.remove(name)
                failed += [name] if status else []
        turn = min(2 * turn, LIMIT)
    told = [f"{len(left)} not complete: {', '.join(left)}"] if left else []
    return "; ".join([*told, *([f"failed: {', '.join(failed)}"] if failed else [])])


def _setting(device: str, data: Path | None, tiny: bool) -> Setting:
    """The setting of a list: a GPU need not be there."""
    return Setting(
        find_target(EXPECTED_ON).device if device == "cuda" else device_of(device), Data(data), tiny
    )


def _list(chosen: Sequence[Study], setting: Setting, as_json: bool) -> None:
    """Print of each study the rows that are there and left, and the seconds that these should take on one H200."""
    found = {study.name: study.progress(setting) for study in chosen}
    found = {
        name: replace(one, expected=round(one.expected + START * (one.left > 0), 1))
        for name, one in found.items()
    }
    whole = Progress(
        *(sum(values) for values in zip(*(asdict(one).values() for one in found.values()), strict=True))
    )
    if as_json:
        listed = [{"study": name, **asdict(one)} for name, one in found.items()]
        click.echo(
            json.dumps({"device": setting.device.key, "studies": listed, "whole": asdict(whole)}, indent=1)
        )
        return
    lines = [
        [name, one.held, one.left, f"{one.expected:,.0f}"] for name, one in {**found, "all": whole}.items()
    ]
    click.echo(table(["study", "rows there", "left", "expected s on one H200"], lines))


if __name__ == "__main__":
    main()
