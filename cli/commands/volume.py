"""`raidx volume` and `raidx array`: the volumes of a mount, and the arrays that they lie on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group

from raidx_fuse.cli.app import Nouns, verb
from raidx_fuse.cli.asking import ask, ask_all
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.idempotent import if_exists, if_missing, unchanged, volume_named
from raidx_fuse.cli.output import Output, plural, warn
from raidx_fuse.cli.parameters import ARRAY, SIZE, together, wait_option
from raidx_fuse.cli.progress import begun
from raidx_fuse.cli.status_text import dry_run_text, redundancy, state_text
from raidx_fuse.errors import AmbiguousError, RaidxError, UsageError
from raidx_fuse.fuse import mountpoint

if TYPE_CHECKING:
    from raidx_fuse.documents import FoundArray, LosingPlan, PoolArray, PoolArrays

MAX = "max"
mount_argument = click.argument("mount", type=ARRAY)
volume_argument = click.argument("name")
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Only report what would be done."
)
lose_data_option = click.option(
    "--lose-data", is_flag=True, help="Accept that content that was written is lost."
)


move_options = together(
    click.option("--accept-degraded", is_flag=True, help="Accept an array that lacks members."),
    click.option(
        "--lose-redundancy", is_flag=True, help="Accept an array that survives fewer losses."
    ),
    wait_option,
    dry_run_option,
)


@click.group("volume", cls=Nouns)
def volume() -> None:
    """Volumes: the image files of a mount, each a part of an array.

    MOUNT is the mount point; NAME is the name or the UUID of a volume.
    """


@click.group("array", cls=Nouns)
def array() -> None:
    """The arrays of a mount, or of this machine."""


@verb(group=volume)
@mount_argument
@volume_argument
@click.option("--size", type=SIZE, required=True, help="A multiple of 4 KiB.")
@click.option("--on", metavar="ARRAY", help="The array, by name or UUID.")
@if_missing("a volume of this name and size is there already")
def create(out: Output, mount: str, name: str, size: int, on: str | None, if_missing: bool) -> None:
    """Create a volume of zeros; it takes no time."""
    if if_missing and (there := volume_named(out, mount, name)) is not None:
        if there["size"] != size:
            said = f"volume {name} is there already, with {there['size']} bytes, not {size}"
            raise UsageError(said, action=f"raidx volume resize {mount} {name} {size}")
        unchanged(out, there, f"{name} is there already")
        return
    result = ask(out, mount, "volume-create", name=name, size=size, on=on)
    line = f"{result['name']}: {out.size(result['size'])} on {result['array']}"
    out.emit({**result, "changed": True}, line)


@verb("list", group=volume)
@mount_argument
def list_volumes(out: Output, mount: str) -> None:
    """List the volumes of a mount."""
    result = ask(out, mount, "volume-list")
    table = Table("name", "size", "written", "array", "uuid", left=("name", "array", "uuid"))
    for one in result["volumes"]:
        sizes = (out.size(one["size"]), out.size(one["written"]))
        table.add_row(one["name"], *sizes, one["array"], one["uuid"])
    lines = [f"{one['name']}: {_moving(one)}" for one in result["volumes"] if one.get("moving")]
    lines += [f"{one['name']} is not shown: {one['why']}" for one in result["unshown"]]
    out.emit(result, Group(table, *lines))


def _moving(one: dict[str, Any]) -> str:
    moving = one["moving"]
    where = f"to {moving['to']}" if not moving["going_back"] else f"back from {moving['to']}"
    job = "" if moving["job"] is None else f" (job {moving['job']} of {one['array']})"
    return f"on its way {where}{job}"


@verb(group=volume)
@mount_argument
@volume_argument
@click.argument("size")
@lose_data_option
@dry_run_option
def resize(out: Output, mount: str, name: str, size: str, **options: bool) -> None:
    """Give a volume another size; what is added reads as zeros.

    SIZE is a size, or "max" for all that is free on its array, what `raidx create --image-size` has
    left, and what members that were replaced by larger ones have more. A smaller size needs a
    volume that is not open.
    """
    _resize(out, mount, name, size, **options)


def _resize(out: Output, mount: str, name: str, size: str, **options: bool) -> None:
    size_bytes = None if size == MAX else SIZE.convert(size, None, None)
    result = ask(out, mount, "volume-resize", volume=name, size=size_bytes, **options)
    if options["dry_run"]:
        out.emit(result, _would(result, out))
        return
    out.emit(result, f"{result['name']}: {out.size(result['size'])}")
    if size != MAX:
        return
    for own in ask(out, mount, "array-list")["arrays"]:  # what its members have, and it cannot use
        if own["name"] == result["array"] and (unused := own.get("unused_bytes", 0)):
            warn(
                f"warning: {out.size(unused)} behind the data of each member stay unused: the "
                f"written map of {own['name']} has no room for more; to use them, make another "
                "array of such members, mount it beside this one, then: raidx volume move"
            )


@verb(group=volume)
@mount_argument
@volume_argument
@click.argument("new")
def rename(out: Output, mount: str, name: str, new: str) -> None:
    """Give a volume another name."""
    result = ask(out, mount, "volume-rename", volume=name, name=new)
    out.emit(result, f"{name} is {result['name']} now")


@verb(group=volume)
@mount_argument
@volume_argument
@if_exists("there is no such volume")
@lose_data_option
@dry_run_option
def delete(
    out: Output, mount: str, name: str, if_exists: bool, lose_data: bool, dry_run: bool
) -> None:
    """Delete a volume that is not open; its space is wiped, then free."""
    if if_exists and volume_named(out, mount, name) is None:
        unchanged(out, {"deleted": name}, f"there is no volume {name}")
        return
    result = ask(out, mount, "volume-delete", volume=name, lose_data=lose_data, dry_run=dry_run)
    if dry_run:
        out.emit(result, _would(result, out))
    else:
        out.emit({**result, "changed": True}, f"{result['deleted']} is deleted")


@verb(group=volume)
@mount_argument
@volume_argument
@click.argument("array", required=False)
@click.option("--to", metavar="ARRAY", help="The same as ARRAY.")
@move_options
def move(
    out: Output, mount: str, name: str, array: str | None, to: str | None, **options: bool
) -> int:
    """Move a volume to another array of the mount while it is used.

    The job belongs to the array that the volume leaves. It continues after a crash, when both
    arrays are mounted together; a cancel moves everything back.
    """
    if (array is None) == (to is None):
        raise AmbiguousError("name one array", action="type: raidx volume move MOUNT NAME ARRAY")
    wait = options.pop("wait")
    result = ask(out, mount, "volume-move", volume=name, to=array or to, **options)
    return _begun(out, mount, result, wait)


@verb(group=volume)
@mount_argument
@volume_argument
@click.argument("other")
@move_options
def swap(out: Output, mount: str, name: str, other: str, **options: bool) -> int:
    """Let two volumes of two arrays change places while they are used.

    One moves after the other, through free space: of either array, or of a third one. If no array
    has room for a whole volume, both move together, in pieces as large as what is free. After a
    crash the moves under way continue; type the command again for what is left.
    """
    wait = options.pop("wait")
    result = ask(out, mount, "volume-swap", first=name, second=other, **options)
    return _begun(out, mount, result, wait)


def _begun(out: Output, mount: str, result: dict[str, Any], wait: bool) -> int:
    """Print a move that has begun, or its dry run; with *wait* wait for its job."""
    if result.get("dry_run"):
        text = dry_run_text(result, out)
        text.append(
            f"\nvolumes: {out.size(result['volume_bytes'])} change their array; "
            f"there: {redundancy(result['redundancy_after'])}"
        )
        out.emit(result, text)
        return 0
    where = f"{mount}:{result['in_array']}"
    line = f"{result['does']} (job {result['job']}): raidx job {where} list"
    return begun(out, where, result, line, wait=wait)


@verb("resize")
@click.argument("array", type=ARRAY)
@click.argument("size")
@lose_data_option
@dry_run_option
def resize_image(out: Output, array: str, size: str, **options: bool) -> None:
    """Give the image of an array another size, up to what there is.

    SIZE is a size, or "max" for all there is, also behind the size of `raidx create --image-size`.
    What is added reads as zeros. When all members were replaced by larger ones, "max" uses what the
    smallest of them has more; an array that has grown is restriped first. A smaller image must not
    be open; what was written beyond its end is lost only with --lose-data. One of several volumes
    is resized by `raidx volume resize`.
    """
    mount, name = mountpoint.split_array(array)
    arrays = [a for a in ask(out, mount, "array-list")["arrays"] if name in (None, a["name"])]
    images = [image for each in arrays for image in each["volumes"]]
    if len(images) != 1:
        raise AmbiguousError(
            f"{array} has {plural(len(images), 'volume')}",
            action=f"name one: raidx volume resize {mount} NAME {size}",
        )
    _resize(out, mount, images[0], size, **options)


@verb()
@click.argument("mount", metavar="ARRAY", type=ARRAY)
@click.argument("offset", type=SIZE)
@click.argument("length", type=SIZE)
@click.option("--volume", "name", metavar="NAME", help="Which volume, if there are several.")
@lose_data_option
@dry_run_option
def trim(
    out: Output, mount: str, offset: int, length: int, name: str | None, **options: bool
) -> None:
    """Discard a range of a volume: it reads as zeros, and whole stripes give their space back."""
    result = ask(out, mount, "volume-trim", offset=offset, length=length, volume=name, **options)
    if options["dry_run"]:
        out.emit(result, _would(result, out))
    else:
        out.emit(result, f"{result['volume']}: {out.size(result['given_back'])} given back")


def _would(plan: LosingPlan, out: Output) -> str:
    return f"would do: {plan['does']}; loses {out.size(plan['loses'])} that were written"


@verb("list", group=array)
@click.argument("mount", type=ARRAY, required=False)
def list_arrays(out: Output, mount: str | None) -> None:
    """List the arrays of a mount with their free space.

    Without MOUNT, those of this machine: of all mounts of the caller, and those on its disks that
    are not mounted.
    """
    result = _of_machine(out) if mount is None else ask(out, mount, "array-list")
    titles = ["name", "layout", "state", "size", "free", "volumes"]
    titles += ["mounted on"] * (mount is None)
    table = Table(*titles, left=("name", "layout", "state", "volumes", "mounted on"))
    for one in result["arrays"]:
        wiping = f"; {out.size(one['wiping'])} more are being wiped" if one["wiping"] else ""
        sizes = (out.size(one["size"]), out.size(one["free"]))
        names = ", ".join(one["volumes"]) or "-"
        row = [one["name"], one["layout"], state_text(one["state"]), *sizes, names + wiping]
        table.add_row(*row, *([one["mountpoint"] or "-"] if mount is None else []))
    for one in result.get("absent", ()):
        count = plural(one["total"], "volume")
        names = f"{count}: {', '.join(one['volumes'])}"
        table.add_row(one["name"], "-", "absent", "-", "-", names)
    out.emit(result, table if table.rows else "no array was found")


def _of_machine(out: Output) -> PoolArrays:
    """Return the arrays of all mounts of the caller, and of the disks of this machine."""
    from raidx_fuse.daemon import inspect  # late: a mount is asked without them
    from raidx_fuse.daemon.scan import scan

    found: PoolArrays = {"arrays": [], "absent": []}
    for each in ask_all():
        if each.problem is not None:
            warn(f"{each.path}: {each.problem}")
        elif each.own:
            answer: PoolArrays = ask(out, each.path, "array-list")
            for one in answer["arrays"]:
                one["mountpoint"] = each.path
            found["arrays"] += answer["arrays"]
            found["absent"] += answer.get("absent", [])
    running = {one["uuid"] for one in found["arrays"]}
    scanned = out.fit(inspect.run(scan, []))
    found["arrays"] += [_at_rest(one) for one in scanned["arrays"] if one["uuid"] not in running]
    return found


def _at_rest(array: FoundArray) -> PoolArray:
    """Return what is known of an array that is not mounted; of one that cannot be read, no size."""
    from raidx_fuse.daemon import inspect

    row: PoolArray = {
        "name": array["name"],
        "uuid": array["uuid"],
        "layout": array["layout"],
        "state": array["state"],
        "redundancy_left": 0,
        "size": 0,
        "free": 0,
        "wiping": 0,
        "volumes": [],
        "mountpoint": None,
    }
    with suppress(RaidxError):
        status = inspect.run(inspect.status, array["members"])
        row["redundancy_left"], row["size"] = status["redundancy_left"], status["size"]
        row["volumes"] = [volume["name"] for volume in status["volumes"]]
        taken = sum(volume["size"] for volume in status["volumes"])
        row["free"] = max(0, status["size"] - taken)
    return row


@verb("forget", group=array)
@mount_argument
@click.argument("name", metavar="ARRAY")
def forget_array(out: Output, mount: str, name: str) -> None:
    """Do not name ARRAY as absent any more: it was mounted with the others once, and is gone."""
    result = ask(out, mount, "array-forget", name=name)
    out.emit(result, f"array {result['forgotten']} is not expected any more")
