"""The commands of `raidx layout`: codes and placements, drawn and counted; no array is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.table import Table as FramedTable
from rich.text import Text

from raidx_fuse.cli.app import Nouns, verb
from raidx_fuse.cli.commands.layout.svg import (
    MOVED,
    NEW,
    PLAIN,
    READ,
    Box,
    Panel,
    colour,
    draw,
    svg_option,
)
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output, plural, screen_columns, warn
from raidx_fuse.cli.parameters import LAYOUT_NAME
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.codes.code import Code, LayoutError, Step, bits
from raidx_fuse.layouts.codes.horizontal import single_parity
from raidx_fuse.layouts.elastic_params import next_rules
from raidx_fuse.layouts.numbers import (
    CellIndex,
    MemberChunk,
    Role,
    Stripe,
    cell_range,
    role_range,
    stripe_range,
)
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.allocate import allocate, in_turn, maximum
from raidx_fuse.layouts.planning.decode_steps import DecodeStep, decode_steps
from raidx_fuse.layouts.planning.growth_steps import GrowthStep, growth_step, runs
from raidx_fuse.layouts.planning.load import conventional_reads, parse_writes, write_load
from raidx_fuse.layouts.registry import (
    LAYOUTS,
    LayoutInfo,
    allowed_widths,
    find_layout,
    grows_in_place,
    is_rotated,
    make_code,
    make_layout,
    prime_for,
)

if TYPE_CHECKING:
    from raidx_fuse.answers import DrawnCell, MappedChunk
    from raidx_fuse.answers import LayoutInfo as LayoutDocument

CHUNK_BYTES = 64 << 10  # any size: no output depends on it
SHOWN_MAX = 100_000  # cells or chunks in one answer

Rows = list[list[Box | None]]


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
    params: dict[str, object] = {} if rotate is None else {"rotate": rotate}
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
    pattern = info.pattern(disks) if info.allows(disks) else None
    if pattern is not None:
        cells = -(-stripes // len(pattern)) * sum(map(len, pattern)) * rows
        return make_layout(name, disks, cells // disks, CHUNK_BYTES, **params)
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


def check_shown(count: int) -> None:
    """Raise LayoutError if *count* cells are too many for one answer."""
    if count > SHOWN_MAX:
        raise LayoutError(f"that would print {count} cells; the limit is {SHOWN_MAX}")


# -- `raidx layout list`, `show` and `chains`: which layouts there are, their stripes and chains.

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
    """Return *rows* as a table with two lines for each layout."""
    table = Table()
    for name, members, losses, efficiency, title, paper in rows:
        what = f"{title}; paper: {paper}" if paper else title
        figures = f"members: {members}; losses: {losses}; {efficiency}"
        table.add_row(Text(name, style="bold"), f"{what}\n{figures}")
    return table


def _document(info: LayoutInfo) -> LayoutDocument:
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
    boxes: Rows = []
    for stripe in stripe_range(0, min(drawn, plan.stripes)):
        rows = [
            [_content(plan, stripe, row, role) for role in role_range(0, plan.width)]
            for row in range(plan.code.rows)
        ]
        cells = [[each and _cell_json(plan.code, *each) for each in row] for row in rows]
        document.append({"stripe": stripe, "cells": cells})
        boxes += [[each and _cell_box(plan.code, *each) for each in row] for row in rows]
        for number, row in enumerate(rows):
            last = number == len(rows) - 1 and plan.code.rows > 1
            texts = [_cell_text(plan.code, *each, chains) if each else NO_CELL for each in row]
            lines.append(([Text("" if number else str(stripe)), *texts], last))
    if svg is not None:
        heads = [f"disk {role}" for role in range(plan.width)]
        draw(svg, title, [_plan_panel("", plan, heads, boxes)], [CHAINS_NOTE])
    shape = {"rows": plan.code.rows, "cols": plan.width, "tolerance": plan.code.tolerance}
    out.emit(
        {"layout": name, **shape, "stripes": document},
        Group(Text(title, style="bold"), *_tables(lines)),
    )


def _tables(lines: Sequence[tuple[Sequence[Text], bool]]) -> Iterator[FramedTable]:
    """Yield the table of *lines* (cells, whether a section ends), in parts as wide as the screen.

    The first cell of a line is its title, which each part has.
    """
    count = len(lines[0][0])
    heads = ["stripe", *(f"disk {role}" for role in range(count - 1))]
    widths = [
        3 + max(len(head), *(len(texts[number]) for texts, _ in lines))
        for number, head in enumerate(heads)
    ]
    columns = screen_columns()
    first = 1
    while first < count:
        end, used = first + 1, 1 + widths[0] + widths[first]
        while end < count and used + widths[end] <= columns:
            used += widths[end]
            end += 1
        table = FramedTable()
        table.add_column(heads[0], justify="right")
        for head in heads[first:end]:
            table.add_column(head, justify="center")
        for texts, is_last in lines:
            table.add_row(texts[0], *texts[first:end], end_section=is_last)
        yield table
        first = end


CHAINS_NOTE = "A colour is a chain: the XOR of its cells is zero. Thick borders: parity."
NO_CELL = Text("-", style="bright_black")


def _content(
    plan: Layout, stripe: Stripe, row: int, role: Role
) -> tuple[CellIndex, int | None] | None:
    """Return the cell in a row of *stripe* on *role*, and the logical chunk of a data cell."""
    roles = plan.roles(stripe)
    found = plan.code.index.get((row, roles.index(role))) if role in roles else None
    if found is None:
        return None
    cell = CellIndex(found)
    return cell, plan.logical(stripe, cell) if cell < plan.code.data_count else None


def _cell_json(code: Code, cell: CellIndex, logical: int | None) -> DrawnCell:
    named: DrawnCell = {"cell": cell, "name": code.name_of(cell)}
    if logical is not None:
        named["logical"] = logical
    return named


def chains_with(code: Code, cell: int) -> list[int]:
    """Return the chains that *cell* belongs to; of a parity cell its own first."""
    found = [number for number, mask in enumerate(code.chain_masks) if mask >> cell & 1]
    return sorted(found, key=lambda number: code.data_count + number != cell)


def _cell_text(code: Code, cell: CellIndex, logical: int | None, chains: bool) -> Text:
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


def _cell_box(code: Code, cell: CellIndex, logical: int | None) -> Box:
    member_of = chains_with(code, cell)
    colours = tuple(map(colour, member_of))
    if logical is None:
        return Box(code.name_of(cell), "", colours, "strong")
    names = [f"P{chain}" for chain in member_of] if len(member_of) in (1, 2) else []
    return Box(code.name_of(cell), " ".join([f"#{logical}", *names]), colours)


def _plan_panel(title: str, plan: Layout, heads: Sequence[str], boxes: Rows) -> Panel:
    """Return stripes: a label before the first row of each, and a space if it has several rows."""
    rows = plan.code.rows
    labels = ["" if number % rows else f"stripe {number // rows}" for number in range(len(boxes))]
    breaks = frozenset(range(rows, len(boxes), rows)) if rows > 1 else frozenset()
    return Panel(title, heads, labels, boxes, breaks)


def _code_panel(title: str, code: Code, column: str, box_of: Callable[[CellIndex], Box]) -> Panel:
    """Return the cells of one stripe, each as *box_of* draws it; *column*: what a column is."""
    rows: Rows = [[None] * code.columns for _ in range(code.rows)]
    for cell, (row, at) in zip(cell_range(0, len(code.cells)), code.cells, strict=True):
        rows[row][at] = box_of(cell)
    heads = [f"{column} {number}" for number in range(code.columns)]
    return Panel(title, heads, [f"row {row}" for row in range(code.rows)], rows)


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
        panels = [_chain_panel(code, number, line) for number, line in enumerate(lines)]
        draw(svg, f"chains of {name} on {plural(disks, 'member')}", panels, [CHAINS_NOTE])
    document = {"rows": code.rows, "cols": code.columns, "chains": code.chains}
    document |= {"cells": {code.name_of(cell): place for cell, place in enumerate(code.cells)}}
    out.emit(document, Text("\n".join(lines) or f"{name} has no chains: nothing is protected"))


def _equation(code: Code, chain: int) -> str:
    parity = code.data_count + chain
    others = bits(code.chain_masks[chain] & ~(1 << parity))
    return f"{code.name_of(parity)} = {' ^ '.join(map(code.name_of, others))}"


def _chain_panel(code: Code, chain: int, title: str) -> Panel:
    def box(cell: CellIndex) -> Box:
        fill = (colour(chain),) if code.chain_masks[chain] >> cell & 1 else ()
        is_own = cell == code.data_count + chain
        return Box(code.name_of(cell), "", fill, "strong" if is_own else "")

    return _code_panel(title, code, "column", box)


# -- `raidx layout map`: the place of each chunk; with `--step`, how a growth changes the places.

GROWTH_WORDS = {MOVED: " moved", NEW: " new", PLAIN: ""}
GROWTH_NOTE = "Orange: moved in this growth. Green: new, not yet written. Thick borders: parity."


@verb("map", layout)
@name_argument
@disks_option
@after_option
@rotate_option
@click.option(
    "--chunks",
    "-k",
    type=click.IntRange(1, SHOWN_MAX),
    help="How many (default for mcpod: one region, after which the rule repeats).",
)
@click.option("--blocks-per-disk", type=click.IntRange(min=1), help="Chunks on each member.")
@click.option("--step", is_flag=True, help="Show the growth stripe by stripe: what moves where.")
@svg_option
def map_chunks(
    out: Output,
    name: str,
    disks: int,
    disks_after: tuple[int, ...],
    rotate: bool | None,
    chunks: int | None,
    blocks_per_disk: int | None,
    step: bool,
    svg: str | None,
) -> None:
    """Print the place of logical chunks: the member, and the chunk number on it.

    For mcpod the members are the data disks 0, 1, ...; the parity disk is not counted.
    """
    widths = (disks, *disks_after)
    first = plan_of(name, disks, 1, disks_after, rotate)
    region = first.width - 1 if name == "mcpod" else 1
    per_stripe = plan_of(name, disks, 1, (), rotate).code.data_count
    if chunks is None and name != "mcpod":
        raise UsageError("say how many chunks: --chunks")
    chunks = region * per_stripe if chunks is None else chunks
    needed = -(-chunks // first.code.data_count)
    stripes = -(-needed // region) * region
    if blocks_per_disk is not None:
        in_tile, tile_chunks = first.tile()
        stripes = blocks_per_disk // tile_chunks * in_tile
    plan = plan_of(name, disks, stripes, disks_after, rotate) if stripes else None
    if plan is None or chunks > plan.chunks:
        raise UsageError(
            f"{blocks_per_disk} chunks on each disk hold only {plan.chunks if plan else 0} logical"
        )
    if step and not disks_after:
        raise UsageError("--step shows a growth: give --disks-after, too")
    growth = _Growth(name, widths, plan, rotate) if step or svg is not None else None
    if growth is not None and svg is not None:
        title = f"{name} on {' then '.join(map(str, widths))} members"
        draw(svg, title, list(growth.panels()), [GROWTH_NOTE] * bool(disks_after))
    if step and growth is not None:
        document = {"layout": name, "growths": growth.as_json()}
        out.emit(document, Text("\n".join(growth.lines())))
        return
    rows: list[MappedChunk] = []
    for chunk in range(chunks):
        stripe, cell = plan.locate(chunk)
        role, member_chunk = plan.place(stripe, cell)
        number = int(role)
        if name == "mcpod":
            number -= role >= disks  # the parity disk is the last one of the first
        row: MappedChunk = {"logical": chunk, "member": number, "chunk": member_chunk}
        rows.append({**row, "stripe": stripe, "cell": plan.code.name_of(cell)})
    table = Table("logical", "member", "chunk", "stripe", "cell")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    out.emit({"layout": name, "blocks_per_disk": plan.member_chunks, "map": rows}, table)


class _Growth:
    """The stripes of layout *name* before and after each growth of *widths*; *last* is the end."""

    def __init__(self, name: str, widths: Sequence[int], last: Layout, rotate: bool | None) -> None:
        self._name = name
        self._widths = widths
        self.stripes = last.stripes
        check_shown(last.stripes * last.code.rows * last.width * len(widths))
        before = (
            plan_of(name, widths[0], last.stripes, widths[1:count], rotate, max(widths))
            for count in range(1, len(widths))
        )
        self.plans = [*before, last]
        self.steps = [
            [growth_step(old, new, stripe) for stripe in stripe_range(0, self.stripes)]
            for old, new in zip(self.plans, self.plans[1:], strict=False)
        ]

    def disk(self, role: Role) -> str:
        """Return the name of a disk; of mcpod as `map` counts them and the paper draws them."""
        parity = self._widths[0] - 1
        if self._name != "mcpod" or role < parity:
            return f"disk {role}"
        return "parity" if role == parity else f"disk {role - 1}"

    def as_json(self) -> list[dict[str, object]]:
        return [
            {
                "from": self._widths[number],
                "to": self._widths[number + 1],
                "stripes": [self._step_json(number, step) for step in steps],
                "moved": sum(len(step.moved) for step in steps),
                "cells_before": self.stripes * len(self.plans[number].code.cells),
                "reads": runs(old for step in steps for _, old, _ in step.moved),
                "writes": runs(new for step in steps for _, _, new in step.moved),
            }
            for number, steps in enumerate(self.steps)
        ]

    def _step_json(self, growth: int, step: GrowthStep) -> dict[str, object]:
        name = self.plans[growth + 1].code.name_of
        return {
            "stripe": step.stripe,
            "moved": [
                {"cell": name(cell), "from": list(old), "to": list(new)}
                for cell, old, new in step.moved
            ],
            "stays": [{"cell": name(cell), "at": list(place)} for cell, place in step.stays],
            "new": [{"cell": name(cell), "at": list(place)} for cell, place in step.new],
        }

    def _cell(self, plan: Layout, stripe: Stripe, cell: CellIndex) -> str:
        name = plan.code.name_of(cell)
        if cell >= plan.code.data_count:
            return name
        return f"{name} #{plan.logical(stripe, cell)}"

    def lines(self) -> Iterator[str]:
        """Yield each growth as text: before, stripe by stripe, after, and what it cost."""
        for number, steps in enumerate(self.steps):
            old, new = self.plans[number : number + 2]
            widths = self._widths[number : number + 2]
            yield f"growth from {widths[0]} to {widths[1]} members"
            yield "before"
            yield from self._grid(old)
            for step in steps:
                yield from self._step_lines(old, new, step)
            yield "after ([ ]: moved; +: new, not yet written)"
            yield from self._grid(new, steps)
            yield from self._costs(old, steps, widths)

    def _step_lines(self, old: Layout, new: Layout, step: GrowthStep) -> Iterator[str]:
        yield f"stripe {step.stripe}"
        cells = [self._cell(new, step.stripe, cell) for cell, *_ in step.moved]
        for cell, (_, before, after) in zip(cells, step.moved, strict=True):
            places = f"{self.disk(before[0])} to {self.disk(after[0])}"
            yield f"    copy {cell}: {places} (chunk {after[1]} of both)"
        if not step.moved:
            yield "    nothing moves"
        new_cells = [
            f"{self._cell(new, step.stripe, cell)} on {self.disk(at[0])}" for cell, at in step.new
        ]
        yield f"    new: {', '.join(new_cells)}"
        if step.moved and new.code.parity_count:
            parity = " ".join(map(new.code.name_of, bits(new.code.parity_mask)))
            yield f"    {parity}: as before; the new cells are unwritten and count as zero"

    def _costs(self, old: Layout, steps: list[GrowthStep], widths: Sequence[int]) -> Iterator[str]:
        moved = sum(len(step.moved) for step in steps)
        total = self.stripes * len(old.code.cells)
        least = widths[1] - widths[0]
        standing = 1 if self._name == "mcpod" else 0
        if standing:
            total -= self.stripes * old.code.parity_count
        share = moved / total
        reads = runs(place for step in steps for _, place, _ in step.moved)
        writes = runs(place for step in steps for _, _, place in step.moved)
        disks = widths[1] - standing
        yield (
            f"{moved} of {total} cells moved, {share:.1%}; over all stripes it is {least} of "
            f"{disks}, the least if all disks are to hold the same"
        )
        yield (
            f"neighbours on a disk in one I/O: {plural(reads, 'read')}, {plural(writes, 'write')}; "
            f"round robin over all disks would move {self._round_robin(old, widths)} data cells"
        )

    def _round_robin(self, old: Layout, widths: Sequence[int]) -> int:
        """Return how many data chunks a layout made anew for the new width would hold elsewhere."""
        anew = plan_of(self._name, widths[1], self.stripes, (), None, max(self._widths))
        count = 0
        for chunk in range(self.stripes * old.code.data_count):
            count += old.place(*old.locate(chunk)) != anew.place(*anew.locate(chunk))
        return count

    def _grid(self, plan: Layout, steps: Sequence[GrowthStep] = ()) -> Iterator[str]:
        boxes = self._boxes(plan, steps)
        heads = [self.disk(Role(role)) for role in range(plan.width)]
        texts = [[_marked(box) for box in row] for row in boxes]
        width = max(len(text) for row in [heads, *texts] for text in row) + 2
        yield "    stripe" + "".join(f"{head:>{width}}" for head in heads)
        for number, row in enumerate(texts):
            label = "" if number % plan.code.rows else str(number // plan.code.rows)
            yield f"    {label:>6}" + "".join(f"{text:>{width}}" for text in row)

    def _boxes(self, plan: Layout, steps: Sequence[GrowthStep]) -> Rows:
        """Return the places of *plan*, marked by what *steps* did to them."""
        moved = {place for step in steps for _, _, place in step.moved}
        new = {place for step in steps for _, place in step.new}
        rows = []
        for chunk in range(plan.member_chunks):
            row: list[Box | None] = []
            for role in range(plan.width):
                place = Role(role), MemberChunk(chunk)
                found = plan.inverse(*place)
                if found is None:
                    row.append(None)
                    continue
                fill = MOVED if place in moved else NEW if place in new else PLAIN
                name, _, logical = self._cell(plan, *found).partition(" ")
                note = f"{logical}{GROWTH_WORDS[fill]}".strip()
                row.append(Box(name, note, (fill,), "" if logical else "strong"))
            rows.append(row)
        return rows

    def panels(self) -> Iterator[Panel]:
        """Yield the stripes before any growth, and after each."""
        for number, plan in enumerate(self.plans):
            boxes = self._boxes(plan, self.steps[number - 1] if number else ())
            title = f"{'after' if number else 'before'}: {self._widths[number]} members"
            heads = [self.disk(Role(role)) for role in range(plan.width)]
            yield _plan_panel(title, plan, heads, boxes)


def _marked(box: Box | None) -> str:
    if box is None:
        return "-"
    word = next(GROWTH_WORDS[fill] for fill in box.colours)
    text = f"{box.text} {box.note.removesuffix(word.strip())}".rstrip()
    return f"[{text}]" if MOVED in box.colours else f"{text}+" if NEW in box.colours else text


# -- `raidx layout recover`: the reads that give lost disks back.


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
        losses = plural(code.tolerance, "loss") if code.tolerance else "no loss"
        raise UsageError(
            f"{name} on {plural(disks, 'member')} tolerates {losses}: "
            f"disk {', '.join(map(str, lost))} cannot be recovered"
        )
    gone = code.columns_mask(frozenset(lost))
    steps = code.recover(lost[0]) if len(lost) == 1 else code.schedule(gone, gone)
    union = 0
    for _, mask in steps:
        union |= mask & ~gone
    reads = sorted(code.cells[cell] for cell in bits(union))
    lines = [plural(len(reads), "read")]
    document: dict[str, object] = {"reads": reads, "count": len(reads), "lost_disks": lost}
    if len(lost) == 1:
        conventional = conventional_reads(code, lost[0])
        lines[0] += f" (conventional: {conventional})"
        document |= {"lost": lost[0], "conventional": conventional}
    if svg is not None:
        check_shown(code.rows * code.columns)
        numbers_lost = ", ".join(map(str, lost))
        title = f"{name} on {plural(disks, 'member')}, lost: disk {numbers_lost}"
        notes = [lines[0], "Blue: read. Dashed: lost, with the step that computes it."]
        draw(svg, title, [_recovery_panel(code, steps, union)], notes)
    document["cells"] = {code.name_of(cell): place for cell, place in enumerate(code.cells)}
    if step:
        document["steps"], page = decode_page(code, steps, gone)
        out.emit({"layout": name, **document}, Text("\n".join(lines + page)))
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


def _recovery_panel(code: Code, steps: Sequence[Step], read: int) -> Panel:
    order = {cell: number for number, (cell, _) in enumerate(steps, 1)}

    def box(cell: CellIndex) -> Box:
        if cell in order:
            return Box(code.name_of(cell), f"step {order[cell]}", (), "lost")
        if read >> cell & 1:
            return Box(code.name_of(cell), "read", (READ,))
        return Box(code.name_of(cell), "", ())

    return _code_panel("", code, "disk", box)


def decode_page(
    code: Code, steps: Sequence[Step], lost: int
) -> tuple[list[dict[str, object]], list[str]]:
    """Return *steps*, which compute the cells *lost*, as JSON values and as lines of text."""
    found = decode_steps(code, steps, lost)
    document = [
        {
            "step": number,
            "cell": code.cells[step.cell],
            "chains": step.chains,
            "reads": [code.cells[cell] for cell in step.reads],
            "kept": [code.cells[cell] for cell in step.kept],
            "computed": [code.cells[cell] for cell in step.computed],
        }
        for number, step in enumerate(found, 1)
    ]
    return document, [*_decode_lines(code, found), *_decode_grid(code, found, lost)]


def _decode_lines(code: Code, steps: Sequence[DecodeStep]) -> Iterable[str]:
    order = {step.cell: number for number, step in enumerate(steps, 1)}
    for number, step in enumerate(steps, 1):
        names = " + ".join(f"P{chain}" for chain in step.chains)
        kind = "chain" if len(step.chains) == 1 else "sum of chains"
        terms = [
            code.name_of(cell) + (f" [step {order[cell]}]" if cell in step.computed else "")
            for cell in sorted((*step.reads, *step.kept, *step.computed))
        ]
        yield f"step {number}: {kind} {names} has one unknown cell left"
        yield f"    {code.name_of(step.cell)} = {' ^ '.join(terms) or '0'}"
        yield f"    reads {len(step.reads)} more, has {len(step.kept) + len(step.computed)} already"


def _decode_grid(code: Code, steps: Sequence[DecodeStep], lost: int) -> Iterable[str]:
    """Yield the stripe: the step that computes a lost cell, "r" for read, "." for not needed."""
    order = {step.cell: str(number) for number, step in enumerate(steps, 1)}
    read = {cell for step in steps for cell in step.reads}
    width = max(3, len(f"{len(steps)}") + 1)
    yield "the stripe (numbers: steps; r: read; .: not read)"
    yield "    disk" + "".join(f"{column:{width}}" for column in range(code.columns))
    for row in range(code.rows):
        cells = [code.index.get((row, column)) for column in range(code.columns)]
        marks = [
            " " if cell is None else order.get(cell, "r" if cell in read else ".") for cell in cells
        ]
        yield f"  row {row:2}" + "".join(f"{mark:>{width}}" for mark in marks)


# -- `raidx layout bundles` and `load`: bundles of unlike members, the cost of writes.


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
    made = (allocate(counts, length) if length > 1 else in_turn(counts)).tolist()
    caption = f"{plural(len(made), 'bundle')}; the maximum is {maximum(counts, length)}"
    if svg is not None:
        title = f"bundles of {plural(length, 'chunk')}"
        draw(svg, title, [_bundles_panel(counts, made)], [caption])
    table = Table("bundle", "members", left=("members",))
    for number, bundle in enumerate(made):
        table.add_row(str(number), " ".join(map(str, bundle)))
    out.emit({"bundles": made, "maximum": maximum(counts, length)}, Group(table, caption))


def _bundles_panel(counts: list[int], made: Sequence[Sequence[int]]) -> Panel:
    """Return the members as columns; their chunks are taken from the top, in the bundles' order."""
    columns: Rows = [[] for _ in counts]
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
    table = Table("disk", "reads", "writes", "operations", left=("operations",))
    for role, (reads, written, total) in enumerate(
        zip(cost.reads, cost.writes, cost.total, strict=True)
    ):
        bar = "#" * round(40 * total / max(max(cost.total), 1))
        table.add_row(str(role), str(reads), str(written), f"{total:6} {bar}")
    document = {"reads": cost.reads, "writes": cost.writes, "total": cost.total}
    out.emit({"layout": name, **document, "imbalance": cost.imbalance}, Group(table, caption))
