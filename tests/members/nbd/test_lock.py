"""The lock of an export: a heartbeat in its superblock area."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio

from raidx_fuse.errors import InUseError, MemberError
from raidx_fuse.format import regions, superblock
from raidx_fuse.loop.tasks import TICK_S
from raidx_fuse.members.nbd import heartbeat
from raidx_fuse.members.nbd.heartbeat import (
    FENCE_S,
    HEARTBEAT_BYTES,
    HEARTBEAT_OFFSET,
    HEARTBEAT_S,
    STALE_S,
    Heartbeat,
)
from raidx_fuse.members.nbd.links import RETRY_MAX_S, Call
from raidx_fuse.members.nbd.member import Holder, Lock, NbdMember
from raidx_fuse.members.nbd.pipe import Piece
from raidx_fuse.members.nbd.protocol.server import Request, Server
from raidx_fuse.members.nbd.protocol.wire import Command
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.nbd_server import MemoryPipe, MemoryServer

SIZE_BYTES = 1 << 20
A = Holder(b"a" * 16, "process 1 on alpha")
SUPERBLOCK = superblock.MAGIC.ljust(512, b"\0")


@pytest.fixture
def b() -> Holder:
    """A holder that knows nothing yet."""
    return Holder(b"b" * 16, "process 2 on beta")


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long opening members slept in all, without sleeping."""
    total: list[float] = []
    monkeypatch.setattr(time, "sleep", total.append)
    return total


def held(server: MemoryServer) -> Heartbeat:
    found = heartbeat.decode_heartbeat(
        bytes(server.content[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + HEARTBEAT_BYTES])
    )
    assert found is not None
    return found


def opened(server: MemoryServer, holder: Holder, **options: Any) -> NbdMember:
    return NbdMember("nbd://rig/disk", server.dial, holder=holder, **options)


def made() -> MemoryServer:
    server = MemoryServer(SIZE_BYTES, witness=True)
    server.content[: len(SUPERBLOCK)] = server.durable[: len(SUPERBLOCK)] = SUPERBLOCK
    return server


def test_the_page_is_inside_of_the_superblock_area() -> None:
    assert heartbeat.SUPERBLOCK_MAGIC == superblock.MAGIC
    slots = [number * regions.SUPERBLOCK_SLOT_BYTES for number in range(regions.SUPERBLOCK_SLOTS)]
    assert list(heartbeat.SUPERBLOCK_OFFSETS) == slots
    assert slots[1] + regions.SUPERBLOCK_SLOT_BYTES == HEARTBEAT_OFFSET + HEARTBEAT_BYTES
    assert slots[1] + superblock.HEADER_BYTES + superblock.BODY_BYTES_MAX <= HEARTBEAT_OFFSET


def test_a_page_is_a_beat_only_if_it_is_whole() -> None:
    page = A.heartbeat().encode()
    assert heartbeat.decode_heartbeat(page) == A.heartbeat()
    for at in (0, 8, 13, 20, 33, 45, 4000):
        broken = bytearray(page)
        broken[at] ^= 1
        assert heartbeat.decode_heartbeat(bytes(broken)) is None
    assert heartbeat.decode_heartbeat(bytes(HEARTBEAT_BYTES)) is None
    assert heartbeat.decode_heartbeat(page[:512]) is None


async def test_a_member_that_another_process_holds_is_refused(b: Holder) -> None:
    server = made()
    first = opened(server, A)
    await first.writev(0, [SUPERBLOCK])
    begin_s = trio.current_time()

    async def ask(call: Call) -> None:
        call.buffers[0][:] = server.content[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + HEARTBEAT_BYTES]

    with pytest.raises(InUseError):
        await Lock("nbd://rig/disk", b, trio.current_time)._wait_until_free(ask)
    assert trio.current_time() - begin_s <= HEARTBEAT_S + heartbeat.LOOK_S
    first.close()


