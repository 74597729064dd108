"""What the commands of `raidx layout` share: the group, options, the layout they are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from raidx_fuse.cli.app import Nouns
from raidx_fuse.cli.parameters import LAYOUT_NAME
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.codes.horizontal import single_parity
from raidx_fuse.layouts.elastic_params import next_rules
from raidx_fuse.layouts.growth_room import prime_for
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.registry import (
    find_layout,
    grows_in_place,
    is_rotated,
    make_code,
    make_layout,
)

CHUNK_BYTES = 64 << 10  # any size: no output depends on it
SHOWN_MAX = 100_000  # cells or chunks in one answer


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


def plan_of(
    name: str,
    disks: int,
    stripes: int,
    after: Sequence[int] = (),
    rotate: bool | None = None,
    room: int = 0,
) -> Layout:
    """Return layout *name* with at least *stripes* stripes; *after*: widths after growths.

    *room*: a width that it could still grow to.

    Raises LayoutError, and UsageError for a layout that cannot be drawn or does not grow.
    """
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
    widest = max(disks, room, *after)
    if widest > disks and "prime" in info.params:
        params["prime"] = prime_for(name, widest)
        rows = make_code(name, widest).rows
    for count in range(1, len(after) + 1):
        history = (disks, *after[:count])
        turns = is_rotated(name, params)
        rules = next_rules(name, history, params, turns, stripes, rows)
        params |= {"rules": rules, "history": history}
    return make_layout(name, after[-1] if after else disks, stripes * rows, CHUNK_BYTES, **params)


def cells_json(code: Code) -> dict[str, tuple[int, int]]:
    """Return (row, column) of each cell by its name."""
    return {code.name_of(number): cell for number, cell in enumerate(code.cells)}


def table_of(*titles: str) -> Table:
    """Return a table without lines, numbers to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, justify="right" if title != "members" else "left", no_wrap=True)
    return table


def check_shown(count: int) -> None:
    """Raise LayoutError if *count* cells are too many for one answer."""
    if count > SHOWN_MAX:
        raise LayoutError(f"that would print {count} cells; the limit is {SHOWN_MAX}")
