"""`raidx layout ...`: codes and placements, computed without an array; for teaching and checks."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.app import Nouns, verb
from raidx_fuse.cli.commands.teach.decode import decode_page
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import LAYOUT_NAME
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.codes.code import Code, LayoutError, bits
from raidx_fuse.layouts.codes.horizontal import single_parity
from raidx_fuse.layouts.elastic_params import next_rules
from raidx_fuse.layouts.growth_room import prime_for
from raidx_fuse.layouts.numbers import MemberChunk, Role, Stripe
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.allocate import greedy, maximum
from raidx_fuse.layouts.planning.load import conventional_reads, parse_writes, write_load
from raidx_fuse.layouts.registry import (
    LAYOUTS,
    allowed_widths,
    find_layout,
    grows_in_place,
    is_rotated,
    make_code,
    make_layout,
)

CHUNK_BYTES = 64 << 10  # any size: no output depends on it
SHOWN_MAX = 100_000  # cells or chunks in one answer
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
CHAIN_COLOURS = (*_COLOURS, *(f"bright_{colour}" for colour in _COLOURS))


@click.group("layout", cls=Nouns)
def layout() -> None:
    """Show codes and placements of a layout; no array is needed."""


disks_option = click.option(
    "--disks", "-d", type=click.IntRange(min=1), required=True, help="Number of members."
)
after_option = click.option(
    "--disks-after",
    multiple=True,
    type=click.IntRange(min=1),
    help="Members after a growth (repeat).",
)
rotate_option = click.option(
    "--rotate/--fixed", default=None, help="Rotate the columns by one each stripe, or not."
)
name_argument = click.argument("name", metavar="LAYOUT", type=LAYOUT_NAME)


def _layout(
    name: str, disks: int, stripes: int, after: tuple[int, ...] = (), rotate: bool | None = None
) -> Layout:
    """Return layout *name* with at least *stripes* stripes; *after*: widths after McPod growths."""
    info = find_layout(name)
    params: dict[str, Any] = {} if rotate is None else {"rotate": rotate}
    if name == "mcpod" and not params:
        info.check_width(disks)
        return ElasticLayout(
            name,
            (disks, *after),
            CHUNK_BYTES,
            stripes,
            make_code=single_parity,
            parity_stays=True,
        )
    if after and not grows_in_place(name):
        raise UsageError(f"{name} does not grow chunk by chunk", action="use mcpod")
    if info.build is None:
        raise UsageError(
            f"{name} has bundles, not stripes as wide as the array",
            action="see 'raidx layout bundles --help'",
        )
    rows = info.build(disks).rows if info.allows(disks) else 1
    if after:
        if "prime" in info.params:
            params["prime"] = prime_for(name, max(disks, *after))
            rows = make_code(name, max(disks, *after)).rows
        for count in range(1, len(after) + 1):
            history = (disks, *after[:count])
            turns = is_rotated(name, params)
            rules = next_rules(name, history, params, turns, stripes, rows)
            params |= {"rules": rules, "history": history}
    return make_layout(name, after[-1] if after else disks, stripes * rows, CHUNK_BYTES, **params)


@verb("list", layout)
def list_layouts(out: Output) -> None:
    """List all layouts: widths, losses tolerated, efficiency."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("name", "members", "losses", "efficiency", "what it is", "paper"):
        table.add_column(title, no_wrap=title == "name")
    layouts = []
    for info in LAYOUTS.values():
        widths = allowed_widths(info.name)
        few, many = widths[0], max(w for w in widths if w <= 12)
        efficiency = f"{info.efficiency(few):.0%} ({few}) to {info.efficiency(many):.0%} ({many})"
        losses = f"{info.tolerance(few)}" if info.name != "raid1" else "all but one"
        table.add_row(info.name, info.widths, losses, efficiency, info.title, info.source)
        layouts.append(
            {
                "name": info.name,
                "title": info.title,
                "widths": list(widths),
                "widths_text": info.widths,
                "losses": {str(width): info.tolerance(width) for width in widths},
                "efficiency": {str(width): info.efficiency(width) for width in widths},
                "params": info.params,
                "paper": info.source or None,
            }
        )
    out.emit({"layouts": layouts}, table)


