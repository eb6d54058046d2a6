"""Limits of a search: the same options for every command that searches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import click

from sparsegen.cli.parts.common import F, FiniteRange, apply_options, word_option
from sparsegen.tuning.report import Budget, Effort


def limit_options(search: str) -> Callable[[F], F]:
    """``limits``: `Budget`.

    Args:
        search: the limited thing, as the end of a sentence: "the search".
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(*args: Any, **given: Any) -> Any:
            effort, trials, seconds = (given.pop(name) for name in ("effort", "trials", "budget"))
            return function(*args, limits=Budget(trials, seconds, effort), **given)

        options = (
            word_option(
                "--effort",
                default=Effort.NORMAL,
                help=f"Of {search}. quick: seconds; normal: twenty seconds; max: every choice of every tunable.",
            ),
            click.option(
                "--trials",
                type=click.IntRange(min=1),
                help=f"Variants to try in {search}, instead of the effort's limits.",
            ),
            click.option(
                "--budget",
                type=FiniteRange(min=0, min_open=True),
                metavar="SECONDS",
                help=f"Time for {search}, instead of the effort's limits.",
            ),
        )
        return apply_options(options, cast(F, command))

    return decorate
