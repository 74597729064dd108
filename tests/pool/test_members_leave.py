"""Members leave an array with volumes: what counts is where the volumes end."""

from __future__ import annotations

import pytest

from raidx_fuse.errors import NoSpaceError, NotWithLayoutError, UsageError
from tests.pool.test_array_volumes import PAGE, content, ended, made, noise
from tests.support.arrays import parity_holds
from tests.support.two_arrays import volume_of


async def test_members_leave_as_soon_as_the_volumes_fit_the_others() -> None:
    """Free space of the pool counts, though it was written and holds zeros of deleted volumes."""
    rig, volumes = await made()
    array = volumes.array
    size = array.size_bytes
    kept = await volumes.create("kept", size // 3 // PAGE * PAGE)
    await kept.write(0, noise(kept.size_bytes))
    high = await volumes.create("high", volumes.free_bytes() * 2 // 3 // PAGE * PAGE)
    away = await volumes.create("away", 20 * PAGE)
    written = noise(high.size_bytes, 2)
    await high.write(0, written)
    await away.write(0, noise(20 * PAGE, 3))
    with pytest.raises(UsageError, match=r"volume away ends at .* delete volume away"):
        await array.remove_disk(1)
    await volumes.delete(away, lose_data=True)
    await volumes.wiped()
    with pytest.raises(UsageError, match=r"volume high ends at .* resize MOUNT high ") as error:
        await array.remove_disk(1)
    assert error.value.action is not None
    most = int(error.value.action.split()[-1])
    assert size // 4 < most < high.size_bytes
    await volumes.resize(high, most, lose_data=True)
    await volumes.wiped()
    free = volumes.free_bytes()
    await array.remove_disk(1)
    assert volumes.free_bytes() == 0 < free
    with pytest.raises(NoSpaceError):
        await volumes.create("more", PAGE)
    await ended(array)
    del rig.members[1]
    rig.width -= 1
    assert array.size_bytes < size
    assert await content(kept) == noise(kept.size_bytes)
    assert await content(high) == written[:most]
    await parity_holds(array)


async def test_the_last_growth_is_undone_when_a_volume_on_all_of_the_image_was_made_smaller() -> (
    None
):
    rig, volumes = await made(empty=False)
    array, (volume,) = volumes.array, volumes.volumes
    array.on_size.append(volumes.note_size)
    before = array.size_bytes
    data = noise(before)
    members = [rig.new_member(), rig.new_member()]
    await array.grow(members)
    await ended(array)
    await volume.write(0, data)
    rest = volume.size_bytes - before
    await volume.write(before, noise(rest, 2))
    with pytest.raises(UsageError, match=r"raid5 on 5 members holds .* volume resize") as error:
        await array.remove_disk(5)
    assert error.value.action is not None
    assert before < int(error.value.action.split()[-1]) < volume.size_bytes
    await volumes.resize(volume, before, lose_data=True)
    await volumes.wiped()
    await array.remove_disk(5)
    await ended(array)
    assert (array.member_set.config.width, array.size_bytes) == (4, before)
    assert await content(volume) == data
    await parity_holds(array)


async def test_no_volume_gets_space_that_is_about_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be discarded with what was written to it meanwhile."""
    rig, volumes = await made()
    array = volumes.array
    kept = await volumes.create("kept", array.size_bytes // 3 // PAGE * PAGE)
    await kept.write(0, noise(kept.size_bytes))
    free, forget = volumes.free_bytes(), array.discarder.forget_zeros
    sizes: list[int] = []

    async def create_meanwhile(first: int, end: int) -> None:
        with pytest.raises(NoSpaceError):
            await volumes.create("all", free)
        sizes.append(volumes.free_bytes() // PAGE * PAGE)
        rest = await volumes.create("rest", sizes[0])
        await rest.write(0, noise(sizes[0], 2))
        await forget(first, end)

    monkeypatch.setattr(array.discarder, "forget_zeros", create_meanwhile)
    await array.remove_disk(0)
    await ended(array)
    del rig.members[0]
    rig.width -= 1
    assert array.member_set.config.width == 3
    assert volumes.table().end() <= array.size_bytes
    assert await content(kept) == noise(kept.size_bytes)
    assert await content(volume_of(volumes, "rest")) == noise(sizes[0], 2)
    with pytest.raises(NotWithLayoutError):
        await array.remove_disk(0)
    assert volumes.free_bytes() < PAGE
