"""Files of saved metadata (format/saved_metadata.py): those of users, and the last ten kept.

    <state directory>/metadata/<UUID of the array>.<number>.json    the highest number: the newest

As LVM does in /etc/lvm/archive, the daemon keeps the configurations of each array that it runs: one
more at each change of members, layout, volumes or settings; else the newest file is replaced, after
the start, every `REFRESH_S` and at the end, so that its counters and sums are those of now. A state
directory that is full or read-only never hurts an array: the log says so, once, and an empty file
<UUID of the array>.behind that the newest file is not to be trusted, if that can be made.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.array.restore_metadata import Permits, Restoration, plan
from raidx_fuse.array.save_metadata import save
from raidx_fuse.daemon.events.event import unix_s
from raidx_fuse.daemon.events.store import state_directory
from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.errors import FormatError, RaidxError, Reason, UsageError, single
from raidx_fuse.format.saved_metadata import (
    FILE_BYTES_MAX,
    Saved,
    essence,
    from_bytes,
    is_one,
    to_document,
    to_text,
)
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.members.threads import in_thread

if TYPE_CHECKING:
    from raidx_fuse.documents import MetadataRestored, RestoredMember, SavedMetadata

METADATA = "metadata"
KEPT = 10
ARRAYS_MAX = 64
REFRESH_S = 3600.0
WRITE_S = 5.0  # for a file: an unmount waits no longer
_NAMED = re.compile("([0-9]{1,5}|[0-9a-f]{8}[0-9a-f-]{0,28})=(.+)", re.DOTALL)
log = logging.getLogger(__name__)


# -- files -----------------------------------------------------------------------------------------


def read_file(path: str | Path) -> Saved:
    """Return what the file *path* has. Raises RaidxError that names the file."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise RaidxError(
            f"{path} cannot be read: {os.strerror(error.errno or 0)}", reason=Reason.FILE
        ) from None
    try:
        if len(content) > FILE_BYTES_MAX:
            raise FormatError("it is too long for a file of raidx save-metadata")
        return from_bytes(content)
    except FormatError as error:
        raise FormatError(
            f"{path}: {error.message}", action="give another file", reason=error.reason
        ) from error


def write_file(path: str, document: SavedMetadata) -> None:
    """Write *document* to *path*, whole or not at all.

    A file is replaced only if it is one of saved metadata: the last word of a command line may be
    a member. Raises RaidxError.
    """
    real = Path(os.path.realpath(path))
    try:
        if os.path.lexists(real) and not (real.is_file() and is_one(_beginning(real))):
            raise UsageError(
                f"{path} is there already, and is no file of saved metadata",
                action="name another one",
                reason=Reason.EXISTS,
            )
        _write(real, to_text(document))
    except OSError as error:
        raise RaidxError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}", reason=Reason.FILE
        ) from None


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX)


def _write(path: Path, content: bytes) -> None:
    """Replace *path* durably. Raises OSError, and leaves what was there."""
    new = path.with_name(f"{path.name}.new{os.getpid()}")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    with suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class MetadataFiles:
    """The last `KEPT` configurations of each array, in *folder*. All methods block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, saved: Saved) -> Path:
        """Keep *saved* as the newest of its array; return its file. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        uuid, found = saved.config.array_uuid, self.of(saved.config.array_uuid)
        number = found[-1][0] if found else 0
        last = self.newest(uuid)
        if last is None or essence(last[1].config) != essence(saved.config):
            number += 1
        path = self.folder / f"{uuid}.{number:05}.json"
        _write(path, to_text(to_document(saved)))
        self._behind(uuid).unlink(missing_ok=True)
        for _, old in self.of(uuid)[:-KEPT]:
            with suppress(OSError):
                old.unlink()
        self._sweep(uuid)
        return path

    def _behind(self, uuid: str) -> Path:
        return self.folder / f"{uuid}.behind"

    def note_behind(self, uuid: str) -> None:
        """Note that the newest file of the array *uuid* lacks a change. On a full disk it can."""
        with suppress(OSError):
            self._behind(uuid).touch(0o600)

    def is_behind(self, uuid: str) -> bool:
        """Return whether the newest file of the array *uuid* is known to lack a change."""
        return self._behind(uuid).exists()

    def newest(self, uuid: str) -> tuple[Path, Saved] | None:
        """Return the newest file of the array *uuid* if it can be read."""
        for _, path in self.of(uuid)[-1:]:
            with suppress(RaidxError):
                return path, read_file(path)
        return None

    def of(self, uuid: str) -> list[tuple[int, Path]]:
        """Return (number, path) of the files of the array *uuid*, oldest first."""
        numbers = ((path.name.split(".")[1], path) for path in self.folder.glob(f"{uuid}.*.json"))
        return sorted((int(number), path) for number, path in numbers if number.isdecimal())

    def _sweep(self, own: str) -> None:
        """Remove the files of the arrays that have not run for longest."""
        ages: dict[str, float] = {}
        for path in self.folder.glob("*.*.json"):
            uuid = path.name.partition(".")[0]
            with suppress(OSError):
                ages[uuid] = max(ages.get(uuid, 0.0), path.stat().st_mtime)
        ages.pop(own, None)
        for uuid in sorted(ages, key=lambda uuid: -ages[uuid])[ARRAYS_MAX - 1 :]:
            for _, path in self.of(uuid):
                with suppress(OSError):
                    path.unlink()


