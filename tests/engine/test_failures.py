"""Members that fail: tried once more, then out; superblocks say so before an acknowledgement."""

from __future__ import annotations

import errno

import pytest
import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.format.both_ends import read_superblock
from tests.support.spy import (
    FLUSH,
    WRITE,
    Touch,
    filled,
    lift,
    noise,
    placed,
    restarted,
    spied,
    state_of,
)

CHUNK = 4096


# -- flushes ---------------------------------------------------------------------------------------


async def test_flush_without_redundancy_says_that_it_failed() -> None:
    rig = await spied("raid0", 2, chunk_bytes=CHUNK)
    await rig.put(0, noise(4 * CHUNK))
    fault = rig.members[0].error(("flush",))
    with pytest.raises(MemberError) as caught:
        await rig.array.flush()
    assert caught.value.errno == errno.EIO
    with pytest.raises(MemberError):
        await rig.array.flush()  # still not durable: the error must not be swallowed
    await trio.sleep(60)  # what works in the background must live with it
    await rig.compare()
    fault.lift()
    await rig.array.flush()


async def test_a_flush_that_fails_on_several_members_is_still_due_on_all_of_them() -> None:
    rig = await spied("raid0", 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(6 * CHUNK))
    faults = [rig.members[role].error(("flush",)) for role in (0, 2)]
    with pytest.raises(MemberError):
        await rig.array.flush()
    lift(faults)
    rig.log.touches.clear()
    await rig.array.flush()
    flushed = {touch.member for touch in rig.log.touches if touch.kind == FLUSH}
    assert flushed == {"ram0", "ram2"}


# -- what the survivors say, and when ------------------------------------------------------------


@pytest.mark.parametrize("journal", ["none", "partial"])
@pytest.mark.parametrize("slow", [False, True])
async def test_the_event_counter_moves_before_a_degraded_write_is_acknowledged(
    slow: bool, journal: str
) -> None:
    """Where the log has the data, a write is degraded once a copy of its record is refused."""
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, slow=slow)
    await rig.array.set("journal", journal)
    before = rig.array.member_set.config.events
    rig.members[0].vanish()
    rig.log.clear()
    acknowledged: list[int] = []
    layout = rig.array.context.layout
    place, data_count = layout.place, layout.code.data_count

    async def write(chunk: int) -> None:
        await rig.put(chunk * CHUNK, noise(CHUNK, chunk))
        stripe, cell = divmod(chunk, data_count)
        if journal == "none" and 0 in (place(stripe, cell)[0], place(stripe, data_count)[0]):
            assert state_of(rig, 0) == "failed"  # it needed role 0
        if state_of(rig, 0) == "failed":
            acknowledged.append(len(rig.log.touches))

    for first in range(0, 60, 6):  # the copies of records go to other members in turn
        async with trio.open_nursery() as nursery:  # not only the first to notice
            for chunk in range(first, first + 6):
                nursery.start_soon(write, chunk)
        if acknowledged:
            break
    assert state_of(rig, 0) == "failed"
    assert len(acknowledged) >= 2
    superblocks = rig.array.member_set.config.regions.superblock
    for role in (1, 2, 3):
        path = rig.members[role].path
        touches = rig.log.touches[: min(acknowledged)]
        written = [
            index
            for index, touch in enumerate(touches)
            if touch.member == path and touch.kind == WRITE and touch.offset_bytes < superblocks.end
        ]
        assert written, f"{path} did not hear of it before the first acknowledgement"
        assert any(
            touch.member == path and touch.kind == FLUSH for touch in touches[written[-1] :]
        ), f"{path} heard of it, but not durably"
        superblock = await read_superblock(rig.members[role])
        assert superblock is not None
        assert superblock.config.events > before
        assert superblock.config.record(0).state == "failed"
    await rig.compare()


@pytest.mark.parametrize("journal", ["none", "partial"])
async def test_nothing_is_acknowledged_while_a_member_that_stays_does_not_say_who_is_out(
    journal: str,
) -> None:
    """Else a start with it and the excluded member, whole as both believe, gives old content."""
    rig = await placed("raid5", 3, chunk_bytes=CHUNK)
    await rig.array.set("journal", journal)
    superblocks = rig.array.member_set.config.regions.superblock
    deaf = rig.members[2].error(("write",), offset_bytes=0, length_bytes=superblocks.end)
    assert rig.array.member_set.fail(1, "told")
    for chunk in range(4):
        with pytest.raises(RaidxError, match="superblock of ram2 lacks"):
            await rig.array.write(chunk * CHUNK, noise(CHUNK, chunk))
        with pytest.raises(RaidxError, match="lacks the newest"):
            await rig.array.flush()
    assert state_of(rig, 2) == "active"
    assert len(await rig.get(0, 4 * CHUNK)) == 4 * CHUNK
    deaf.lift()
    await rig.put(0, noise(4 * CHUNK, 5))
    await rig.array.flush()
    superblock = await read_superblock(rig.members[2])
    assert superblock is not None
    assert superblock.config.record(1).state == "failed"
    await rig.compare()


@pytest.mark.parametrize("slow", [False, True])
async def test_a_flush_ends_when_the_superblocks_tell_of_a_member_that_failed_it(
    slow: bool,
) -> None:
    """After a crash it would join again, without what was said to be durable."""
    rig = await filled("raid5", 3, chunk_bytes=CHUNK, slow=slow)
    await rig.put(0, noise(CHUNK, 1))
    rig.members[0].error(("flush",))
    await rig.array.flush()
    assert state_of(rig, 0) == "failed"
    async with restarted(rig.images(), start_degraded=True) as array:
        assert array.member_set.config.record(0).state == "failed"


async def test_a_member_that_fails_while_superblocks_are_written_is_in_the_next_ones() -> None:
    """Who waits for the superblocks waits for those."""
    rig = await filled("raid5", 3, chunk_bytes=CHUNK, slow=True)
    member_set = rig.array.member_set
    superblocks = member_set.config.regions.superblock

    def fail_meanwhile(touch: Touch) -> None:
        if touch.offset_bytes < superblocks.end:
            rig.log.hook = None
            assert member_set.fail(0, "meanwhile")

    rig.log.hook = fail_meanwhile
    await member_set.update(lambda config: config)
    assert rig.log.hook is None, "no superblock was written"
    for role in (1, 2):
        superblock = await read_superblock(rig.members[role])
        assert superblock is not None
        assert superblock.config.record(0).state == "failed"


# -- hanging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["read", "write", "flush"])
async def test_a_member_that_hangs_is_failed_after_the_timeout_and_the_array_goes_on(
    operation: str,
) -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    await rig.array.set("io.timeout_s", "2")
    await trio.sleep(40)  # the watchdog has noticed the new time-out
    fault = rig.members[2].hang((operation,))
    start_s = trio.current_time()
    await rig.put(0, noise(6 * CHUNK, 3))
    await rig.array.flush()
    await rig.compare()
    assert 2 <= trio.current_time() - start_s <= 10
    assert state_of(rig, 2) == "failed"
    fault.lift()  # the late answer must hurt nobody
    await trio.sleep(1)
    await rig.put(0, noise(6 * CHUNK, 4))
    await rig.compare()
