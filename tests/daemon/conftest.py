"""The daemon's commands on a real array of RAM members, in virtual time, without a mount."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.dispatch import Dispatcher
from raidx_fuse.daemon.commands.events import EventCommands
from raidx_fuse.daemon.member_files import Own
from raidx_fuse.documents import DaemonReport
from raidx_fuse.errors import RaidxError, SignatureFoundError
from raidx_fuse.members.base import Member
from raidx_fuse.pool.volume import Volume
from tests.support.arrays import Rig
from tests.support.rigs import MakeRig

MOUNTPOINT = "/mnt/array"


def mount_report() -> DaemonReport:
    return {"mountpoint": MOUNTPOINT, "protections": {}, "bugs": 0}


class Shelf:
    """Hands out members by name; "used" carries a signature, "absent" must be created."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.opened: dict[str, Member] = {}
        self.released: list[Member] = []

    async def open(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        create_bytes: int | None,
        own: Own | None = None,
    ) -> Member:
        """Return a fresh member; "back" is the one that is away."""
        await self.check(
            path, overwrite_signature=overwrite_signature, may_create=create_bytes is not None
        )
        self.opened[path] = self.rig.new_member() if path != "back" else self.rig.members[1]
        return self.opened[path]

    async def check(
        self,
        path: str,
        *,
        overwrite_signature: bool,
        may_create: bool,
        own: Own | None = None,
        look: Callable[[Member], Awaitable[None]] | None = None,
    ) -> int | None:
        if path == "used" and not overwrite_signature:
            raise SignatureFoundError("used carries an ext4 file system")
        if path == "absent" and not may_create:
            raise RaidxError("absent: no such file")
        if look is None or path == "absent":
            return None
        member = self.rig.members[1] if path == "back" else self.rig.new_member()
        await look(member)
        return member.size_bytes

    async def release(self, member: Member) -> None:
        self.released.append(member)


class Desk:
    """The commands of a rig's array; *ask* sends one as the control socket does."""

    def __init__(self, rig: Rig, array: Array | None = None) -> None:
        array = array or rig.array
        assert array is not None
        self.rig = rig
        self.array = array
        self.shelf = Shelf(rig)
        self.volume = Volume(
            "disk", array.size_bytes, read=array.read, write=array.write, flush=array.flush
        )
        self.begin()

    def begin(self, events: EventCommands | None = None) -> None:
        """Begin to answer, commands about *events* too."""
        commands = ArrayCommands(self.array, [self.volume], self.shelf, events)
        commands.mount_report = mount_report
        self.commands = Dispatcher([commands])

    async def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        return dict(await self.commands.handle(name, arguments))


@asynccontextmanager
async def desk_of(layout: str = "raid5", width: int = 4) -> AsyncIterator[Desk]:
    """Yield the desk of an array of *width* RAM members, half of it written."""
    rig = Rig(layout, width)
    array = await rig.create()
    try:
        await array.write(0, bytes(range(256)) * (array.size_bytes // 512))
        yield Desk(rig)
    finally:
        await rig.close()


@pytest.fixture
def desk(make_rig: MakeRig[Desk]) -> AbstractAsyncContextManager[Desk]:
    return make_rig(desk_of)