@verb(group=layout)
@name_argument
@disks_option
@after_option
@rotate_option
@click.option("--stripes", type=click.IntRange(min=1), help="Stripes to draw (default: as needed).")
@click.option("--chains", is_flag=True, help="Also print the chains of each data cell.")
def show(
    out: Output,
    name: str,
    disks: int,
    disks_after: tuple[int, ...],
    rotate: bool | None,
    stripes: int | None,
    chains: bool,
) -> None:
    """Draw stripes: data cells with their logical number, parity cells with their chain."""
    plan = _layout(name, disks, 1, disks_after, rotate)
    turns = plan.roles(Stripe(0)) != plan.roles(Stripe(1))
    drawn = stripes or (plan.width if turns or disks_after else 4 if plan.code.rows == 1 else 1)
    _limit(drawn * plan.code.rows * plan.width)
    plan = _layout(name, disks, drawn, disks_after, rotate)
    table = Table(title=f"{name} on {plural(plan.width, 'member')}", title_style="bold")
    table.add_column("stripe", justify="right")
    for role in range(plan.width):
        table.add_column(f"disk {role}", justify="center")
    document = []
    for stripe in range(plan.stripes):
        rows = [
            [_content(plan, role, stripe * plan.code.rows + row) for role in range(plan.width)]
            for row in range(plan.code.rows)
        ]
        document.append({"stripe": stripe, "cells": [[_cell_json(c) for c in row] for row in rows]})
        for number, row in enumerate(rows):
            last = number == len(rows) - 1 and plan.code.rows > 1
            cells = [_cell_text(plan.code, content, chains) for content in row]
            table.add_row("" if number else str(stripe), *cells, end_section=last)
    shape = {"rows": plan.code.rows, "cols": plan.width, "tolerance": plan.code.tolerance}
    out.emit({"layout": name, **shape, "stripes": document}, table)


Content = tuple[int, int | None] | None  # (cell, logical chunk of a data cell)


def _content(plan: Layout, role: int, member_chunk: int) -> Content:
    found = plan.inverse(Role(role), MemberChunk(member_chunk))
    if found is None:
        return None
    stripe, cell = found
    return cell, plan.logical(stripe, cell) if cell < plan.code.data_count else None


def _cell_json(content: Content) -> dict[str, int] | None:
    if content is None:
        return None
    cell, logical = content
    return {"cell": cell} if logical is None else {"cell": cell, "logical": logical}


def _cell_text(code: Code, content: Content, chains: bool) -> Text:
    if content is None:
        return Text("-", style="bright_black")
    cell, logical = content
    member_of = [i for i, mask in enumerate(code.chain_masks) if mask >> cell & 1]
    colours = [CHAIN_COLOURS[chain % len(CHAIN_COLOURS)] for chain in member_of]
    if logical is None:
        own = cell - code.data_count
        return Text(f"P{own}", style=f"bold reverse {CHAIN_COLOURS[own % len(CHAIN_COLOURS)]}")
    text = Text(str(logical))
    if chains:
        for chain, colour in zip(member_of, colours, strict=True):
            text.append(f" P{chain}", style=colour)
    elif len(colours) == 1:
        text.stylize(colours[0])
    else:
        text.append(" ")
        for colour in colours:  # a dot in the colour of each chain
            text.append("•", style=colour)
    return text


@verb(group=layout)
@name_argument
@disks_option
def chains(out: Output, name: str, disks: int) -> None:
    """Print the chains, parity cell first; the XOR of a chain's cells is zero."""
    code = _layout(name, disks, 1).code
    lines = [
        f"P{number} {_cell_name(chain[0])} = " + " ^ ".join(map(_cell_name, chain[1:]))
        for number, chain in enumerate(code.chains)
    ]
    document = {"rows": code.rows, "cols": code.columns, "chains": code.chains}
    out.emit(document, Text("\n".join(lines) or f"{name} has no chains: nothing is protected"))


def _cell_name(cell: tuple[int, int]) -> str:
    return f"({cell[0]},{cell[1]})"


