"""Finds arrays by the superblocks of their members: block devices, files, and files in folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_SLOTS, end_offset
from raidx_fuse.format.signature import describe
from raidx_fuse.format.superblock import MAGIC
from raidx_fuse.members.threads import in_thread

if TYPE_CHECKING:
    from raidx_fuse.documents import Found, FoundArray, ScanProblem
    from raidx_fuse.format.configuration.config import ArrayConfig

BLOCK_DEVICES = Path("/sys/class/block")
NOT_DISKS = ("loop", "ram", "zram", "fd", "sr")  # devices without a disk of their own
FILES_MAX = 100_000


async def scan(paths: Sequence[str]) -> Found:
    """Return the arrays with members among *paths*, and what cannot be read.

    A folder stands for the files in it; no path for all disks. Where arrays are mounted is not
    known here. Raises UsageError if no path exists.
    """
    problems: list[ScanProblem] = []
    search = _Search(problems)
    rest = [path for path in _candidates(paths, problems) if not await search.look(path)]
    sizes = {record.size_bytes for config in search.newest.values() for record in config.members}
    for path in rest if sizes else ():  # one that has become larger, without its front
        await search.look(path, sizes)
    found, newest = search.found, search.newest
    for other, path in search.unsure:  # the array must not be started as if they were absent
        if other in found:
            found[other].append(path)
    arrays = [await _judged(uuid, newest[uuid], members) for uuid, members in found.items()]
    return {"arrays": arrays, "problems": problems}


class _Search:
    """What was found so far: members by the UUID of their array, its *newest* configuration.

    *unsure*: array and path of members of a newer raidx, and of those that somebody else has made
    something of: their ends are those of members.
    """

    def __init__(self, problems: list[ScanProblem]) -> None:
        self.found: dict[str, list[str]] = {}
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
        if uuid not in self.newest or config.events > self.newest[uuid].events:
            self.newest[uuid] = config
        return True


async def _judged(uuid: str, config: ArrayConfig, members: list[str]) -> FoundArray:
    """Return the array with its state at rest, "unknown" if it is in use."""
    problem: str | None = None
    try:
        state = (await inspect.status(members))["state"]
    except BusyError as error:
        state, problem = "unknown", str(error)
    except RaidxError as error:
        state, problem = "failed", str(error)
    return {
        "uuid": uuid,
        "name": config.name,
        "layout": config.layout,
        "members": members,
        "wanted": len(config.roles()),
        "state": state,
        "problem": problem,
        "mountpoint": None,
    }


def members_of(arrays: Iterable[FoundArray], *, name: str | None, uuid: str | None) -> list[str]:
    """Return the members of the array called *name*, or with *uuid* (or its beginning).

    Raises UsageError if there is none, or more than one.
    """
    ref = name if name is not None else uuid or ""
    fits = [
        array
        for array in arrays
        if (array["name"] == ref if name is not None else array["uuid"].startswith(ref))
    ]
    if len(fits) == 1:
        return fits[0]["members"]
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
