"""The contract of every kind of member: subclass `MemberContract` and give it a ``member`` fixture.

The fixture returns a writable, new member of at least 4 MiB. Each test runs in virtual time; tests
for which it matters run twice: with the synchronous ``try_`` calls and with the async ones.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio

from raidx_fuse.errors import MemberError, ShorterError
from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember, WriteBuffer
from raidx_fuse.members.local import LocalMember
from raidx_fuse.members.simulated.faulty import FaultMember

SIZE_BYTES_MIN = 4 << 20


async def read(member: Member, offset_bytes: int, length_bytes: int) -> bytes:
    """Read as the engine does: synchronously if the member can, else asynchronously."""
    buffer = bytearray(length_bytes)
    if not member.try_readv(offset_bytes, [buffer]):
        await member.readv(offset_bytes, [buffer])
    return bytes(buffer)


async def write(member: Member, offset_bytes: int, *buffers: ReadBuffer) -> None:
    """Write as the engine does."""
    if not member.try_writev(offset_bytes, buffers):
        await member.writev(offset_bytes, buffers)


async def refused(call: Callable[[], Awaitable[object] | bool]) -> int:
    """Return the errno that *call* is refused with; fails when it is done or "would block"."""
    try:
        result = call()
        if isinstance(result, bool):
            assert not result, "it was done"
            return 0
        await result
    except MemberError as error:
        return error.errno
    raise AssertionError("it was done")


def cut_off(member: Member, left_bytes: int) -> bool:
    """Let *member* become shorter behind its back; return False if its kind cannot."""
    while not isinstance(member, FaultMember):
        if isinstance(member, LocalMember) and member.kind == "file":
            os.truncate(member.path, left_bytes)
            return True
        if not isinstance(member, WrapperMember):
            return False
        member = member.inner
    member.shorten(left_bytes)
    return True


class MemberContract:
    """The tests. Order, sizes and places are drawn from fixed seeds."""

    def test_attributes_describe_it(self, member: Member) -> None:
        assert member.size_bytes >= SIZE_BYTES_MIN
        assert member.depth >= 1
        assert member.kind
        assert member.path
        assert not member.read_only

    async def test_one_that_has_become_shorter_is_not_extended_and_says_so(
        self, member: Member
    ) -> None:
        left, piece = member.size_bytes // 3 // 4096 * 4096, random.Random(1).randbytes(4096)
        await write(member, 0, piece)
        assert member.try_check_whole() in (True, False)
        await member.check_whole()
        if not cut_off(member, left):
            return
        end = member.size_bytes - 4096
        calls: list[Callable[[], Awaitable[object] | bool]] = [
            lambda: member.try_writev(end, [piece]),
            lambda: member.writev(end, [piece]),
            lambda: member.try_writev(0, [piece]),
            lambda: member.writev(0, [piece]),
            lambda: member.try_writes([(end, [piece], 4096)]) > 0,
            lambda: member.try_readv(end, [bytearray(4096)]),
            lambda: member.readv(end, [bytearray(4096)]),
            member.try_check_whole,
            member.check_whole,
            member.flush,
            lambda: member.punch(0, 4096),
        ]
        for call in calls:  # each may be the first to see it
            assert await refused(call) in (errno.EIO, 0)
        with pytest.raises(ShorterError):
            await member.check_whole()
        assert await read(member, 0, 4096) == piece, "what is left can be read"
        if isinstance(member, LocalMember):
            assert os.stat(member.path).st_size == left
            os.truncate(member.path, member.size_bytes)
            with pytest.raises(ShorterError):  # zeros, where content was
                await read(member, end, 4096)

    async def test_unwritten_bytes_read_as_zero_if_it_says_so(self, member: Member) -> None:
        content = await read(member, 12345, 70000)
        assert not member.reads_zero or content == bytes(70000)

    async def test_equals_a_bytearray(self, member: Member) -> None:
        generator = random.Random(1)
        model = bytearray(await read(member, 0, SIZE_BYTES_MIN))
        for step in range(150):
            length = generator.choice((1, 511, 512, 4096, 5000, 65536))
            offset = generator.randrange(len(model) - length + 1)
            cut = generator.randrange(length + 1)
            if step % 3:
                data = generator.randbytes(length)
                pieces: Sequence[ReadBuffer] = [data[:cut], memoryview(data)[cut:]]
                done = bool(step % 2) and member.try_writev(offset, pieces)
                if not done:
                    await member.writev(offset, pieces)
                model[offset : offset + length] = data
            else:
                buffers: Sequence[WriteBuffer] = [bytearray(cut), bytearray(length - cut)]
                done = bool(step % 2) and member.try_readv(offset, buffers)
                if not done:
                    await member.readv(offset, buffers)
                assert b"".join(buffers) == model[offset : offset + length]
        assert await read(member, 0, len(model)) == model

    async def test_a_refusal_to_block_writes_nothing(self, member: Member) -> None:
        await write(member, 0, b"\xaa" * 8192)
        for at in range(0, 8192, 512):
            before = await read(member, at, 512)
            done = member.try_writev(at, [b"\x55" * 512])
            assert await read(member, at, 512) == (b"\x55" * 512 if done else before)

    async def test_writes_in_a_row_stop_before_the_first_that_is_not_done(
        self, member: Member
    ) -> None:
        writes = [(at, [b"\x55" * 100, b"\x66" * 156], 256) for at in range(0, 4096, 512)]
        done = member.try_writes(writes)
        assert 0 <= done <= len(writes)
        for number, (at, buffers, size) in enumerate(writes):
            assert await read(member, at, size) == (
                b"".join(buffers) if number < done else bytes(size)
            )
        if done:
            outside = (member.size_bytes - 100, [b"x" * 256], 256)
            assert member.try_writes([writes[0], outside, writes[1]]) == 1
            assert await read(member, outside[0], 100) == bytes(100)
        await member.flush()
        member.close()
        assert await refused(lambda: bool(member.try_writes(writes))) in (0, errno.ENODEV)

    async def test_reads_in_a_row_stop_before_the_first_that_is_not_done(
        self, member: Member
    ) -> None:
        content = random.Random(2).randbytes(4096)
        await write(member, 0, content)
        reads = [(at, [bytearray(100), bytearray(156)], 256) for at in range(0, 4096, 512)]
        reads += [(at, [bytearray(256)], 256) for at in range(256, 4096, 512)]
        done = member.try_reads(reads)
        assert 0 <= done <= len(reads)
        for at, buffers, size in reads[:done]:
            assert b"".join(buffers) == content[at : at + size]
        if done:
            outside = (member.size_bytes - 100, [bytearray(256)], 256)
            assert member.try_reads([reads[-1], outside, reads[0]]) == 1
        member.close()
        assert await refused(lambda: bool(member.try_reads(reads))) in (0, errno.ENODEV)

    async def test_first_and_last_byte_and_nothing_at_all(self, member: Member) -> None:
        last = member.size_bytes - 1
        await write(member, 0, b"a")
        await write(member, last, b"z")
        assert await read(member, 0, 1) == b"a"
        assert await read(member, last, 1) == b"z"
        await write(member, 5, b"")
        assert await read(member, last, 0) == b""

    async def test_ranges_outside_are_refused_whole(self, member: Member) -> None:
        end = member.size_bytes
        await write(member, end - 512, b"k" * 512)
        for offset in (-1, -512, end - 511, end, end + 4096):
            data, buffer = [b"x" * 512], [bytearray(512)]
            assert await refused(partial(member.writev, offset, data)) == errno.EINVAL
            assert await refused(partial(member.readv, offset, buffer)) == errno.EINVAL
            inline = (0, errno.EINVAL)
            assert await refused(partial(member.try_writev, offset, data)) in inline
            assert await refused(partial(member.try_readv, offset, buffer)) in inline
        assert await read(member, end - 512, 512) == b"k" * 512
        assert member.size_bytes == end

    async def test_more_buffers_than_one_system_call_takes(self, member: Member) -> None:
        data = random.Random(2).randbytes(3000 * 7)
        pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
        for offset in (0, 1 << 20):
            done = not offset and member.try_writev(offset, pieces)
            if not done:
                await member.writev(offset, pieces)
            buffers = [bytearray(7) for _ in pieces]
            done = not offset and member.try_readv(offset, buffers)
            if not done:
                await member.readv(offset, buffers)
            assert b"".join(buffers) == data

    async def test_three_mebibytes_at_once(self, member: Member) -> None:
        data = random.Random(3).randbytes(3 << 20)
        await write(member, 12345, data)
        assert await read(member, 12345, len(data)) == data

    async def test_many_operations_at_once(self, member: Member) -> None:
        async def one(number: int) -> None:
            data = bytes([number]) * 3000
            await member.writev(number * 3000, [data])
            buffer = bytearray(3000)
            await member.readv(number * 3000, [buffer])
            assert buffer == data

        async with trio.open_nursery() as nursery:
            for number in range(3 * member.depth + 40):
                nursery.start_soon(one, number % 256)

    async def test_flush_when_clean_dirty_and_twice_at_once(self, member: Member) -> None:
        await member.flush()
        await write(member, 4096, b"flushed")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.flush)
            nursery.start_soon(member.flush)
        await member.writev(8192, [b"too"])
        await member.flush()
        assert await read(member, 4096, 7) == b"flushed"
        assert await read(member, 8192, 3) == b"too"

    async def test_a_punched_range_reads_as_zero_and_its_neighbours_stay(
        self, member: Member
    ) -> None:
        full = b"\xff" * (1 << 20)
        for begin, length in ((4096, 65536), (5000, 300), (8191, 700002), (0, 1 << 20)):
            await write(member, 0, full)
            punched = await member.punch(begin, length)
            expected = bytearray(full)
            if punched:
                expected[begin : begin + length] = bytes(length)
            assert await read(member, 0, len(full)) == expected

    async def test_views_show_what_a_read_returns(self, member: Member) -> None:
        await write(member, 10000, b"seen")
        view = member.view(10000, 4)
        if view is not None:
            assert bytes(view) == b"seen"
            assert view.readonly
            await write(member, 10001, b"o")
            assert bytes(view) == b"soen"
        writable = member.writable_view(20000, 4)
        if writable is not None:
            writable[:] = b"here"
            assert await read(member, 20000, 4) == b"here"

    async def test_extents_name_all_that_is_not_zero(self, member: Member) -> None:
        places = (0, 70000, (2 << 20) + 5, member.size_bytes - 10)
        for place in places:
            await write(member, place, b"0123456789")
        for begin, length in ((0, member.size_bytes), (70003, 3 << 20), (300000, 1000)):
            end = begin + length
            position = begin
            covered = bytearray(length)
            for offset, size in member.data_extents(begin, length):
                assert position <= offset < offset + size <= end
                position = offset + size
                covered[offset - begin : position - begin] = b"\1" * size
            if member.reads_zero:
                for place in places:
                    low, high = max(begin, place), min(end, place + 10)
                    assert all(covered[low - begin : max(low, high) - begin])

    async def test_reserving_changes_nothing(self, member: Member) -> None:
        await write(member, 65536, b"stays")
        before = await read(member, 0, 1 << 20)
        member.reserve(0, 1 << 20)
        assert await read(member, 0, 1 << 20) == before

    async def test_goes_on_after_a_cancelled_operation(self, member: Member) -> None:
        await write(member, 0, b"old" * 1000)
        for call in (member.readv, member.writev):
            with trio.CancelScope() as scope:
                scope.cancel()
                await call(0, [bytearray(b"new" * 1000)])
        for _ in range(3):
            await member.writev(0, [b"end"])
            await member.flush()
        buffer = bytearray(3)
        await member.readv(0, [buffer])
        assert buffer == b"end"

    async def test_closing_twice_and_using_it_afterwards(self, member: Member) -> None:
        await write(member, 0, b"x")
        member.close()
        member.close()
        assert await refused(lambda: member.readv(0, [bytearray(1)])) == errno.ENODEV
        assert await refused(lambda: member.writev(0, [b"y"])) == errno.ENODEV
        assert await refused(member.flush) == errno.ENODEV
        assert await refused(lambda: member.try_readv(0, [bytearray(1)])) in (0, errno.ENODEV)
        assert await refused(lambda: member.try_writev(0, [b"y"])) in (0, errno.ENODEV)