@verb("map", layout)
@name_argument
@disks_option
@after_option
@rotate_option
@click.option("--chunks", "-k", type=click.IntRange(1, SHOWN_MAX), required=True)
@click.option("--blocks-per-disk", type=click.IntRange(min=1), help="Chunks on each member.")
def map_chunks(
    out: Output,
    name: str,
    disks: int,
    disks_after: tuple[int, ...],
    rotate: bool | None,
    chunks: int,
    blocks_per_disk: int | None,
) -> None:
    """Print the place of logical chunks: the member, and the chunk number on it.

    For mcpod the members are the data disks 0, 1, ...; the parity disk is not counted.
    """
    first = _layout(name, disks, 1, disks_after, rotate)
    region = first.width - 1 if name == "mcpod" else 1
    needed = -(-chunks // first.code.data_count)
    stripes = -(-needed // region) * region
    if blocks_per_disk is not None:
        stripes = blocks_per_disk // first.code.rows
    plan = _layout(name, disks, stripes, disks_after, rotate) if stripes else None
    if plan is None or chunks > plan.chunks:
        raise UsageError(
            f"{blocks_per_disk} chunks on each disk hold only {plan.chunks if plan else 0} logical"
        )
    rows = []
    for chunk in range(chunks):
        stripe, cell = plan.locate(chunk)
        role, member_chunk = plan.place(stripe, cell)
        number = int(role)
        if name == "mcpod":
            number -= role >= disks  # the parity disk is the last one of the first
        rows.append({"logical": chunk, "member": number, "chunk": member_chunk})
    table = _table("logical", "member", "chunk")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    out.emit({"layout": name, "blocks_per_disk": plan.member_chunks, "map": rows}, table)


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
def recover(out: Output, name: str, disks: int, numbers: tuple[str, ...], step: bool) -> None:
    """Print the reads that recover the lost columns of a stripe; for one column, the fewest.

    Of several columns, a later cell may be computed from cells that were recovered before it.
    """
    code = _layout(name, disks, 1).code
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
    if step:
        document["steps"], page = decode_page(code, steps, gone)
        out.emit({"layout": name, **document}, Text("\n".join(lines + page)))
        return
    for cell, mask in steps:
        sources = " ^ ".join(_cell_name(code.cells[source]) for source in bits(mask))
        lines.append(f"{_cell_name(code.cells[cell])} = {sources}")
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


@verb(group=layout)
@click.option("--length", "-L", type=click.IntRange(min=1), required=True)
@click.option("--disk-chunks", required=True, metavar="N,N,...", help="Chunks of each member.")
def bundles(out: Output, length: int, disk_chunks: str) -> None:
    """Print the bundles that greedy allocation makes of members of different sizes."""
    try:
        counts = [int(count) for count in disk_chunks.split(",")]
    except ValueError:
        raise UsageError(f"{disk_chunks!r} is not a list of numbers such as 7,4,5,4") from None
    _limit(sum(counts))
    made = greedy(counts, length)
    caption = f"{plural(len(made), 'bundle')}; the maximum is {maximum(counts, length)}"
    table = _table("bundle", "members", caption=caption)
    for number, bundle in enumerate(made):
        table.add_row(str(number), " ".join(map(str, bundle)))
    out.emit({"bundles": made, "maximum": maximum(counts, length)}, table)


@verb(group=layout)
@name_argument
@disks_option
@rotate_option
@click.option(
    "--writes", "-w", required=True, metavar="SPEC", help="7, 0-3, all, row:1, random:100:SEED, x10"
)
def load(out: Output, name: str, disks: int, rotate: bool | None, writes: str) -> None:
    """Count the I/O operations that a pattern of chunk writes causes on each disk.

    SPEC is a list, separated by commas: 7 (chunk 7), 0-3, all (each chunk of a stripe), row:R,
    random:N[:SEED]. A suffix x10 repeats an item ten times.
    """
    plan = _layout(name, disks, disks if name != "mcpod" else disks - 1, (), rotate)
    cost = write_load(plan, parse_writes(writes, plan))
    caption = f"busiest over mean: {cost.imbalance:.2f}"
    table = _table("disk", "reads", "writes", "operations", caption=caption)
    for role, (reads, written, total) in enumerate(
        zip(cost.reads, cost.writes, cost.total, strict=True)
    ):
        bar = "#" * round(40 * total / max(max(cost.total), 1))
        table.add_row(str(role), str(reads), str(written), f"{total:6} {bar:40}")
    document = {"reads": cost.reads, "writes": cost.writes, "total": cost.total}
    out.emit({"layout": name, **document, "imbalance": cost.imbalance}, table)


def _table(*titles: str, caption: str | None = None) -> Table:
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )
    for title in titles:
        table.add_column(title, justify="right" if title != "members" else "left", no_wrap=True)
    return table


def _limit(count: int) -> None:
    if count > SHOWN_MAX:
        raise LayoutError(f"that would print {count} cells; the limit is {SHOWN_MAX}")
