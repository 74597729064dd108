"""An NBD member whose server was away gets only what changed meanwhile, counted by its server."""

from __future__ import annotations

import mmap
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.member import Holder, NbdMember
from raidx_fuse.members.nbd.pipe import Piece
from raidx_fuse.members.nbd.protocol.server import Request, Server
from raidx_fuse.members.nbd.protocol.wire import Command, Export
from tests.support.nbd_server import MemoryServer

MIB = 1 << 20
DISK_BYTES = 2700 * MIB
PART = 5000 * MIB  # where in the image everything is written
CHANGED_BYTES, CHANGED_AT = 100 * MIB, 20 * MIB + 5000
GONE = 2
HOLDER = Holder(b"h" * 16, "process 1 on alpha")


class SparseServer(MemoryServer):
    """A server of a large sparse disk that loses nothing when it is killed.

    *written* and *read* count bytes from *at_data* on, behind the metadata.
    """

    def __init__(self) -> None:
        super().__init__(0, witness=True)
        self.disk = mmap.mmap(-1, DISK_BYTES)
        self.export = Export("disk", DISK_BYTES, self.export.flags)
        self.at_data = 0
        self.written = self.read = 0

    def carry_out(self, link: Server, request: Request) -> list[Piece]:
        at, end = request.offset_bytes, request.offset_bytes + request.size_bytes
        in_data = max(0, end - max(at, self.at_data))
        match request.command:
            case Command.READ:
                self.read += in_data
                return link.data(request, self.disk[at:end])
            case Command.WRITE:
                self.written += in_data
                self.disk[at:end] = request.payload
            case Command.WRITE_ZEROES:
                for start in range(at, end, MIB):
                    part = min(MIB, end - start)
                    if self.disk[start : start + part] != bytes(part):  # else it stays sparse
                        self.disk[start : start + part] = bytes(part)
        return link.done(request)


class Machines:
    """Five servers, an array of 10 GiB over them, and what a part of its image holds."""

    def __init__(self) -> None:
        self.servers = [SparseServer() for _ in range(5)]
        self.gone = self.servers[GONE]
        self.model = bytearray(140 * MIB)

    def member(self, number: int) -> NbdMember:
        return NbdMember(f"nbd://rig/{number}", self.servers[number].dial, holder=HOLDER)

    @asynccontextmanager
    async def opened(self, *absent: int) -> AsyncIterator[Array]:
        """Open the array without the members *absent*."""
        members = [self.member(number) for number in range(5) if number not in absent]
        async with open_array(members) as array:
            yield array
        for member in members:
            member.close()
        await trio.sleep(1)

    async def create(self) -> None:
        members: list[Member] = [self.member(number) for number in range(5)]
        await create_array(members, "raid5", name="disk", now_s=0, chunk_bytes=64 << 10)
        for member in members:
            member.close()
        await trio.sleep(1)

    async def put(self, array: Array, offset: int, size: int) -> None:
        """Write *size* random bytes at *offset* of the part."""
        data = random.Random(size).randbytes(size)
        self.model[offset : offset + size] = data
        for at in range(0, size, MIB):
            await array.write(PART + offset + at, data[at : at + MIB])
        await array.flush()

    async def fill(self, array: Array) -> None:
        """Write the part, and let everything settle: the log is at home, no region is dirty."""
        assert array.size_bytes >= 10 << 30
        await self.put(array, 0, len(self.model))
        await trio.sleep(30)

    def start_counting(self, array: Array) -> None:
        for server in self.servers:
            server.at_data = array.member_set.data_offset
            server.written = server.read = 0

    async def check(self, array: Array) -> None:
        """Wait until member GONE is caught up; check what that cost, and its content."""
        for job in array.jobs.list():
            done = await array.jobs.wait(job["id"])
            assert done["state"] == "done", done
        read = sum(server.read for server in self.servers if server is not self.gone)
        assert 1.0 <= self.gone.written / (CHANGED_BYTES / 4) <= 1.1
        assert 1.0 <= read / CHANGED_BYTES <= 1.1
        assert {member["state"] for member in array.status()["members"]} == {"active"}
        await array.fail_disk(0)  # so that what the member got counts
        for at in range(0, len(self.model), MIB):
            assert await array.read(PART + at, MIB) == self.model[at : at + MIB]


async def test_a_server_back_too_late_costs_at_most_1_1_times_what_changed() -> None:
    """The write that found the server dead had a region of the dirty bitmap marked: 16 MiB."""

    machines = Machines()
    await machines.create()
    async with machines.opened() as array:
        await machines.fill(array)
        machines.gone.kill()
        await machines.put(array, CHANGED_AT, CHANGED_BYTES)
        assert array.status()["members"][GONE]["state"] == "failed"
        machines.gone.restart()
        machines.start_counting(array)
        begun = await array.replace_disk(GONE, machines.member(GONE))
        assert begun["catches_up"] is True
        await machines.check(array)


async def test_a_server_absent_at_a_start_costs_at_most_1_1_times_what_changed() -> None:
    """100 MiB of 10 GiB."""

    machines = Machines()
    await machines.create()
    async with machines.opened() as array:
        await machines.fill(array)
    async with machines.opened(GONE) as array:
        await machines.put(array, CHANGED_AT, CHANGED_BYTES)
        machines.start_counting(array)
    machines.gone.written = 0
    async with machines.opened() as array:
        await machines.check(array)
