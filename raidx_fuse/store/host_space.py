"""Room on the file systems that hold the members of one array.

A sparse member promises more than it occupies. Once its host is full, first writes are refused with
ENOSPC while everything else works. A host counts as full from a refusal until there is room for
what was refused, and whenever it has no room for a chunk while its members lack some.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.loop.tasks import rest
from raidx_fuse.members.base import Member
from raidx_fuse.members.threads import in_thread
from raidx_fuse.units import format_size

if TYPE_CHECKING:
    from raidx_fuse.documents import Host

LOOK_S = 10.0  # while a host is full
SELDOM = 6  # otherwise a look at every sixth of these times
FULL_BYTES = 1 << 20  # the largest chunk


@dataclass(slots=True)
class _Host:
    """One file system: *free_bytes* of it, *promised_bytes* that members on it do not occupy."""

    free_bytes: int
    promised_bytes: int = 0
    paths: list[str] = field(default_factory=list)


class HostSpaces:
    """What is known of the hosts of the members that *members* returns."""

    def __init__(self, members: Callable[[], Iterable[Member]]) -> None:
        self._members = members
        self._hosts: dict[int, _Host] = {}  # by device, from the last look
        self._refused: dict[str, int | None] = {}  # path -> bytes that were refused; None: a quota

    def note_refused(self, error: MemberError, length_bytes: int) -> None:
        """Note that the host of a member had no room for *length_bytes* of it."""
        is_full = error.errno == errno.ENOSPC
        self._refused[error.member] = length_bytes if is_full else None
        for host in self._hosts.values():
            if is_full and error.member in host.paths:
                host.free_bytes = min(host.free_bytes, length_bytes)

    def note_taken(self, path: str) -> None:
        if self._refused:
            self._refused.pop(path, None)

    def full_paths(self) -> list[str]:
        """Return the members whose hosts are full."""
        full = set(self._refused)
        for host in self._hosts.values():
            if host.promised_bytes and host.free_bytes < FULL_BYTES:
                full |= set(host.paths)
        return sorted(full)

    def shown(self) -> list[Host]:
        """Return each host as JSON values."""
        full = set(self.full_paths())
        return [
            {
                "members": host.paths,
                "free_bytes": host.free_bytes,
                "promised_bytes": host.promised_bytes,
                "full": not full.isdisjoint(host.paths),
            }
            for host in self._hosts.values()
        ]

    def warnings(self) -> list[str]:
        """Return a line for each host that cannot hold what the members on it promise."""
        return [
            f"the file system of {', '.join(host.paths)} has {format_size(host.free_bytes)} free, "
            f"its members may take {format_size(host.promised_bytes)} more: writes will fail when "
            "it is full"
            for host in self._hosts.values()
            if host.promised_bytes > host.free_bytes
        ]

    async def look(self) -> None:
        """Ask all hosts. One that does not answer counts as it did at the last look."""
        hosts: dict[int, _Host] = {}
        free: dict[str, int] = {}
        for member in self._members():
            if member.kind in ("ram", "block"):
                continue  # no file system, and no thread
            try:
                space = await in_thread(member.path, member.host_space)
            except (RaidxError, OSError):
                continue
            if space is not None:
                host: _Host = hosts.setdefault(space.device, _Host(space.free_bytes))
                host.promised_bytes += space.missing_bytes
                host.paths.append(member.path)
                free[member.path] = space.free_bytes
        self._hosts = hosts
        for path, wanted in list(self._refused.items()):
            if wanted is not None and free.get(path, 0) >= max(wanted, FULL_BYTES):
                del self._refused[path]

    async def run(self) -> None:
        """Look now and then (a background task)."""
        count = 0
        while True:
            await rest(LOOK_S)
            count += 1
            if count % SELDOM == 0 or self.full_paths():
                await self.look()
