"""Volumes of a running array of RAM members, in virtual time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import (
    BusyError,
    FormatError,
    InUseError,
    LosesDataError,
    NoSpaceError,
    RaidxError,
    Reason,
    UsageError,
)
from raidx_fuse.format.configuration.volumes import (
    VOLUMES_MAX,
    Extent,
    VolumeRecord,
    VolumeTable,
)
from raidx_fuse.pool import array_volumes
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.volume import Volume
from tests.support.arrays import Rig, jobs_ended
from tests.support.closing import entered
from tests.support.growing import ram_of
from tests.support.load import opened
from tests.support.reasons import because
from tests.support.spy import members_from
from tests.support.two_arrays import volume_of

PAGE = 4096


class Shown:
    """A front end: the names that it shows."""

    def __init__(self, volumes: ArrayVolumes) -> None:
        self.names = {volume.name for volume in volumes.volumes}
        volumes.front_ends.append(self)

    def show(self, volume: Volume) -> None:
        self.names.add(volume.name)

    def hide(self, volume: Volume) -> None:
        self.names.remove(volume.name)


@asynccontextmanager
async def started(rig: Rig) -> AsyncIterator[ArrayVolumes]:
    """Open the array of *rig* and its volumes; close both."""
    array = rig.array if rig.is_open else await rig.open()
    try:
        async with open_volumes(array) as volumes:
            yield volumes
    finally:
        await rig.close()


async def made(
    *, empty: bool = True, slow: bool = False, layout: str = "raid5"
) -> tuple[Rig, ArrayVolumes]:
    """Return an array and its volumes; *empty*: there is none."""
    rig = Rig(layout, 4, stripes=60, slow=slow)
    array = await rig.create()
    if empty:
        table = VolumeTable()
        await array.member_set.update(lambda config: replace(config, volumes=table))
    return rig, await entered(started(rig))


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def ended(array: Array) -> None:
    """Return when all jobs of *array* have ended."""
    await jobs_ended(array)


async def content(volume: Volume) -> bytes:
    return bytes(await volume.read(0, volume.size_bytes))


def has_methods_of(volume: Volume, array: Array) -> bool:
    """Return whether *volume* reads and writes by the methods of *array*, with no call between."""
    pairs = ((volume.read, array.read_for), (volume.write, array.write_for))
    return all(isinstance(bound, partial) and bound.func == own for bound, own in pairs)


async def test_an_array_of_before_has_its_image_as_volume_with_its_own_methods() -> None:
    _, volumes = await made(empty=False)
    (volume,) = volumes.volumes
    array = volumes.array
    assert (volume.name, volume.uuid, volume.size_bytes) == ("rig", array.uuid, array.size_bytes)
    assert has_methods_of(volume, array)
    assert array.member_set.config.volumes is None
    assert volumes.free_bytes() == 0
    with pytest.raises(UsageError, check=because(Reason.ARRAY_FULL)):
        await volumes.create("more", PAGE)


async def test_volumes_are_created_written_and_found_again() -> None:
    async def scene(rig: Rig, volumes: ArrayVolumes) -> None:
        shown = Shown(volumes)
        free = volumes.free_bytes()
        mail, www = await volumes.create("mail", 40 * PAGE), await volumes.create("www", 24 * PAGE)
        assert shown.names == {"mail", "www"}
        assert volumes.free_bytes() == free - 64 * PAGE
        assert await content(mail) == bytes(40 * PAGE)
        await mail.write(0, noise(40 * PAGE, 1))
        await www.write(0, noise(24 * PAGE, 2))
        await www.flush()
        uuids = [mail.uuid, www.uuid]
        array = await rig.reopen()
        again = ArrayVolumes(array)
        assert [volume.uuid for volume in again.volumes] == uuids
        assert await content(volume_of(again, "mail")) == noise(40 * PAGE, 1)
        assert await content(volume_of(again, uuids[1])) == noise(24 * PAGE, 2)

    rig = await opened(Rig("raid5", 4, stripes=60))
    array = rig.array
    table = VolumeTable()
    await array.member_set.update(lambda config: replace(config, volumes=table))
    await scene(rig, ArrayVolumes(array))


@pytest.mark.parametrize("layout", ["raid5", "raidx-parity", "pcode"])
async def test_the_space_of_a_deleted_volume_reads_as_zeros(layout: str) -> None:
    _, volumes = await made(layout=layout)
    shown = Shown(volumes)
    size = volumes.free_bytes() // PAGE * PAGE
    first = await volumes.create("first", size)
    await first.write(5 * PAGE + 17, noise(11 * PAGE))
    await first.flush()
    with pytest.raises(LosesDataError):
        await volumes.delete(first)
    await volumes.delete(first, lose_data=True)
    assert shown.names == set()
    assert volumes.free_bytes() == 0
    assert volumes.wiping_bytes() == size
    with pytest.raises(NoSpaceError, check=because(Reason.ARRAY_FULL)):
        await volumes.create("second", size)
    await volumes.wiped()
    second = await volumes.create("second", size)
    assert await content(second) == bytes(size)
    await volumes.delete(second, lose_data=True)  # its chunks count as written
    with pytest.raises(UsageError, check=because(Reason.NO_SUCH_VOLUME)):
        await volumes.rename(second, "third")


async def test_a_volume_that_was_never_written_is_deleted_without_a_word() -> None:
    _, volumes = await made()
    volume = await volumes.create("empty", 8 * PAGE)
    before = volumes.array.member_set.config
    await volumes.delete(volume)
    await volumes.wiped()
    assert volumes.array.member_set.config.events > before.events
    assert volumes.array.context.written.count_written() == 0


async def test_wiping_goes_on_after_a_remount() -> None:
    rig = Rig("raid5", 4, stripes=60)
    array = await rig.create()
    volumes = ArrayVolumes(array)  # nothing wipes in this life
    whole = volume_of(volumes, "rig")
    await whole.write(0, noise(whole.size_bytes))
    await volumes.resize(whole, 10 * PAGE, lose_data=True)
    left = volumes.wiping_bytes()
    assert left == array.size_bytes - 10 * PAGE
    await rig.close()
    async with started(rig) as again:
        assert again.wiping_bytes() == left
        await again.wiped()
        assert await content(volume_of(again, "rig")) == noise(array.size_bytes)[: 10 * PAGE]
        fresh = await again.create("fresh", 20 * PAGE)
        assert await content(fresh) == bytes(20 * PAGE)


async def test_a_volume_grows_and_shrinks_and_the_rest_stays() -> None:
    _, volumes = await made()
    one = await volumes.create("one", 10 * PAGE)
    two = await volumes.create("two", 10 * PAGE)
    await one.write(0, noise(10 * PAGE, 1))
    await two.write(0, noise(10 * PAGE, 2))
    await volumes.resize(one, 40 * PAGE)  # two is behind it: a second extent
    assert len(volumes.extents(one)) == 2
    assert await content(one) == noise(10 * PAGE, 1) + bytes(30 * PAGE)
    await one.write(8 * PAGE, noise(20 * PAGE, 3))  # across the end of the first
    expected = noise(10 * PAGE, 1)[: 8 * PAGE] + noise(20 * PAGE, 3) + bytes(12 * PAGE)
    assert await content(one) == expected
    assert await content(two) == noise(10 * PAGE, 2)
    await volumes.resize(one, 30 * PAGE)  # nothing was written there
    with pytest.raises(LosesDataError):
        await volumes.resize(one, 9 * PAGE)
    await volumes.resize(one, 9 * PAGE, lose_data=True)
    await volumes.wiped()
    await volumes.resize(one, 40 * PAGE)
    assert await content(one) == expected[: 9 * PAGE] + bytes(31 * PAGE)
    with pytest.raises(NoSpaceError):
        await volumes.resize(two, volumes.array.size_bytes)
    assert two.size_bytes == 10 * PAGE
    for size in (0, -PAGE, 512, PAGE + 1):
        with pytest.raises(UsageError, match="multiple of 4096"):
            await volumes.resize(two, size)


async def test_names() -> None:
    _, volumes = await made()
    shown = Shown(volumes)
    one = await volumes.create("one", PAGE)
    await volumes.create("two", PAGE)
    for name in ("", ".", "..", "a/b", "a\x1bb", "x" * 256, "\udc80"):
        with pytest.raises(UsageError, match="cannot be a volume's name"):
            await volumes.create(name, PAGE)
    with pytest.raises(UsageError, check=because(Reason.EXISTS)):
        await volumes.rename(one, "two")
    await volumes.rename(one, "ä 漢")
    await volumes.rename(one, "ä 漢")
    assert shown.names == {"ä 漢", "two"}
    assert volume_of(volumes, "ä 漢") is one


async def test_a_volume_in_use_is_neither_deleted_nor_shrunk() -> None:
    _, volumes = await made()
    shown = Shown(volumes)
    volume = await volumes.create("busy", 4 * PAGE)
    volume.opened = 1
    with pytest.raises(InUseError):
        await volumes.delete(volume)
    with pytest.raises(BusyError):
        await volumes.resize(volume, PAGE)
    assert shown.names == {"busy"}
    await volumes.resize(volume, 8 * PAGE)  # that is possible
    async with trio.open_nursery() as nursery:  # the last close is reported a moment later
        nursery.start_soon(volumes.delete, volume)
        await trio.sleep(array_volumes.CLOSING_S / 2)
        volume.opened = 0
    assert shown.names == set()


async def test_changes_take_turns() -> None:
    _, volumes = await made(slow=True)
    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(volumes.create, f"v{number}", 4 * PAGE)
    assert len({volume.name for volume in volumes.volumes}) == 12
    taken = volumes.table().taken()
    assert all(a.end <= b.offset for a, b in pairwise(taken))
    async with trio.open_nursery() as nursery:
        for volume in list(volumes.volumes):
            nursery.start_soon(volumes.delete, volume)
    await volumes.wiped()
    assert volumes.free_bytes() == volumes.array.size_bytes


async def test_the_growth_of_the_array_is_free_space() -> None:
    rig, volumes = await made(layout="raid4")
    array = volumes.array
    array.on_size.append(volumes.note_size)
    volume = await volumes.create("one", volumes.free_bytes())
    await volume.write(0, noise(volume.size_bytes))
    before = array.size_bytes
    await array.grow([rig.new_member()])
    await ended(array)
    assert volume.size_bytes == before
    assert volumes.free_bytes() == array.size_bytes - before
    more = await volumes.create("more", volumes.free_bytes() // 2 // PAGE * PAGE)
    assert await content(more) == bytes(more.size_bytes)
    assert await content(volume) == noise(before)


async def test_the_whole_image_grows_with_its_array_also_renamed() -> None:
    rig, volumes = await made(empty=False, layout="raid4")
    array = volumes.array
    array.on_size.append(volumes.note_size)
    (volume,) = volumes.volumes
    await volumes.rename(volume, "other")
    assert has_methods_of(volume, array)
    before = array.size_bytes
    await array.grow([rig.new_member()])
    await ended(array)
    assert volume.size_bytes == array.size_bytes > before


async def test_a_table_that_does_not_fit_the_superblock_is_refused_and_nothing_changes() -> None:
    _, volumes = await made()
    one = await volumes.create("one", PAGE)
    refused: RaidxError | None = None
    for number in range(VOLUMES_MAX + 1):
        try:
            await volumes.create(f"{number:0250d}", PAGE)
        except RaidxError as error:
            refused = error
            break
    assert isinstance(refused, FormatError | UsageError | NoSpaceError)
    assert one in volumes.volumes
    assert len(volumes.table().volumes) == len(volumes.volumes)


async def test_a_table_beyond_the_end_of_the_image_is_refused_before_anything_is_written() -> None:
    rig, volumes = await made()
    uuid = "00000000-0000-4000-8000-000000000001"
    far = VolumeTable((VolumeRecord(uuid, "far", PAGE, (Extent(1 << 40, PAGE),)),))
    await volumes.array.member_set.update(lambda config: replace(config, volumes=far))
    members = members_from([bytes(ram.memory) for ram in map(ram_of, rig.members)])
    before = [bytes(member.memory) for member in members]
    with pytest.raises(FormatError, match="its volumes end at byte 1099511631872"):
        async with open_array(members):
            raise AssertionError("it starts")
    assert [bytes(member.memory) for member in members] == before
