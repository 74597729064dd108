"""`raidx mount`, `raidx serve` and `raidx umount`."""

from __future__ import annotations

import math
import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.idempotent import if_exists, if_missing, same_members, unchanged
from raidx_fuse.cli.output import Output, warn
from raidx_fuse.cli.parameters import MOUNTPOINT, PATH, TIME, Permissions
from raidx_fuse.cli.streams import OutputError
from raidx_fuse.client.status_document import document
from raidx_fuse.daemon import control_client, paths
from raidx_fuse.errors import BusyError, NotInstalledError, RaidxError, Reason, UsageError
from raidx_fuse.fuse import mountpoint
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.daemon.serve import MountRequest
    from raidx_fuse.documents import ArrayReport


EXIT_S = 30.0  # for a daemon that was killed

_read_only_option = click.option("--read-only", is_flag=True, help="Never write to a member.")
_start_degraded_option = click.option(
    "--start-degraded",
    is_flag=True,
    help="Start a crashed array without a journal that misses a member: blocks that were being "
    "written may be wrong (write hole). Or one whose log cannot be read on too many members: what "
    "was flushed to the log alone may be lost. Or one that cannot redo its log without a sector "
    "that cannot be read: its chunk is listed as lost.",
)
_accept_option = click.option(
    "--accept-member",
    "accepted",
    multiple=True,
    metavar="MEMBER",
    type=PATH,
    help="Take back a member on which another format was made (mkswap, pvcreate, a partition "
    "table) and clear its signature; without this it is left out.",
)
_any_user_option = click.option(
    "--nbd-any-user",
    "any_user",
    is_flag=True,
    help="Let every user of this machine read and write at the PORT of --nbd.",
)
_tls_option = click.option(
    "--tls",
    metavar="DIR",
    type=PATH,
    help="Serve NBD only over TLS, and only to clients with a certificate. DIR has server-cert.pem,"
    " server-key.pem and ca-cert.pem, that of the clients.",
)


@verb()
@click.argument("members", metavar="[MEMBER]... MOUNTPOINT", nargs=-1, required=True, type=PATH)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Find the members of the array of this name, as `raidx scan` does (repeat).",
)
@click.option(
    "--uuid",
    "uuids",
    multiple=True,
    help="Find the members of the array of this UUID, or its beginning (repeat).",
)
@click.option(
    "--scan",
    "folders",
    multiple=True,
    metavar="PATH",
    type=PATH,
    help="Where to look for them (repeat); default: all disks of the machine.",
)
@click.option(
    "--when-complete",
    is_flag=True,
    help="With --name or --uuid: wait until all members that were in use last have appeared.",
)
@click.option(
    "--degraded-after",
    "patience_s",
    type=TIME,
    metavar="TIME",
    help="With --when-complete: after TIME, such as 30s, start without those that are missing "
    "(default: wait on).",
)
@_read_only_option
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
@if_missing("these members are mounted there already")
@_start_degraded_option
@_accept_option
@click.option("--nbd", metavar="ADDRESS", help="Serve the volumes by NBD, too: see raidx serve.")
@_any_user_option
@click.option(
    "--lab", is_flag=True, help="For teaching: let `raidx inject` and `raidx crash` break members."
)
@_tls_option
def mount(
    out: Output,
    members: tuple[str, ...],
    names: tuple[str, ...],
    uuids: tuple[str, ...],
    folders: tuple[str, ...],
    when_complete: bool,
    patience_s: float | None,
    read_only: bool,
    foreground: bool,
    allow_other: bool,
    mode: int | None,
    if_missing: bool,
    start_degraded: bool,
    accepted: tuple[str, ...],
    nbd: str | None,
    any_user: bool,
    lab: bool,
    tls: str | None,
) -> None:
    """Assemble arrays from their members and mount all their volumes.

    The members may be given in any order, also those of several arrays. The images are ready when
    this command returns. Where a command is about one of several arrays: MOUNTPOINT:ARRAY.

    What cannot be used is left out and named; an array that can do without it starts degraded. An
    old copy of a member whose superblock is as new as the others' is refused instead: a start would
    exclude the member itself. An array that runs on this machine already, under other names of its
    members or as their full copy, is refused (see raidx rename --new-uuid); what runs in another
    container is not seen.
    """
    try:
        import pyfuse3  # noqa: F401  # before anything is done
    except ModuleNotFoundError:
        raise NotInstalledError(
            "raidx mount needs pyfuse3, which is not installed",
            action="apt install gcc pkg-config libfuse3-dev fuse3, then: pip install pyfuse3",
        ) from None
    from raidx_fuse.daemon.serve import MountRequest  # late: `umount` does not need the engine

    if patience_s is not None and not when_complete:
        raise UsageError("--degraded-after goes with --when-complete only")
    if names or uuids:
        limit_s = 0.0 if not when_complete else math.inf if patience_s is None else patience_s
        members = (*_found(members, folders, names, uuids, limit_s), members[-1])
    elif folders or when_complete:
        option = "--scan" if folders else "--when-complete"
        raise UsageError(f"{option} goes with --name or --uuid only")
    address, folder = _door(nbd, tls, any_user)
    if len(members) < 2:
        raise UsageError("mount needs members and a mount point", action="see raidx mount --help")
    if if_missing and (status := _mounted(out, members[-1])) is not None:
        if not same_members(status, [absolute(member) for member in members[:-1]]):
            raise BusyError(
                f"other members than these are mounted on {members[-1]}", reason=Reason.MOUNTED
            )
        unchanged(out, document([status]), f"{members[-1]} is mounted already")
        return
    if mode is not None and not allow_other:
        raise UsageError("--mode goes with --allow-other only")
    if lab and read_only:
        raise UsageError("--lab breaks members, which --read-only forbids: give one of them")
    if len(members) > 1 and not os.path.isdir(members[-1]) and os.path.isdir(members[0]):
        behind = shlex.join([*members[1:], members[0]])
        raise UsageError("MOUNTPOINT comes last", action=f"raidx mount {behind}")
    request = MountRequest(
        tuple(absolute(member) for member in members[:-1]),
        mountpoint.check(members[-1], allow_other=allow_other),
        accepted=_accepted(accepted, read_only),
        read_only=read_only,
        allow_other=allow_other,
        start_degraded=start_degraded,
        mode=mode or (0o644 if allow_other else 0o600),
        nbd=address,
        tls=folder,
        any_user=any_user,
        lab=lab,
    )
    _run(out, request, request.mountpoint, foreground)


