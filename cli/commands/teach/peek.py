"""`raidx peek`: the bytes of one stripe, and whether its chains hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import array_named, ask, is_place
from raidx_fuse.cli.output import Output, terminal_columns
from raidx_fuse.cli.parameters import ARRAYS, SIZE
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.answers import Peeked, PeekedCell

STYLES = {"log": "cyan", "home": "", "chains": "magenta", "nowhere": "bold red"}
COLUMNS = 16  # bytes on a line
WHOLE_COLUMNS = 112  # of a terminal with room for a line of them


@verb()
@click.argument("array", metavar="ARRAY", nargs=-1, required=True, type=ARRAYS)
@click.argument("stripe", type=int)
@click.option("--from", "begin", type=SIZE, default=0, help="First byte of each chunk shown (0).")
@click.option("--length", type=SIZE, default=COLUMNS, help="Bytes of each chunk shown (16).")
def peek(out: Output, array: tuple[str, ...], stripe: int, begin: int, length: int) -> int:
    """Show the bytes of a stripe, cell by cell, and whether the XOR of each chain is zero.

    ARRAY is a mount point; of an array that is not mounted, all its members. For each cell it says
    where the newest bytes are: at their home place or in the log. The exit status is 1 if the
    newest bytes of a chain do not agree.
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
    return int(any(chain["newest"] == "broken" for chain in document["chains"]))


def _page(document: Peeked) -> Group:
    title = f"stripe {document['stripe']} of {document['layout']}: {', '.join(document['state'])}"
    table = Table.grid(padding=(0, 2))
    for cell in document["cells"]:
        style = STYLES.get(cell["newest"], "bright_black")
        place = (f"  {cell['cell']}", f"member {cell['role']}", f"at {cell['member_offset']}")
        rows = _rows(cell["content"], document["begin"]) or [("", _why_empty(cell))]
        table.add_row(*place, Text(cell["newest"], style=style), *rows[0])
        for row in rows[1:]:
            table.add_row("", "", "", "", *row)
        if cell["newest"] == "log" and cell["home"] != cell["content"]:
            for number, row in enumerate(_rows(cell["home"], document["begin"])):
                table.add_row("", "", "", "" if number else "(home)", *row)
    lines = []
    for chain in document["chains"]:
        equation = f"  {' ^ '.join(chain['cells'])} = 0: "
        equation += _verdict(chain["newest"], chain["newest_differs_at"])
        if chain["home"] != chain["newest"]:
            equation += f"; at the home places: {_verdict(chain['home'], chain['home_differs_at'])}"
        style = "bold red" if chain["newest"] == "broken" else ""
        lines.append(Text(equation, style=style))
    return Group(Text(title, style="bold cyan"), table, *lines)


def _why_empty(cell: PeekedCell) -> str:
    if not cell["written"]:
        return "never written: counts as zero"
    return "lost, and the chains do not give it back"


def _verdict(word: str, differs_at: int | None) -> str:
    return word if differs_at is None else f"{word} at byte {differs_at}"


def _rows(content: str | None, begin: int) -> list[tuple[str, str]]:
    """Return (offset and hexadecimal, text) of each line of *content*, which is hexadecimal."""
    data = bytes.fromhex(content or "")
    rows = []
    columns = terminal_columns()
    count = COLUMNS if columns is None or columns >= WHOLE_COLUMNS else COLUMNS // 2
    for at in range(0, len(data), count):
        part = data[at : at + count]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append((f"{begin + at:6}  {part.hex(' ')}", text))
    return rows
