"""A server that answers nothing: who waits for it, and for how long."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.members.base import WrapperMember
from raidx_fuse.members.nbd.member import NbdMember
from raidx_fuse.members.nbd.pipe import Piece
from raidx_fuse.members.nbd.protocol.server import Request, Server
from raidx_fuse.members.nbd.protocol.wire import Command
from raidx_fuse.store.queue import FLUSH, CountdownLatch, MemberQueue, Operation
from tests.support.nbd_server import MemoryServer

SIZE_BYTES = 1 << 20
PAGE = 4096


def made(server: MemoryServer) -> NbdMember:
    return NbdMember("nbd://rig/disk", server.dial, lock=False)


class Mute(MemoryServer):
    """Answers nothing from the first write on that comes while it is *mute*."""

    mute = False
    wrote = False

    def carry_out(self, link: Server, request: Request) -> list[Piece]:
        self.wrote = self.mute and (self.wrote or request.command == Command.WRITE)
        return [] if self.wrote else super().carry_out(link, request)


@pytest.mark.parametrize("recovers", [False, True])
async def test_a_server_that_answers_nothing_ends_a_command(recovers: bool) -> None:
    """No queue limits the time of its requests; *recovers*: its connection was just made again."""

    server = Mute(SIZE_BYTES, witness=True)
    member = made(server)
    await member.writev(0, [b"answered"])
    server.mute = True
    if recovers:
        server.kill()
        server.restart()
    begun_s = trio.current_time()
    with trio.fail_after(100), pytest.raises(MemberError, match="no answer within 60 s") as no:
        await member.writev(PAGE, [b"x" * PAGE])
    assert str(no.value).startswith("nbd://rig/disk: write at byte 4096 failed")
    assert "look at its server" in str(no.value)
    assert 60 <= trio.current_time() - begun_s < 70
    member.close()


async def test_a_server_that_answers_now_and_then_is_waited_for() -> None:
    member = made(MemoryServer(SIZE_BYTES, delay_s=50.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"x" * PAGE])
        await trio.sleep(30)
        nursery.start_soon(member.flush)
        nursery.start_soon(partial(member.writev, PAGE, [b"x" * PAGE]))
    member.close()


async def test_where_a_queue_limits_the_time_a_long_flush_is_waited_for() -> None:
    server = MemoryServer(SIZE_BYTES)
    member = made(server)
    await member.writev(0, [b"x" * PAGE])
    async with trio.open_nursery() as nursery:
        queue = MemberQueue(WrapperMember(member), nursery, trio.current_time)
        server.delay_s = 250.0
        latch = CountdownLatch(1)
        flush = Operation(queue, FLUSH, 0, (), 0)
        queue.submit(flush, latch)
        await latch.wait()
        nursery.cancel_scope.cancel()
    assert flush.error is None
    assert trio.current_time() >= 250
    assert server.dials == 1
    member.close()
