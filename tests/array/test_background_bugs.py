"""A bug in a background task: the array closes in order, reports it, and never hangs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import WriteBuffer
from raidx_fuse.members.ram import RamMember
from tests.support.reasons import because

MIB = 1 << 20


class Quirky(RamMember):
    """A member that suspends, and whose reads meet a bug once *broken*."""

    broken = False

    def try_readv(self, offset_bytes: int, buffers: Any) -> bool:
        return super().try_readv(offset_bytes, buffers) if not self.broken else False

    async def readv(self, offset_bytes: int, buffers: Any) -> None:
        await trio.sleep(0.001)
        if self.broken:
            raise TypeError("a member with a bug")
        super().try_readv(offset_bytes, buffers)


async def wrong(*_args: Any) -> Any:
    raise TypeError("a bug")


async def place(array: Array) -> None:
    array.context.journal.place = wrong  # type: ignore[method-assign,assignment]
    await array.write(0, b"logged")


async def clean(array: Array) -> None:
    array.context.dirty_bitmap.clean_quiet = wrong  # type: ignore[method-assign,assignment]


async def scrub(array: Array) -> None:
    def prepare() -> None:
        raise KeyError("a bug")

    job_id = await array.start_scrub(repair=False)
    array.jobs._jobs[job_id].prepare = prepare  # type: ignore[assignment]


async def publish(array: Array) -> None:
    array.member_set._write_superblocks = wrong  # type: ignore[method-assign]
    array.member_set.publish_soon()


async def watch(array: Array) -> None:
    def expire(_timeout_s: float) -> None:
        raise ZeroDivisionError

    queue = array.member_set.queues[0]
    assert queue is not None
    queue.expire = expire  # type: ignore[assignment,method-assign]


async def member(array: Array) -> None:
    await array.write(64 << 10, bytes(64 << 10))
    await trio.sleep(3)
    queue = array.member_set.queues[1]
    assert queue is not None
    assert isinstance(queue.member, Quirky)
    queue.member.broken = True

    async def ask() -> None:
        await array.read(64 << 10, 64 << 10)

    array.nursery.start_soon(ask)


@pytest.mark.parametrize("meet", [place, clean, scrub, publish, watch, member])
async def test_a_bug_ends_the_array_in_order(meet: Callable[[Array], Awaitable[None]]) -> None:
    members = [Quirky(MIB, name=f"d{n}") for n in range(4)]
    await create_array(members, "raid5", name="disk", now_s=0, chunk_bytes=4096)
    came_after = False
    with trio.fail_after(3600):
        with pytest.raises(RaidxError, check=because(Reason.BUG)) as caught:  # noqa: PT012
            async with open_array(members) as array:
                await array.write(100, b"flushed")
                await array.flush()
                await meet(array)
                await trio.sleep(600)
                came_after = True
        assert "\n" not in str(caught.value)
    assert not came_after, "nobody told whoever uses the array"
    for one in members:
        one.broken = False
    async with open_array(members) as array:
        assert bytes(await array.read(100, 7)) == b"flushed"
        assert not array.member_set.lost, "nobody is failed for a bug"


async def test_a_bug_while_it_is_closed_does_not_hang() -> None:
    members = [Quirky(MIB, name=f"d{n}") for n in range(4)]
    await create_array(members, "raid5", name="disk", now_s=0, chunk_bytes=4096)

    async def never(*_args: Any) -> None:
        async def late() -> None:
            await trio.sleep(5)
            raise TypeError("a bug")

        array.nursery.start_soon(late)
        queue = array.member_set.queues[2]
        assert queue is not None
        queue.member = Stuck(queue.member)
        await array.member_set.read([(2, 0, [bytearray(4096)], 4096)])

    with trio.fail_after(3600), pytest.raises(RaidxError):  # noqa: PT012
        async with open_array(members) as array:
            await array.write(100, b"flushed")
            await array.flush()
            array.context.journal.drain = never  # type: ignore[method-assign,assignment]
    async with open_array(members) as array:
        assert bytes(await array.read(100, 7)) == b"flushed"


class Stuck(RamMember):
    """Never answers."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.size_bytes, name=inner.path)

    def try_readv(self, offset_bytes: int, buffers: Any) -> bool:
        return False

    async def readv(self, offset_bytes: int, buffers: list[WriteBuffer]) -> None:  # type: ignore[override]
        await trio.sleep_forever()
