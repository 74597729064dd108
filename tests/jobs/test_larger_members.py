"""What members have behind the data becomes data, while the array is in use."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import (
    BusyError,
    JobRunningError,
    MemberError,
    RaidxError,
    Reason,
    TooSmallError,
    UsageError,
)
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.jobs.grow.larger_members import LargerMembers
from raidx_fuse.members.ram import RamMember
from raidx_fuse.pool.array_volumes import ArrayVolumes
from tests.support.arrays import Rig, job_ended, jobs_ended, ram_array
from tests.support.growing import ram_of
from tests.support.load import CHUNK, enlarge, opened, scrubbed, under_load
from tests.support.reasons import because
from tests.support.spy import restarted

FIXED = [
    *(("raid0", 3, 1), ("raid1", 2, 1), ("raid4", 4, 1), ("raid5", 4, 1), ("rdp", 5, 4)),
    *(("evenodd", 5, 4), ("xcode", 5, 5), ("pcode", 6, 3), ("upc", 6, 3)),
    ("declustered", 5, 8),  # of examples/own-code
]
MORE_BYTES = 600 << 10


pytestmark = pytest.mark.usefixtures("own_placement")


async def replaced(rig: Rig, roles: range | None = None) -> None:
    """Give each role of *roles*, all by default, a member of the size that the rig has now."""
    for role in roles or range(rig.width):
        rig.members[role] = rig.new_member()
        await rig.array.replace_disk(role, rig.members[role])
        while running := rig.array.jobs.running():
            await running[0].finished.wait()
            await trio.sleep(0.1)  # another job may follow


def larger_of(rig: Rig) -> LargerMembers:
    """Return the operation of the running array."""
    return rig.array.larger_members


@pytest.mark.parametrize(("name", "width", "rows"), FIXED)
async def test_larger_members_are_used_under_load(name: str, width: int, rows: int) -> None:
    rig = await opened(Rig(name, width, rows=rows, slow=True), 0.8)
    assert larger_of(rig).unused_bytes() == 0
    rig.member_bytes += MORE_BYTES + CHUNK
    await replaced(rig, range(width - 1))
    assert larger_of(rig).unused_bytes() == 0, "one is as small as before"
    rig.member_bytes -= CHUNK
    await replaced(rig, range(width - 1, width))
    layout, unused = rig.array.context.layout, larger_of(rig).unused_bytes()
    stripes, rows = layout.tile()
    strip, stripe = rows * CHUNK, stripes * layout.code.data_count * CHUNK
    assert unused > MORE_BYTES - 2 * strip
    planned = larger_of(rig).plan()
    before = rig.array.size_bytes
    async with under_load(rig, 2):
        await larger_of(rig).use()
    assert rig.array.size_bytes == planned.size_bytes == before + unused // strip * stripe
    assert larger_of(rig).unused_bytes() == 0
    end = rig.array.member_set.config.regions.data.end
    assert rig.member_bytes - CHUNK < end <= rig.member_bytes
    enlarge(rig)
    assert len(rig.model) > before
    async with under_load(rig, 2):
        await rig.fill(0.3, seed=2)
    await rig.reopen()
    await rig.compare()
    if name != "raid0":
        await scrubbed(rig)
        await rig.array.fail_disk(1)
        await rig.compare()


@pytest.mark.parametrize("name", ["raidx-copy", "raidx-parity"])
async def test_a_raidx_layout_uses_each_larger_member_at_once(name: str) -> None:
    rig = await opened(Rig(name, 4, member_chunks=[40, 60, 50, 50]), 0.8)
    array = rig.array
    before = array.size_bytes
    rig.member_chunks = [3 * chunks for chunks in rig.member_chunks]
    await replaced(rig)
    assert array.size_bytes > 2 * before
    assert larger_of(rig).unused_bytes() == 0
    with pytest.raises(TooSmallError):
        await larger_of(rig).use()
    enlarge(rig)
    await rig.fill(0.3, seed=2)
    await rig.reopen()
    await scrubbed(rig)


async def test_what_was_written_in_marked_regions_is_resynced_after_a_crash() -> None:
    """A bit of the dirty bitmap stands for more stripes than before."""
    rig = await opened(Rig("raid5", 4, stripes=200))
    rig.member_bytes *= 3
    await replaced(rig)
    dirty = rig.array.context.dirty_bitmap
    stripe = 3 * CHUNK
    last = len(rig.model) // stripe - 1
    await rig.array.write(last * stripe, bytes(stripe))  # whole: past the log
    assert dirty.is_marked(last)
    per_region = dirty.per_region
    await larger_of(rig).use()
    assert dirty.idle
    assert dirty.per_region > per_region
    enlarge(rig)
    data = random.Random(1).randbytes(stripe)
    await rig.array.write(last * stripe, data)
    images = [bytes(ram_of(member).memory) for member in rig.members]
    async with restarted(images) as again:
        resynced = list(again.context.dirty_bitmap.stripes_to_resync())
        assert [last in stripes for stripes in resynced] == [True]
        assert bytes(await again.read(last * stripe, stripe)) == data


async def test_what_was_added_to_a_member_after_it_joined_need_not_be_zero() -> None:
    """A member that was grown where it lies: new space of a volume manager holds old content."""
    members = await ram_array("raid5", 4, 2 << 20)
    noise = random.Random(2)
    grown = []
    for member in members:
        grown.append(RamMember(4 << 20, name=member.path, reads_zero=False))
        grown[-1].memory[:] = bytes(member.memory) + noise.randbytes(2 << 20)
    async with open_array(grown) as array:
        assert array.context.zeros.all_roles
        before = array.size_bytes
        await array.larger_members.use()
        assert not array.context.zeros.roles
        assert [r.size_bytes for r in array.member_set.config.members] == [4 << 20] * 4
        assert bytes(await array.read(before, 1 << 20)) == bytes(1 << 20)
        await array.write(before + 100, b"new")
        content = bytes(await array.read(before, CHUNK))
        assert content == bytes(100) + b"new" + bytes(CHUNK - 103)
        await array.fail_disk(1)
        assert bytes(await array.read(before, CHUNK)) == content


async def test_it_waits_for_jobs_and_for_lost_members() -> None:
    rig = await opened(Rig("raid5", 4, slow=True), 1.0)
    array = rig.array
    rig.member_bytes += MORE_BYTES
    await replaced(rig)
    job = await array.start_scrub(repair=False)
    with pytest.raises(JobRunningError):
        await larger_of(rig).use()
    await array.jobs.wait(job)
    await array.fail_disk(2)
    words = "role 2 is lost: a degraded array cannot use more of its members"
    with pytest.raises(RaidxError, match=words):
        await larger_of(rig).use()
    await array.replace_disk(2, rig.members[2])
    await jobs_ended(array)
    smaller = RamMember(rig.member_bytes - MORE_BYTES, name="smaller")
    await array.add_spare(smaller)
    with pytest.raises(TooSmallError):
        await larger_of(rig).use()
    await array.remove_disk("smaller")
    before = array.size_bytes
    refusals: list[str] = []

    async def use() -> None:
        try:
            await larger_of(rig).use()
        except UsageError as error:
            refusals.append(str(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        nursery.start_soon(use)
    assert len(refusals) == 1
    assert "not every member of array rig has space behind its data" in refusals[0]
    assert array.size_bytes > before
    await rig.compare()


async def test_stripes_that_failed_writes_have_torn_are_repaired_first() -> None:
    rig = await opened(Rig("raid5", 4))
    array = rig.array
    await array.set("journal", "none")
    await rig.fill()
    rig.member_bytes += MORE_BYTES
    await replaced(rig)
    await array.write(0, bytes(3 * CHUNK))
    array.context.dirty_bitmap.note_torn([0])
    with pytest.raises(BusyError, check=because(Reason.TORN)):
        await larger_of(rig).use()
    await array.jobs.wait(await array.start_scrub(repair=True))
    await larger_of(rig).use()


async def test_an_array_that_has_grown_is_made_alike_first() -> None:
    rig = await opened(Rig("raid5", 4, stripes=100), 1.0)
    member = rig.new_member()
    await rig.array.grow([member])
    rig.members.append(member)
    rig.width += 1
    await jobs_ended(rig.array)
    enlarge(rig)
    await rig.fill(0.5, seed=2)
    rig.member_bytes += MORE_BYTES
    await replaced(rig)
    words = "array rig has grown: it can use .* raidx reshape ARRAY --layout raid5, then retry"
    with pytest.raises(UsageError, match=words):
        await larger_of(rig).use()
    await rig.array.restripe([], "raid5", {})
    await jobs_ended(rig.array)
    await rig.compare()
    before = rig.array.size_bytes
    await larger_of(rig).use()
    assert rig.array.size_bytes > before
    enlarge(rig)
    await rig.fill(0.5, seed=3)
    await rig.reopen()
    await scrubbed(rig)


async def test_a_larger_array_grows_and_is_restriped_as_any_other() -> None:
    rig = await opened(Rig("raid5", 4, stripes=200), 1.0)
    rig.member_bytes *= 2
    await replaced(rig)
    await larger_of(rig).use()
    enlarge(rig)
    await rig.fill(0.5, seed=2)
    change: Callable[[list[Any]], Awaitable[Any]]
    for change in (rig.array.grow, lambda members: rig.array.restripe(members, "rdp", {})):
        member = rig.new_member()
        await change([member])
        rig.members.append(member)
        rig.width += 1
        for job in rig.array.jobs.running():
            await job_ended(job)
        enlarge(rig)
        await rig.fill(0.3, seed=rig.width)
        await rig.compare()
    await rig.reopen()
    await scrubbed(rig)


async def test_the_written_map_and_a_limit_of_the_image_set_an_end() -> None:
    rig = await opened(Rig("raid0", 2, stripes=100), 1.0)
    array = rig.array
    rig.member_bytes = 140 << 20
    await replaced(rig)
    written = array.member_set.config.regions.written
    unused = larger_of(rig).unused_bytes()
    assert larger_of(rig).usable_bytes() < unused
    await larger_of(rig).use()
    chunks, pages = array.context.layout.chunks, written.length // 8192
    assert pages == 2
    assert chunks <= pages * PAYLOAD_BITS < chunks + 2
    left = larger_of(rig).unused_bytes()
    assert 0 < left < unused
    with pytest.raises(UsageError, check=because(Reason.METADATA_FULL)):
        await larger_of(rig).use()
    end = array.size_bytes - CHUNK
    await array.write(end, b"x" * CHUNK)
    await rig.compare()
    array = await rig.reopen()
    await rig.compare()
    assert bytes(await array.read(end - CHUNK, 2 * CHUNK)) == bytes(CHUNK) + b"x" * CHUNK
    rig = Rig("raid5", 4)
    rig.image_bytes = 40 * CHUNK
    await opened(rig)
    rig.member_bytes += MORE_BYTES
    await replaced(rig)
    assert larger_of(rig).unused_bytes() == 0
    assert rig.array.size_bytes == 40 * CHUNK


@pytest.mark.parametrize(("name", "width"), [("raid5", 4), ("rdp", 5)])
async def test_the_limit_of_an_image_can_be_raised_and_lifted(name: str, width: int) -> None:
    rig = Rig(name, width)
    rig.image_bytes = 20 * CHUNK + 1024
    array = (await opened(rig, 1.0)).array
    whole = array.context.layout.size_bytes
    assert larger_of(rig).limited_bytes() == whole - rig.image_bytes > 9 * CHUNK
    volumes = ArrayVolumes(array)
    array.on_size.append(volumes.note_size)
    (volume,) = volumes.volumes
    for size in (28 * CHUNK, None):
        before = array.size_bytes
        if size is None:
            await larger_of(rig).limit_image(None)
        else:
            await volumes.resize(volume, size)
        after = whole if size is None else size
        assert array.size_bytes == volume.size_bytes == after
        assert not any(await array.read(before, after - before))
        rig.model += bytes(after - len(rig.model))
        await rig.put(before - 700, b"y" * 3000)
        await rig.put(after - 4096, b"z" * 4096)
        rig.image_bytes = None
        await rig.reopen()
        array = rig.array
        volumes = ArrayVolumes(array)
        array.on_size.append(volumes.note_size)
        (volume,) = volumes.volumes
        await rig.compare()
        assert array.size_bytes == after
    with pytest.raises(UsageError, check=because(Reason.ARRAY_FULL)):
        await volumes.resize(volume, whole + CHUNK)
    await scrubbed(rig)


async def test_a_raidx_layout_has_places_for_the_image_that_was_chosen_alone() -> None:
    rig = Rig("raidx-parity", 5)
    rig.image_bytes = 20 * CHUNK
    array = (await opened(rig)).array
    volumes = ArrayVolumes(array)
    with pytest.raises(UsageError, match="--image-size"):
        await volumes.resize(volumes.volumes[0], 40 * CHUNK)


async def test_a_superblock_that_is_refused_leaves_nothing_that_is_acknowledged() -> None:
    """Without redundancy the member stays; what lacks it is not acknowledged, and comes later."""
    rig = await opened(Rig("raid0", 3), 1.0)
    array = rig.array
    rig.member_bytes += MORE_BYTES
    await replaced(rig)
    before = array.size_bytes
    sizes: list[int] = []

    async def note() -> None:
        sizes.append(array.size_bytes)

    array.on_size.append(note)
    rig.members[1].error(("write",), length_bytes=128 << 10)
    with pytest.raises(RaidxError, match="lacks the newest configuration"):
        await larger_of(rig).use()
    assert sizes == [array.size_bytes]
    assert array.size_bytes > before
    with pytest.raises(RaidxError, match="lacks the newest configuration"):
        await array.flush()
    rig.members[1].clear()
    await array.write(before, b"x" * CHUNK)
    await array.flush()
    images = [bytes(ram_of(member).memory) for member in rig.members]
    async with restarted(images) as again:
        assert bytes(await again.read(before, CHUNK)) == b"x" * CHUNK


async def test_a_member_that_cannot_be_prepared_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await opened(Rig("raid5", 4), 1.0)
    array = rig.array
    rig.member_bytes += MORE_BYTES
    await replaced(rig)
    before = array.member_set.config

    def full(offset: int, length: int) -> None:
        raise MemberError("m", "reserve", offset, 28)

    monkeypatch.setattr(rig.members[2], "reserve", full)
    with pytest.raises(RaidxError, match="its host has no room for the metadata"):
        await larger_of(rig).use()
    assert array.member_set.config == before
    assert larger_of(rig).unused_bytes()
    await rig.compare()
