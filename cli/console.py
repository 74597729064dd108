"""Screens of rich: texts, tables, and their lines; plain lines need only output.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from raidx_fuse.cli.folding import HANG, parts_of
from raidx_fuse.cli.printable import fitting, is_plain_locale

REST_MIN = 28  # columns: in fewer the last cell of a row is not folded, it gets lines of its own


class FittingConsole(Console):
    """A console that writes only printable characters of its encoding, and ends of lines."""

    @property
    def encoding(self) -> str:
        """Return what rich chooses its boxes and spinners by."""
        return "ascii" if is_plain_locale() else self.stream_encoding

    @property
    def stream_encoding(self) -> str:
        return (getattr(self._file, "encoding", "utf-8") or "utf-8").lower()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with the text of each segment made to fit."""
        for text, style, control in super().render(renderable, options):
            fit = text if control else fitting(text, self.stream_encoding)
            yield Segment(fit, style, control)

    def show(self, screen: RenderableType, columns: int) -> None:
        """Print *screen* in lines of at most *columns*, without blanks at their ends."""
        for line in lines_of(screen, columns):
            self.print(line, soft_wrap=True)


class Table:
    """Rows of cells under *titles*; numbers stand right, and what is in the columns *left* left.

    Nothing is cut, no word is broken, and no row ends in blanks. In a row that is too wide, the
    last cell is folded in its column; a word that does not fit there, or a column that is too
    narrow, puts it on lines of its own below. Other cells that do not fit begin a new line.

    Without titles all columns are *left*, but the first one if it is *named*: then it has the names
    of what stands in the second.
    """

    def __init__(
        self, *titles: str, left: Collection[str] = (), named: bool = False, indent: int = 0
    ) -> None:
        self._titles = list(titles)
        self._left = set(left)
        self._named = named
        self._indent = indent
        self._gap = 1 if named else 2
        self.rows: list[list[Text]] = []
        self._through: set[int] = set()  # rows that are lines

    def add_column(self, title: str, *, left: bool = False) -> None:
        self._titles.append(title)
        self._left |= {title} if left else set()

    def add_line(self, line: Text) -> None:
        """Add a line below the last row, through all columns."""
        self._through.add(len(self.rows))
        self.rows.append([line])

    def add_row(self, *cells: str | Text) -> None:
        row = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        if self._named:
            row[0].stylize("bold")
        self.rows.append(row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(options.max_width)

    def lines(self, columns: int) -> Iterator[Text]:
        """Yield the lines of the table, of at most *columns* if no word is longer."""
        titles = [Text(title, style="bold") for title in self._titles]
        rows = [row for at, row in enumerate(self.rows) if at not in self._through]
        rows = [titles, *rows] if titles else rows
        widths = [max(map(_width, column)) for column in zip_longest(*rows, fillvalue=Text())]
        if titles:
            yield from self._folded(titles, widths, columns)
        for at, row in enumerate(self.rows):
            if at in self._through:
                indent = self._indent + HANG
                yield from (_behind(indent, one) for one in _pieces(row[0], columns - indent))
            else:
                yield from self._folded(row, widths, columns)

    def _folded(self, row: Sequence[Text], widths: list[int], columns: int) -> Iterator[Text]:
        line = Text(" " * self._indent)
        column = self._indent  # at which the next cell begins
        below = self._indent + HANG
        for number, (cell, width) in enumerate(zip(row, widths, strict=False)):
            is_last = number == len(widths) - 1
            short = width - cell.cell_len
            line.pad_right(max(0, column - line.cell_len))
            if short and not self._is_left(number):
                line.pad_right(short)
            has_room = line.cell_len + cell.cell_len <= columns
            if has_room and "\n" not in cell.plain:
                line.append_text(cell)
                column += width + self._gap
                continue
            hang = line.cell_len if is_last else below
            if is_last and columns - hang >= REST_MIN and _longest(cell) <= columns - hang:
                first, *others = _pieces(cell, columns - hang, 0)
                yield _stripped(line.append_text(first))
            else:
                if line.plain.strip():
                    yield _stripped(line)
                hang = below
                first, *others = _pieces(cell, columns - hang, 0)
                others = [first, *others]
            for each in others[: None if is_last else -1]:
                yield _stripped(_behind(hang, each))
            if is_last:
                return
            line = _behind(hang, others[-1])
            column = line.cell_len + self._gap
        yield _stripped(line)

    def _is_left(self, number: int) -> bool:
        if self._titles:
            return self._titles[number] in self._left
        return number > 0 or not self._named


def _width(cell: Text) -> int:
    return max((line.cell_len for line in cell.split("\n")), default=0)


def _longest(cell: Text) -> int:
    return max((len(word) for word in cell.plain.split()), default=0)


def _behind(column: int, text: Text) -> Text:
    line = Text(" " * column)
    return line.append_text(text)


def _stripped(line: Text) -> Text:
    line.rstrip()
    return line


def _pieces(text: Text, columns: int, hang: int | None = None) -> Iterator[Text]:
    """Yield the lines of *text*, folded; by default what follows hangs behind its beginning."""
    for line in text.split("\n", allow_blank=True):
        own = hang
        if own is None:
            own = len(line.plain) - len(line.plain.lstrip()) + HANG
        for number, (begin, end, goes_on) in enumerate(parts_of(line.plain, columns, own)):
            piece = line[begin:end]
            if number:
                piece.pad_left(own)
            yield piece.append(" \\") if goes_on else piece


def lines_of(screen: RenderableType, columns: int) -> Iterator[RenderableType]:
    """Yield the lines of *screen*, folded to *columns*; what is drawn with a frame as it is."""
    if isinstance(screen, Group):
        for part in screen.renderables:
            yield from lines_of(part, columns)
    elif isinstance(screen, Table):
        yield from screen.lines(columns)
    elif isinstance(screen, str | Text):
        yield from _pieces(Text(screen) if isinstance(screen, str) else screen, columns)
    else:
        yield screen
