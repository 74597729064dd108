"""Members that joined last leave again, while the array is in use."""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.engine.growth_position import PIGGYBACK
from raidx_fuse.errors import BusyError, UsageError
from tests.support.arrays import Rig, job_ended
from tests.support.growing import SmallRig, grow, job_of
from tests.support.load import CHUNK, opened, scrubbed, under_load


class SmallImageRig(SmallRig):
    """A rig whose image is smaller than its first members could hold."""

    image_bytes = 180 * CHUNK


def rig_of(name: str) -> SmallImageRig:
    """Return a small rig of *name* that can grow by two."""
    if name != "rdp":
        return SmallImageRig(name, 4)
    rig = SmallImageRig("rdp", 5, params={"prime": 7, "rotate": True})
    rig.member_bytes = 1200 << 10
    return rig


async def grown(rig: Rig, added: int, granule: int = 2) -> None:
    """Fill the image and grow by *added* members."""
    array = rig.array
    await rig.fill()
    array.grow_operation.set_granule(granule)
    job = await grow(rig, added)
    await job.finished.wait()


@pytest.mark.parametrize("name", ["raid0", "raid4", "raid5", "rdp"])
async def test_members_of_the_last_growth_leave_under_load(name: str) -> None:
    rig = await opened(rig_of(name))
    array = rig.array
    params = dict(array.member_set.config.params)
    first = rig.width
    await grown(rig, 2)
    once = dict(array.member_set.config.params)
    await grown(rig, 1, granule=1)
    size = array.size_bytes
    for width, after in ((first + 2, once), (first, params)):
        released: list[object] = []
        array.on_release.append(released.append)
        begun = await array.remove_disk(rig.width - 1)
        assert (begun["members_before"], begun["members_after"]) == (rig.width, width)
        job = job_of(rig)
        job.speed_max_bytes = job.speed_min_bytes = 300 * CHUNK
        async with under_load(rig):
            await trio.sleep(0.1)
        if width == first:  # unmounted on the way
            array = await rig.reopen()
            array.on_release.append(released.append)
            job = job_of(rig)
            assert job.removes
        await job_ended(job)
        assert released == rig.members[width:]
        del rig.members[width:]
        rig.width = width
        assert array.member_set.config.params == after
        assert array.member_set.config.width == width
        assert array.size_bytes == size
        await rig.compare()
        if name != "raid0":
            await scrubbed(rig)
    array = await rig.reopen()
    await rig.compare()
    if name != "raid0":
        await array.fail_disk(1)
        await rig.compare()


async def test_old_copies_of_a_growth_with_piggyback_are_dropped_first() -> None:
    rig = await opened(rig_of("raid4"), 1.0)
    array = rig.array
    job = await grow(rig, 2, parity=PIGGYBACK)
    await job.finished.wait()
    free = array.context.layout.generations[-1]  # type: ignore[attr-defined]
    assert not array.context.written.none_written(free.start, free.end)
    await array.remove_disk(5)
    await job_of(rig).finished.wait()
    del rig.members[4:]
    rig.width = 4
    assert array.member_set.config.width == 4
    await scrubbed(rig)


async def test_what_cannot_leave_is_refused_in_one_line() -> None:
    rig = await opened(SmallRig("raid5", 4))
    array = rig.array
    size = array.size_bytes
    words = rf"volume rig ends at byte {size} .* raid5 on 3 members holds .* volume resize"
    with pytest.raises(UsageError, match=words):
        await array.remove_disk(1)
    await rig.fill()
    job = await grow(rig, 2)
    with pytest.raises(BusyError):
        await array.remove_disk(5)
    await job.finished.wait()
    for role in (1, 5):  # the image takes all of the six, and one at a time may leave
        with pytest.raises(UsageError, match=r"raid5 on 5 members holds \d+ bytes"):
            await array.remove_disk(role)
    assert array.context.growth is None
