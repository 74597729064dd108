"""`raidx volume` and `raidx array`: the volumes of a mount, and the arrays that they lie on."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from raidx_fuse.cli.app import Nouns, verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import SIZE

mount_argument = click.argument("mount")
volume_argument = click.argument("name")
dry_run_option = click.option(
    "-n", "--dry-run", is_flag=True, help="Only report what would be done."
)
lose_data_option = click.option(
    "--lose-data", is_flag=True, help="Accept that content that was written is lost."
)


@click.group("volume", cls=Nouns)
def volume() -> None:
    """Volumes: the image files of a mount, each a part of an array.

    MOUNT is the mount point; NAME is the name or the UUID of a volume.
    """


@click.group("array", cls=Nouns)
def array() -> None:
    """The arrays of a mount."""


@verb(group=volume)
@mount_argument
@volume_argument
@click.option("--size", type=SIZE, required=True, help="A multiple of 4 KiB.")
@click.option("--on", metavar="ARRAY", help="The array, by name or UUID.")
def create(out: Output, mount: str, name: str, size: int, on: str | None) -> None:
    """Create a volume of zeros; it takes no time."""
    result = ask(out, mount, "volume-create", name=name, size=size, on=on)
    out.emit(result, Text(f"{result['name']}: {out.size(result['size'])} on {result['array']}"))


@verb("list", group=volume)
@mount_argument
def list_volumes(out: Output, mount: str) -> None:
    """List the volumes of a mount."""
    result = ask(out, mount, "volume-list")
    table = Table.grid(padding=(0, 2))
    table.add_row("NAME", "SIZE", "WRITTEN", "ARRAY", "EXTENTS", "UUID")
    for one in result["volumes"]:
        sizes = (out.size(one["size"]), out.size(one["written"]))
        table.add_row(one["name"], *sizes, one["array"], str(len(one["extents"])), one["uuid"])
    out.emit(result, table)


@verb(group=volume)
@mount_argument
@volume_argument
@click.argument("size", type=SIZE)
@lose_data_option
@dry_run_option
def resize(out: Output, mount: str, name: str, size: int, lose_data: bool, dry_run: bool) -> None:
    """Give a volume another size; what is added reads as zeros.

    A smaller size needs a volume that nobody has open.
    """
    result = ask(
        out, mount, "volume-resize", volume=name, size=size, lose_data=lose_data, dry_run=dry_run
    )
    text = _would(result, out) if dry_run else f"{result['name']}: {out.size(result['size'])}"
    out.emit(result, Text(text))


@verb(group=volume)
@mount_argument
@volume_argument
@click.argument("new")
def rename(out: Output, mount: str, name: str, new: str) -> None:
    """Give a volume another name."""
    result = ask(out, mount, "volume-rename", volume=name, name=new)
    out.emit(result, Text(f"{name} is {result['name']} now"))


@verb(group=volume)
@mount_argument
@volume_argument
@lose_data_option
@dry_run_option
def delete(out: Output, mount: str, name: str, lose_data: bool, dry_run: bool) -> None:
    """Delete a volume that nobody has open; its space is wiped, then free."""
    result = ask(out, mount, "volume-delete", volume=name, lose_data=lose_data, dry_run=dry_run)
    out.emit(result, Text(_would(result, out) if dry_run else f"{result['deleted']} is deleted"))


def _would(plan: dict[str, Any], out: Output) -> str:
    return f"would do: {plan['does']}; loses {out.size(plan['loses'])} that were written"


@verb("list", group=array)
@mount_argument
def list_arrays(out: Output, mount: str) -> None:
    """List the arrays of a mount with their free space."""
    result = ask(out, mount, "array-list")
    table = Table.grid(padding=(0, 2))
    table.add_row("NAME", "LAYOUT", "STATE", "SIZE", "FREE", "VOLUMES")
    for one in result["arrays"]:
        wiping = f" (and {out.size(one['wiping'])} being wiped)" if one["wiping"] else ""
        sizes = (out.size(one["size"]), out.size(one["free"]) + wiping)
        count = plural(len(one["volumes"]), "volume")
        table.add_row(one["name"], one["layout"], one["state"], *sizes, count)
    out.emit(result, table)