@verb()
@click.argument("members", metavar="MEMBER...", nargs=-1, required=True, type=PATH)
@click.option(
    "--nbd",
    metavar="ADDRESS",
    required=True,
    help="unix:PATH, a socket that only you can use (recommended); PORT, on this machine, for you "
    "and root; HOST:PORT with --tls.",
)
@_any_user_option
@_read_only_option
@_tls_option
@click.option("--foreground", is_flag=True, help="Do not detach; log to standard error; ^C ends.")
@_start_degraded_option
@_accept_option
def serve(
    out: Output,
    members: tuple[str, ...],
    nbd: str,
    any_user: bool,
    read_only: bool,
    tls: str | None,
    foreground: bool,
    start_degraded: bool,
    accepted: tuple[str, ...],
) -> None:
    """Assemble arrays from their members and serve all their volumes by NBD, without a mount.

    Each volume is an export with its name; the only one is also the default. Nothing of FUSE is
    needed. Commands take the path of the socket (of a port: /HOST:PORT) where they take a mount
    point; `raidx umount` ends it.
    """
    from raidx_fuse.daemon.serve import MountRequest
    from raidx_fuse.nbd.address import parse_address

    address, folder = _door(nbd, tls, any_user)
    request = MountRequest(
        tuple(absolute(member) for member in members),
        accepted=_accepted(accepted, read_only),
        read_only=read_only,
        start_degraded=start_degraded,
        nbd=address,
        tls=folder,
        any_user=any_user,
    )
    _run(out, request, parse_address(address, tls=bool(folder)).place, foreground)


def _accepted(members: tuple[str, ...], read_only: bool) -> tuple[str, ...]:
    """Return the members of --accept-member with absolute paths. Raises UsageError."""
    if members and read_only:
        raise UsageError("--accept-member clears a signature, which --read-only forbids")
    return tuple(absolute(member) for member in members)


def _mounted(out: Output, path: str) -> ArrayReport | None:
    """Return the status of the raidx mount on *path*, None if there is none."""
    mount = mountpoint.find(path)
    if mount is None or mount.fs_type != mountpoint.FUSE_TYPE:
        return None
    status: ArrayReport = ask(out, path, "status")
    return status


def _door(nbd: str | None, tls: str | None, any_user: bool) -> tuple[str, str]:
    """Return the address and the folder of certificates with absolute paths. Raises UsageError."""
    if any_user and (nbd is None or nbd.startswith("unix:") or tls is not None):
        raise UsageError("--nbd-any-user is for --nbd PORT without --tls")
    if nbd is None:
        if tls is not None:
            raise UsageError("--tls is for --nbd", action="give --nbd ADDRESS, too")
        return "", ""
    from raidx_fuse.nbd.address import parse_address, tls_context

    folder = "" if tls is None else absolute(tls)
    if folder:
        tls_context(folder)  # before anything is done
    return str(parse_address(nbd, tls=bool(folder))), folder


