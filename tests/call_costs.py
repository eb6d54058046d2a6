"""Costs of a call in steps, which no busy machine changes: functions of Python entered, functions of C called."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Steps:
    """The functions that a call enters, by name, and how often each."""

    python: Counter[str]
    c: Counter[str]

    @property
    def total(self) -> int:
        return self.python.total() + self.c.total()


def steps_of(call: Callable[[], object], *, before: int = 3) -> Steps:
    """The steps of a call that has been made some times before, without those of a collection of garbage.

    Whether one falls into the call depends on the tests before it, and its callbacks (Hypothesis has one) would count.
    """
    python, c = Counter[str](), Counter[str]()

    def see(frame: Any, event: str, function: Any) -> None:
        if event == "call":
            python[frame.f_code.co_name] += 1
        elif event == "c_call":
            c[function.__name__] += 1

    for _ in range(before):
        call()
    known, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(known)
        if collects:
            gc.enable()
    c["setprofile"] -= 1
    return Steps(python, +c)
