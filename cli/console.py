"""A console of rich, for tables and styles; plain lines need only output.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.printable import fitting


class FittingConsole(Console):
    """A console that writes only printable characters of its encoding, and ends of lines."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with the text of each segment made to fit."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else fitting(text, self.encoding), style, control)


def table_of(*titles: str, left: Collection[str] = ()) -> Table:
    """Return a table without lines: columns of numbers, and of the titles *left* of texts."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
    return table


HANG = 3


def broken(page: Text, columns: int) -> Text:
    """Return *page* with lines of up to *columns* characters, broken at spaces where there are any.

    What follows in a line stands `HANG` columns behind its beginning.
    """
    lines = []
    for line in page.split("\n", allow_blank=True):
        hang = len(line.plain) - len(line.plain.lstrip()) + HANG
        rest, least = line, 0
        while len(rest.plain) > columns:
            at = rest.plain.rfind(" ", least, columns + 1)
            at = at if at > 0 else rest.plain.find(" ", max(least, columns))  # behind a long word
            if at < 0:
                break
            lines.append(rest[:at])
            rest = rest[at + 1 :]
            rest.pad_left(hang)
            least = hang + 1
        lines.append(rest)
    return Text("\n").join(lines)
