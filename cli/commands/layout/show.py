"""`raidx layout list`, `show` and `chains`: which layouts there are, their stripes and chains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.commands.layout.group import (
    after_option,
    cells_json,
    check_shown,
    disks_option,
    layout,
    name_argument,
    plan_of,
    rotate_option,
)
from raidx_fuse.cli.commands.layout.svg import Box, Panel, colour, picture, save, svg_option
from raidx_fuse.cli.console import broken
from raidx_fuse.cli.output import Output, plural, terminal_columns, warn
from raidx_fuse.layouts.codes.code import Code, bits
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import LAYOUTS, LayoutError, LayoutInfo, allowed_widths

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
CHAIN_COLOURS = (*_COLOURS, *(f"bright_{colour}" for colour in _COLOURS))


@verb("list", layout)
def list_layouts(out: Output) -> None:
    """List all layouts: widths, losses tolerated, efficiency."""
    rows: list[tuple[str, ...]] = []
    layouts = []
    for info in LAYOUTS.values():
        try:
            document = _document(info)
        except LayoutError as error:  # a plug-in fails, or is no code
            warn(str(error))
            continue
        shares = [(int(width), share) for width, share in document["efficiency"].items()]
        few, many = shares[0], max((each for each in shares if each[0] <= 12), default=shares[-1])
        efficiency = f"{few[1]:.0%} ({few[0]}) to {many[1]:.0%} ({many[0]})"
        losses = f"{info.tolerance(few[0])}" if info.name != "raid1" else "all but one"
        rows.append((info.name, info.widths, losses, efficiency, info.title, info.source))
        layouts.append(document)
    for problem in LAYOUTS.problems():
        warn(problem)
    out.emit({"layouts": layouts}, _listed(rows))


def _listed(rows: Sequence[tuple[str, ...]]) -> RenderableType:
    """Return *rows* as a table; on a terminal that is too narrow, as two lines for each layout."""
    titles = ("name", "members", "losses", "efficiency", "what it is", "paper")
    widths = [max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True)]
    if sum(widths) > (terminal_columns() or sum(widths)):
        page = Text()
        for name, members, losses, efficiency, title, paper in rows:
            page.append(f"{name:14}", style="bold").append(f"{title}\n")
            source = f"; paper: {paper}" if paper else ""
            page.append(f"{'':14}members: {members}; losses: {losses}; {efficiency}{source}\n")
        page.rstrip()
        return broken(page, terminal_columns() or sum(widths))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=title == "name")
    for row in rows:
        table.add_row(*row)
    return table


def _document(info: LayoutInfo) -> dict[str, Any]:
    """Return what is known of a layout as JSON values. Raises LayoutError."""
    widths = allowed_widths(info.name)
    if not widths:
        raise LayoutError(f"layout {info.name!r} of {info.package} exists for no 1 to 32 members")
    return {
        "name": info.name,
        "title": info.title,
        "widths": list(widths),
        "widths_text": info.widths,
        "losses": {str(width): info.tolerance(width) for width in widths},
        "efficiency": {str(width): info.efficiency(width) for width in widths},
        "params": info.params,
        "paper": info.source or None,
        "package": info.package or None,
    }


@verb(group=layout)
@name_argument
@disks_option
@after_option
@rotate_option
@click.option("--stripes", type=click.IntRange(min=1), help="Stripes to draw (default: as needed).")
@click.option("--chains", is_flag=True, help="Also print the chains of each data cell.")
@svg_option
def show(
    out: Output,
    name: str,
    disks: int,
    disks_after: tuple[int, ...],
    rotate: bool | None,
    stripes: int | None,
    chains: bool,
    svg: str | None,
) -> None:
    """Draw stripes: each cell with its name, data cells with the number of their logical chunk.

    D1 #5 is data cell 1 of its stripe, and chunk 5 of the image; P0 is the parity cell of chain 0.
    """
    plan = plan_of(name, disks, 1, disks_after, rotate)
    turns = plan.roles(Stripe(0)) != plan.roles(Stripe(1))
    drawn = stripes or (plan.width if turns or disks_after else 4 if plan.code.rows == 1 else 1)
    check_shown(drawn * plan.code.rows * plan.width)
    plan = plan_of(name, disks, drawn, disks_after, rotate)
    title = f"{name} on {plural(plan.width, 'member')}"
    lines: list[tuple[list[Text], bool]] = []
    document = []
    boxes: list[list[Box | None]] = []
    for stripe in range(plan.stripes):
        rows = [
            [_content(plan, role, stripe * plan.code.rows + row) for role in range(plan.width)]
            for row in range(plan.code.rows)
        ]
        cells = [[_cell_json(plan.code, content) for content in row] for row in rows]
        document.append({"stripe": stripe, "cells": cells})
        boxes += [[_cell_box(plan.code, content) for content in row] for row in rows]
        for number, row in enumerate(rows):
            last = number == len(rows) - 1 and plan.code.rows > 1
            texts = [_cell_text(plan.code, content, chains) for content in row]
            lines.append(([Text("" if number else str(stripe)), *texts], last))
    if svg is not None:
        save(svg, picture(title, [_stripes(plan, boxes)], [CHAINS_NOTE]))
    shape = {"rows": plan.code.rows, "cols": plan.width, "tolerance": plan.code.tolerance}
    out.emit({"layout": name, **shape, "stripes": document}, Group(*_tables(title, lines)))


def _tables(title: str, lines: Sequence[tuple[Sequence[Text], bool]]) -> Iterator[Table]:
    """Yield the table of *lines* (cells, whether a section ends), in parts as wide as a terminal.

    The first cell of a line is its title, which each part has.
    """
    count = len(lines[0][0])
    heads = ["stripe", *(f"disk {role}" for role in range(count - 1))]
    widths = [
        3 + max(len(head), *(len(texts[number]) for texts, _ in lines))
        for number, head in enumerate(heads)
    ]
    columns = terminal_columns() or sum(widths) + 1
    first = 1
    while first < count:
        end, used = first + 1, 1 + widths[0] + widths[first]
        while end < count and used + widths[end] <= columns:
            used += widths[end]
            end += 1
        table = Table(title=title if first == 1 else None, title_style="bold")
        table.add_column(heads[0], justify="right")
        for head in heads[first:end]:
            table.add_column(head, justify="center")
        for texts, is_last in lines:
            table.add_row(texts[0], *texts[first:end], end_section=is_last)
        yield table
        first = end


CHAINS_NOTE = "A colour is a chain: the XOR of its cells is zero. Thick borders: parity."
Content = tuple[CellIndex, int | None] | None  # (cell, logical chunk of a data cell)


def _content(plan: Layout, role: int, member_chunk: int) -> Content:
    found = plan.inverse(Role(role), MemberChunk(member_chunk))
    if found is None:
        return None
    stripe, cell = found
    return cell, plan.logical(stripe, cell) if cell < plan.code.data_count else None


def _cell_json(code: Code, content: Content) -> dict[str, Any] | None:
    if content is None:
        return None
    cell, logical = content
    named: dict[str, Any] = {"cell": cell, "name": code.name_of(cell)}
    return named if logical is None else {**named, "logical": logical}


def chains_with(code: Code, cell: int) -> list[int]:
    """Return the chains that *cell* belongs to; of a parity cell its own first."""
    found = [number for number, mask in enumerate(code.chain_masks) if mask >> cell & 1]
    return sorted(found, key=lambda number: code.data_count + number != cell)


def _cell_text(code: Code, content: Content, chains: bool) -> Text:
    if content is None:
        return Text("-", style="bright_black")
    cell, logical = content
    member_of = chains_with(code, cell)
    colours = [CHAIN_COLOURS[chain % len(CHAIN_COLOURS)] for chain in member_of]
    if logical is None:
        return Text(code.name_of(cell), style=f"bold reverse {colours[0]}")
    text = Text(code.name_of(cell), style=colours[0] if colours else "")
    text.append(f" #{logical}", style=colours[-1] if colours else "")
    if chains:
        for chain, shade in zip(member_of, colours, strict=True):
            text.append(f" P{chain}", style=shade)
    return text


def _cell_box(code: Code, content: Content) -> Box | None:
    if content is None:
        return None
    cell, logical = content
    member_of = chains_with(code, cell)
    colours = tuple(map(colour, member_of))
    if logical is None:
        return Box(code.name_of(cell), "", colours, "strong")
    names = [f"P{chain}" for chain in member_of] if len(member_of) in (1, 2) else []
    return Box(code.name_of(cell), " ".join([f"#{logical}", *names]), colours)


def _stripes(plan: Layout, boxes: list[list[Box | None]]) -> Panel:
    rows = plan.code.rows
    return Panel(
        "",
        [f"disk {role}" for role in range(plan.width)],
        ["" if number % rows else f"stripe {number // rows}" for number in range(len(boxes))],
        boxes,
        frozenset(range(rows, len(boxes), rows)) if rows > 1 else frozenset(),
    )


@verb(group=layout)
@name_argument
@disks_option
@svg_option
def chains(out: Output, name: str, disks: int, svg: str | None) -> None:
    """Print the chains, parity cell first; the XOR of a chain's cells is zero.

    `raidx layout show` says where the cells lie.
    """
    code = plan_of(name, disks, 1).code
    lines = [_equation(code, chain) for chain in range(code.parity_count)]
    if svg is not None:
        check_shown(len(lines) * code.rows * code.columns)
        panels = [_chain_panel(code, number, lines[number]) for number in range(len(lines))]
        save(svg, picture(f"chains of {name} on {plural(disks, 'member')}", panels, [CHAINS_NOTE]))
    document = {"rows": code.rows, "cols": code.columns, "chains": code.chains}
    document |= {"cells": cells_json(code)}
    out.emit(document, Text("\n".join(lines) or f"{name} has no chains: nothing is protected"))


def _equation(code: Code, chain: int) -> str:
    parity = code.data_count + chain
    others = bits(code.chain_masks[chain] & ~(1 << parity))
    return f"{code.name_of(parity)} = {' ^ '.join(map(code.name_of, others))}"


def _chain_panel(code: Code, chain: int, title: str) -> Panel:
    rows: list[list[Box | None]] = [[None] * code.columns for _ in range(code.rows)]
    for cell, (row, column) in enumerate(code.cells):
        inside = code.chain_masks[chain] >> cell & 1
        own = cell == code.data_count + chain
        fill = (colour(chain),) if inside else ()
        rows[row][column] = Box(code.name_of(cell), "", fill, "strong" if own else "")
    heads = [f"column {column}" for column in range(code.columns)]
    return Panel(title, heads, [f"row {row}" for row in range(code.rows)], rows)
