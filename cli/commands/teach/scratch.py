"""`raidx lab`: a scratch array for a lesson, made in one command and gone in another.

The lab is a folder: in RAM, or where the user says. A marker file in it says that it is one. Of
what lies in the folder, the lab's are the marker, the mount point `mnt`, the members that it made,
and other files `diskN.img` that have a superblock: members that a lesson added. A folder in which
there is something with these names before the first time is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import trio

from raidx_fuse.cli.app import Nouns, verb
from raidx_fuse.cli.commands.mount import EXIT_S, kill_daemon
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import LAYOUT_NAME, PATH, SIZE
from raidx_fuse.daemon import control_client, paths
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.fuse import mountpoint
from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.registry import check_chunk_bytes, code_for
from raidx_fuse.typed import fits, hints_of

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayReport

MARKER = ".raidx-lab"
MARKER_BYTES_MAX = 4096
MADE_BY = "raidx lab reset"
MEMBER = re.compile(r"disk\d+\.img")
RAM = "/dev/shm"
DISKS_MAX = 64


@dataclass(frozen=True, slots=True)
class Lab:
    """What the marker says: the array of the lab, and whether the lab made its folder."""

    layout: str = "raid5"
    disks: int = 3
    size_bytes: int = 16 << 20
    chunk_bytes: int = 64 << 10
    length: int | None = None
    sums: bool = False
    made_folder: bool = True

    @property
    def params(self) -> dict[str, Any]:
        return {} if self.length is None else {"length": self.length}

    @property
    def members(self) -> list[str]:
        return [f"disk{number}.img" for number in range(self.disks)]

    def check(self) -> None:
        """Raise UsageError or LayoutError unless there can be such an array."""
        if not 1 <= self.disks <= DISKS_MAX:
            raise UsageError(f"{self.disks} disks are out of range: a lab has 1 to {DISKS_MAX}")
        check_chunk_bytes(self.chunk_bytes)
        code_for(self.layout, self.disks, self.params)


@click.group("lab", cls=Nouns)
def lab() -> None:
    """A scratch array for a lesson: made, reset and removed in one command each."""


folder_argument = click.argument("folder", required=False, type=PATH)


@verb(group=lab)
@folder_argument
@click.option("--layout", type=LAYOUT_NAME, help="See 'raidx layout list' (raid5).")
@click.option("--disks", "-d", type=int, help="Number of members (3).")
@click.option("--size", "size_bytes", type=SIZE, help="Of each member (16MiB).")
@click.option("--chunk", "chunk_bytes", type=SIZE, help="4KiB to 1MiB (64KiB).")
@click.option("--length", type=int, metavar="L", help="Chunks in a bundle of a raidx layout.")
@click.option("--sums", type=click.Choice(["on", "off"]), help="A checksum for each page (off).")
def reset(
    out: Output, folder: str | None, length: int | None, sums: str | None, **given: Any
) -> None:
    """Make a scratch array in FOLDER and mount it with --lab; one that is there is made anew.

    Without FOLDER it lies in RAM. A folder that is no lab yet must have no mnt and no diskN.img;
    of a lab these are removed without a question. Everything else is left alone. What is not given
    is as it was the last time. `raidx lab end` removes it.
    """
    place = _place(folder)
    mountpoint.check_fuse()
    chosen = {key: value for key, value in given.items() if value is not None}
    if "layout" in chosen or length is not None:
        chosen["length"] = length
    if sums is not None:
        chosen["sums"] = sums == "on"
    replace(_read(place) or Lab(), **chosen).check()  # before anything is touched
    made = _enter(place)
    with _locked(place) as lock:
        before = _read(place) or Lab(made_folder=made)
        wanted = replace(before, **chosen)
        _clear(place, before)
        _write(place, wanted)
        status = out.fit(_start(place, wanted, lock))
    left = _left(place, (MARKER, "mnt", *wanted.members))
    lines = [
        f"{wanted.layout} on {plural(wanted.disks, 'disk')} of {out.size(wanted.size_bytes)}, "
        f"mounted on {place}/mnt",
        *_left_lines(left),
        f"go there: cd {place}",
        f"remove it: raidx lab end {place}",
    ]
    document = {"folder": place, "mountpoint": f"{place}/mnt", "left_alone": left, "array": status}
    out.emit(document, "\n".join(lines))


@verb(group=lab)
@folder_argument
def end(out: Output, folder: str | None) -> None:
    """Unmount and remove the scratch array in FOLDER; it is no error if there is none."""
    place = _place(folder)
    if not os.path.lexists(place) or not os.path.lexists(os.path.join(place, MARKER)):
        document = {"folder": place, "removed": False, "left_alone": []}
        out.emit(document, f"there is no lab in {place}")
        return
    _require_ours(place)
    with _locked(place):
        found = _read(place)
        assert found is not None  # the marker was there
        _clear(place, found)
        os.unlink(os.path.join(place, MARKER))
    left = _left(place, ())
    if found.made_folder and not left:
        os.rmdir(place)
    lines = [f"the lab in {place} is gone", *_left_lines(left)]
    out.emit({"folder": place, "removed": True, "left_alone": left}, "\n".join(lines))


def _place(folder: str | None) -> str:
    """Return the folder of the lab as an absolute path. Raises UsageError."""
    if folder is not None:
        return os.path.abspath(folder)
    if not os.access(RAM, os.W_OK):
        raise UsageError(f"{RAM}, a folder in RAM, is not there", action="name a FOLDER")
    return os.path.join(RAM, f"raidx-lab-{os.geteuid()}")


def _enter(place: str) -> bool:
    """Make the folder unless it is there; return whether it was made. Raises RaidxError."""
    made = not os.path.lexists(place)
    if made:
        try:
            os.mkdir(place, 0o700)
        except OSError as error:
            raise RaidxError(f"{place} cannot be made: {error.strerror}") from None
    _require_ours(place)
    if not os.path.lexists(os.path.join(place, MARKER)):
        for name in sorted(os.listdir(place)):
            if name == "mnt" or MEMBER.fullmatch(name):
                raise UsageError(
                    f"{place}/{name} was not made by `{MADE_BY}`: nothing in the folder is touched",
                    action="name another folder",
                )
        _write(place, Lab(made_folder=made))
    return made


def _require_ours(place: str) -> None:
    """Raise UsageError unless this user alone decides what is in the folder."""
    status = os.lstat(place)
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{place} is not a folder")
    if status.st_uid != os.geteuid():
        raise UsageError(f"{place} belongs to another user (uid {status.st_uid})")
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(f"{place} is closed: this user cannot write to it")
    if status.st_mode & stat.S_IWOTH:
        raise UsageError(f"any user may write to {place}", action="name a folder of your own")


def _read(place: str) -> Lab | None:
    """Return what the marker says, None if there is none. Raises UsageError for a damaged one."""
    marker = os.path.join(place, MARKER)
    try:
        status = os.lstat(marker)
        with open(marker, "rb") as file:
            text = file.read(MARKER_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RaidxError(f"{marker} cannot be read: {error.strerror}") from None
    try:
        document = json.loads(text)
        document = {"sums": False, **document}  # earlier versions had no such option
        found = Lab(**{name: document[name] for name in hints_of(Lab)})
        right = document["made_by"] == MADE_BY
        right &= all(fits(document[name], hint) for name, hint in hints_of(Lab).items())
    except (ValueError, TypeError, KeyError, RecursionError):
        right = False
    if not right or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise UsageError(
            f"{marker} was not written by `{MADE_BY}`: nothing in {place} is touched",
            action="name another folder",
        )
    return found


def _write(place: str, wanted: Lab) -> None:
    marker = os.path.join(place, MARKER)
    document = {"made_by": MADE_BY, **asdict(wanted)}
    try:
        with open(f"{marker}.new", "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(f"{marker}.new", marker)
    except OSError as error:
        raise RaidxError(f"{marker} cannot be written: {error.strerror}") from None


@contextmanager
def _locked(place: str) -> Iterator[int]:
    """Hold the folder's lock, a descriptor, so that no two commands meet. Raises BusyError."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        raise BusyError(f"another `raidx lab` is at work in {place}") from None
    finally:
        os.close(descriptor)