class MetadataKeeper:
    """Keeps the configurations of one array in *files* while it runs, and the last one."""

    def __init__(self, files: MetadataFiles, unix_s: Callable[[], int]) -> None:
        self._files = files
        self._unix_s = unix_s
        self._array: Array | None = None
        self._kept = ""
        self._changed = trio.Event()
        self._has_complained = False

    def begin(self, array: Array) -> None:
        """Keep what *array*, which was started for writing, has from now on."""
        self._array = array
        array.member_set.on_published.append(self._look)

    def _look(self) -> None:
        assert self._array is not None
        if essence(self._array.member_set.config) != self._kept:
            self._changed.set()

    async def run(self) -> None:
        """Keep each change (a background task of the array)."""
        while True:
            self._changed = trio.Event()
            await self._keep()
            with trio.move_on_after(REFRESH_S):
                await self._changed.wait()

    async def ended(self) -> None:
        """Keep the last configuration: the array is closed, its members are still open."""
        if self._array is not None:
            with trio.CancelScope(shield=True):
                await self._keep()

    async def _keep(self) -> None:
        array = self._array
        assert array is not None
        try:
            saved = await save(array, array.member_set.present(), self._unix_s())
            with trio.CancelScope(shield=True):  # else the last one is written beside it
                folder = str(self._files.folder)
                await in_thread(folder, partial(self._files.keep, saved), limit_s=WRITE_S)
            self._kept = essence(saved.config)
        except (OSError, RaidxError) as error:
            await self._complain(error)
        except Exception:  # a mounted disk without such files is better than none
            if not self._has_complained:
                log.critical("bug: the configuration was not kept", exc_info=True)
            self._has_complained = True

    async def _complain(self, error: Exception) -> None:
        assert self._array is not None
        if not self._has_complained:
            log.warning("the configuration is not kept in %s: %s", self._files.folder, error)
        self._has_complained = True
        with suppress(RaidxError):
            note = partial(self._files.note_behind, self._array.uuid)
            await in_thread(str(self._files.folder), note)


# -- arrays at rest --------------------------------------------------------------------------------


async def save_at_rest(specs: Sequence[str]) -> SavedMetadata:
    """Return what a file has about the array of the members *specs*, which nobody uses.

    Raises RaidxError.
    """
    try:
        with Disks(read_only=True) as disks:
            members = disks.attach(specs)
            await disks.claim(members)
            async with open_array(members, read_only=True, start_degraded=True) as array:
                return to_document(await save(array, array.member_set.present(), unix_s()))
    except BaseExceptionGroup as group:
        raise single(group) from None


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The arguments of `raidx restore-metadata`; *members* are specs, by role or UUID if named."""

    file: str
    members: tuple[str, ...]
    names: dict[int, str]
    degraded: bool = False
    older: bool = False
    overwrite_signature: bool = False


def parted(word: str) -> tuple[str | None, str]:
    """Return (role or UUID, member) of ROLE=MEMBER, UUID=MEMBER or MEMBER.

    >>> parted("2=/dev/sdc"), parted("./2=x")
    (('2', '/dev/sdc'), (None, './2=x'))
    """
    named = _NAMED.fullmatch(word)
    return (None, word) if named is None else (named[1], named[2])


async def restore(request: RestoreRequest, *, write: bool) -> MetadataRestored:
    """Write the superblocks that members have lost, if *write*; return what is, or would be, done.

    Raises RaidxError; nothing is written then, unless a member fails.
    """
    saved = read_file(request.file)
    files, uuid = MetadataFiles(state_directory() / METADATA), saved.config.array_uuid
    newest, newer, is_newest = files.newest(uuid), "", False
    if newest is not None:
        path, last = newest
        same = essence(last.config) == essence(saved.config)
        is_newest = same and not files.is_behind(uuid)
        counts = saved.config.starts, saved.config.events
        if not same and (last.config.starts, last.config.events) > counts:
            newer = str(path)
    permits = Permits(
        {at: _role(saved, name) for at, name in request.names.items()},
        degraded=request.degraded,
        older=request.older,
        is_newest=is_newest,
        newer=newer,
        overwrite_signature=request.overwrite_signature,
    )
    try:
        with Disks(read_only=not write) as disks:
            members: list[Member] = disks.attach(request.members)
            await disks.claim(members)
            await disks.claim_array(uuid, saved.config.name)
            found = await plan(saved, members, permits)
            if write:
                await found.carry_out()
    except BaseExceptionGroup as group:
        raise single(group) from None
    return _document(saved, found, write=write)


def _role(saved: Saved, name: str) -> Role:
    if name.isdecimal() and len(name) < 8:
        return Role(int(name))
    roles = [each.role for each in saved.config.members if each.member_uuid.startswith(name)]
    if len(roles) != 1 or roles[0] < 0:
        raise UsageError(
            f"array {saved.config.name!r} has no member {name} with a role",
            reason=Reason.NO_SUCH_MEMBER,
        )
    return roles[0]


def _document(saved: Saved, found: Restoration, *, write: bool) -> MetadataRestored:
    members: list[RestoredMember] = [
        {
            "path": one.member.path,
            "uuid": one.record.member_uuid,
            "role": one.record.role,
            "action": "keep" if one.superblock is None else "write",
            "recognised": one.recognised,
        }
        for one in found.members
    ]
    return {
        "array": found.config.name,
        "array_uuid": found.config.array_uuid,
        "events": found.config.events,
        "saved_s": float(saved.saved_s),
        "source": "members" if found.from_members else "file",
        "members": members,
        "absent": [record.path_hint or record.member_uuid for record in found.absent],
        "state": found.state,
        "stripes_checked": found.checked,
        "stripes_wrong": found.wrong,
        "warnings": list(found.warnings),
        "dry_run": not write,
        "changed": write,
    }
