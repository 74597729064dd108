"""`raidx scan`: the arrays whose members are found, mounted or not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import running_arrays
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output, warn
from raidx_fuse.cli.parameters import PATH
from raidx_fuse.cli.status_text import state_text
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.documents import FoundArray

PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@verb()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=PATH)
@click.option(
    "--export", is_flag=True, help="Print lines KEY=VALUE for udev; no lock of a member is tried."
)
def scan(out: Output, paths: tuple[str, ...], export: bool) -> None:
    """Find arrays by the superblocks of their members.

    PATH is a folder, a file or a block device; without one, all disks of the machine are looked at.
    `raidx mount --name` and `--uuid` find members in the same way.
    """
    from raidx_fuse.daemon import inspect  # late: `raidx scan --help` needs no superblocks
    from raidx_fuse.daemon.scan import look_at
    from raidx_fuse.daemon.scan import scan as find_arrays

    if export:
        found = inspect.run(look_at, [absolute(path) for path in paths])
        out.emit(out.fit(found), "\n".join(map(_exported, found["arrays"])), whole=True)
        return
    document = out.fit(inspect.run(find_arrays, [absolute(path) for path in paths]))
    running = running_arrays()
    for array in document["arrays"]:
        if array["uuid"] in running:
            mountpoint, status = running[array["uuid"]]
            array |= {"mountpoint": mountpoint, "state": status["state"], "problem": None}
    for each in document["problems"]:
        warn(f"{each['path']}: {each['problem']}")
    lines = [line for array in document["arrays"] for line in (_next(array), *_former(array))]
    table = Group(_table(document["arrays"]), *lines) if lines else Text("no array was found")
    out.emit(document, table)


def _table(arrays: list[FoundArray]) -> Table:
    titles = ("name", "uuid", "layout", "state", "members")
    table = Table(*titles, left=titles)
    for array in arrays:
        members = f"{len(array['members'])} of {array['wanted']}"
        name, uuid, layout = (str(array[key]) for key in ("name", "uuid", "layout"))
        table.add_row(name, uuid, layout, state_text(array["state"]), members)
    return table


def _exported(array: FoundArray) -> str:
    """Return the properties of a device of *array* for udev (udev(7), "IMPORT")."""
    lines = [f"RAIDX_UUID={array['uuid']}", f"RAIDX_LAYOUT={array['layout']}"]
    if PLAIN.fullmatch(array["name"]):  # may stand in the name of a unit or a file
        lines.append(f"RAIDX_NAME={array['name']}")
    return "\n".join(lines)


def _former(array: FoundArray) -> Iterator[Text]:
    for each in array["former"]:
        was = "a spare" if each["role"] is None else f"role {each['role']}"
        now = f", and was replaced by {each['replaced_by']}" if each["replaced_by"] else ""
        yield Text(f"{each['path']}: was {was} of {array['name']}{now}")


def _next(array: FoundArray) -> Text:
    if array["mountpoint"] is not None:
        return Text(f"{array['name']}: mounted on {array['mountpoint']}")
    if array["problem"] is not None:
        return Text(f"{array['name']}: {array['problem']}", style="yellow")
    members = shlex.join(array["members"])
    return Text(f"{array['name']}: mount it: raidx mount {members} MOUNTPOINT")
