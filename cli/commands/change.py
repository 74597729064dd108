"""Commands that change the members and the layout of a running array."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.idempotent import (
    has_member,
    if_exists,
    if_missing,
    unchanged,
)
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import (
    LAYOUT_NAME,
    MEMBER,
    PATH,
    array_argument,
    dry_run_option,
    overwrite_option,
    together,
    wait_option,
)
from raidx_fuse.cli.progress import begun
from raidx_fuse.cli.status_text import counted_sums, dry_run_text
from raidx_fuse.client.returning import returning
from raidx_fuse.errors import UsageError
from raidx_fuse.fuse.mountpoint import Mount, loop_devices, mounts, real_path, split_array
from raidx_fuse.members.nbd.uri import is_uri
from raidx_fuse.members.spec import absolute

joining_options = together(
    overwrite_option,
    click.option(
        "--create",
        is_flag=True,
        help="Create a missing member file, sparse, as large as the others.",
    ),
    wait_option,
    dry_run_option,
)


def reference(member: str) -> str:
    """Return *member* for the daemon: a role or UUID unchanged, a path as absolute path."""
    if is_uri(member):
        return absolute(member)
    return os.path.abspath(member) if "/" in member or os.path.exists(member) else member


def _finish(out: Output, array: str, result: dict[str, Any], line: str, wait: bool) -> int:
    """Print *result*; with *wait* wait for its job. Returns the exit status."""
    if result.get("dry_run"):
        out.emit(result, dry_run_text(result, out))
        return 0
    return begun(out, array, {**result, "changed": True}, line, wait=wait)


@verb("fail-disk")
@array_argument
@click.argument("member", type=MEMBER)
@click.option(
    "--lose-data",
    is_flag=True,
    help="Continue even if chunks are lost with the member.",
)
@dry_run_option
def fail_disk(out: Output, array: str, member: str, **options: bool) -> int:
    """Take a member out as if it had failed.

    MEMBER is its role, path or UUID. The command is refused if data would be lost with the member,
    as after a crash without a journal until the resync has ended, or while pages of other members
    are damaged and only this one gives them back.
    """
    result = ask(out, array, "fail-disk", member=reference(member), **options)
    return _finish(out, array, result, f"role {result.get('role')} is failed now", wait=False)


@verb("replace-disk")
@array_argument
@click.argument("old", type=MEMBER)
@click.argument("new", type=PATH)
@joining_options
def replace_disk(out: Output, array: str, old: str, new: str, **joining: bool) -> int:
    """Replace a member by a new one.

    OLD is the role, path or UUID of a member. One that is in use stays in use until it is copied:
    no redundancy is lost meanwhile, and what it cannot read comes from the others. One that has
    failed is rebuilt from the others. NEW may be the old member itself, back after a failure: then
    it gets only what changed meanwhile, if that is known.
    """
    wait = joining.pop("wait")
    members = {"old": reference(old), "new": absolute(new)}
    result = ask(out, array, "replace-disk", **members, **joining)
    does = "caught up" if result.get("catches_up") else result.get("does", "rebuilt")
    line = f"{new} takes role {result.get('role')}; it is being {does} (job {result.get('job')})"
    return _finish(out, array, result, line, wait)


@verb()
@array_argument
@click.argument("member", type=MEMBER)
@wait_option
@dry_run_option
def online(out: Output, array: str, member: str, wait: bool, dry_run: bool) -> int:
    """Take back a member that had failed or was absent, and is there again.

    MEMBER is its role, path or UUID. It gets only what changed meanwhile, if that is known, else
    all of its content: the same as `raidx replace-disk` with the member itself.
    """
    members = ask(out, array, "status")["members"]
    found, path, is_out = returning(members, reference(member), array)
    if not is_out:
        unchanged(out, {"member": path}, f"{path} is {found['state']} already")
        return 0
    options = {"overwrite_signature": False, "create": False, "dry_run": dry_run}
    result = ask(out, array, "replace-disk", old=str(found["role"]), new=path, **options)
    does = "caught up" if result.get("catches_up") else "rebuilt"
    line = f"{path} is back in role {found['role']}; it is being {does} (job {result.get('job')})"
    return _finish(out, array, result, line, wait)


@verb("add-disk")
@array_argument
@click.argument("members", metavar="MEMBER...", nargs=-1, required=True, type=PATH)
@click.option("--as", "role", type=click.Choice(["spare"]), help="Add them as hot spares instead.")
@click.option(
    "--parity",
    type=click.Choice(["live", "piggyback"]),
    help="How parity follows: it never changes (live, the default), or it also covers the old "
    "places (piggyback).",
)
@click.option(
    "--surrogate",
    metavar="MEMBER",
    type=PATH,
    help="This member takes over the parity; the present parity member becomes a spare.",
)
@click.option(
    "--method",
    type=click.Choice(["mcpod", "restripe"]),
    default="mcpod",
    help="Move as few blocks as possible (mcpod, the default) or everything (restripe).",
)
@if_missing("all of them are members already, as spares or in a role")
@joining_options
def add_disk(
    out: Output,
    array: str,
    members: tuple[str, ...],
    role: str | None,
    parity: str | None,
    surrogate: str | None,
    method: str,
    if_missing: bool,
    **joining: bool,
) -> int:
    """Grow the array onto one or more new members; raidx layouts take members of any size.

    Reads and writes continue meanwhile; the image is larger at the end. With --as spare, members
    wait for a failure; a degraded array starts to rebuild onto them immediately. raid0, raid4,
    raid5, rdp and evenodd move only the share of their chunks that the new members must get, and
    compute no parity; raid1 gets one more copy for each new member. --parity piggyback and
    --surrogate are methods of the McPod paper for raid4 that read and write parity. --method
    restripe moves everything and works with any layout: see `raidx reshape`.
    """
    if if_missing and all(has_member(out, array, absolute(each)) for each in members):
        unchanged(out, {"members": list(members)}, f"members already: {', '.join(members)}")
        return 0
    if method == "restripe":
        if role or parity or surrogate:
            raise UsageError("--method restripe goes with neither --as, --parity nor --surrogate")
        return _reshape(out, array, members, {}, joining)
    wait = joining.pop("wait")
    result = ask(
        out,
        array,
        "add-disk",
        members=[absolute(member) for member in members],
        role=role,
        parity=parity,
        surrogate=None if surrogate is None else absolute(surrogate),
        **joining,
    )
    if role is not None or joining["dry_run"]:
        return _finish(out, array, result, f"added as spare: {', '.join(members)}", wait=False)
    line = (
        f"growing from {result['members_before']} to {result['members_after']} members "
        f"(job {result['job']}); the image "
    )
    if result["size_after"] == result["size_before"]:
        return _finish(out, array, result, f"{line}keeps its size", wait)
    line += f"has {out.size(result['size_after'])} when it ends"
    return _finish_growth(out, array, result, line, wait)


@verb("reshape")
@array_argument
@click.argument("members", metavar="[MEMBER]...", nargs=-1, type=PATH)
@click.option("--layout", metavar="LAYOUT", type=LAYOUT_NAME, help="The new layout.")
@click.option(
    "--rotate/--fixed", default=None, help="Rotate the columns by one each stripe, or not."
)
@click.option(
    "--lose-redundancy",
    is_flag=True,
    help="Continue even if the new layout tolerates fewer lost members.",
)
@joining_options
def reshape(
    out: Output,
    array: str,
    members: tuple[str, ...],
    layout: str | None,
    rotate: bool | None,
    lose_redundancy: bool,
    **joining: bool,
) -> int:
    """Restripe (reshape) the array to another layout, to more members, or both.

    Examples: raid0 to raid5 with one more member, raid4 to raid5, raid5 to upc. Reads and writes
    continue meanwhile, and no backup file is needed. The new layout must have enough space for the
    image.
    The job continues after a crash; a cancel moves everything back.
    """
    shape = {"layout": layout, "rotate": rotate, "lose_redundancy": lose_redundancy or None}
    given = {key: value for key, value in shape.items() if value is not None}
    return _reshape(out, array, members, given, joining)


def _reshape(
    out: Output,
    array: str,
    members: tuple[str, ...],
    shape: Mapping[str, object],
    joining: dict[str, bool],
) -> int:
    wait = joining.pop("wait")
    paths = [absolute(member) for member in members]
    result = ask(out, array, "reshape", members=paths, **joining, **shape)
    if joining["dry_run"]:
        return _finish(out, array, result, "", wait=False)
    line = (
        f"moving from {result['layout_before']} on {result['members_before']} members to "
        f"{result['layout_after']} on {result['members_after']} (job {result['job']}); "
        f"the image has {out.size(result['size_after'])} when it ends"
    )
    if result["size_after"] <= result["size_before"]:
        return _finish(out, array, result, line, wait)
    return _finish_growth(out, array, result, line, wait)


def _finish_growth(out: Output, array: str, result: dict[str, Any], line: str, wait: bool) -> int:
    """As `_finish`; say then how loop devices and file systems get to use the new size."""
    devices = [device for device, _ in loop_devices(real_path(split_array(array)[0]))]
    mounted = {mount.source: mount for mount in mounts()}
    steps = [f"  {growing_steps(device, mounted.get(device))}" for device in devices]
    if not devices:
        steps = [f"  {growing_steps('DEVICE', None)}", "  for a loop DEVICE on the image"]
    then = "\n".join(["then:", *steps])
    status = _finish(out, array, result, line if wait else f"{line}\n{then}", wait)
    if wait and not status:
        out.note(then)
    return status


GROWS = {  # the type of a file system that is mounted: what makes it larger
    **dict.fromkeys(("ext2", "ext3", "ext4"), "resize2fs {device}"),
    "xfs": "xfs_growfs {place}",
    "btrfs": "btrfs filesystem resize max {place}",
    "f2fs": "umount {place} && resize.f2fs {device}",
}


def growing_steps(device: str, mounted: Mount | None) -> str:
    """Return the line that lets a loop *device*, and what is *mounted* from it, use a new size."""
    line = f"losetup -c {device}"
    if mounted is None:
        others = f"resize2fs {device} for ext4, xfs_growfs MOUNTPOINT for xfs"
        return f"{line}, then make its file system larger: {others}"
    grow = GROWS.get(mounted.fs_type)
    if grow is None:
        return f"{line}, then what {mounted.fs_type} on {mounted.path} has to grow"
    return f"{line} && {grow.format(device=device, place=shlex.quote(mounted.path))}"


@verb()
@array_argument
@click.argument("member", type=MEMBER, required=False)
def clear(out: Output, array: str, member: str | None) -> None:
    """Forget the errors and repairs that were counted of a member, or of all.

    MEMBER is its role, path or UUID. The counts are those of `raidx status`, without MEMBER also
    those of checksums. A member that has failed stays failed: see `raidx online` and `raidx
    replace-disk`.
    """
    result = ask(out, array, "clear", member=None if member is None else reference(member))
    lines = [
        f"{each['path'] or each['role']}: {plural(each['errors'], 'error')} and "
        f"{plural(each['repairs'], 'repair')} forgotten"
        for each in result["members"]
        if each["errors"] or each["repairs"]
    ]
    if any(result.get("sums", {}).values()):
        lines.append(f"checksums: {counted_sums(result['sums'])} forgotten")
    out.emit(result, "\n".join(lines) or "nothing was counted")


@verb("remove-disk")
@array_argument
@click.argument("member", type=MEMBER)
@if_exists("the array has no such member")
@wait_option
@dry_run_option
def remove_disk(
    out: Output, array: str, member: str, if_exists: bool, wait: bool, dry_run: bool
) -> int:
    """Remove a spare, a copy of raid1, or a member whose content fits the others.

    MEMBER is its role, path or UUID. Content of a lost member is restored from the others. The
    members that joined in the last growth of raid0, raid4, raid5, rdp or evenodd leave together;
    another member of a striped array leaves by a restripe onto the rest. The space in use, by the
    image or by volumes, must fit: shrink a volume first with `raidx volume resize`.
    """
    if if_exists and not has_member(out, array, reference(member)):
        unchanged(out, {"path": member}, f"{member} is no member")
        return 0
    result = ask(out, array, "remove-disk", member=reference(member), dry_run=dry_run)
    line = f"removed: {result.get('path')}"
    if "members_after" in result:
        line = (
            f"shrinking from {result['members_before']} to {result['members_after']} members "
            f"(job {result['job']})"
        )
    elif result.get("job") is not None:
        moves = plural(result["chunks_to_move"], "written chunk")
        line = f"role {result['role']} is being emptied (job {result['job']}): {moves} to move"
    return _finish(out, array, result, line, wait)