def _run(out: Output, request: MountRequest, place: str, foreground: bool) -> None:
    """Run the daemon of *request*, whose commands are sent to *place*."""
    from raidx_fuse.daemon import daemonize
    from raidx_fuse.daemon.memory_protection import check_address_space
    from raidx_fuse.daemon.serve import body

    check_address_space()

    def ready(status: Mapping[str, object]) -> None:
        report = cast("ArrayReport", status)
        out.emit({**document([report]), "changed": True}, ready_text(out, report, place))

    def ready_in_foreground(status: Mapping[str, object]) -> None:
        try:
            ready(status)
        except (OutputError, BrokenPipeError) as error:  # no reason to end the disk
            warn(f"warning: {error}")

    if foreground:
        daemonize.run_in_foreground(body(request), ready_in_foreground)
    else:
        ready(daemonize.start(body(request), paths.own_files(place).log))


def ready_text(out: Output, status: ArrayReport, place: str) -> str:
    """Return what a mount that is ready shows; warn of what is wrong with it."""
    lines = []
    for array in status.get("arrays", [status]):
        for warning in array["warnings"]:
            warn(f"warning: {warning}")
        if array["state"] != "clean":
            advice = array["action"] or f"see raidx status {place}"
            warn(f"warning: {array['name']} is {array['state']}; {advice}")
        paths_shown = [volume["path"] for volume in array["volumes"] if volume["path"]]
        uris = status["nbd"]["exports"] if "nbd" in status else {}
        shown = [uris[v["name"]] for v in array["volumes"] if v["name"] in uris]
        images = ", ".join(paths_shown + shown) or "no volume"
        lines.append(f"{array['name']}: {array['layout']}, {out.size(array['size'])}: {images}")
    return "\n".join(lines)


def _found(
    members: tuple[str, ...],
    folders: tuple[str, ...],
    names: tuple[str, ...],
    uuids: tuple[str, ...],
    limit_s: float,
) -> list[str]:
    """Return the members of all arrays called *names* or *uuids*.

    Those that are not there yet are waited for, at most *limit_s*. Raises UsageError.
    """
    import trio

    from raidx_fuse.daemon.scan import Patience, scan_for

    if len(members) != 1:
        raise UsageError("give either members, or --name or --uuid, and one mount point")
    places = [absolute(folder) for folder in folders]
    wanted = [*((name, None) for name in names), *((None, uuid) for uuid in uuids)]
    groups, found = trio.run(scan_for, places, wanted, Patience(limit_s, warn) if limit_s else None)
    for each in found["problems"]:
        if each["path"] in places:
            warn(f"warning: {each['path']}: {each['problem']}")
    return list(dict.fromkeys(member for group in groups for member in group))


def kill_daemon(path: str, pid: int) -> None:
    """End the daemon of *path* without an unmount. Raises BusyError if it does not end."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if not control_client.wait_for_exit(pid, EXIT_S):
        raise BusyError(f"the daemon of {path} (process {pid}) does not end")


class NotClosedError(RaidxError):
    """An array that is not used any more, and could not be made clean."""

    reason = Reason.NOT_CLOSED


@verb()
@click.argument("path", metavar="MOUNTPOINT", type=MOUNTPOINT)
@click.option("--timeout", type=float, help="Seconds to wait for the daemon (default: no limit).")
@if_exists("nothing is mounted or served there")
def umount(out: Output, path: str, timeout: float | None, if_exists: bool) -> None:
    """Flush the array, mark it clean and unmount it, or end its `raidx serve`.

    The members are no longer in use when this command returns. Exit status 1 if not everything
    could be made durable: it says what, and why.
    """
    if if_exists and mountpoint.find(path) is None and not paths.is_served(path):
        unchanged(out, {"unmounted": path}, f"nothing is mounted on {path}")
        return
    unmount(path, timeout)
    out.emit({"unmounted": path, "changed": True}, f"{path} is unmounted")


def unmount(path: str, timeout: float | None = None) -> None:
    """Unmount *path*, or end its `raidx serve`; return when the members are not in use any more.

    Raises RaidxError, BusyError if that takes more than *timeout* seconds, and NotClosedError if it
    is unmounted, and not everything is durable.
    """
    files = paths.files_of_mount(path)
    try:
        with control_client.Connection(path, timeout_s=10) as connection:
            pid = connection.daemon_pid
    except control_client.DaemonGoneError:
        pid = 0  # it has ended without unmounting: clear its mount point
        warn(f"warning: the daemon of {path} had ended before: the next mount recovers")
    if pid:
        control_client.require_running(pid)  # umount(8) would wait for a stopped daemon
    if pid and mountpoint.find(path) is None:  # `raidx serve`
        os.kill(pid, signal.SIGTERM)
    else:
        mountpoint.unmount(path)
    if pid and not control_client.wait_for_exit(pid, timeout):
        raise BusyError(
            f"{path} is unmounted, but its daemon (process {pid}) still writes",
            action="wait for its end, or look why its members do not answer: " + str(files.log),
            reason=Reason.NO_ANSWER,
        )
    if pid and (why := paths.end_of(files, pid)):
        raise NotClosedError(
            f"{path} is unmounted, but {why}",
            action="what no flush (fsync, sync) covered may be lost: bring its members back, "
            "then mount it, which recovers the rest",
        )
