"""`raidx layout recover`: the reads that give lost disks back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.commands.layout.group import (
    cells_json,
    check_shown,
    disks_option,
    layout,
    name_argument,
    plan_of,
)
from raidx_fuse.cli.commands.layout.svg import READ, Box, Panel, picture, save, svg_option
from raidx_fuse.cli.commands.teach.decode import decode_page
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.codes.code import Code, Step, bits
from raidx_fuse.layouts.planning.load import conventional_reads


@verb(group=layout)
@name_argument
@disks_option
@click.option(
    "--lost",
    "-l",
    "numbers",
    required=True,
    multiple=True,
    metavar="DISK[,DISK]...",
    help="Number of the lost disk; several with commas, or repeated.",
)
@click.option("--step", is_flag=True, help="Show the decode cell by cell, in its order.")
@svg_option
def recover(
    out: Output, name: str, disks: int, numbers: tuple[str, ...], step: bool, svg: str | None
) -> None:
    """Print the reads that recover the lost columns of a stripe; for one column, the fewest.

    Of several columns, a later cell may be computed from cells that were recovered before it.
    """
    code = plan_of(name, disks, 1).code
    lost = _disks(numbers, code)
    if len(lost) > code.tolerance:
        raise UsageError(
            f"{name} on {plural(disks, 'member')} tolerates {_losses(code.tolerance)}: "
            f"disk {', '.join(map(str, lost))} cannot be recovered"
        )
    gone = code.columns_mask(frozenset(lost))
    steps = code.recover(lost[0]) if len(lost) == 1 else code.schedule(gone, gone)
    union = 0
    for _, mask in steps:
        union |= mask & ~gone
    reads = sorted(code.cells[cell] for cell in bits(union))
    lines = [plural(len(reads), "read")]
    document: dict[str, Any] = {"reads": reads, "count": len(reads), "lost_disks": lost}
    if len(lost) == 1:
        conventional = conventional_reads(code, lost[0])
        lines[0] += f" (conventional: {conventional})"
        document |= {"lost": lost[0], "conventional": conventional}
    if svg is not None:
        check_shown(code.rows * code.columns)
        numbers_lost = ", ".join(map(str, lost))
        title = f"{name} on {plural(disks, 'member')}, lost: disk {numbers_lost}"
        notes = [lines[0], "Blue: read. Dashed: lost, with the step that computes it."]
        save(svg, picture(title, [_panel(code, steps, union)], notes))
    document["cells"] = cells_json(code)
    if step:
        document["steps"], page = decode_page(code, steps, gone)
        out.explain({"layout": name, **document}, Text("\n".join(lines + page)))
        return
    for cell, mask in steps:
        sources = " ^ ".join(map(code.name_of, bits(mask)))
        lines.append(f"{code.name_of(cell)} = {sources}")
    out.emit({"layout": name, **document}, Text("\n".join(lines)))


def _disks(numbers: tuple[str, ...], code: Code) -> list[int]:
    """Return the disks in *numbers*, each once, ascending. Raises UsageError."""
    words = [word for number in numbers for word in number.split(",")]
    if not all(word.isdecimal() and int(word) < code.columns for word in words):
        wrong = next(w for w in words if not (w.isdecimal() and int(w) < code.columns))
        raise UsageError(f"there is no disk {wrong}: the disks are 0 to {code.columns - 1}")
    return sorted({int(word) for word in words})


def _losses(count: int) -> str:
    return plural(count, "loss") if count else "no loss"


def _panel(code: Code, steps: Sequence[Step], read: int) -> Panel:
    order = {cell: number for number, (cell, _) in enumerate(steps, 1)}
    rows: list[list[Box | None]] = [[None] * code.columns for _ in range(code.rows)]
    for cell, (row, column) in enumerate(code.cells):
        name = code.name_of(cell)
        if cell in order:
            rows[row][column] = Box(name, f"step {order[cell]}", (), "lost")
        else:
            taken = read >> cell & 1
            rows[row][column] = Box(name, "read" if taken else "", (READ,) if taken else ())
    heads = [f"disk {column}" for column in range(code.columns)]
    return Panel("", heads, [f"row {row}" for row in range(code.rows)], rows)
