"""Requests of a volume and changes of its extents: none is under way when the other happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from raidx_fuse.array.open import open_array
from raidx_fuse.engine import discard as discarding
from raidx_fuse.errors import BusyError, UsageError
from raidx_fuse.format.create import create_array
from raidx_fuse.laws import LawError
from raidx_fuse.members.base import WrapperMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import sleep
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.move import open_pool, start_move
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.transfer import with_record
from raidx_fuse.pool.volume import Volume
from tests.support.closing import entered
from tests.support.load import eventually
from tests.support.two_arrays import noise

PAGE = 4096
MIB = 1 << 20
PARTS = 12  # of a volume in several extents
PART_BYTES = 8 * PAGE

Scene = Callable[[Pool, "Slow"], Awaitable[None]]


class Slow:
    """How long each write and each punch takes on the members of "source"."""

    def __init__(self) -> None:
        self.write_s = self.punch_s = 0.0


class SlowMember(WrapperMember):
    """A disk as slow as *slow* says."""

    def __init__(self, inner: RamMember, slow: Slow) -> None:
        super().__init__(inner)
        self._slow = slow

    def try_writev(self, offset_bytes: int, buffers: Any) -> bool:
        return not self._slow.write_s and self.inner.try_writev(offset_bytes, buffers)

    async def writev(self, offset_bytes: int, buffers: Any) -> None:
        if self._slow.write_s:
            await sleep(self._slow.write_s)
        await self.inner.writev(offset_bytes, buffers)

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        if self._slow.punch_s:
            await sleep(self._slow.punch_s)
        return await self.inner.punch(offset_bytes, length_bytes)


async def slow_pool() -> tuple[Pool, Slow]:
    """Return a pool of the arrays "source", which is slow, and "target", which have no volume."""
    slow = Slow()
    sides = []
    for name in ("source", "target"):
        of = slow if name == "source" else Slow()
        members = [SlowMember(RamMember(10 * MIB, name=f"{name}{n}"), of) for n in range(3)]
        await create_array(
            members,
            "raid5",
            chunk_bytes=PAGE,
            name=name,
            now_s=0,
            with_volume=False,
            log_bytes=MIB,
        )
        array = await entered(open_array(members))
        sides.append(await entered(open_volumes(array)))
    return await entered(open_pool(sides)), slow


async def content(volume: Volume) -> bytes:
    return bytes(await volume.read(0, volume.size_bytes))


async def make(volumes: ArrayVolumes, size_bytes: int, seed: int = 1) -> Volume:
    """Create the volume v with content."""
    volume = await volumes.create("v", size_bytes)
    await volume.write(0, noise(size_bytes, seed))
    await volume.flush()
    return volume


async def in_parts(volumes: ArrayVolumes) -> Volume:
    """Create the volume v, with content, in `PARTS` extents."""
    small = [await volumes.create(f"f{n}", PART_BYTES) for n in range(2 * PARTS)]
    await volumes.create("rest", volumes.free_bytes() // (2 * PAGE) * 2 * PAGE)
    for one in small[::2]:
        await volumes.delete(one)
    volume = await make(volumes, PARTS * PART_BYTES)
    assert len(volumes.extents(volume)) == PARTS
    return volume


@pytest.mark.parametrize("way", ["delete", "shrink"])
async def test_a_discard_under_way_reaches_no_volume_that_gets_its_places(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discarding, "STRIPES_AT_ONCE", 64)  # so that there are several batches
    pool, slow = await slow_pool()
    volumes = pool.array("source")
    volume = await make(volumes, 12 * MIB)
    slow.punch_s = 20.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(volume.discard, 0, volume.size_bytes)
        await trio.sleep(1)
        slow.punch_s = 0.01
        if way == "delete":
            await volumes.delete(volume, lose_data=True)
        else:
            await volumes.resize(volume, 4 * MIB, lose_data=True)
        await volumes.wiped()
        other = await volumes.create("w", 8 * MIB)
        await other.write(0, noise(8 * MIB, 2))
        await other.flush()
    assert await content(other) == noise(8 * MIB, 2)
    if way == "shrink":
        assert await content(volume) == bytes(4 * MIB)


async def test_a_volume_that_moves_takes_the_discard_under_way_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discarding, "STRIPES_AT_ONCE", 64)
    pool, slow = await slow_pool()
    source = pool.array("source")
    volume = await make(source, 8 * MIB)
    slow.punch_s = 2.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(volume.discard, 0, volume.size_bytes)
        await trio.sleep(0.5)
        await source.array.jobs.wait(await start_move(pool, "v", "target"))
    assert pool.find("v")[0] is pool.array("target")
    assert await content(volume) == bytes(volume.size_bytes)


@pytest.mark.parametrize("resized", [False, True])
async def test_a_volume_that_moves_takes_the_write_over_many_extents_with_it(resized: bool) -> None:
    pool, slow = await slow_pool()
    source = pool.array("source")
    volume = await in_parts(source)
    if resized:
        await source.resize(volume, volume.size_bytes - PART_BYTES, lose_data=True)
    after = noise(volume.size_bytes, 2)
    slow.write_s = 0.01
    async with trio.open_nursery() as nursery:
        nursery.start_soon(volume.write, 0, after)
        await trio.sleep(0.0025)
        await source.array.jobs.wait(await start_move(pool, "v", "target"))
    assert await content(volume) == after


async def test_a_request_over_many_extents_goes_on_though_the_gate_is_closed_meanwhile() -> None:
    """It came while a change waited for another one, and is inside until its last part."""
    pool, slow = await slow_pool()
    volumes = pool.array("source")
    volume = await in_parts(volumes)
    await volumes.delete(next(one for one in volumes.volumes if one.name == "f1"))
    await volumes.wiped()
    size = volume.size_bytes
    slow.write_s = 0.05
    async with trio.open_nursery() as nursery:
        nursery.start_soon(volume.write, 0, noise(size, 2))
        await trio.sleep(0.01)
        nursery.start_soon(volumes.resize, volume, size + PART_BYTES)
        await trio.sleep(0.01)
        for seed in (3, 4):
            nursery.start_soon(volume.write, 0, noise(size, seed))
            await trio.sleep(0.01)
        await eventually(lambda: volume.gate.is_closed, 3600, 0.01)
        assert volume.gate.inside
        assert (await volume.read(0, size)) == noise(size, 4)
    assert volume.size_bytes == size + PART_BYTES
    assert await content(volume) == noise(size, 4) + bytes(PART_BYTES)


async def test_requests_that_wait_for_a_change_meet_the_volume_as_it_is_then() -> None:
    pool, _ = await slow_pool()
    volumes = pool.array("source")
    volume, before = await make(volumes, 2 * MIB), noise(2 * MIB)
    refused: list[str] = []

    async def request(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except UsageError as error:
            refused.append(error.message)

    async def all_requests(nursery: trio.Nursery) -> None:
        for call in (
            lambda: volume.write(0, b"in front"),
            lambda: volume.write(MIB, b"cut off"),
            lambda: volume.read(MIB - 1, 2),
            lambda: volume.discard(MIB, PAGE),
        ):
            nursery.start_soon(request, call)
        await trio.testing.wait_all_tasks_blocked()

    update = volumes.array.member_set.update

    async def meanwhile(*given: Any, **options: Any) -> None:
        volumes.array.member_set.update = update  # type: ignore[method-assign]
        await all_requests(nursery)
        await update(*given, **options)

    async with trio.open_nursery() as nursery:
        volumes.array.member_set.update = meanwhile  # type: ignore[method-assign]
        await volumes.resize(volume, MIB, lose_data=True)
    behind = {(MIB, MIB + 7), (MIB - 1, MIB + 1), (MIB, MIB + PAGE)}
    words = "bytes {} to {} are not inside volume v, which has {} bytes"
    assert set(refused) == {words.format(*part, MIB) for part in behind}
    assert await content(volume) == b"in front" + before[8:MIB]
    refused.clear()
    async with trio.open_nursery() as nursery:
        volumes.array.member_set.update = meanwhile  # type: ignore[method-assign]
        await volumes.delete(volume, lose_data=True)
    assert "volume v was deleted" in refused
    assert len(refused) == 4


async def test_a_volume_whose_requests_do_not_end_stays_as_it_is() -> None:
    pool, _ = await slow_pool()
    source, target = pool.array("source"), pool.array("target")
    volume, before = await make(source, MIB), source.array.member_set.config.volumes
    table = target.table()
    entry = volume.gate.enter_now()

    async def one_after_the_other() -> None:
        """One request leaves when the next one is there; the last one stays."""
        nonlocal entry
        while True:
            await trio.sleep(1)
            if volume.gate.is_closed:
                break
            following = volume.gate.enter_now()
            entry.leave()
            entry = following

    for change in (
        lambda: source.resize(volume, PAGE, lose_data=True),
        lambda: source.resize(volume, 2 * MIB),
        lambda: source.delete(volume, lose_data=True),
        lambda: start_move(pool, "v", "target"),
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one_after_the_other)
            with pytest.raises(BusyError, match="requests of volume v did not end within 30 s"):
                await change()
        assert volume.size_bytes == MIB
        assert source.array.member_set.config.volumes == before
        await target.wiped()
        assert target.table() == table
        assert await content(volume) == noise(MIB)
    entry.leave()
    await source.delete(volume, lose_data=True)


async def test_no_table_takes_a_place_away_from_under_a_request() -> None:
    """The law itself, for a change that goes past the gate."""
    pool, _ = await slow_pool()
    volumes = pool.array("source")
    volume = await make(volumes, MIB)
    entry = volume.gate.enter_now()
    record = volumes.table().find(volume.uuid)
    assert record is not None
    (extent,) = record.extents
    less = replace(record, size_bytes=PAGE, extents=(extent._replace(length=PAGE),))
    with pytest.raises(LawError, match="a change of extents under 1 requests of volume v"):
        await volumes.change(lambda table: with_record(table, less))
    assert volumes.table().find(volume.uuid) == record
    entry.leave()
