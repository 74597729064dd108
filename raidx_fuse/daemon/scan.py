"""Finds arrays by the superblocks of their members: block devices, files, and files in folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from raidx_fuse.daemon import inspect
from raidx_fuse.daemon.member_files import Disks
from raidx_fuse.errors import (
    AmbiguousError,
    BusyError,
    OtherVersionError,
    RaidxError,
    Reason,
    UsageError,
    reason_of,
)
from raidx_fuse.format.both_ends import read_copies
from raidx_fuse.format.configuration.config import FAILED, MISSING
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_SLOTS, end_offset
from raidx_fuse.format.signature import describe
from raidx_fuse.format.superblock import MAGIC
from raidx_fuse.members.threads import in_thread

if TYPE_CHECKING:
    from raidx_fuse.documents import FormerMember, Found, FoundArray, ScanProblem
    from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord

BLOCK_DEVICES = Path("/sys/class/block")
NOT_DISKS = ("loop", "ram", "zram", "fd", "sr")  # devices without a disk of their own
FILES_MAX = 100_000
LOOK_AGAIN_S = 1.0
Wanted = tuple[str | None, str | None]  # name, or else UUID or its beginning, of an array


class Patience(NamedTuple):
    """How long members are waited for, and who is told what is missing meanwhile."""

    limit_s: float
    tell: Callable[[str], object]


async def scan(paths: Sequence[str]) -> Found:
    """Return the arrays with members among *paths*, and what cannot be read.

    A folder stands for the files in it; no path for all disks. Where arrays are mounted is not
    known here. Raises UsageError if no path exists.
    """
    found = await look_at(paths)
    return {**found, "arrays": [await _judged(array) for array in found["arrays"]]}


async def look_at(paths: Sequence[str]) -> Found:
    """Return what `scan` does, without the states of the arrays: no lock is asked for."""
    problems: list[ScanProblem] = []
    search = _Search(problems)
    rest = [path for path in _candidates(paths, problems) if not await search.look(path)]
    sizes = {record.size_bytes for config in search.newest.values() for record in config.members}
    for path in rest if sizes else ():  # one that has become larger, without its front
        await search.look(path, sizes)
    return {"arrays": search.arrays(), "problems": problems}


async def scan_for(
    paths: Sequence[str], wanted: Sequence[Wanted], patience: Patience | None = None
) -> tuple[list[list[str]], Found]:
    """Return the members of each array that is *wanted*, and all that was found in *paths*.

    With *patience* they are looked for again until no member is awaited. Raises UsageError and
    AmbiguousError as `members_of`, with *patience* when it has ended.
    """
    deadline = trio.current_time() + (patience.limit_s if patience else 0.0)
    said = ""
    while True:
        found = await look_at(paths)
        missing = _missing(found["arrays"], wanted)
        if patience is None or not missing or trio.current_time() >= deadline:
            return [members_of(found["arrays"], name=n, uuid=u) for n, u in wanted], found
        if missing != said:
            patience.tell(f"waiting for {missing}")
            said = missing
        await trio.sleep(min(LOOK_AGAIN_S, deadline - trio.current_time()))


def _missing(arrays: Sequence[FoundArray], wanted: Sequence[Wanted]) -> str:
    """Return what is not there yet of the arrays that are *wanted*, "" if nothing."""
    parts = []
    for name, uuid in wanted:
        fits = [array for array in arrays if _is_called(array, name, uuid)]
        if not fits:
            parts.append(f"array {name if name is not None else uuid!r}")
        parts += [
            f"{each['awaited']} of {each['wanted']} members of {each['name']}"
            for each in fits
            if each["awaited"]
        ]
    return ", ".join(parts)


class _Search:
    """What was found so far: members by the UUID of their array, its *newest* configuration.

    *unsure*: array and path of members of a newer raidx, and of those that somebody else has made
    something of: their ends are those of members.
    """

    def __init__(self, problems: list[ScanProblem]) -> None:
        self.found: dict[str, list[str]] = {}
        self._records: dict[str, MemberRecord] = {}  # by path: what it says of itself
        self.newest: dict[str, ArrayConfig] = {}
        self.unsure: list[tuple[str | None, str]] = []
        self._problems = problems

    async def look(self, path: str, sizes: Collection[int] = ()) -> bool:
        """Look at *path*, which may have had *sizes*; return whether there is a superblock."""
        try:
            if not await in_thread(path, partial(has_magic, path, sizes)):
                return False
            with Disks(read_only=True, lock=False) as disks:
                (member,) = disks.attach([path])
                copies = await read_copies(member, sizes)
        except RaidxError as error:
            self._problems.append({"path": path, "problem": reason_of(error, path)})
            if isinstance(error, OtherVersionError):
                self.unsure.append((error.array_uuid, path))
            return True
        except OSError as error:
            self._problems.append({"path": path, "problem": error.strerror or "cannot be read"})
            return True
        if (superblock := copies.superblock) is None:
            return False
        uuid, config = superblock.array_uuid, superblock.config
        if copies.from_end and copies.foreign:
            problem = (
                f"carries {describe(copies.foreign)}, and the end of a member of {config.name}"
            )
            self._problems.append({"path": path, "problem": problem})
            self.unsure.append((uuid, path))
            return True
        self._problems += [{"path": path, "problem": text} for text in copies.problems()]
        self.found.setdefault(uuid, []).append(path)
        record = config.find(superblock.member_uuid)
        assert record is not None, "checked when it was decoded"
        self._records[path] = record
        if uuid not in self.newest or config.events > self.newest[uuid].events:
            self.newest[uuid] = config
        return True

    def arrays(self) -> list[FoundArray]:
        """Return what was found, the arrays in an "unknown" state."""
        for uuid, path in self.unsure:  # the array must not be started as if they were absent
            if uuid in self.found:
                self.found[uuid].append(path)
        return [self._array(uuid, members) for uuid, members in self.found.items()]

    def _array(self, uuid: str, members: list[str]) -> FoundArray:
        config = self.newest[uuid]
        present = {self._records[m].member_uuid: m for m in members if m in self._records}
        known = {record.member_uuid: record for record in config.members}
        former = {path: one for one, path in present.items() if one not in known}
        return {
            "uuid": uuid,
            "name": config.name,
            "layout": config.layout,
            "members": [path for path in members if path not in former],
            "former": [self._former(path, config, present) for path in former],
            "wanted": len(config.roles()),
            "awaited": sum(
                record.state not in (FAILED, MISSING) and record.member_uuid not in present
                for record in config.members
            ),
            "state": "unknown",
            "problem": None,
            "mountpoint": None,
        }

    def _former(self, path: str, config: ArrayConfig, present: Mapping[str, str]) -> FormerMember:
        """Return what *path* was; *present*: the paths of members by their UUIDs."""
        role = self._records[path].role
        if role < 0:
            return {"path": path, "role": None, "replaced_by": None}
        heirs = (each for each in config.members if each.role == role)
        heir = next((present.get(each.member_uuid, each.path_hint) for each in heirs), None)
        return {"path": path, "role": role, "replaced_by": heir}


async def _judged(array: FoundArray) -> FoundArray:
    """Return *array* with its state at rest, "unknown" if it is in use."""
    try:
        return {**array, "state": (await inspect.status(array["members"]))["state"]}
    except BusyError as error:
        return {**array, "problem": str(error)}
    except RaidxError as error:
        return {**array, "state": "failed", "problem": str(error)}


def members_of(arrays: Iterable[FoundArray], *, name: str | None, uuid: str | None) -> list[str]:
    """Return the members of the array called *name*, or with *uuid* (or its beginning).

    Raises UsageError if there is none, or more than one.
    """
    ref = name if name is not None else uuid or ""
    fits = [array for array in arrays if _is_called(array, name, uuid)]
    if len(fits) == 1:
        # A mount decides by all superblocks who belongs to the array, and says who does not.
        return [*fits[0]["members"], *(each["path"] for each in fits[0]["former"])]
    if not fits:
        raise UsageError(
            f"no array {ref!r} was found",
            action="see raidx scan; name folders with --scan",
            reason=Reason.NO_SUCH_ARRAY,
        )
    uuids = ", ".join(array["uuid"] for array in fits)
    raise AmbiguousError(
        f"{len(fits)} arrays are called {ref!r}", action=f"name one by --uuid: {uuids}"
    )


def _is_called(array: FoundArray, name: str | None, uuid: str | None) -> bool:
    return array["name"] == name if name is not None else array["uuid"].startswith(uuid or "")


def _candidates(paths: Sequence[str], problems: list[ScanProblem]) -> list[str]:
    """Return the files and devices to look at, each once; note in *problems* where there are none.

    Raises UsageError if none of the paths can be looked at.
    """
    if not paths:
        names = sorted(os.listdir(BLOCK_DEVICES)) if BLOCK_DEVICES.is_dir() else []
        return [f"/dev/{name}" for name in names if not name.startswith(NOT_DISKS)]
    found: dict[str, None] = {}
    for path in paths:
        if _is_disk(path):
            found[path] = None
            continue
        try:
            inside = sorted(os.path.join(path, name) for name in os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            problems.append({"path": path, "problem": "it is no folder, file or block device"})
        except OSError as error:
            problems.append({"path": path, "problem": error.strerror or "cannot be read"})
        else:
            found |= dict.fromkeys(each for each in inside if _is_disk(each))
    if len(problems) == len(paths):
        raise UsageError("; ".join(f"{each['path']}: {each['problem']}" for each in problems))
    if len(found) > FILES_MAX:
        raise UsageError(f"{len(found)} files are too many to look at", action="name fewer folders")
    return list(found)


def _is_disk(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISBLK(mode)


def has_magic(path: str, sizes: Collection[int] = ()) -> bool:
    """Return whether *path* has a slot of a member, in front or at its end. Raises OSError.

    *sizes* are those that it may have had.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        begins = [0, *(end for each in (size, *sizes) if (end := end_offset(each)) is not None)]
        return any(
            os.pread(descriptor, len(MAGIC), begin + number * SUPERBLOCK_SLOT_BYTES) == MAGIC
            for begin in begins
            for number in range(SUPERBLOCK_SLOTS)
        )
    finally:
        os.close(descriptor)
