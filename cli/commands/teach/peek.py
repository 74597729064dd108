"""`raidx peek`: the bytes of one stripe, and whether its chains hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import array_named, ask, is_place
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output, plural, screen_columns
from raidx_fuse.cli.parameters import ARRAYS, SIZE
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.answers import Peeked, PeekedCell

STYLES = {
    "log": "cyan",
    "home": "",
    "chains": "magenta",
    "nowhere": "bold red",
    "misfits": "bold red",
}
COLUMNS = 16  # bytes on a line, where the screen has room for them
FEWER_COLUMNS = 8, 4
PAGES_NAMED = 4
INDENT = 2


@verb()
@click.argument("array", metavar="ARRAY", nargs=-1, required=True, type=ARRAYS)
@click.argument("stripe", type=int)
@click.option("--from", "begin", type=SIZE, default=0, help="First byte of each chunk shown (0).")
@click.option("--length", type=SIZE, default=COLUMNS, help="Bytes of each chunk shown (16).")
def peek(out: Output, array: tuple[str, ...], stripe: int, begin: int, length: int) -> int:
    """Show the bytes of a stripe, cell by cell, and whether the XOR of each chain is zero.

    ARRAY is a mount point; of an array that is not mounted, all its members. For each cell it says
    where the newest bytes are: at their home place or in the log. With checksums also whether the
    page shown fits its own; what does not fit is shown beside what the chains give back, and is
    left as it is. The exit status is 1 if the newest bytes of a chain do not agree, or a page does
    not fit its checksum.
    """
    if len(array) == 1:
        array = (array_named(array[0]),)
    if len(array) == 1 and is_place(array[0]):
        document = ask(out, array[0], "peek", stripe=stripe, begin=begin, length=length)
    else:
        import trio

        from raidx_fuse.daemon import inspect  # late: a mount is asked without the engine

        specs = [absolute(member) for member in array]
        document = out.fit(trio.run(inspect.peek, specs, stripe, begin, length))
    out.emit(document, _page(document))
    broken = any(chain["newest"] == "broken" for chain in document["chains"])
    return int(broken or any(map(_misfits, document["cells"])))


def _page(document: Peeked) -> Group:
    title = f"stripe {document['stripe']} of {document['layout']}: {', '.join(document['state'])}"
    count, table = COLUMNS, _table(document, COLUMNS)
    for fewer in FEWER_COLUMNS:
        if not _fits(table, count):
            count, table = fewer, _table(document, fewer)
    lines = [_misfit(cell, document["begin"]) for cell in document["cells"] if _misfits(cell)]
    for chain in document["chains"]:
        equation = f"  {' ^ '.join(chain['cells'])} = 0: "
        equation += _verdict(chain["newest"], chain["newest_differs_at"])
        if chain["home"] != chain["newest"]:
            equation += f"; at the home places: {_verdict(chain['home'], chain['home_differs_at'])}"
        style = "bold red" if chain["newest"] == "broken" else ""
        lines.append(Text(equation, style=style))
    return Group(Text(title, style="bold cyan"), table, *lines)


def _table(document: Peeked, count: int) -> Table:
    """Return the bytes of the cells, *count* on a line."""
    table, begin = Table(indent=INDENT), document["begin"]
    has_sums = any("sum" in cell for cell in document["cells"])
    for cell in document["cells"]:
        style = STYLES.get(cell["newest"], "bright_black")
        place = (cell["cell"], f"member {cell['role']}", f"at {cell['member_offset']}")
        rows = _rows(cell["content"], begin, count) or [(Text(), _why_empty(cell))]
        home: list[tuple[Text, str]] = []
        if cell["home"] is not None and cell["home"] != cell["content"]:
            home = _rows(cell["home"], begin, count, cell["content"])
        sums = [Text(cell.get("sum") or "", style=STYLES.get(cell.get("sum") or "", ""))] * has_sums
        blank = [Text()] * has_sums
        table.add_row(*place, Text(cell["newest"], style=style), *blank if home else sums, *rows[0])
        for row in rows[1:]:
            table.add_row("", "", "", "", *blank, *row)
        for number, row in enumerate(home):
            left = blank if number else sums
            table.add_row("", "", "", "" if number else "(home)", *left, *row)
    return table


def _fits(table: Table, count: int) -> bool:
    """Return whether *count* bytes on a line and their text fit the screen, whatever else folds."""
    cut = Table(indent=INDENT)
    for *cells, text in table.rows:
        cut.add_row(*cells, text[:count])
    return sum(1 for _ in cut.lines(screen_columns())) == len(table.rows)


def _misfits(cell: PeekedCell) -> list[int]:
    """Return the bytes of *cell* at which pages begin that misfit; older daemons send none."""
    return cell.get("misfit_at_bytes") or []


def _misfit(cell: PeekedCell, begin: int) -> Text:
    """Return the line about the pages of *cell* that misfit; shown are bytes from *begin* on."""
    places = _misfits(cell)
    shown = ", ".join(map(str, places[:PAGES_NAMED])) + ", ..." * (len(places) > PAGES_NAMED)
    line = f"  {cell['cell']}: {plural(len(places), 'page')} at byte {shown} "
    line += "does not fit its checksum" if len(places) == 1 else "do not fit their checksums"
    wrong = _differing(cell["home"], cell["content"])
    if wrong:
        line += f"; the chains say that byte {begin + wrong[0]} is wrong"
        if len(wrong) > 1:
            line += f", and {len(wrong) - 1} more that are shown"
    return Text(line, style="bold red")


def _differing(home: str | None, content: str | None) -> list[int]:
    """Return which bytes of *home* are not those of *content*; both are hexadecimal."""
    if home is None or content is None:
        return []
    pairs = zip(bytes.fromhex(home), bytes.fromhex(content), strict=True)
    return [at for at, (one, other) in enumerate(pairs) if one != other]


def _why_empty(cell: PeekedCell) -> str:
    if not cell["written"]:
        return "never written: counts as zero"
    if cell.get("sum") == "misfits":
        return "no chain gives it back"
    return "lost, and the chains do not give it back"


def _verdict(word: str, differs_at: int | None) -> str:
    return word if differs_at is None else f"{word} at byte {differs_at}"


def _rows(
    content: str | None, begin: int, count: int, right: str | None = None
) -> list[tuple[Text, str]]:
    """Return (offset and hexadecimal, text) of each line of *content*, which is hexadecimal.

    Bytes that differ from *right* stand out.
    """
    data = bytes.fromhex(content or "")
    wrong = set(_differing(content, right))
    rows = []
    digits = 6 if count == COLUMNS else len(str(begin + len(data)))
    for at in range(0, len(data), count):
        part = data[at : at + count]
        line = Text(f"{begin + at:{digits}}  {part.hex(' ')}")
        for number in range(len(part)):
            if at + number in wrong:
                first = digits + 2 + 3 * number
                line.stylize("bold red", first, first + 2)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append((line, text))
    return rows
