"""`raidx create` and `raidx wipe`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import click
from rich.console import Group

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.idempotent import if_missing, same_array, unchanged
from raidx_fuse.cli.output import Output, plural, warn
from raidx_fuse.cli.parameters import (
    LAYOUT_NAME,
    PATH,
    SIZE,
    dry_run_option,
    overwrite_option,
)
from raidx_fuse.client.status_document import document
from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.daemon.create import CreateRequest
    from raidx_fuse.documents import ArrayReport, Choices, CreationPlan, Error, LayoutChoice


@verb()
@click.argument("members", metavar="MEMBER...", nargs=-1, required=True, type=PATH)
@click.option(
    "--layout", type=LAYOUT_NAME, help="See 'raidx layout list'; without one, what is possible."
)
@click.option("--chunk", type=SIZE, default="64KiB", help="4KiB to 1MiB (default: 64KiB).")
@click.option("--size", type=SIZE, help="Create missing member files (sparse), each of this size.")
@click.option("--image-size", type=SIZE, help="Size of the image, if smaller than possible.")
@click.option(
    "--log-size", type=SIZE, help="Of the log, on each member (default: 1/8, up to 64MiB)."
)
@click.option(
    "--sums",
    type=click.Choice(["on", "off"]),
    help="A checksum for each page of 4KiB: what a disk changed by itself is found, and healed "
    "(default: off).",
)
@click.option("--name", default="disk", help="Name of the array and of its image (default: disk).")
@click.option(
    "--rotate/--fixed", default=None, help="Rotate the columns by one each stripe, or not."
)
@click.option(
    "--length", type=int, metavar="L", help="Chunks in a bundle of a raidx layout (see the layout)."
)
@click.option("--no-volume", is_flag=True, help="All space is free for 'raidx volume create'.")
@click.option(
    "--max-members",
    type=click.IntRange(min=1),
    metavar="M",
    help="rdp, evenodd: choose the prime so that the array can grow to M members.",
)
@if_missing("the members are this array already: same name, layout, number and --sums")
@overwrite_option
@dry_run_option
def create(
    out: Output,
    members: tuple[str, ...],
    layout: str | None,
    chunk: int,
    size: int | None,
    image_size: int | None,
    log_size: int | None,
    sums: str | None,
    name: str,
    rotate: bool | None,
    length: int | None,
    no_volume: bool,
    max_members: int | None,
    if_missing: bool,
    overwrite_signature: bool,
    dry_run: bool,
) -> int:
    """Create an array of members.

    Without --layout it only says what these members can become: each layout with its space, how
    many losses it survives, what reads and writes cost, and how it grows. The exit status is 2.

    Only superblocks and maps are written: nothing is synchronised, and of a device only the place
    of checksums is zeroed. So it takes no time.

    The stripes of rdp and evenodd have as many rows as the prime of the code less one. A larger
    prime has room for growth (--max-members), but a write must be longer to fill a stripe.

    A member may have a speed model, for teaching: disk3.img,model=hdd
    """
    import trio  # late, with the engine: `raidx create --help` needs neither

    from raidx_fuse.daemon import create as creation
    from raidx_fuse.daemon import inspect
    from raidx_fuse.layouts.registry import in_place_max, prime_for

    prime = None
    if max_members is not None and layout is not None:
        prime = prime_for(layout, max(max_members, len(members)))
    given = (("rotate", rotate), ("length", length), ("prime", prime))
    request = creation.CreateRequest(
        members=tuple(absolute(member) for member in members),
        layout=layout or "",
        chunk_bytes=chunk,
        name=name,
        params={key: value for key, value in given if value is not None},
        member_bytes=size,
        image_bytes=image_size,
        log_bytes=log_size,
        overwrite_signature=overwrite_signature,
        with_volume=not no_volume,
        sums=sums == "on",
    )
    if layout is None:
        return _choose(out, request, members)
    if if_missing and (there := _present(request.members)) is not None:
        same_array(there, name, layout, sums)
        if len(there["members"]) == len(members):
            unchanged(out, document([there]), f"{name} is there already")
            return 0
    if dry_run:
        plan = trio.run(creation.plan, request).as_dict(request)
        out.emit(plan, _plan_text(plan, out))
        return 0
    warnings = trio.run(creation.create, request)
    status = trio.run(inspect.status, request.members)
    status["warnings"] += warnings
    for warning in warnings:
        warn(f"warning: {warning}")
    line = (
        f"{name}: {layout} on {plural(len(members), 'member')}, image of {out.size(status['size'])}"
    )
    line += f"\nmount it: raidx mount {shlex.join(members)} MOUNTPOINT"
    most = in_place_max(layout, len(members), prime)
    if most is not None:
        line += f"\ngrows to at most {plural(most, 'member')} by the fewest moves (--max-members)"
    out.emit({**document([status]), "changed": True}, line)
    return 0


def _choose(out: Output, request: CreateRequest, typed: Sequence[str]) -> int:
    """Print what the members of *request* can become; return the status of a usage error."""
    import trio

    from raidx_fuse.daemon import create as creation

    sizes, found = trio.run(creation.choices, request)
    error = UsageError(
        "no layout is named, so nothing was written",
        action=f"add one of them: --layout {_usual(found)}",
        reason=Reason.MISSING_ARGUMENT,
    )
    answer: Choices = {
        "dry_run": True,
        "members": [{"path": path, "size": size} for path, size in sizes.items()],
        "chunk_size": request.chunk_bytes,
        "choices": found,
        "error": cast("Error", error.as_dict() | {"exit_status": error.exit_status}),
    }
    out.emit(
        answer,
        Group(
            f"what {plural(len(typed), 'member')} can become:", _choices(found, out), CHOICES_NOTE
        ),
    )
    warn(str(error))
    return error.exit_status


def _present(members: tuple[str, ...]) -> ArrayReport | None:
    import trio

    from raidx_fuse.daemon import inspect

    try:
        return trio.run(inspect.status, members)
    except RaidxError:
        return None


GROWS = {
    "in_place": "disk by disk",
    "copies": "by a copy a disk",
    "bundles": "any disks, any size",
    "restripe": "by a restripe",
}


def _plan_text(plan: CreationPlan, out: Output) -> Group:
    lines = [
        f"would do: {plan['does']}, image of {out.size(plan['size'])}, "
        f"{plural(plan['redundancy_left'], 'loss')} tolerated",
        f"member: {out.size(plan['member_size'])}, of it {out.size(plan['metadata'])} metadata"
        + (f" with {out.size(plan['sums_bytes'])} for checksums" if plan["sums_bytes"] else ""),
        *(
            f"  {member['path']}: {out.size(member['size'])}, "
            f"{out.size(member['used'])} used, {out.size(member['wasted'])} wasted"
            for member in plan["members"]
        ),
    ]
    end = [f"moves: nothing; makes {plural(len(plan['creates']), 'file')}"]
    end += [f"  {path}" for path in plan["creates"]]
    title = "every layout that fits these members:"
    return Group(*lines, title, _choices(plan["layouts"], out), CHOICES_NOTE, *end)


CHOICES_NOTE = (
    "losses: members that may fail; write: reads and writes of members for a small one; "
    "read: members that serve a long one; (3): chunks in a bundle, see --length"
)


def _usual(found: list[LayoutChoice]) -> str:
    """Return the layout that most people want: the largest image that survives a loss."""
    names = [entry["layout"] for entry in found]
    safe = [entry["layout"] for entry in found if entry["redundancy_left"]]
    return next((name for name in ("raid5", *safe) if name in names), "raid0")


def _choices(found: list[LayoutChoice], out: Output) -> Table:
    titles = ("layout", "image", "losses", "wasted", "write", "read", "grows")
    table = Table(*titles, left=("layout", "grows"), indent=2)
    for entry in found:
        name = entry["layout"] + (f" ({entry['length']})" if entry["length"] else "")
        most = f" to {entry['members_max']}" if entry["members_max"] else ""
        table.add_row(
            name,
            out.size(entry["size"]),
            str(entry["redundancy_left"]),
            out.size(sum(entry["wasted"])),
            f"{entry['write_operations']:.3g}",
            str(entry["reading_members"]),
            GROWS[entry["grows"]] + most * (entry["grows"] == "in_place"),
        )
    return table


@verb()
@click.argument("members", metavar="MEMBER...", nargs=-1, required=True, type=PATH)
@click.option(
    "--lose-data",
    is_flag=True,
    help="Also members that have a role in their array, or damaged superblocks.",
)
def wipe(out: Output, members: tuple[str, ...], lose_data: bool) -> None:
    """Make members forget their array: overwrite their superblocks with zeros.

    Content stays on the disk, but no array finds it. A member without a superblock is left as it
    is; a member of a running array is refused.
    """
    import trio

    from raidx_fuse.daemon import create as creation

    paths = [absolute(member) for member in members]
    found = [out.fit(each) for each in trio.run(partial(creation.wipe, paths, lose_data=lose_data))]
    lines = [
        f"{each['path']}: "
        + (
            f"its superblock of {each['array'] or 'an array'} is gone"
            if each["wiped"]
            else "it had no superblock"
        )
        for each in found
    ]
    out.emit({"members": found}, "\n".join(lines))


@verb()
@click.argument("words", metavar="MEMBER... [NAME]", nargs=-1, required=True, type=PATH)
@click.option(
    "--new-uuid",
    "new_uuid",
    is_flag=True,
    help="Instead of a name, new UUIDs for array, members and volumes: for a full copy.",
)
def rename(out: Output, words: tuple[str, ...], new_uuid: bool) -> None:
    """Give an array that is not mounted another name; all of its members are needed.

    The image of an array without a volume table is named like the array.

    With --new-uuid all arguments are members: a full copy of an array (dd, a snapshot of a virtual
    machine) becomes an array of its own, which can be mounted beside the original. A change that
    was cut is completed by the same command.
    """
    import trio

    from raidx_fuse.daemon import create as creation

    if new_uuid:
        found = trio.run(creation.give_new_uuid, [absolute(member) for member in words])
        document = out.fit(found)
        out.emit(document, f"{document['name']} has the UUID {document['uuid']} now")
        return
    *members, name = words
    if not members:
        raise UsageError("rename needs members and a name", action="see raidx rename --help")
    paths = [absolute(member) for member in members]
    old, uuid = trio.run(creation.rename, paths, name)
    out.emit({"uuid": uuid, "old": old, "name": name}, f"{old} is named {name} now")
