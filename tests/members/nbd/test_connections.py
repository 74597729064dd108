"""NBD members whose server is cut off, killed, or slow: nothing that was answered is lost."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest
import trio

from raidx_fuse.errors import MemberError, ungrouped
from raidx_fuse.members.nbd.member import LARGE_BYTES, Copies, NbdMember
from raidx_fuse.members.nbd.pipe import Piece
from raidx_fuse.members.nbd.protocol.server import Request, Server
from raidx_fuse.members.nbd.protocol.wire import Command, Errno, Flag
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.nbd_server import CHANGES, FLAGS, MemoryPipe, MemoryServer

SIZE_BYTES = 1 << 20
PAGE = 4096


def made(server: MemoryServer) -> NbdMember:
    return NbdMember("nbd://rig/disk", server.dial, lock=False)


async def read(member: NbdMember, offset_bytes: int, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    await member.readv(offset_bytes, [buffer])
    return bytes(buffer)


async def test_requests_under_way_are_sent_again_after_a_cut() -> None:
    server = MemoryServer(SIZE_BYTES, delay_s=1.0)
    member = made(server)
    server.content[:5] = b"there"
    answers = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"written"])
        nursery.start_soon(member.flush)

        async def reader() -> None:
            answers.append(await read(member, 100_000, 3))

        nursery.start_soon(reader)
        await trio.sleep(0.5)
        server.cut()
    assert answers == [bytes(3)]
    assert server.content[:7] == b"written"
    assert server.dials == 2
    assert sum(kind == Command.WRITE for kind, _, _ in server.requests) == 2
    member.close()


async def test_a_newer_write_does_not_overtake_one_of_a_lost_connection() -> None:
    """The late copy is carried out 20 s after the cut, by a server that nobody can ask."""

    server = MemoryServer(SIZE_BYTES, delay_s=0.1)
    server.late_s = 20.0
    member = made(server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"old" * 1000])
        await trio.sleep(0.05)
        server.cut()
    assert await read(member, 0, 3) == b"old"
    with pytest.raises(MemberError, match="may still land") as refused:
        await member.writev(2000, [b"new"])
    assert refused.value.errno == errno.EIO
    await member.writev(3000, [b"beside"])
    await trio.sleep(30)
    assert server.content[:3] == b"old"
    assert server.content[3000:3006] == b"beside"
    member.close()


async def test_a_newer_write_waits_for_the_end_of_the_server_that_holds_an_older_one() -> None:
    server = MemoryServer(SIZE_BYTES, delay_s=0.1, witness=True)
    server.late_s = 20.0
    member = made(server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"old" * 1000])
        await trio.sleep(0.05)
        server.cut()
    done_s = []

    async def newer() -> None:
        await member.writev(2000, [b"new"])
        done_s.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(newer)
        await trio.sleep(5)
        assert not done_s
        server.kill()
        server.restart()
    assert 5 < done_s[0] < 6
    await trio.sleep(30)
    assert server.content[2000:2003] == b"new"
    member.close()


async def test_answered_writes_that_a_killed_server_had_not_flushed_are_written_again() -> None:
    server = MemoryServer(SIZE_BYTES, witness=True)
    member = made(server)
    await member.writev(0, [b"a" * PAGE])
    await member.flush()
    await member.writev(0, [b"b" * 100])
    await member.writev(50, [b"c" * 100])
    assert await member.punch(PAGE, PAGE)
    server.kill()
    server.restart()
    server.requests.clear()
    await member.flush()
    assert server.durable[:150] == b"b" * 50 + b"c" * 100
    assert server.durable[150:PAGE] == b"a" * (PAGE - 150)
    copies = {(Command.WRITE_ZEROES, PAGE, PAGE), (Command.WRITE, 50, 100), (Command.WRITE, 0, 50)}
    assert set(server.requests[:3]) == copies
    assert server.requests[3:] == [(Command.FLUSH, 0, 0)]
    server.requests.clear()
    server.kill()
    server.restart()
    assert await read(member, 0, 1) == b"b"
    assert not [each for each in server.requests if each[0] in CHANGES]
    member.close()


class Resets(MemoryServer):
    """Breaks the connection at the *reset_at*-th sending over those that are made from now on."""

    reset_at = 0

    def dial(self) -> MemoryPipe:
        self.dials += 1
        pipe = ResetPipe(self)
        self.pipes.append(pipe)
        return pipe


class ResetPipe(MemoryPipe):
    server: Resets

    def try_send(self, pieces: Sequence[Piece]) -> bool:
        self.server.reset_at -= 1
        if not self.server.reset_at:
            self.cut()
        return super().try_send(pieces)


@pytest.mark.parametrize("reset_at", range(1, 4))
async def test_a_connection_that_is_reset_again_as_it_is_given_the_requests(reset_at: int) -> None:
    """The first sendings are those of the recovery, the next one is made by whoever hands over."""

    server = Resets(SIZE_BYTES, witness=True, delay_s=0.1)
    member = made(server)
    for page in range(3):
        await member.writev(page * PAGE, [b"a" * PAGE])
    with trio.fail_after(2):
        async with trio.open_nursery() as nursery:
            for page in range(3, 6):
                nursery.start_soon(partial(member.writev, page * PAGE, [b"a" * PAGE]))
            await trio.sleep(0.05)
            server.kill()
            server.restart()
            server.reset_at = reset_at
    assert server.reset_at <= 0
    await member.flush()
    assert server.durable[: 6 * PAGE] == b"a" * 6 * PAGE
    member.close()


async def test_copies_that_may_still_land_after_a_failed_recovery_are_not_settled() -> None:
    class Failing(MemoryServer):
        """Refuses writes to the third page, and has not answered others yet."""

        refuses = False

        def carry_out(self, link: Server, request: Request) -> list[Piece]:
            if not self.refuses or request.command != Command.WRITE:
                return super().carry_out(link, request)
            if request.offset_bytes == 2 * PAGE:
                return link.failed(request, Errno.EIO, "as told")
            return []

    server = Failing(SIZE_BYTES)
    member = made(server)
    for page in range(3):
        await member.writev(page * PAGE, [b"a" * PAGE])
    server.refuses = True
    server.cut()
    with pytest.raises(MemberError, match="write at byte 8192 failed: as told"):
        await read(member, 0, 1)
    assert not member.is_settled()
    member.close()


@pytest.mark.parametrize("at_s", [0.05, 0.15, 0.25])
async def test_a_member_that_is_closed_during_a_recovery_ends_all_and_sends_no_more(
    at_s: float,
) -> None:
    server = MemoryServer(SIZE_BYTES, witness=True)
    member = made(server)
    for page in range(40):
        await member.writev(page * PAGE, [b"a" * PAGE])
    server.kill()
    server.restart()
    server.delay_s = 0.1
    refused: list[int] = []

    async def write() -> None:
        try:
            await member.writev(0, [b"b" * PAGE])
        except MemberError as error:
            refused.append(error.errno)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        nursery.start_soon(write)
        await trio.sleep(at_s)
        member.close()
        nursery.cancel_scope.deadline = trio.current_time() + 1
    assert refused == [errno.ENODEV] * 2
    assert server.pipes[-1].broken
    await trio.sleep(10)
    assert server.dials == 2
    assert len(server.requests) <= 40 + 16 * 3


async def test_a_cancelled_write_leaves_the_old_or_the_new_content_over_a_killed_server() -> None:
    server = MemoryServer(SIZE_BYTES, witness=True, delay_s=0.1)
    member = made(server)
    await member.writev(0, [b"answered"])
    with trio.move_on_after(1):  # it is cancelled while it waits for a connection
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.writev, 0, [b"the next"])
            await trio.sleep(0.05)
            server.kill()
    server.restart()
    await member.flush()
    assert bytes(server.durable[:8]) in (b"answered", b"the next")
    member.close()


async def test_a_server_that_does_not_come_back_is_an_error_and_its_writes_are_overdue() -> None:
    server = MemoryServer(SIZE_BYTES, delay_s=0.1)
    member = made(server)

    async def gone() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.writev, 512, [b"x" * 512])
            await trio.sleep(0.05)
            server.running = False
            server.cut()

    with pytest.raises(MemberError, match="no connection to the server") as late, ungrouped():
        await gone()
    assert late.value.errno == errno.ETIMEDOUT
    assert 60 <= trio.current_time() < 65
    assert server.dials < 60, "the pauses between tries grow"
    assert member.overdue == ((512, 1024),)
    server.restart()
    assert await read(member, 0, 1) == b"\0"
    member.close()


async def test_another_export_in_its_place_is_refused() -> None:
    server = MemoryServer(SIZE_BYTES)
    member = made(server)
    server.export = MemoryServer(2 * SIZE_BYTES).export
    server.content += bytes(SIZE_BYTES)
    server.cut()
    with pytest.raises(MemberError, match="the export has changed"):
        await read(member, 0, 1)
    with pytest.raises(MemberError, match="the export has changed"):
        await member.writev(0, [b"x"])
    member.close()


def test_a_server_that_lies_when_a_member_is_opened_is_named() -> None:
    class Liar(MemoryServer):
        def carry_out(self, link: Server, request: Request) -> list[Piece]:
            return super().carry_out(link, request._replace(cookie=99))

    with pytest.raises(MemberError, match=r"nbd://rig/disk: open failed: .* request that was not"):
        NbdMember("nbd://rig/disk", Liar(SIZE_BYTES).dial)


async def test_errors_of_the_server_have_their_number_and_words() -> None:
    server = MemoryServer(SIZE_BYTES)
    member = made(server)
    server.failing[Command.WRITE] = Errno.ENOSPC
    with pytest.raises(MemberError, match="write at byte 512 failed: as told") as error:
        await member.writev(512, [b"x"])
    assert error.value.errno == errno.ENOSPC
    server.failing.clear()
    await member.writev(512, [b"x"])
    server.failing[Command.FLUSH] = Errno.EIO
    with pytest.raises(MemberError, match="flush failed: as told"):
        await member.flush()
    server.failing.clear()
    with pytest.raises(MemberError, match="an earlier flush lost data"):
        await member.flush()
    member.close()


async def test_a_request_that_kills_every_connection_is_an_error_in_the_end() -> None:
    """A server may crash at each write and be there again: nothing else ends `raidx create`."""

    class Crashing(MemoryServer):
        def carry_out(self, link: Server, request: Request) -> list[Piece]:
            if request.command == Command.WRITE:
                self.cut()
            return super().carry_out(link, request)

    member = made(Crashing(SIZE_BYTES))
    with trio.fail_after(200), pytest.raises(MemberError, match="over many connections") as no:
        await member.writev(0, [b"x" * PAGE])
    assert no.value.errno == errno.ETIMEDOUT
    assert trio.current_time() >= 60
    assert member.overdue, "it may still land"
    member.close()


async def test_a_server_that_shuts_down_is_waited_for() -> None:
    server = MemoryServer(SIZE_BYTES)
    member = made(server)
    server.failing[Command.WRITE] = Errno.ESHUTDOWN
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"x"])
        await trio.sleep(0.01)
        server.failing.clear()
    assert server.content[0:1] == b"x"
    member.close()


async def test_a_server_that_shuts_down_answers_what_it_has_and_bars_no_newer_write() -> None:
    """A write that was refused, or answered, is not one that may still land, without a witness."""

    server = MemoryServer(SIZE_BYTES, delay_s=0.01)
    member = made(server)
    await member.writev(0, [b"a" * PAGE])
    server.failing[Command.WRITE] = Errno.ESHUTDOWN
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.writev, 0, [b"b" * PAGE])
        await trio.sleep(0.005)
        nursery.start_soon(member.writev, PAGE, [b"c" * PAGE])
        await trio.sleep(0.007)
        server.failing.clear()  # the second one is answered
    assert member.is_settled()
    assert server.dials == 2
    await member.writev(0, [b"d" * PAGE])
    assert server.content[: 2 * PAGE] == b"d" * PAGE + b"c" * PAGE
    member.close()


@pytest.mark.parametrize(("flags", "most"), [(FLAGS, 4), (FLAGS & ~Flag.MULTI_CONN, 1)])
async def test_several_connections_only_where_the_server_allows(flags: Flag, most: int) -> None:
    server = MemoryServer(SIZE_BYTES, flags=flags, delay_s=0.01)
    member = made(server)
    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(partial(member.writev, number * PAGE, [b"x" * PAGE]))
    assert server.dials == most
    await member.flush()
    assert sum(kind == Command.FLUSH for kind, _, _ in server.requests) == 1
    await member.flush()
    assert sum(kind == Command.FLUSH for kind, _, _ in server.requests) == 1
    member.close()


async def test_copies_of_answered_writes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raidx_fuse.members.nbd.member.UNFLUSHED_BYTES_MAX", 100_000)

    server = MemoryServer(SIZE_BYTES)
    member = made(server)
    for number in range(200):
        await member.writev(number * PAGE, [b"x" * PAGE])
        assert member._links.unflushed.size_bytes < 100_000 + 2 * PAGE
    assert sum(kind == Command.FLUSH for kind, _, _ in server.requests) >= 7
    member.close()


@pytest.mark.parametrize("seed", range(40))
def test_at_random_nothing_that_was_answered_is_lost(seed: int) -> None:
    """Writes, punches, flushes and reads while the server is cut off, killed and restarted.

    A byte whose write was refused may be anything; every other byte is that of the last answered
    write, at once and after the last flush durably, whatever late copies are carried out.
    """

    async def main() -> None:
        chance = random.Random(seed)
        server = MemoryServer(64 * PAGE, delay_s=0.01, witness=bool(seed % 2))
        server.late_s = chance.choice((0.0, 0.02, 0.3))
        # A member needs 248 KiB at least, but the work is on a few pages, so that it overlaps.
        member, pages = made(server), 8
        model: list[int | None] = [0] * pages
        busy: set[int] = set()
        lossy = server.witness  # a server whose end nobody notices must not lose late requests

        async def worker(number: int) -> None:
            for step in range(25):
                page = chance.randrange(pages)
                if page in busy:
                    await trio.sleep(0.003)
                    continue
                busy.add(page)
                value = (number * 25 + step) % 255 + 1
                with suppress(MemberError):  # an older write may still land there
                    if chance.random() < 0.6:
                        await member.writev(page * PAGE, [bytes([value]) * PAGE])
                        model[page] = value
                    elif chance.random() < 0.3:
                        await member.punch(page * PAGE, PAGE)
                        model[page] = 0
                    elif chance.random() < 0.4:
                        await member.flush()
                    elif model[page] is not None:
                        content = await read(member, page * PAGE, PAGE)
                        assert content == bytes([model[page] or 0]) * PAGE
                busy.discard(page)

        async def trouble() -> None:
            for _ in range(6):
                await trio.sleep(chance.random() * 0.1)
                if lossy and chance.random() < 0.5:
                    server.kill()
                    await trio.sleep(chance.random())
                    server.restart()
                else:
                    server.cut()
            if server.witness:  # writes wait for the end of the process that holds older ones
                await trio.sleep(1)
                server.kill()
                server.restart()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            for number in range(4):
                nursery.start_soon(worker, number)
        await member.flush()
        await trio.sleep(1)
        for page, expected in enumerate(model):
            for content in (server.content, server.durable)[: 2 if not server.late_s else 1]:
                assert content[page * PAGE : (page + 1) * PAGE] == bytes([expected or 0]) * PAGE
        member.close()

    run(main, seed=seed)


def test_copies_stay_as_they_were_made() -> None:
    chance = random.Random(1)
    copies, made = Copies(), []
    for _ in range(60):  # several maps
        size = chance.choice((1, 4096, LARGE_BYTES, LARGE_BYTES + 1, 700_000, 9 << 20))
        source = bytearray(chance.randbytes(size))
        cut = chance.randrange(size)
        copy = copies.of([memoryview(source)[:cut], bytes(source[cut:])], size)
        made.append((copy, bytes(source)))
        source[:] = bytes(size)
    for number, (copy, content) in enumerate(made):
        assert bytes(copy) == content
        if number % 2:
            copy[:] = bytes(len(copy))  # they can be written, each alone
    assert all(bytes(copy) == content for copy, content in made[::2])
