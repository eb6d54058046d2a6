"""The display of several searches: a line when one begins, is lost or fails, and on a terminal a row of each."""

from __future__ import annotations

from io import StringIO

import pytest
from engine_fakes import tasks
from rich.console import Console
from toy_searches import WORKLOAD, timed

from sparsegen.cli.parts.searches import PlainWatch, watched
from sparsegen.errors import NoVariantError
from sparsegen.tuning.engines.dealing import Outcome, Unwatched, Watch
from sparsegen.tuning.report import Counts, Phase, Status

STATUS = Status(WORKLOAD, Phase.SEARCHING, Counts(done=3), 8, timed(10.0, 8), (), 2.0, 24.0)


def tell(watch: Watch) -> None:
    first, second = tasks(2)
    watch.planned(2)
    watch.began(0, first, "cuda:0")
    watch.began(1, second, "cuda:1")
    watch.progressed(1, second, STATUS)
    watch.lost(0, first, "cuda:0", "it fell over")
    watch.began(0, first, "cuda:1")
    watch.ended(0, first, Outcome(error=NoVariantError("nothing compiles")))


def test_plain_lines_name_their_search() -> None:
    lines: list[str] = []
    tell(PlainWatch(lines.append))
    assert lines[:2] == ["[1 of 2] task 0, on cuda:0", "[2 of 2] task 1, on cuda:1"]
    assert lines[2].startswith("[2]") and "trials 3 of 8" in lines[2]
    assert lines[3:] == [
        "[1] lost on cuda:0, and begun again: it fell over",
        "[1 of 2] task 0, on cuda:1",
        "[1] failed: nothing compiles",
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_a_terminal_shows_what_goes_on(count: int) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=100)
    with watched(as_json=False, console=console) as watch:
        watch.planned(2)
        for number, task in enumerate(tasks(count)):
            watch.began(number, task, f"cuda:{number}")
            watch.progressed(number, task, STATUS)
        with console.capture() as shown:
            console.print(watch._picture())  # type: ignore[attr-defined]
        if count == 1:
            assert "GFLOP/s" in shown.get()  # its panel
        else:
            assert "0 of 2 searches done" in shown.get() and "3 of 8" in shown.get() and "24 s" in shown.get()
        tell(watch)


def test_json_is_not_disturbed() -> None:
    with watched(as_json=True) as watch:
        assert type(watch) is Unwatched
