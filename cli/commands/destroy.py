"""`raidx destroy`: the end of an array, mounted or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import trio

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import array_named
from raidx_fuse.cli.commands.mount import NotClosedError, unmount
from raidx_fuse.cli.idempotent import if_exists as if_exists_option
from raidx_fuse.cli.idempotent import unchanged
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import ARRAYS
from raidx_fuse.daemon import paths
from raidx_fuse.daemon.control_client import call
from raidx_fuse.errors import LosesDataError, RaidxError, Reason, UsageError
from raidx_fuse.fuse import mountpoint
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.documents import Destroyed, DestroyedMember

STATUS_S = 30.0


@verb()
@click.argument("arrays", metavar="ARRAY | MEMBER...", nargs=-1, required=True, type=ARRAYS)
@click.option("--lose-data", is_flag=True, help="Yes, everything in the array is lost.")
@click.option("-n", "--dry-run", is_flag=True, help="Only report what would be done.")
@if_exists_option("no array is there: nothing is mounted, no member has a superblock")
def destroy(
    out: Output, arrays: tuple[str, ...], lose_data: bool, dry_run: bool, if_exists: bool
) -> None:
    """Destroy an array: unmount it, and make all of its members forget it.

    Member files stay; their superblocks are overwritten with zeros. Members that are not there, and
    so keep theirs, are named at the end. Without --lose-data nothing is done.
    """
    mount, members, array = _array_of(arrays, if_exists)
    if array is None:
        unchanged(out, _document(None, None, [], [], dry_run=dry_run), "there is no array")
        return
    if not (lose_data or dry_run):
        held = f", mounted on {mount}," if mount else ""
        raise LosesDataError(
            f"array {array.name}{held} and everything in it would be lost",
            action="to destroy it, add --lose-data; --dry-run says what that does",
        )
    if mount is not None and not dry_run:
        with suppress(NotClosedError):  # nothing of it is wanted any more
            unmount(mount)
    found, left = _sorted_out(array, members, running=mount is not None and dry_run)
    if not dry_run:
        from raidx_fuse.daemon import create as creation  # late: a dry run writes nothing

        trio.run(partial(creation.wipe, [each["path"] for each in found], lose_data=True))
    document = out.fit(_document(array, mount, found, left, dry_run=dry_run))
    lines = []
    if mount is not None:
        lines.append(f"{mount} {'would be' if dry_run else 'is'} unmounted")
    forgets = "would forget" if dry_run else "forgot"
    lines.append(f"{plural(len(found), 'member')} {forgets} array {array.name}:")
    lines += [f"  {each['path']}" for each in document["members"]]
    lines += [
        f"not there, so it keeps its superblock: {each['path']} ({each['problem']}); "
        "wipe it when it is: raidx wipe MEMBER --lose-data"
        for each in document["left"]
    ]
    out.emit(document, "\n".join(lines))


class _Array(NamedTuple):
    """What is destroyed; *given*: the members that were named, None if its mount was."""

    name: str
    uuid: str
    given: list[str] | None


def _document(
    array: _Array | None,
    mount: str | None,
    found: Sequence[DestroyedMember],
    left: Sequence[DestroyedMember],
    *,
    dry_run: bool,
) -> Destroyed:
    return {
        "array": None if array is None else array.name,
        "uuid": None if array is None else array.uuid,
        "mountpoint": mount,
        "members": list(found),
        "left": list(left),
        "dry_run": dry_run,
        "changed": array is not None and not dry_run,
    }


def _array_of(
    arrays: Sequence[str], if_exists: bool
) -> tuple[str | None, list[str], _Array | None]:
    """Return (mount point, paths of its members, name and UUID) of what *arrays* name.

    The mount point is None at rest; the array, too, if there is none and *if_exists* permits it.
    Raises UsageError, RaidxError.
    """
    arrays = list(dict.fromkeys(map(array_named, arrays)))  # members of a mount: the mount
    if len(arrays) == 1:
        mount, name = mountpoint.split_array(arrays[0])
        if mountpoint.find(mount) is not None or paths.is_served(mount):
            return _running(mount, name)
        if os.path.isdir(mount):
            if if_exists:
                return None, [], None
            raise UsageError(
                f"no array is mounted on {mount}",
                action="name it, or give its members",
                reason=Reason.NOT_MOUNTED,
            )
    specs = [absolute(text) for text in arrays]
    if if_exists:
        specs = [spec for spec in specs if os.path.exists(spec)]
    looked = [_examined(spec) for spec in specs]
    valid = [each for each in looked if each.get("valid")]
    for each in looked:
        damaged = any(slot["state"] == "damaged" for slot in each.get("slots", ()))
        if not each.get("valid") and damaged:
            raise UsageError(
                f"{each['path']}: {each['problem']}", action="raidx wipe MEMBER --lose-data"
            )
        if not each.get("valid") and not (if_exists or valid):
            raise UsageError(
                f"no array {each['path']}: {each['problem']}", reason=Reason.NO_SUCH_ARRAY
            )
    if not valid:
        return None, [], None
    if len({each["array_uuid"] for each in valid}) > 1:
        raise UsageError(
            "these are members of several arrays",
            action="destroy one at a time",
            reason=Reason.SEVERAL_ARRAYS,
        )
    newest = max(valid, key=lambda each: int(each["events"]))
    others = [
        member["path_hint"]
        for member in newest["members"]
        if member["member_uuid"] not in {each["member_uuid"] for each in valid}
    ]
    array = _Array(newest["name"], newest["array_uuid"], specs)
    return None, [*(each["path"] for each in valid), *others], array


def _running(mount: str, name: str | None) -> tuple[str, list[str], _Array]:
    here = mountpoint.find(mount)
    if here is not None and here.owner not in (None, os.getuid()):
        raise UsageError(
            f"{mount} was mounted by another user",
            action="have its user do it",
            reason=Reason.FOREIGN,
        )
    status = call(mount, "status", timeout_s=STATUS_S)
    found = status.get("arrays", [status])
    if len(found) > 1 or name not in (None, found[0]["name"]):
        raise UsageError(
            f"{mount} has {plural(len(found), 'array')}, and all of them would be unmounted",
            action="unmount it, then destroy one by its members",
            reason=Reason.SEVERAL_ARRAYS,
        )
    (one,) = found
    members = [str(member["path"]) for member in one["members"] if member["path"]]
    return mount, members, _Array(one["name"], one["uuid"], None)


def _sorted_out(
    array: _Array, members: Sequence[str], *, running: bool
) -> tuple[list[DestroyedMember], list[DestroyedMember]]:
    """Return what is wiped of *members*, and what is left, each with path, role and problem.

    At rest only members that were given are wiped. *running*: a look at members in use.
    """
    found: list[DestroyedMember] = []
    left: list[DestroyedMember] = []
    for path in dict.fromkeys(members):
        looked = _examined(path)
        role, problem = looked.get("role"), looked["problem"]
        given = array.given is None or path in array.given
        if looked.get("valid") and looked["array_uuid"] == array.uuid and given:
            found.append({"path": path, "role": role, "problem": None})
        else:
            why = "not given" if looked.get("valid") else problem
            left.append({"path": path, "role": role, "problem": why})
    if not found and not running:
        raise RaidxError(
            f"no member of {array.name} is there any more", reason=Reason.MEMBERS_MISSING
        )
    return found, left


def _examined(spec: str) -> dict[str, Any]:
    from raidx_fuse.daemon import inspect  # late: a running array is asked first

    found: dict[str, Any] = inspect.run(inspect.examine, spec)
    return found
