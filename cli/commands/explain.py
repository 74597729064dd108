"""`raidx explain`: the plan of one request: what is read, XORed and written, and why."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.commands.change import reference
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import MEMBER, SIZE, array_argument
from raidx_fuse.engine.steps import steps_of

if TYPE_CHECKING:
    from raidx_fuse.answers import (
        Band,
        ExplainedStripe,
        Explanation,
        StripeState,
        VolumePlace,
    )


@verb()
@array_argument
@click.argument("offset", type=SIZE, required=False)
@click.argument("length", type=SIZE, default=4096)
@click.option("--write", is_flag=True, help="Explain a write instead of a read.")
@click.option(
    "--member",
    type=MEMBER,
    help="OFFSET is one of this member: print what lies there, and where in which volume.",
)
@click.option("--stripe", type=int, help="Print the state of this stripe instead.")
@click.option("--step", is_flag=True, help="Step by step, with bytes, and what a power cut leaves.")
@click.option("--balance", is_flag=True, help="Explain the plan of `raidx balance` instead.")
def explain(
    out: Output,
    array: str,
    offset: int | None,
    length: int,
    write: bool,
    member: str | None,
    stripe: int | None,
    step: bool,
    balance: bool,
) -> None:
    """Print what the array would do for a request, and why: the state of its stripes, the route of
    a write, the log record, reads, writes and XORs. OFFSET may be left out with --stripe and
    --balance."""
    if balance:
        document = ask(out, array, "balance", dry_run=True)
        out.emit(document, "\n".join(document["explanation"]))
        return
    if stripe is not None:
        document = ask(out, array, "explain", stripe=stripe)
        out.emit(document, _stripe_page(document))
        return
    if offset is not None and member is not None:
        document = ask(out, array, "explain", offset=offset, member=reference(member))
        out.emit(document, Text(_place_line(document)))
        return
    if offset is None:
        raise click.UsageError("name an OFFSET, a stripe with --stripe, or --balance")
    plan = ask(out, array, "explain", offset=offset, length=length, write=write)
    if step:
        document = stepped(out, array, plan)
        out.emit(document, steps_page(document))
        return
    out.emit(plan, _page(plan))


def _place_line(place: VolumePlace) -> str:
    line = f"byte {place['member_offset']} of member {place['role']} ({place['path']}): "
    if place["cell"] is None:
        return line + ("unused" if place["region"] == "unused" else f"metadata, {place['region']}")
    line += f"stripe {place['stripe']}, {place['cell']}"
    line += "" if place["written"] else ", never written"
    if place["image_offset"] is None:
        return f"{line}, parity"
    line += f", image offset {place['image_offset']}"
    if place["volume"] is None:
        return f"{line}, in no volume"
    return f"{line}, byte {place['volume_offset']} of volume {place['volume']}"


def _stripe_page(document: StripeState) -> RenderableType:
    table = Table(indent=2)
    for place in document["cells"]:
        notes = [] if place["written"] else ["never written"]
        notes += ["lost"] if place["lost"] else []
        table.add_row(
            place["cell"],
            f"member {place['role']}",
            f"at {place['member_offset']}",
            f"image {place['image_offset']}" if "image_offset" in place else "parity",
            ", ".join(notes),
            Text(_file_of(place["path"]), style="bright_black"),
        )
    title = f"stripe {document['stripe']} of {document['layout']}: {', '.join(document['state'])}"
    return Group(Text(title, style="bold cyan"), table)


def _file_of(path: str | None) -> str:
    """Return the last part of a member's path: which folder it is in, `raidx status` says."""
    return os.path.basename(path) or path if path else "(not here)"


