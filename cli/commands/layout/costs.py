"""`raidx layout bundles` and `load`: bundles of unlike members, the cost of writes."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Group

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.commands.layout.group import (
    check_shown,
    disks_option,
    layout,
    name_argument,
    plan_of,
    rotate_option,
    table_of,
)
from raidx_fuse.cli.commands.layout.svg import Box, Panel, colour, picture, save, svg_option
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.planning.allocate import greedy, in_turn, maximum
from raidx_fuse.layouts.planning.load import parse_writes, write_load


@verb(group=layout)
@click.option("--length", "-L", type=click.IntRange(min=1), required=True)
@click.option("--disk-chunks", required=True, metavar="N,N,...", help="Chunks of each member.")
@svg_option
def bundles(out: Output, length: int, disk_chunks: str, svg: str | None) -> None:
    """Print the bundles that a raidx array of members of different sizes begins with."""
    try:
        counts = [int(count) for count in disk_chunks.split(",")]
    except ValueError:
        raise UsageError(f"{disk_chunks!r} is not a list of numbers such as 7,4,5,4") from None
    check_shown(sum(counts))
    made = greedy(counts, length) if length > 1 else in_turn(counts).tolist()
    caption = f"{plural(len(made), 'bundle')}; the maximum is {maximum(counts, length)}"
    if svg is not None:
        save(
            svg, picture(f"bundles of {plural(length, 'chunk')}", [_panel(counts, made)], [caption])
        )
    table = table_of("bundle", "members")
    for number, bundle in enumerate(made):
        table.add_row(str(number), " ".join(map(str, bundle)))
    out.emit({"bundles": made, "maximum": maximum(counts, length)}, Group(table, caption))


def _panel(counts: list[int], made: Sequence[Sequence[int]]) -> Panel:
    """Return the members as columns; their chunks are taken from the top, in the bundles' order."""
    columns: list[list[Box | None]] = [[] for _ in counts]
    for number, bundle in enumerate(made):
        for member in bundle:
            columns[member].append(Box(f"bundle {number}", "", (colour(number),)))
    for column, count in zip(columns, counts, strict=True):
        column += [Box("free")] * (count - len(column)) + [None] * (max(counts) - count)
    heads = [f"disk {member}" for member in range(len(counts))]
    return Panel(
        "", heads, [f"chunk {row}" for row in range(max(counts))], [*zip(*columns, strict=True)]
    )


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
    plan = plan_of(name, disks, disks if name != "mcpod" else disks - 1, (), rotate)
    cost = write_load(plan, parse_writes(writes, plan))
    caption = f"busiest over mean: {cost.imbalance:.2f}"
    table = table_of("disk", "reads", "writes", "operations")
    for role, (reads, written, total) in enumerate(
        zip(cost.reads, cost.writes, cost.total, strict=True)
    ):
        bar = "#" * round(40 * total / max(max(cost.total), 1))
        table.add_row(str(role), str(reads), str(written), f"{total:6} {bar:40}")
    document = {"reads": cost.reads, "writes": cost.writes, "total": cost.total}
    out.emit({"layout": name, **document, "imbalance": cost.imbalance}, Group(table, caption))
