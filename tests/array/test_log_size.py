"""`log.size` of an array in use: where the log gets its place, what is kept, what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.format.configuration.config import (
    ArrayConfig,
    config_to_dict,
    decode_config,
    encode_config,
)
from raidx_fuse.format.regions import LOG_BYTES_LIMIT
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, parity_holds, ram_array
from tests.support.reasons import because

KIB, MIB = 1 << 10, 1 << 20


async def _resized(members: list[RamMember], *sizes: int, sums: bool = False) -> list[ArrayConfig]:
    """Give an array logs of *sizes*, written to before, meanwhile and afterwards; the last one is
    left with records, as by a kill, and mounted again. Return the configuration with each.
    """
    rng = random.Random(len(sizes))
    configs = []
    async with open_array(members) as array:
        span = array.size_bytes // 2
        content = bytearray(span)

        async def write(times: int) -> None:
            for _ in range(times):
                at, size = rng.randrange(span - 20_000), rng.randint(1, 20_000)
                part = rng.randbytes(size)
                content[at : at + size] = part
                await array.write(at, part)

        for size in sizes:
            await write(20)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, 20)
                await array.set("log.size", str(size))
            await write(60)  # laps of a small ring
            assert array.get("log.size") == size
            assert array.member_set.config.regions.problem() is None
            configs.append(array.member_set.config)
        await array.member_set.flush()
        images = [bytes(member.memory) for member in members]
    after_kill = [RamMember(len(image), name=f"d{n}") for n, image in enumerate(images)]
    for member, image in zip(after_kill, images, strict=True):
        member.memory[:] = image
    for those in (after_kill, members):
        async with open_array(those) as array:
            assert array.get("log.size") == sizes[-1]
            assert await array.read(0, span) == content
            await jobs_ended(array)
            await parity_holds(array)
    return configs


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("layout", ["raid0", "raid1", "raid5", "rdp"])
async def test_a_log_gets_smaller_and_larger_where_it_is_or_behind_the_data(
    layout: str, sums: bool
) -> None:
    members = await ram_array(layout, 4, 4 * MIB, with_volume=False, sums=sums)
    async with open_array(members) as array:
        before, size = array.member_set.config, array.size_bytes
    log = before.regions.log
    smaller, back, larger, again = await _resized(
        members, 256 * KIB, log.length, 768 * KIB, log.length
    )
    assert smaller.regions.log == (log.offset, 256 * KIB)
    assert back.regions == before.regions
    assert back.needs == before.needs
    assert larger.regions.log.offset > larger.regions.data.end - 1
    assert larger.regions.log.end == 4 * MIB, "at the far end"
    assert "log.moved" in larger.needs
    stored = config_to_dict(larger)["regions"]
    assert stored["moved_log"] == [*larger.regions.log]
    end = larger.regions.written.end
    assert (stored["log"], stored["table"]) == ([end, 12288], [end + 12288, 0]), "for 79fb2b4"
    assert decode_config(encode_config(larger)) == larger
    assert "moved_log" not in config_to_dict(again)["regions"]
    assert again.regions.log == log, "back in its place before the data"
    assert again.needs == before.needs
    async with open_array(members) as array:
        assert size - 4 * MIB < array.size_bytes < size, "the image gave up its end"


async def test_free_bytes_behind_the_data_are_used_before_the_image() -> None:
    members = await ram_array("raid5", 4, 4 * MIB)
    longer = [RamMember(6 * MIB, name=f"d{n}") for n in range(4)]
    for new, old in zip(longer, members, strict=True):
        new.memory[: 4 * MIB] = old.memory[:]
    async with open_array(longer) as array:
        size = array.size_bytes
        await array.member_set.update(
            lambda c: replace(c, members=tuple(replace(r, size_bytes=6 * MIB) for r in c.members))
        )
    await _resized(longer, MIB)
    async with open_array(longer) as array:
        regions = array.member_set.config.regions
        assert (regions.log.end, array.size_bytes) == (6 * MIB, size)
        with pytest.raises(UsageError, match="log of array disk lies behind its data") as caught:
            await array.larger_members.use()
        setting = str(caught.value).partition("raidx set ARRAY ")[2].partition(",")[0]
        await array.set(*setting.split("="))
        await array.larger_members.use()
        assert array.size_bytes > size
        await parity_holds(array)


@pytest.mark.parametrize("layout", ["raidx-copy", "raidx-parity"])
async def test_a_raidx_layout_has_room_before_its_data_or_none(layout: str) -> None:
    members = await ram_array(layout, 4, 4 * MIB, log_bytes=512 * KIB)
    (smaller, larger) = await _resized(members, 256 * KIB, 512 * KIB)
    assert (smaller.regions.data, larger.regions.data) == (larger.regions.data,) * 2
    async with open_array(members) as array:
        before = array.member_set.config
        with pytest.raises(UsageError, match="no room for a log of that size, 1048576 bytes"):
            await array.set("log.size", "1MiB")
        assert array.member_set.config == before


async def test_what_is_impossible_is_refused_and_changes_nothing() -> None:
    members = await ram_array("raid5", 4, 4 * MIB)
    async with open_array(members) as array:
        before = array.member_set.config
        for text, words in (
            ("4096", "here it has"),
            ("1TiB", "here it has"),
            ("0", "without a log"),
            ("1MiB", "raidx volume resize MOUNT disk"),
        ):
            with pytest.raises(UsageError, match=words):
                await array.set("log.size", text)
        await array.set("log.size", "auto")
        assert array.member_set.config == before
        assert 2 * before.regions.log.length < LOG_BYTES_LIMIT
    async with open_array(members[:3], start_degraded=True) as array:
        with pytest.raises(RaidxError, check=because(Reason.DEGRADED)):
            await array.set("log.size", "256KiB")
        assert array.member_set.config.regions == before.regions
    async with open_array(members[:3], read_only=True, start_degraded=True) as array:
        with pytest.raises(Exception, match="read-only"):
            await array.set("log.size", "256KiB")


async def test_a_member_that_joins_later_gets_the_log_where_it_lies_now() -> None:
    members = await ram_array("raid5", 4, 4 * MIB, with_volume=False)
    await _resized(members, MIB)
    async with open_array(members) as array:
        need = array.member_set.config.regions.end
        await array.grow([RamMember(need, name="new")])
        await jobs_ended(array)
        await array.write(0, b"x" * 100_000)
        await parity_holds(array)
        assert array.member_set.config.regions.log.length == MIB
        with pytest.raises(UsageError, match="raidx reshape ARRAY --layout raid5") as caught:
            await array.set("log.size", "1280KiB")
        assert caught.value.reason == Reason.METADATA_FULL


async def test_tables_of_checksums_that_would_lie_elsewhere_are_in_the_way() -> None:
    """Their places follow from the length of the data: a remount would look for them elsewhere."""
    members = await ram_array("raid5", 4, 64 * MIB, chunk_bytes=64 * KIB, with_volume=False)
    content = random.Random(5).randbytes(MIB)
    async with open_array(members) as array:
        await array.set("sums", "on")
        await array.write(0, content)
        await jobs_ended(array)
        with pytest.raises(
            UsageError, match="tables of checksums", check=because(Reason.METADATA_FULL)
        ):
            await array.set("log.size", "16MiB")
        await array.set("sums", "off")
        await array.set("log.size", "16MiB")
        await array.set("sums", "on")
        await jobs_ended(array)
    async with open_array(members) as array:
        assert array.get("log.size") == 16 * MIB
        assert await array.read(0, len(content)) == content
        await parity_holds(array)
        assert array.status()["sums"]["misfits"] == 0