def _clear(place: str, before: Lab) -> None:
    """End the lab's daemon, unmount mnt, remove it and the members. Raises BusyError."""
    from raidx_fuse.daemon.scan import has_magic  # late: `raidx lab --help` needs no superblocks

    mount = os.path.join(place, "mnt")
    inside = mountpoint.real_path(place) + "/"
    for other in mountpoint.mounts():
        if other.path.startswith(inside) and other.path != f"{inside}mnt":
            raise BusyError(f"{other.path} is mounted in the lab", action="unmount it first")
    found = mountpoint.find(mount)
    if found is not None:
        if found.fs_type != mountpoint.FUSE_TYPE:
            raise BusyError(f"{mount} is a mount of {found.fs_type}", action="unmount it first")
        for device, image in mountpoint.loop_devices(found.path):
            raise BusyError(f"{device} is on {image}", action=f"type: losetup -d {device}")
        try:
            with control_client.Connection(mount, timeout_s=EXIT_S) as connection:
                pid = connection.daemon_pid
        except ControlError:
            pass  # it has died
        else:  # ended at once: its members are about to go, and a fault may make it wait
            kill_daemon(mount, pid)
        mountpoint.unmount(mount)
    with os.scandir(place) as entries:
        files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    for entry in files:
        added = MEMBER.fullmatch(entry.name) and has_magic(entry.path)
        if added or entry.name in before.members:
            os.unlink(entry.path)
    if os.path.isdir(mount) and not os.path.islink(mount):
        with suppress(OSError):  # something else was put there: it is left alone
            os.rmdir(mount)


def _start(place: str, wanted: Lab, lock: int) -> ArrayReport:
    """Create the members and mount them, both in the daemon: no thread may run at the fork."""
    from raidx_fuse.daemon import create as creation
    from raidx_fuse.daemon import daemonize
    from raidx_fuse.daemon.serve import MountRequest, body

    members = tuple(os.path.join(place, name) for name in wanted.members)
    request = creation.CreateRequest(
        members=members,
        layout=wanted.layout,
        chunk_bytes=wanted.chunk_bytes,
        name="disk",
        params=wanted.params,
        member_bytes=wanted.size_bytes,
        sums=wanted.sums,
    )
    mount = os.path.join(place, "mnt")
    try:
        os.mkdir(mount, 0o700)
    except OSError as error:
        raise RaidxError(f"{mount} cannot be made: {error.strerror}") from None
    serve = body(MountRequest(members, mountpoint.check(mount), lab=True))

    def create_and_serve(ready: daemonize.Ready) -> None:
        os.close(lock)  # or the daemon would hold the folder as long as it runs
        try:
            trio.run(partial(creation.create, request))
        except LayoutError as error:
            raise UsageError(str(error)) from None
        serve(ready)

    return daemonize.start(create_and_serve, paths.own_files(mount).log)


def _left(place: str, own: Iterable[str]) -> list[str]:
    """Return what is in the folder besides what the lab has there now."""
    return sorted(set(os.listdir(place)) - {*own})


def _left_lines(left: list[str]) -> list[str]:
    return [f"left alone: {', '.join(left)}"] if left else []
