"""A console of rich, for tables and styles; plain lines need only output.py."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from raidx_fuse.cli.printable import fitting


class FittingConsole(Console):
    """A console that writes only printable characters of its encoding, and ends of lines."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with the text of each segment made to fit."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else fitting(text, self.encoding), style, control)