def test_a_member_of_a_dead_process_is_free_after_a_time_once_for_all(
    b: Holder, slept: list[float]
) -> None:
    servers = [made() for _ in range(3)]

    async def killed() -> None:
        for server in servers:
            await opened(server, A).writev(4096, [b"x"])

    async def after() -> None:
        members = [opened(server, b) for server in servers]
        for member in members:
            await member.writev(4096, [b"y"])
        assert all(held(server).holder == b.uid for server in servers)

    run(killed)
    assert held(servers[0]).held
    run(after)
    assert sum(slept) == STALE_S


async def test_closing_releases_a_member(b: Holder, slept: list[float]) -> None:
    server = made()
    for lock_only in (True, False):
        first = opened(server, A)
        if not lock_only:
            await first.writev(4096, [b"x"])
        first.close()
        await trio.sleep(0.1)
        assert not held(server).held
        second = opened(server, b)
        await second.writev(4096, [b"y"])
        second.close()
        await trio.sleep(0.1)
    assert not slept


async def test_beats_go_on_and_cost_one_read_and_one_write_in_two_seconds(
    slept: list[float],
) -> None:
    servers = [made(), made()]
    members = [opened(server, A) for server in servers]
    for member in members:
        await member.writev(4096, [b"x"])
    for server in servers:
        server.requests.clear()
    await trio.sleep(100)
    for server in servers:
        page = HEARTBEAT_OFFSET, HEARTBEAT_BYTES
        reads, writes = (
            server.requests.count((command, *page)) for command in (Command.READ, Command.WRITE)
        )
        assert reads == 50
        assert 49 <= writes <= 50  # one may follow
        assert len(server.requests) == reads + writes
    assert held(servers[0]).number == held(servers[1]).number
    for member in members:
        member.close()


async def test_who_reads_does_not_wait_for_the_answer_to_a_beat(slept: list[float]) -> None:
    """Answers to heartbeats are taken once a second; a read meanwhile is answered at once."""

    server = made()
    server.delay_s = 0.001
    member = opened(server, A)
    await member.writev(4096, [b"x"])
    await trio.sleep(20)
    for _ in range(40):
        await trio.sleep(0.23)
        begun_s = trio.current_time()
        await member.readv(0, [bytearray(4096)])
        assert trio.current_time() - begun_s < 0.01
    member.close()


