"""sums=on and off: requests go on meanwhile, and whatever ends it early leaves the tables sound."""

from __future__ import annotations

import errno
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.jobs.move_sums import MovedSums
from raidx_fuse.lab.crash.sums import check_calm, check_whole
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member, WrapperMember
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, ram_array

CHUNK = 16 << 10


class SlowToEmpty(WrapperMember):
    """Punches holes only when *go* is set; with *fails*, never."""

    def __init__(self, inner: Member) -> None:
        super().__init__(inner)
        self.go = trio.Event()
        self.begun = trio.Event()
        self.fails = False

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        self.begun.set()
        await self.go.wait()
        if self.fails:
            raise MemberError(self.path, "punch", offset_bytes, errno.EIO)
        return await self.inner.punch(offset_bytes, length_bytes)


@pytest.mark.parametrize(
    "end", ["done", "fails", "cancelled", "unmounted", "off", "a member fails"]
)
async def test_requests_go_on_while_tables_become_empty_and_any_end_leaves_them_sound(
    end: str,
) -> None:
    members = await ram_array("raid5", 4, 4 << 20, chunk_bytes=CHUNK, sums=True)
    last = SlowToEmpty(members[3])
    async with open_array(members) as array:
        region = array.member_set.config.regions.sums
        await array.write(0, random.Random(1).randbytes(1 << 20))
        await array.set("sums", "off")
        content = random.Random(2).randbytes(1 << 20)
        await array.write(0, content)

    def tables() -> list[bool]:
        return [any(member.memory[region.offset : region.end]) for member in members]

    assert all(tables())
    refused: list[BaseException] = []

    async def switch(array: Array, value: str = "on") -> None:
        try:
            await array.set("sums", value)
        except RaidxError as error:
            refused.append(error)

    async with open_array([*members[:3], last]) as array:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(switch, array)
            await last.begun.wait()
            assert tables() == [False, False, False, True]
            with trio.fail_after(5):  # far less than it takes
                await array.write(0, content[CHUNK : 2 * CHUNK])
                content = content[CHUNK : 2 * CHUNK] + content[CHUNK:]
                assert await array.read(0, len(content)) == content
            last.fails = end == "fails"
            if end == "a member fails":
                array.member_set.fail(Role(1), "for the test")
            if end == "off":
                nursery.start_soon(switch, array, "off")
                await wait_all_tasks_blocked()
            if end in ("cancelled", "unmounted"):
                nursery.cancel_scope.cancel()
            else:
                last.go.set()
        begins = end == "done"
        assert (array.member_set.sums is not None) == begins
        assert len(refused) == (end in ("fails", "a member fails"))
        last.fails = False
        last.go.set()
        if end in ("fails", "cancelled"):
            await array.set("sums", "on")
            begins = True
        await jobs_ended(array)
        assert await array.read(0, len(content)) == content
    async with open_array(members) as array:
        assert (array.member_set.sums is not None) == begins
        assert await array.read(0, len(content)) == content
        if begins:
            await check_whole(array)


async def test_a_switch_and_a_change_of_members_come_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change moves tables; those of a switch meanwhile would have another seed."""
    members = await ram_array("raid5", 4, sums=True, with_volume=False)
    prepare = MovedSums.prepare
    async with open_array(members) as array, trio.open_nursery() as nursery:

        async def switch() -> None:
            for value in ("off", "on"):
                await array.set("sums", value)

        async def and_switch(moved: MovedSums) -> None:
            await prepare(moved)
            nursery.start_soon(switch)
            await trio.sleep(1)

        await array.write(0, random.Random(1).randbytes(100 << 10))
        monkeypatch.setattr(MovedSums, "prepare", and_switch)
        await array.grow([RamMember(1 << 20, name="new")])
        monkeypatch.setattr(MovedSums, "prepare", prepare)
        await trio.sleep(1)
        await jobs_ended(array)
        used = [queue.member for queue in array.member_set.queues if queue]
    async with open_array(used) as array:
        assert array.get("sums") == "on"
        await check_whole(array, complete=False)
        check_calm([array], "after the growth", after_crash=False)
