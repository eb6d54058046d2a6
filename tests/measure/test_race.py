"""Races: what they launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from sparsegen.backends import open_executor
from sparsegen.backends.emulator import device
from sparsegen.measure.race import on_operands
from sparsegen.operators import DsdProblem, Launcher


def test_kept_operands_come_with_no_call() -> None:
    """A scale that was given once is no tensor of the race: PyTorch's product takes a number for less."""
    problem = DsdProblem(64, 128, 32)
    given: list[tuple[Any, ...]] = []

    def launcher(*kept: str) -> Launcher:
        run = lambda operands, out, stream: given.append(operands)  # noqa: E731
        return cast("Launcher", SimpleNamespace(kept=kept, run=run))

    enter = on_operands(launcher("scale"), launcher(), problem, problem.without_pattern)
    for call in enter(open_executor(device())):
        call()
    names = [spec.name for spec in problem.operands(0)]
    assert [name for name, one in zip(names, given[0], strict=True) if one is None] == ["scale"]
    assert all(one is not None for one in given[1])