async def test_a_read_under_way_does_not_wait_for_the_tick_that_takes_the_answer_to_a_beat(
    slept: list[float],
) -> None:
    server = made()
    server.delay_s = 0.03
    member = opened(server, A)
    await member.writev(4096, [b"x"])
    end_s = trio.current_time() + 5 * HEARTBEAT_S
    while trio.current_time() < end_s:  # one is under way at each heartbeat
        begun_s = trio.current_time()
        await member.readv(0, [bytearray(SIZE_BYTES // 2)])
        assert trio.current_time() - begun_s < 0.04
    member.close()


async def test_a_look_at_the_page_that_is_old_is_not_followed_by_a_beat(slept: list[float]) -> None:
    """Another one may have taken over since; the next look is not patient."""

    server = made()
    member = opened(server, A)
    await member.writev(4096, [b"x"])
    await trio.sleep(21.5)
    server.delay_s = FENCE_S + 1
    await trio.sleep(1)  # a look has begun
    server.requests.clear()
    await trio.sleep(FENCE_S + 0.4)
    server.delay_s = 0
    await trio.sleep(HEARTBEAT_S)
    commands = [command for command, _, _ in server.requests if command != Command.FLUSH]
    assert Command.WRITE in commands
    assert commands[:2] == [Command.READ, Command.READ]
    await member.writev(4096, [b"y"])
    member.close()


async def test_of_two_that_claim_at_once_one_holds_it(b: Holder) -> None:
    server = MemoryServer(SIZE_BYTES)
    members = [opened(server, A), opened(server, b)]
    refused = []

    async def write(member: NbdMember) -> None:
        try:
            await member.writev(4096, [b"x"])
        except MemberError as error:
            refused.append(error.message)

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(write, member)
    assert len(refused) == 1
    assert "in use by" in refused[0]
    winner = held(server).text
    assert winner in refused[0]
    await members[winner == b.text].writev(4096, [b"x"])
    with pytest.raises(MemberError, match=winner):
        await members[winner != b.text].writev(4096, [b"x"])
    for member in members:
        member.close()


async def test_a_holder_that_was_away_too_long_looks_before_it_writes(b: Holder) -> None:
    server = made()
    first = opened(server, A)
    await first.writev(4096, [b"first"])
    server.running = False
    server.cut()
    await trio.sleep(STALE_S + 1)
    server.running = True
    page = b.heartbeat().encode()
    server.content[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + HEARTBEAT_BYTES] = page
    with pytest.raises(
        MemberError, match=r"^nbd://rig/disk: write failed: in use by process 2 on beta$"
    ):
        await first.writev(4096, [b"wrong"])
    await trio.sleep(10)
    assert server.content[4096:4101] == b"first"
    assert held(server) == b.heartbeat(), "a holder that was taken over sends none"
    first.close()
    await trio.sleep(1)
    assert held(server) == b.heartbeat()


async def test_a_holder_whose_beats_fail_writes_nothing(b: Holder) -> None:
    """The connection stays, the process was stopped for a while: it must look again first."""

    server = made()
    first = opened(server, A)
    await first.writev(4096, [b"first"])
    A._locks.clear()  # no heartbeats: as if the process had been stopped
    await trio.sleep(STALE_S + 1)
    server.content[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + HEARTBEAT_BYTES] = b.heartbeat().encode()
    with pytest.raises(MemberError, match="in use by process 2 on beta"):
        await first.writev(4096, [b"wrong"])
    assert server.content[4096:4101] == b"first"
    first.close()


class CutAtABeat(MemoryServer):
    """Is not reached any more once a heartbeat was sent that comes late: when it *lands*."""

    armed = False
    late: bytes = b""

    def carry_out(self, link: Server, request: Request) -> list[Piece]:
        kind = request.command, request.offset_bytes
        if self.armed and kind == (Command.WRITE, HEARTBEAT_OFFSET):
            self.late, self.armed, self.running = bytes(request.payload), False, False
            self.cut()
            return []
        return super().carry_out(link, request)

    def land(self) -> None:
        assert self.late
        self.content[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + HEARTBEAT_BYTES] = self.late


async def test_a_beat_that_lands_late_gives_nobody_a_member_back(b: Holder) -> None:
    server = CutAtABeat(SIZE_BYTES)
    server.content[: len(SUPERBLOCK)] = SUPERBLOCK
    first = opened(server, A)
    await first.writev(4096, [b"first"])
    server.armed = True
    await trio.sleep(STALE_S + HEARTBEAT_S)
    second = NbdMember("nbd://rig/disk", lambda: MemoryPipe(server), holder=b)
    await second.writev(4096, [b"other"])
    server.land()
    assert held(server).holder == A.uid
    server.running = True
    with pytest.raises(MemberError, match="in use by process 2 on beta"):
        await first.writev(8192, [b"wrong"])
    await second.writev(4096, [b"again"])
    assert held(server).holder == b.uid
    assert server.content[4096:4101] == b"again"
    assert not any(server.content[8192:8197])
    first.close()
    second.close()


async def test_a_holder_alone_gets_its_member_back_although_a_beat_of_it_lands_late() -> None:
    server = CutAtABeat(SIZE_BYTES)
    server.content[: len(SUPERBLOCK)] = SUPERBLOCK
    first = opened(server, A)
    await first.writev(4096, [b"first"])
    server.armed = True
    await trio.sleep(STALE_S)
    server.land()
    server.running = True
    begun_s = trio.current_time()
    await first.writev(8192, [b"again"])
    assert trio.current_time() - begun_s <= STALE_S + RETRY_MAX_S + TICK_S
    assert server.content[8192:8197] == b"again"
    first.close()


async def test_a_connection_that_is_lost_between_two_looks_of_a_recovery_is_made_again() -> None:
    """Nothing is under way then: no answer is missed, but the next look would have none."""

    server = CutAtABeat(SIZE_BYTES)
    server.content[: len(SUPERBLOCK)] = SUPERBLOCK
    first = opened(server, A)
    await first.writev(4096, [b"first"])
    server.armed = True
    await trio.sleep(STALE_S)
    server.running = True
    server.requests.clear()
    page = Command.READ, HEARTBEAT_OFFSET, HEARTBEAT_BYTES
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.writev, 8192, [b"again"])
        await trio.sleep_until(STALE_S + RETRY_MAX_S + 2.5 * heartbeat.LOOK_S)
        reads, dials = server.requests.count(page), server.dials
        assert reads > 2, "it watches its page"
        server.cut()
        limit_s = STALE_S + RETRY_MAX_S + TICK_S
        nursery.cancel_scope.deadline = trio.current_time() + limit_s
    assert server.content[8192:8197] == b"again"
    assert server.dials == dials + 1
    first.close()


async def test_a_recovery_that_takes_longer_than_the_fence_keeps_the_lock() -> None:
    """The heartbeats of the holder wait for its end; without others no copy could go out."""

    server = made()
    first = opened(server, A)
    for number in range(400):
        await first.writev(8192 + 512 * number, [b"x" * 512])
    server.kill()
    server.restart()
    server.delay_s = heartbeat.CLAIM_S / 2
    begun_s = trio.current_time()
    with trio.fail_after(STALE_S):
        await first.writev(4096, [b"again"])
    assert trio.current_time() - begun_s > FENCE_S
    assert server.dials == 2
    first.close()


async def test_an_export_that_came_back_without_its_content_is_refused() -> None:
    server = made()
    first = opened(server, A)
    await first.writev(4096, [b"x"])
    await first.flush()
    server.durable[:] = bytes(SIZE_BYTES)
    server.kill()
    server.restart()
    with pytest.raises(MemberError, match="its beat is gone: the export has lost content"):
        await first.writev(4096, [b"y"])
    first.close()


async def test_content_of_others_is_not_touched_before_the_first_write(b: Holder) -> None:
    server = MemoryServer(SIZE_BYTES)
    server.content[:] = before = bytes(range(256)) * (SIZE_BYTES // 256)
    member = opened(server, A)
    await member.readv(0, [bytearray(4096)])
    member.close()
    reader = opened(server, b, read_only=True)
    reader.close()
    await trio.sleep(5)
    assert server.content == before
    member = opened(server, A)
    await member.writev(0, [SUPERBLOCK])
    assert held(server).holder == A.uid
    member.close()


async def test_erasing_the_superblock_area_keeps_the_beat() -> None:
    server = made()
    member = opened(server, A)
    await member.writev(0, [bytes(128 << 10)])
    assert held(server).held
    assert not any(server.content[:HEARTBEAT_OFFSET])
    await member.writev(HEARTBEAT_OFFSET + 100, [bytes(HEARTBEAT_BYTES)])
    assert held(server).held
    assert await member.punch(0, 256 << 10)
    assert held(server).held
    assert not any(server.content[HEARTBEAT_OFFSET + HEARTBEAT_BYTES :])
    member.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_lock_that_comes_as_the_last_one_goes_gets_heartbeats(seed: int) -> None:
    class Noted:
        held = True
        sent = 0

        async def heartbeat(self) -> None:
            self.sent += 1
            await trio.sleep(10)  # it is under way when the lock is released

        async def guard(self) -> None: ...

    async def main() -> None:
        holder = Holder(b"h" * 16, "process 3 on gamma")
        first, second = Noted(), Noted()
        holder.send_for(first)
        await trio.sleep(1.5 * HEARTBEAT_S)
        first.held = False
        await trio.sleep(0.5 * HEARTBEAT_S)  # as the task finds no lock any more, or just not yet
        holder.send_for(second)
        await trio.sleep(2.5 * HEARTBEAT_S)
        assert second.sent
        second.held = False

    run(main, seed=seed)
