"""``--for``: a GPU that is not here, by its description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

NAMES = "nvidia-h200, a100, l40s, b200, h100, or a JSON file that describes one"


def target_option(what: str, more: str = "") -> Callable[[Any], Any]:
    """The option of a command, which does this for a GPU that is not here; ``more`` ends its help."""
    return click.option(
        "--for",
        "target",
        metavar="TARGET",
        shell_complete=_completed,
        help=f"{what} for a GPU that is not here: {NAMES}.{more}",
    )


def _completed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the names of descriptions."""
    from sparsegen.tuning.prediction.targets import targets

    return [CompletionItem(name) for name in targets() if name.startswith(incomplete)]
