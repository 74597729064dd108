"""An array over NBD members and a local one while servers are killed, restarted, and stay away."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.check import check_members
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.member import Holder, NbdMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.nbd_server import MemoryServer

SIZE_BYTES = 3 << 20
SERVERS = 3
HOLDER = Holder(b"h" * 16, "process 1 on alpha")


class Machine:
    """Three servers, one local disk, and the model of the image's content."""

    def __init__(self, seed: int, witness: bool) -> None:
        self.chance = random.Random(seed)
        self.servers = [
            MemoryServer(SIZE_BYTES, witness=witness, delay_s=0.0005) for _ in range(SERVERS)
        ]
        self.local = RamMember(SIZE_BYTES)
        self.model = bytearray()

    def members(self) -> list[Member]:
        remote: list[Member] = [
            NbdMember(f"nbd://rig/{number}", server.dial, holder=HOLDER)
            for number, server in enumerate(self.servers)
        ]
        return [*remote, self.local]

    async def create(self) -> None:
        members = self.members()
        await create_array(members, "raid5", name="disk", now_s=0, chunk_bytes=4096)
        close(members)

    async def work(self, array: Array, steps: int) -> None:
        """Write and read at random places, never two at once on the same bytes."""
        self.model = self.model or bytearray(array.size_bytes)
        part = len(self.model) // 4

        async def worker(number: int) -> None:
            for _ in range(steps):
                size = self.chance.choice((1, 512, 4096, 5000, 40000))
                at = number * part + self.chance.randrange(min(part, 200_000) - size)
                if self.chance.random() < 0.7:
                    data = self.chance.randbytes(size)
                    await array.write(at, data)
                    self.model[at : at + size] = data
                elif self.chance.random() < 0.2:
                    await array.flush()
                else:
                    assert await array.read(at, size) == self.model[at : at + size]

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(worker, number)

    async def verify(self, array: Array) -> None:
        for at in range(0, len(self.model), 1 << 18):
            part = self.model[at : at + (1 << 18)]
            assert await array.read(at, len(part)) == part


def close(members: Sequence[Member]) -> None:
    for member in members:
        if isinstance(member, NbdMember):
            member.close()


def states(array: Array) -> list[str]:
    return [
        record.state for record in sorted(array.member_set.config.members, key=lambda r: r.role)
    ]


@pytest.mark.parametrize("seed", [0, 1, 2, 9, 24, 31])
def test_servers_that_come_back_in_time_cost_nothing(seed: int) -> None:
    async def main() -> None:
        machine = Machine(seed, witness=True)
        await machine.create()
        members = machine.members()
        async with open_array(members) as array:

            async def trouble() -> None:
                for _ in range(12):
                    await trio.sleep(machine.chance.random() * 0.2)
                    server = machine.chance.choice(machine.servers)
                    server.kill()
                    await trio.sleep(machine.chance.random() * 3)
                    server.restart()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble)
                nursery.start_soon(machine.work, array, 40)
            await machine.verify(array)
            assert states(array) == ["active"] * 4
        close(members)
        await trio.sleep(1)
        members = machine.members()
        assert (await check_members(members))["problems"] == []
        async with open_array(members) as array:
            await machine.verify(array)
        close(members)

    run(main, seed=seed)


async def test_a_server_that_stays_away_is_a_failed_member_and_nothing_is_lost() -> None:
    machine = Machine(1, witness=True)
    await machine.create()
    members = machine.members()
    async with open_array(members) as array:
        await machine.work(array, 10)
        begin_s = trio.current_time()
        machine.servers[1].kill()
        await machine.work(array, 20)
        assert 30 <= trio.current_time() - begin_s < 60
        assert states(array) == ["active", "failed", "active", "active"]
        machine.servers[1].restart()
        await machine.work(array, 20)
        await machine.verify(array)
    close(members)


@pytest.mark.parametrize("seed", range(2))
def test_cuts_without_a_witness_lose_a_member_at_most_and_no_byte(seed: int) -> None:
    """One server's connections are cut; it carries out late what was under way."""

    async def main() -> None:
        machine = Machine(seed, witness=False)
        await machine.create()
        members = machine.members()
        machine.servers[0].late_s = 3.0
        async with open_array(members) as array:

            async def trouble() -> None:
                for _ in range(10):
                    await trio.sleep(machine.chance.random() * 0.05)
                    machine.servers[0].cut()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble)
                nursery.start_soon(machine.work, array, 60)
            await trio.sleep(10)
            await machine.verify(array)
            assert states(array)[1:] == ["active"] * 3
        close(members)
        await trio.sleep(10)
        members = machine.members()
        async with open_array(members) as array:
            await machine.verify(array)
            scrub = await array.jobs.wait(await array.start_scrub(repair=False))
            assert scrub["mismatches"] == 0
        close(members)

    run(main, seed=seed)


async def write_much(array: Array) -> None:
    for at in range(0, 400_000, 40_000):
        await array.write(at, bytes(40_000))


async def test_an_array_that_was_taken_over_writes_nothing_more() -> None:
    machine = Machine(2, witness=True)
    await machine.create()
    members = machine.members()
    async with open_array(members) as array:
        await machine.work(array, 5)
        await array.flush()
        await trio.sleep(30)  # the checkpoint and the dirty bitmap have nothing left to write
        page = Holder(b"o" * 16, "process 2 on beta").heartbeat().encode()
        for server in machine.servers:
            server.content[124 << 10 : 128 << 10] = page
        before = [bytes(server.content) for server in machine.servers]
        await trio.sleep(5)
        with pytest.raises(RaidxError):
            await write_much(array)  # a write may fit into the log of the local disk
    close(members)
    await trio.sleep(1)
    assert [bytes(server.content) for server in machine.servers] == before
