"""sums=on of an array that was made without checksums: where their room is, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.volumes import Extent, VolumeRecord, VolumeTable
from raidx_fuse.format.create import new_uuid
from raidx_fuse.format.regions import NO_REGION, SUMS_MEMBER_BYTES_MIN, Region
from raidx_fuse.lab.crash.sums import check_calm, check_whole, live_pages
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, parity_holds, ram_array
from tests.support.reasons import because

MIB = 1 << 20
CHUNK = 64 << 10


def _volume(name: str, extents: tuple[Extent, ...]) -> VolumeRecord:
    return VolumeRecord(new_uuid(), name, sum(extent.length for extent in extents), extents)


async def _switched(members: list[RamMember], content: bytes) -> ArrayConfig:
    """Switch the checksums of an array with *content* on; return its configuration then."""
    rng = random.Random(len(content))
    async with open_array(members) as array:
        await array.write(0, content)
        await array.set("sums", "on")
        part = rng.randbytes(100_000)
        await array.write(5000, part)
        content = content[:5000] + part + content[5000 + len(part) :]
        await jobs_ended(array)
        await check_whole(array)
        assert len(await live_pages(array)) >= len(content) // 4096
    async with open_array(members) as array:
        assert array.get("sums") == "on"
        assert await array.read(0, len(content)) == content
        await check_whole(array)
        check_calm([array], "after the switch", after_crash=False)
        return array.member_set.config


@pytest.mark.parametrize(("layout", "copies"), [("raid0", 1), ("raid5", 2), ("raid1", 4)])
async def test_room_that_create_kept_is_used_and_given_back(layout: str, copies: int) -> None:
    members = await ram_array(layout, 4, SUMS_MEMBER_BYTES_MIN, chunk_bytes=CHUNK)
    async with open_array(members) as array:
        before = array.member_set.config
    assert before.regions.sums == NO_REGION
    assert not before.jobs
    content = random.Random(1).randbytes(MIB)
    config = await _switched(members, content)
    assert config.regions.data == before.regions.data
    assert config.regions.sums == (
        before.regions.table.end,
        config.regions.sums_bytes(copies),
    )
    assert config.needs == ("ends", "sums", "sums.tail")
    async with open_array(members) as array:
        await array.set("sums", "off")
        after, report = array.member_set.config, array.status()["sums"]
        assert (report["state"], report["room_bytes"]) == ("off", config.regions.sums.length)
        assert (after.needs, after.regions) == (before.needs, before.regions)
        assert "sums" not in after.jobs
        await array.write(0, content)
    async with open_array(members) as array:
        assert array.get("sums") == "off"
        await array.set("sums", "on")
        assert array.member_set.config.regions == config.regions
        assert array.member_set.config.job("sums", dict) != config.job("sums", dict)
        await jobs_ended(array)
        await check_whole(array)
        assert await array.read(0, len(content)) == content


@pytest.mark.parametrize("layout", ["raid0", "raid5", "rdp"])
async def test_the_free_tail_of_the_image_gives_room(layout: str) -> None:
    """Of a small array: its volumes stay, the image ends earlier, and what was there is gone."""
    members = await ram_array(layout, 4, with_volume=False)
    content = random.Random(2).randbytes(300 << 10)
    async with open_array(members) as array:
        before, size = array.member_set.config, array.size_bytes
        assert before.regions.sums == NO_REGION
        await array.write(size - 4096, b"x" * 4096)  # of a volume that was deleted, say
    config = await _switched(members, content)
    data, sums = config.regions.data, config.regions.sums
    assert (data.offset, sums.offset) == (before.regions.data.offset, data.end)
    assert sums.length == (3 if layout == "rdp" else 1 + (layout != "raid0")) * 8192
    assert sums.end <= before.regions.data.end
    async with open_array(members) as array:
        assert size - (64 << 10) < array.size_bytes < size


async def test_an_image_of_a_limited_size_keeps_its_size() -> None:
    members = await ram_array("raid5", 4, size_bytes=MIB)
    async with open_array(members) as array:
        limit = array.size_bytes - (60 << 10)
        await array.member_set.update(lambda config: replace(config, size_bytes=limit))
    content = random.Random(3).randbytes(200 << 10)
    config = await _switched(members, content)
    assert config.regions.sums.offset == config.regions.data.end
    async with open_array(members) as array:
        assert array.size_bytes == limit


async def test_what_is_in_the_way_is_named_with_the_bytes_that_are_needed() -> None:
    members = await ram_array("raid5", 4, with_volume=False)
    async with open_array(members) as array:
        size = array.size_bytes
        table = VolumeTable((_volume("last", (Extent(size - 8192, 8192),)),))
        await array.member_set.update(lambda config: replace(config, volumes=table))
        config = array.member_set.config
        with pytest.raises(UsageError, match="no room for checksums, 16384 bytes") as caught:
            await array.set("sums", "on")
        assert caught.value.reason == Reason.ARRAY_FULL
        assert "volume last" in str(caught.value)
        assert array.member_set.config == config
        await array.member_set.update(lambda config: replace(config, volumes=None))
        with pytest.raises(UsageError, match="raidx volume resize MOUNT disk"):
            await array.set("sums", "on")
        assert array.member_set.sums is None
    async with open_array(members) as array:
        assert array.size_bytes == size


async def test_a_grown_array_without_room_is_told_what_to_do_first() -> None:
    members = await ram_array("raid5", 4, with_volume=False)
    async with open_array(members) as array:
        await array.grow([RamMember(MIB, name="new")])
        await jobs_ended(array)
        with pytest.raises(UsageError, match="raidx reshape ARRAY --layout raid5"):
            await array.set("sums", "on")


@pytest.mark.parametrize("layout", ["raidx-zero", "raidx-copy", "raidx-parity"])
async def test_raidx_layouts_have_room_before_their_data_or_none(layout: str) -> None:
    members = await ram_array(layout, 4, 4 * MIB, log_bytes=2 * MIB)
    async with open_array(members) as array:
        await array.member_set.update(  # as if no gap were left
            lambda c: replace(c, regions=replace(c.regions, table=Region(c.regions.data.offset, 0)))
        )
        with pytest.raises(UsageError, check=because(Reason.METADATA_FULL)):
            await array.set("sums", "on")
    members = await ram_array(layout, 4, SUMS_MEMBER_BYTES_MIN, chunk_bytes=CHUNK)
    same = await ram_array(layout, 4, SUMS_MEMBER_BYTES_MIN, chunk_bytes=CHUNK, sums=True)
    async with open_array(same) as array:
        made = array.member_set.config
    config = await _switched(members, random.Random(1).randbytes(MIB))
    assert (config.regions, config.needs) == (made.regions, made.needs)


async def test_data_that_come_where_tables_were_are_not_taken_for_zeros() -> None:
    members = await ram_array("raid5", 4, with_volume=False)
    rng = random.Random(5)
    async with open_array(members) as array:
        size, unused = array.size_bytes, array.larger_members.unused_bytes()
        assert not unused
        await array.set("sums", "on")
        await array.write(0, rng.randbytes(array.size_bytes))
        await jobs_ended(array)
        await array.set("sums", "off")
        assert not any(record.reads_zero for record in array.member_set.config.members)
        await array.larger_members.use()
        assert array.size_bytes == size
        content = rng.randbytes(512)
        await array.write(size - 2048, content)
        found = await array.read(size - 8192, 8192)
        assert found == bytes(6144) + content + bytes(1536)
    async with open_array(members) as array:
        await parity_holds(array)
