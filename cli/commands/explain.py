"""`raidx explain`: the plan of one request: what is read, XORed and written, and why."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import SIZE, array_argument


@verb()
@array_argument
@click.argument("offset", type=SIZE)
@click.argument("length", type=SIZE, default=4096)
@click.option("--write", is_flag=True, help="Explain a write instead of a read.")
def explain(out: Output, array: str, offset: int, length: int, write: bool) -> None:
    """Print the plan of a request: reads, writes and XORs, and the reason for the choice."""
    plan = ask(out, array, "explain", offset=offset, length=length, write=write)
    out.emit(plan, _page(plan))


def _page(plan: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [
        Text(
            f"{plan['operation']} of {plural(plan['length'], 'byte')} at {plan['offset']} on "
            f"{plan['layout']}, policy {plan['policy']}: "
            f"{plural(plan['reads'], 'read')}, {plural(plan['writes'], 'write')}",
            style="bold",
        )
    ]
    for stripe in plan["stripes"]:
        head = f"stripe {stripe['stripe']}"
        for title in ("lost", "never_written"):
            if stripe[title]:
                head += f"; {title.replace('_', ' ')}: {' '.join(stripe[title])}"
        parts += [Text(), Text(head, style="bold cyan")]
        for band in stripe["bands"]:
            parts += _band(band)
    return Group(*parts)


def _band(band: dict[str, Any]) -> list[RenderableType]:
    title = f"  bytes {band['from']} to {band['to'] - 1} of the chunks: {band['kind']}"
    table = Table.grid(padding=(0, 2))
    for kind, style in (("reads", "green"), ("writes", "yellow")):
        for place in band[kind]:
            cached = place.get("cached", False)
            table.add_row(
                Text("    cached" if cached else f"    {kind[:-1]}", style=style),
                place["cell"],
                f"member {place['role']}",
                f"{place['length']} bytes at {place['member_offset']}",
                f"image {place['image_offset']}" if "image_offset" in place else "parity",
                Text(place["path"] or "(not here)", style="bright_black"),
            )
    parts: list[RenderableType] = [Text(title), Text(f"    why: {band['why']}"), table]
    return parts + [Text(f"    xor   {line}", style="magenta") for line in band["xor"]]