def _admission(stripe: ExplainedStripe) -> list[RenderableType]:
    """Return the lines about the route of a write; older daemons do not send any."""
    if "route" not in stripe:
        return []
    lines = [f"  state: {', '.join(stripe['state'])}; route: {stripe['route']}"]
    if stripe["dirty_mark"]:
        lines.append("  first: the region is marked dirty (write intent)")
    log, later = stripe["log"], stripe["checkpoint"]
    if log is not None and later is not None:
        roles = ", ".join(map(str, log["roles"]))
        if later["settles_first"]:
            lines.append("  first: the parity of earlier data is computed and logged")
        lines.append(
            f"  log: {plural(log['bytes'], 'byte')} on members {roles}; parity {log['parity']}"
        )
        lines.append(
            f"  checkpoint: {plural(later['reads'], 'read')}, "
            f"{plural(later['log_bytes'], 'byte')} of parity "
            f"to the log, {plural(later['writes'], 'write')} home"
        )
    return [Text(line) for line in lines]


def _page(plan: Explanation) -> RenderableType:
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
        parts += [Text(), Text(head, style="bold cyan"), *_admission(stripe)]
        for band in stripe["bands"]:
            parts += _band(band)
    return Group(*parts)


def _band(band: Band) -> list[RenderableType]:
    first, last = band["from"], band["to"] - 1
    span = f"byte {first}" if first == last else f"bytes {first} to {last}"
    title = f"  {span} of the chunks: {band['kind']}"
    table = Table(indent=4)
    places = [(place, "cached" if place["cached"] else "read", "green") for place in band["reads"]]
    for place, kind, style in [*places, *((place, "write", "yellow") for place in band["writes"])]:
        table.add_row(
            Text(kind, style=style),
            place["cell"],
            f"member {place['role']}",
            f"{plural(place['length'], 'byte')} at {place['member_offset']}",
            f"image {place['image_offset']}" if "image_offset" in place else "parity",
            Text(_file_of(place["path"]), style="bright_black"),
        )
    parts: list[RenderableType] = [Text(title), Text(f"    why: {band['why']}"), table]
    return parts + [Text(f"    xor   {line}", style="magenta") for line in band["xor"]]


BYTES = 8  # of each cell
STRIPES_MAX = 16  # of which the bytes are shown


def stepped(out: Output, array: str, plan: Explanation) -> Explanation:
    """Return *plan* with its *steps*, and the first *bytes* of what each reads or computes."""
    steps = steps_of(plan)
    seen: dict[tuple[int, int, int], dict[str, str]] = {}
    for step in steps if len(plan["stripes"]) <= STRIPES_MAX else ():
        names = step["cells"]
        if step["does"] == "xor" and plan["operation"] == "read":
            names = [step["what"].partition(" = ")[0]]
        if step["does"] not in ("read", "xor") or not names:
            continue
        key = step["stripe"], step["from"], min(BYTES, step["to"] - step["from"])
        if key not in seen:
            looked = ask(out, array, "peek", stripe=key[0], begin=key[1], length=key[2])
            seen[key] = {cell["cell"]: cell["content"] or "" for cell in looked["cells"]}
        step["bytes"] = {name: seen[key].get(name, "") for name in names}
    plan["steps"] = steps
    return plan


def steps_page(document: Explanation) -> Text:
    """Return the steps as lines; what a power cut leaves is said where it changes."""
    page = Text()
    stripe = power = None
    for step in document["steps"]:
        if step["stripe"] != stripe:
            stripe, power = step["stripe"], None
            page.append(f"stripe {stripe}\n", style="bold cyan")
        page.append(f"  {step['step']:3}. {step['does']:12}{step['what']}\n")
        for name, content in step.get("bytes", {}).items():
            if not content:  # nothing gives it back
                continue
            page.append(f"{'':19}{name}: {_shown(content)}\n", style="bright_black")
        if step["power"] is not None and step["power"] != power:
            power = step["power"]
            page.append(f"{'':7}if the power goes now: {power}\n", style="yellow")
    page.rstrip()
    return page


def _shown(content: str) -> str:
    data = bytes.fromhex(content)
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
    return f"{data.hex(' ')}  {text}"
