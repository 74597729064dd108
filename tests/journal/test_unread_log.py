"""A member whose log cannot be read at one start, and can be read again at the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import AssemblyError, Reason
from raidx_fuse.format.regions import Region
from raidx_fuse.journal.ring import HEAD_BYTES
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.reasons import because
from tests.support.spy import Log, SpyMember, members_from, noise, restarted, spying

PAGE = 4096


async def _logged(layout: str, width: int, records: int = 4) -> tuple[list[bytes], Region, bytes]:
    """Return the members of an array that lost power, its log, and the content, flushed to it."""
    async with spying(layout, width, chunk_bytes=PAGE) as rig:
        await rig.array.set("journal", "full")
        await rig.put(0, noise(len(rig.model), 1))
        await rig.in_place()
        for number in range(records):
            await rig.put(number * PAGE, noise(600, number))
        await rig.array.flush()
        assert rig.array.context.journal.ring.open, "nothing is in the log alone"
        log = rig.array.member_set.config.regions.log
        return rig.images(), log, bytes(rig.model)


@asynccontextmanager
async def _started(
    images: Sequence[bytes],
    log: Region,
    unread: Sequence[int],
    absent: Sequence[int] = (),
    **how: bool,
) -> AsyncIterator[Array]:
    members = [FaultMember(ram) for ram in members_from(images)]
    for role in unread:
        begin = log.offset + HEAD_BYTES
        members[role].error(("read",), offset_bytes=begin, length_bytes=log.end - begin)
    async with open_array(
        [member for role, member in enumerate(members) if role not in absent], **how
    ) as array:
        yield array


CASES = pytest.mark.parametrize(
    ("layout", "width", "unread", "absent"),
    [("raid0", 2, [0], []), ("raid0", 2, [1], []), ("raid5", 4, [1], [0]), ("raid1", 2, [1], [0])],
)


@pytest.mark.parametrize("read_only", [False, True])
@CASES
async def test_a_start_is_refused_if_flushed_records_may_be_where_nothing_can_be_read(
    layout: str, width: int, unread: list[int], absent: list[int], read_only: bool
) -> None:
    images, log, content = await _logged(layout, width)
    with pytest.raises(AssemblyError, check=because(Reason.WRITE_HOLE)):
        async with _started(images, log, unread, absent, read_only=read_only):
            pass
    async with restarted(images) as array:  # nothing was written
        assert bytes(await array.read(0, len(content))) == content


@CASES
async def test_who_accepts_the_loss_gets_what_can_be_read(
    layout: str, width: int, unread: list[int], absent: list[int]
) -> None:
    images, log, content = await _logged(layout, width)
    async with _started(images, log, unread, absent, start_degraded=True) as array:
        found = bytes(await array.read(0, len(content)))
        assert found[4 * PAGE :] == content[4 * PAGE :]
        await array.write(0, content)
        assert bytes(await array.read(0, len(content))) == content


@pytest.mark.parametrize(
    ("layout", "width", "unread"), [("raid5", 4, [1]), ("raid1", 2, [0]), ("rdp", 4, [0, 2])]
)
async def test_as_many_logs_as_members_may_be_lost_can_be_unreadable(
    layout: str, width: int, unread: list[int]
) -> None:
    images, log, content = await _logged(layout, width)
    async with _started(images, log, unread) as array:
        assert bytes(await array.read(0, len(content))) == content


async def test_a_log_that_nothing_was_written_to_since_a_clean_end_may_be_unreadable() -> None:
    async with spying("raid0", 2, chunk_bytes=PAGE) as rig:
        await rig.put(0, noise(len(rig.model), 1))
        log, content = rig.array.member_set.config.regions.log, bytes(rig.model)
        await rig.close()
        images = rig.images()
    async with _started(images, log, [0, 1]) as array:
        assert bytes(await array.read(0, len(content))) == content


async def test_records_are_read_many_at_a_time() -> None:
    images, log, content = await _logged("raid0", 2, records=16)
    seen = Log()
    members = [SpyMember(ram, seen) for ram in members_from(images)]
    async with open_array(members) as array:
        reads = seen.of("read", log)
        assert bytes(await array.read(0, len(content))) == content
    assert len(reads) < 16, "one read for each record, or more"


@pytest.mark.parametrize("bad_bytes", [512, PAGE])
async def test_what_cannot_be_read_behind_the_records_hides_none_of_them(bad_bytes: int) -> None:
    images, log, content = await _logged("raid0", 2, records=16)
    members = [FaultMember(ram) for ram in members_from(images)]
    for member in members:
        member.error(("read",), offset_bytes=log.end - bad_bytes, length_bytes=bad_bytes)
    async with open_array(members) as array:
        assert bytes(await array.read(0, len(content))) == content


async def _cut_log() -> tuple[list[bytes], Region, bytes, int]:
    """Return members whose log ends with data without its parity, its log and the content.

    The last value is a member that the cut has left with the record behind that; it has no turn at
    that place after a start, as one that had a turn because others were slow.
    """
    async with spying("raid5", 4, chunk_bytes=PAGE) as rig:
        await rig.put(0, noise(len(rig.model), 1))
        await rig.in_place()
        journal = rig.array.context.journal
        await rig.put(0, noise(512, 2))
        await rig.array.flush()
        content, before = bytes(rig.model), rig.images()
        low = journal.ring.next_place(512)[1]
        await rig.put(8 * PAGE, noise(512, 3))
        high = journal.ring.next_place(512)[1]
        holders = journal.log_members.at(low)
        holder = min({0, 1, 2, 3} - set(holders))
        record = rig.images()[holders[0]][low:high]
        image = before[holder]
        before[holder] = image[:low] + record + image[high:]
        log = rig.array.member_set.config.regions.log
    return before, log, content, holder


async def test_a_record_that_could_not_be_read_does_not_take_the_place_of_a_later_one() -> None:
    images, log, content, holder = await _cut_log()
    moments: list[list[bytes]] = []
    spies = Log()
    rams = members_from(images)
    spies.hook = lambda _touch: moments.append([bytes(ram.memory) for ram in rams])
    members = [FaultMember(SpyMember(ram, spies)) for ram in rams]
    begin = log.offset + HEAD_BYTES
    members[holder].error(("read",), offset_bytes=begin, length_bytes=log.end - begin)
    async with open_array(members) as array:
        assert bytes(await array.read(0, len(content))) == content
    for moment in moments:
        for absent in sorted({0, 1, 2, 3} - {holder}):
            async with _started(moment, log, [], [absent]) as array:
                found = bytes(await array.read(0, 8 * PAGE))
                assert found == content[: 8 * PAGE]
