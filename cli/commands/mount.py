"""`raidx mount` and `raidx umount`."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output, warn
from raidx_fuse.cli.parameters import ARRAY, PATH, Permissions
from raidx_fuse.daemon import control_socket, paths
from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.fuse import mountpoint
from raidx_fuse.members.open import absolute


@verb()
@click.argument("members", metavar="[MEMBER]... MOUNTPOINT", nargs=-1, required=True, type=PATH)
@click.option("--name", help="Find the members of the array of this name, as `raidx scan` does.")
@click.option("--uuid", help="Find the members of the array of this UUID, or its beginning.")
@click.option(
    "--scan",
    "folders",
    multiple=True,
    metavar="PATH",
    type=PATH,
    help="Where to look for them (repeat); default: all disks of the machine.",
)
@click.option("--read-only", is_flag=True, help="Never write to a member.")
@click.option(
    "--foreground", is_flag=True, help="Do not detach; log to standard error; ^C unmounts."
)
@click.option("--allow-other", is_flag=True, help="Let other users (and root) use the image.")
@click.option(
    "--mode",
    type=Permissions(),
    metavar="MODE",
    help="For --allow-other: permissions of the images, as for chmod (default: 644).",
)
@click.option(
    "--start-degraded",
    is_flag=True,
    help="Start a crashed array without a journal that misses a member: blocks that were being "
    "written may be wrong (write hole).",
)
def mount(
    out: Output,
    members: tuple[str, ...],
    name: str | None,
    uuid: str | None,
    folders: tuple[str, ...],
    read_only: bool,
    foreground: bool,
    allow_other: bool,
    mode: int | None,
    start_degraded: bool,
) -> None:
    """Assemble arrays from their members and mount all their volumes.

    The members may be given in any order, also those of several arrays. The images are ready when
    this command returns. Where a command is about one of several arrays: MOUNTPOINT:ARRAY.
    """
    from raidx_fuse.daemon import daemonize  # late: `umount` does not need the engine

    try:
        from raidx_fuse.daemon.serve import MountRequest, body
    except ModuleNotFoundError as error:
        if error.name != "pyfuse3":
            raise
        raise RaidxError(
            "raidx mount needs pyfuse3, which is not installed",
            action="apt install gcc pkg-config libfuse3-dev fuse3, then: pip install pyfuse3",
        ) from None

    if name is not None or uuid is not None:
        members = (*_found(members, folders, name, uuid), members[-1])
    elif folders:
        raise UsageError("--scan goes with --name or --uuid only")
    if len(members) < 2:
        raise UsageError("mount needs members and a mount point", action="see raidx mount --help")
    if mode is not None and not allow_other:
        raise UsageError("--mode goes with --allow-other only")
    request = MountRequest(
        tuple(absolute(member) for member in members[:-1]),
        mountpoint.check(members[-1], allow_other=allow_other),
        read_only=read_only,
        allow_other=allow_other,
        start_degraded=start_degraded,
        mode=mode or (0o644 if allow_other else 0o600),
    )

    def ready(status: dict[str, Any]) -> None:
        lines = []
        for array in status.get("arrays", [status]):
            for warning in array["warnings"]:
                warn(f"warning: {warning}")
            if array["state"] != "clean":
                advice = array["action"] or f"see raidx status {request.mountpoint}"
                warn(f"warning: {array['name']} is {array['state']}; {advice}")
            images = ", ".join(volume["path"] for volume in array["volumes"]) or "no volume"
            lines.append(f"{array['name']}: {array['layout']}, {out.size(array['size'])}: {images}")
        out.emit(status, Text("\n".join(lines)))

    if foreground:
        daemonize.run_in_foreground(body(request), ready)
    else:
        ready(daemonize.start(body(request), paths.own_files(request.mountpoint).log))


def _found(
    members: tuple[str, ...], folders: tuple[str, ...], name: str | None, uuid: str | None
) -> list[str]:
    """Return the members of the array called *name* or *uuid*. Raises UsageError."""
    import trio

    from raidx_fuse.daemon.scan import members_of, scan

    if len(members) != 1 or (name is not None and uuid is not None):
        raise UsageError("give either members, --name or --uuid, and one mount point")
    arrays = trio.run(scan, [absolute(folder) for folder in folders])["arrays"]
    return members_of(arrays, name=name, uuid=uuid)


@verb()
@click.argument("path", metavar="MOUNTPOINT", type=ARRAY)
@click.option("--timeout", type=float, help="Seconds to wait for the daemon (default: no limit).")
def umount(out: Output, path: str, timeout: float | None) -> None:
    """Flush the array, mark it clean and unmount it.

    The members are no longer in use when this command returns.
    """
    try:
        with control_socket.Connection(path, timeout_s=10) as connection:
            pid = connection.daemon_pid
    except control_socket.ControlError:
        if mountpoint.find(path) is None:
            raise
        pid = 0  # the daemon has ended without unmounting: clear its mount point
    if pid:
        control_socket.require_running(pid)  # umount(8) would wait for a stopped daemon
    mountpoint.unmount(path)
    if pid and not control_socket.wait_for_exit(pid, timeout):
        raise BusyError(f"{path} is unmounted, but its daemon (process {pid}) still writes")
    out.emit({"unmounted": path}, Text(f"{path} is unmounted"))
