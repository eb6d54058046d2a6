"""The console of all commands; rich, which it stands on, is imported with it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sparsegen.cli.parts.streams import visible


class SafeConsole(Console):
    """Writes what a terminal would obey as escapes, wherever it stands; its own colours are not text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
