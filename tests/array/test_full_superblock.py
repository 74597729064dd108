"""A configuration that does not fit in a superblock: refused, and the array runs on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import ArrayFailedError, FormatError, RaidxError, Reason, UsageError
from raidx_fuse.format.configuration import config as config_module
from raidx_fuse.format.configuration.config import ArrayConfig, encode_config
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES
from raidx_fuse.format.superblock import BODY_BYTES_MAX
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import ram_array
from tests.support.reasons import because

MIB = 1 << 20


async def test_a_speed_of_5000_digits_is_refused() -> None:
    async with open_array(await ram_array("raid5", 3)) as array:
        for text in ("9" * 5000, "9" * 40, "9999999999TiB"):
            with pytest.raises(UsageError):
                await array.set("speed_max", text)
        for key in ("bpu.t_pre", "scrub_each_s", "bpu.a_read", "io.timeout_s"):
            with pytest.raises(UsageError):
                await array.set(key, "9" * 5000)
        with pytest.raises(UsageError):
            await array.set("scrub_each_s", "1e999")
        await array.set("speed_max", "7MiB")
        await array.write(0, b"a")
        assert array.get("speed_max") == 7 << 20


async def test_21_spares_with_long_paths_are_members() -> None:
    members = await ram_array("raid5", 3)
    spares = [RamMember(MIB, name="/" + "long/" * 700 + str(n)) for n in range(21)]
    async with open_array(members) as array:
        for spare in spares:
            await array.add_spare(spare)
    async with open_array([*members, *spares]) as array:
        assert len(array.member_set.spares) == 21


async def test_one_spare_too_many_is_refused_and_no_harm_is_done() -> None:
    members = await ram_array("raid5", 3)
    async with open_array(members) as array:
        await array.write(0, b"kept")
        room = BODY_BYTES_MAX - len(encode_config(array.member_set.config))
        filling = "x" * (room - RESERVE_BYTES // 2)
        array.member_set.change(lambda c: replace(c, settings={"balance.stay": filling}))
        with pytest.raises(FormatError, check=because(Reason.METADATA_FULL)):
            await array.add_spare(RamMember(MIB, name="spare"))
        with pytest.raises(FormatError, check=because(Reason.METADATA_FULL)):
            await array.set("speed_max", "7MiB")
        assert not array.member_set.spares
        assert array.get("speed_max") == array.jobs.speed_max_bytes == 0
        await array.fail_disk(1)  # nobody asks whether there is room for that
        await array.write(4096, b"more")
    async with open_array([members[0], members[2]]) as array:
        assert bytes(await array.read(0, 4)) + bytes(await array.read(4096, 4)) == b"keptmore"


async def test_220_members_that_lose_24000_chunks_go_on_and_remember_all() -> None:
    members = await ram_array("raid5", 220, 4 * MIB)
    async with open_array(members) as array:
        chunks = array.context.layout.chunks
        lost = random.Random(7).sample(range(chunks), 24_000)
        array.context.bad_chunks.update(lost)
        await trio.sleep(2)
        await array.set("speed_max", "7MiB")
        with pytest.raises(RaidxError):
            await array.read(lost[0] * 4096, 1)
    async with open_array(members) as array:
        bad = array.context.bad_chunks
        assert all(chunk in bad for chunk in lost)
        assert array.status()["lost_chunks"] == bad.count() >= 24_000
        chunk = lost[5]
        await array.write(chunk * 4096, bytes(4096))
        assert not any(await array.read(chunk * 4096, 4096))


async def test_without_any_room_writes_are_refused_and_the_array_still_closes() -> None:
    members = await ram_array("raid5", 3)
    async with open_array(members) as array:
        await array.write(0, b"before")
        await array.flush()
        array.member_set.change(lambda c: replace(c, settings={"balance.stay": "x" * 65_000}))
        array.member_set.fail(1, "it broke")
        with pytest.raises(ArrayFailedError, match="does not fit"):
            await array.write(4096, b"after")
        with pytest.raises(ArrayFailedError, match="does not fit"):
            await array.flush()
        assert bytes(await array.read(0, 6)) == b"before"
    async with open_array(members) as array:
        assert bytes(await array.read(0, 6)) == b"before"


async def test_a_configuration_is_checked_once_however_often_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Encoding and checking took a third of the time to open and close an array."""
    checked = 0
    check = config_module._text_of

    def counted(config: ArrayConfig) -> bytes:
        nonlocal checked
        checked += 1
        return check(config)

    members = await ram_array("raid5", 3)
    monkeypatch.setattr(config_module, "_text_of", counted)
    async with open_array(members):
        assert checked == 1
    assert checked == 2
