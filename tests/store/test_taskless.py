"""Operations that a member carries out without a worker: every law of the queue holds for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from raidx_fuse.errors import MemberError
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.store.queue import READ, WRITE, CountdownLatch, MemberQueue, Operation
from tests.support.closing import entered

SIZE = 1 << 20
ERROR = MemberError("disk", "read", 0, 5)
Done = Callable[[MemberError | None], None]


class Messages(RamMember):
    """Begins operations; the test ends them. *by_worker* counts what came by a worker."""

    begins = True

    def __init__(self) -> None:
        super().__init__(SIZE)
        self.depth = 2
        self.begun: list[tuple[bool, int, Done]] = []
        self.refuses = False
        self.by_worker = 0

    def try_readv(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return False

    def begin(
        self, is_write: bool, offset_bytes: int, buffers: Sequence[ReadBuffer], done: Done
    ) -> bool:
        if self.refuses:
            return False
        self.begun.append((is_write, offset_bytes, done))
        return True

    async def readv(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        self.by_worker += 1
        await trio.sleep(1)


@asynccontextmanager
async def queued() -> AsyncIterator[tuple[Messages, MemberQueue]]:
    member = Messages()
    async with trio.open_nursery() as nursery:
        yield member, MemberQueue(member, nursery, trio.current_time)
        nursery.cancel_scope.cancel()


def ask(queue: MemberQueue, count: int, kind: str = READ) -> tuple[CountdownLatch, list[Operation]]:
    latch = CountdownLatch(count)
    operations = [Operation(queue, kind, 4096 * n, [bytearray(512)], 512) for n in range(count)]
    for operation in operations:
        queue.submit(operation, latch)
    return latch, operations


async def test_so_many_are_under_way_and_the_others_follow() -> None:
    member, queue = await entered(queued())
    latch, operations = ask(queue, 5)
    await trio.testing.wait_all_tasks_blocked()
    for number in range(5):
        assert len(member.begun) == min(number + 2, 5)
        member.begun[number][2](None)
    await latch.wait()
    assert [place for _, place, _ in member.begun] == [4096 * n for n in range(5)]
    assert not member.by_worker
    assert queue.reads == 5
    assert not any(operation.error for operation in operations)


async def test_an_error_is_the_first_of_two_tries() -> None:
    member, queue = await entered(queued())
    latch, (operation,) = ask(queue, 1)
    member.begun[0][2](ERROR)
    await latch.wait()
    assert member.by_worker == 1
    assert operation.error is None
    latch, _ = ask(queue, 1)  # trusted again
    assert len(member.begun) == 2
    member.begun[1][2](None)
    await latch.wait()


async def test_what_a_member_cannot_begin_a_worker_does() -> None:
    member, queue = await entered(queued())
    member.refuses = True
    latch, _ = ask(queue, 3)
    await latch.wait()
    assert member.by_worker == 3
    assert trio.current_time() == pytest.approx(2), "two at a time"


async def test_a_write_without_an_answer_is_overdue_until_it_ends() -> None:
    member, queue = await entered(queued())
    latch, (operation,) = ask(queue, 1, WRITE)
    await trio.sleep(31)
    assert queue.expire(30) == [operation]
    await latch.wait()
    assert operation.error is not None
    assert member.overdue == ((0, 512),)
    latch, (newer,) = ask(queue, 1, WRITE)
    await latch.wait()
    assert newer.error is not None, "it must not land under the older one"
    member.begun[0][2](None)
    assert not member.overdue


async def test_nothing_is_left_waiting_when_the_tasks_of_the_array_end() -> None:
    member = Messages()
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            queue = MemberQueue(member, nursery, trio.current_time)
            latch, (operation, _) = ask(queue, 2)
            outer.start_soon(latch.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await latch.wait()
        assert operation.error is not None
