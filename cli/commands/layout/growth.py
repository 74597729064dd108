"""`raidx layout map`: the place of each chunk; with `--step`, how a growth changes the places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.commands.layout.group import (
    SHOWN_MAX,
    after_option,
    check_shown,
    disks_option,
    layout,
    name_argument,
    plan_of,
    rotate_option,
    table_of,
)
from raidx_fuse.cli.commands.layout.svg import (
    MOVED,
    NEW,
    PLAIN,
    Box,
    Panel,
    picture,
    save,
    svg_option,
)
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.numbers import MemberChunk, Role, Stripe, stripe_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.growth_steps import GrowthStep, growth_step, runs

WORDS = {MOVED: " moved", NEW: " new", PLAIN: ""}
NOTE = "Orange: moved in this growth. Green: new, not yet written. Thick borders: parity."


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
    founding = plan_of(name, disks, 1, (), rotate).code.data_count
    if chunks is None and name != "mcpod":
        raise UsageError("say how many chunks: --chunks")
    chunks = region * founding if chunks is None else chunks
    needed = -(-chunks // first.code.data_count)
    stripes = -(-needed // region) * region
    if blocks_per_disk is not None:
        stripes = blocks_per_disk // first.code.rows
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
        save(svg, picture(title, list(growth.panels()), [NOTE] * bool(disks_after)))
    if step and growth is not None:
        document = {"layout": name, "growths": growth.as_json()}
        out.explain(document, Text("\n".join(growth.lines())))
        return
    rows = []
    for chunk in range(chunks):
        stripe, cell = plan.locate(chunk)
        role, member_chunk = plan.place(stripe, cell)
        number = int(role)
        if name == "mcpod":
            number -= role >= disks  # the parity disk is the last one of the first
        row: dict[str, Any] = {"logical": chunk, "member": number, "chunk": member_chunk}
        rows.append({**row, "stripe": stripe, "cell": plan.code.name_of(cell)})
    table = table_of("logical", "member", "chunk", "stripe", "cell")
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

    def as_json(self) -> list[dict[str, Any]]:
        """Return each growth with what each stripe does."""
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

    def _step_json(self, growth: int, step: GrowthStep) -> dict[str, Any]:
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

    def _cell(self, plan: Layout, stripe: Stripe, cell: int) -> str:
        name = plan.code.name_of(cell)
        if cell >= plan.code.data_count:
            return name
        return f"{name} #{plan.logical(stripe, cell)}"  # type: ignore[arg-type]

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
        told = [
            f"{self._cell(new, step.stripe, cell)} on {self.disk(at[0])}" for cell, at in step.new
        ]
        yield f"    new: {', '.join(told)}"
        if step.moved and new.code.parity_count:
            parity = " ".join(map(new.code.name_of, _parity(new)))
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

    def _boxes(self, plan: Layout, steps: Sequence[GrowthStep]) -> list[list[Box | None]]:
        """Return the places of *plan*, marked by what *steps* did to them."""
        moved = {place for step in steps for _, _, place in step.moved}
        new = {place for step in steps for _, place in step.new}
        rows = []
        for chunk in range(self.stripes * plan.code.rows):
            row: list[Box | None] = []
            for role in range(plan.width):
                place = Role(role), MemberChunk(chunk)
                found = plan.inverse(*place)
                if found is None:
                    row.append(None)
                    continue
                fill = MOVED if place in moved else NEW if place in new else PLAIN
                name, _, logical = self._cell(plan, *found).partition(" ")
                note = f"{logical}{WORDS[fill]}".strip()
                row.append(Box(name, note, (fill,), "" if logical else "strong"))
            rows.append(row)
        return rows

    def panels(self) -> Iterator[Panel]:
        """Yield the stripes before any growth, and after each."""
        for number, plan in enumerate(self.plans):
            boxes = self._boxes(plan, self.steps[number - 1] if number else ())
            rows = plan.code.rows
            yield Panel(
                f"{'after' if number else 'before'}: {self._widths[number]} members",
                [self.disk(Role(role)) for role in range(plan.width)],
                ["" if n % rows else f"stripe {n // rows}" for n in range(len(boxes))],
                boxes,
                frozenset(range(rows, len(boxes), rows)) if rows > 1 else frozenset(),
            )


def _parity(plan: Layout) -> range:
    return range(plan.code.data_count, len(plan.code.cells))


def _marked(box: Box | None) -> str:
    if box is None:
        return "-"
    word = next(WORDS[fill] for fill in box.colours)
    text = f"{box.text} {box.note.removesuffix(word.strip())}".rstrip()
    return f"[{text}]" if MOVED in box.colours else f"{text}+" if NEW in box.colours else text
