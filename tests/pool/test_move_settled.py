"""What a mount makes of two tables that name a move, and what a move waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.format.configuration.volumes import Arrived, VolumeTable
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.pool.move import start_move
from raidx_fuse.pool.pool import Pool, check_names
from raidx_fuse.pool.transfer import Transfer, with_record
from tests.support.two_arrays import PAGE, Arrays, content, created, ended, mounted, move_of, noise

PAGES = 16
DATA = noise(PAGES * PAGE)


async def with_mail() -> Arrays:
    """Return two arrays; "fast" has the volume mail, written whole."""
    arrays = await created()
    async with arrays.mounted() as pool:
        volume = await pool.array("fast").create("mail", PAGES * PAGE)
        await volume.write(0, DATA)
    return arrays


async def begin_slowly(pool: Pool) -> None:
    """Begin to move mail, which takes about two seconds."""
    await start_move(pool, "mail", "slow")
    move_of(pool.array("fast")).limit(0, 8 * PAGE)
    move_of(pool.array("fast")).window = 1


async def half_way(arrays: Arrays) -> None:
    """Move mail half, and unmount."""
    async with arrays.mounted() as pool:
        await begin_slowly(pool)
        await trio.sleep(0.9)
    async with arrays.mounted("slow") as pool:
        (one,) = pool.unshown
        assert one.record.move is not None
        assert 0 < one.record.move.watermark < PAGES * PAGE


async def change(arrays: Arrays, name: str, change: Callable[[VolumeTable], VolumeTable]) -> None:
    """Change the table of one array as if its members were of another time."""
    async with arrays.mounted(name) as pool:
        await pool.array(name).change(change)


def plain(table: VolumeTable) -> VolumeTable:
    """Return *table* as it was before the move began."""
    (record,) = table.volumes
    return with_record(table, replace(record, move=None))


def shown(pool: Pool) -> list[str]:
    return [volume.name for volumes in pool.arrays for volume in volumes.volumes]


async def test_a_source_of_before_the_move_makes_nobody_lose_anything() -> None:
    arrays = await with_mail()
    await half_way(arrays)
    await change(arrays, "fast", plain)
    async with arrays.mounted() as pool:
        before = [volumes.table() for volumes in pool.arrays]
        assert shown(pool) == []
        assert len(pool.unshown) == 2
        for one in pool.unshown:
            assert one.text == (
                "volume mail is not shown: array slow names a move that array fast does not "
                "know; are members of one of them outdated?"
            )
        await trio.sleep(60)
        assert [volumes.table() for volumes in pool.arrays] == before


async def test_a_target_of_before_the_move_makes_nobody_lose_anything() -> None:
    arrays = await with_mail()
    await half_way(arrays)
    await change(arrays, "slow", lambda table: VolumeTable())
    async with arrays.mounted() as pool:
        assert shown(pool) == []
        (one,) = pool.unshown
        assert "array fast names a move that array slow does not know" in one.text
        (record,) = pool.array("fast").table().volumes
        assert record.move is not None
        # The user may give it up.
        await pool.forget(one)
        assert pool.array("fast").table().volumes == ()
        assert pool.array("fast").array.warnings == []
        await pool.array("fast").wiped()


async def test_a_source_that_missed_the_end_gives_its_places_up() -> None:
    arrays = await with_mail()
    await half_way(arrays)
    async with arrays.mounted("fast") as pool:
        left = pool.array("fast").table()
    async with arrays.mounted() as pool:
        await move_of(pool.array("fast")).finished.wait()
        ended = pool.array("slow").table()
        move = left.volumes[0].move
        assert move is not None
    # The end of the move is there, and the source is as it was before.
    await change(arrays, "fast", lambda table: replace(left, wiping=()))
    arrived = (Arrived(move.uuid, pool.array("fast").array.uuid),)
    values = replace(ended, arrived=arrived)
    await change(arrays, "slow", lambda table: values)
    async with arrays.mounted("slow") as pool:
        assert await content(pool.find("mail")[1]) == DATA
        assert pool.array("slow").table().arrived == arrived  # the source may still need it
        await pool.array("slow").delete(pool.find("mail")[1], lose_data=True)
    async with arrays.mounted(read_only=True) as pool:
        assert shown(pool) == []
    async with arrays.mounted() as pool:
        assert shown(pool) == []
        assert pool.unshown == []
        for volumes in pool.arrays:
            await volumes.wiped()
            assert volumes.table() == VolumeTable()


async def test_a_move_that_never_began_is_none() -> None:
    arrays = await with_mail()
    await half_way(arrays)
    await change(arrays, "fast", plain)

    def never_copied(table: VolumeTable) -> VolumeTable:
        (record,) = table.volumes
        assert record.move is not None
        return with_record(table, replace(record, move=replace(record.move, watermark=0)))

    await change(arrays, "slow", never_copied)
    async with arrays.mounted() as pool:
        assert await content(pool.find("mail")[1]) == DATA
        await pool.array("slow").wiped()
        assert pool.array("slow").table() == VolumeTable()


async def test_one_volume_on_two_arrays_is_refused() -> None:
    arrays = await with_mail()
    async with arrays.mounted() as pool:
        (record,) = pool.array("fast").table().volumes
        extents = pool.array("slow").places_for(PAGES * PAGE)
        twin = replace(record, name="twin", extents=extents)
        await pool.array("slow").change(lambda table: replace(table, volumes=(twin,)))
    async with arrays.mounted() as pool:
        with pytest.raises(UsageError, match="arrays fast and slow both say that volume twin"):
            check_names(pool.arrays)


async def test_a_move_begins_when_the_writes_from_before_have_ended() -> None:
    pool = await mounted(await with_mail())
    source, volume = pool.find("mail")
    locks = source.array.context.locks
    stripes = [Stripe(stripe) for stripe in range(PAGES)]
    await locks.acquire_all(stripes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(volume.write, 0, bytes(PAGES * PAGE))  # waits for its stripes
        await trio.sleep(0.1)
        nursery.start_soon(start_move, pool, "mail", "slow")
        await trio.sleep(30)
        assert not source.array.jobs.running()
        locks.release_all(stripes)
    await move_of(source).finished.wait()
    assert await content(volume) == bytes(PAGES * PAGE)


async def test_no_place_is_given_up_under_a_read_from_before() -> None:
    pool = await mounted(await with_mail())
    source, volume = pool.find("mail")
    await start_move(pool, "mail", "slow")
    reading = volume.gate.enter_now()
    await trio.sleep(30)
    assert pool.find("mail")[0] is source
    assert not source.table().wiping
    reading.leave()
    await move_of(source).finished.wait()
    assert source.table().find(volume.uuid) is None


async def test_a_write_that_waited_for_a_window_waits_for_a_closed_gate_too() -> None:
    pool = await mounted(await with_mail())
    source, volume = pool.find("mail")
    await start_move(pool, "mail", "slow")
    move_of(source).pause()
    transfer = pool.transfers[volume.uuid]
    async with trio.open_nursery() as nursery:
        async with transfer.window(0, PAGES * PAGE):
            nursery.start_soon(volume.write, 0, DATA[PAGE : 2 * PAGE])
            await trio.sleep(1)
            closed = volume.gate.closed(30)
            await closed.__aenter__()
        await trio.sleep(1)
        assert bytes(await source.array.read(*source.extents(volume)[0])) == DATA
        await closed.__aexit__(None, None, None)
    move_of(source).resume()
    await move_of(source).finished.wait()
    assert bytes(await volume.read(0, PAGE)) == DATA[PAGE : 2 * PAGE]


async def test_a_copy_of_what_a_crash_has_taken_back_does_not_stay() -> None:
    arrays = await with_mail()
    async with arrays.mounted() as pool:
        volume = await pool.array("fast").create("late", PAGES * PAGE)
        await volume.write(0, DATA[: PAGES // 2 * PAGE])  # the rest was never written
        await start_move(pool, "late", "slow")
        move_of(pool.array("fast")).limit(0, 4 * PAGE)
        move_of(pool.array("fast")).window = 1
        await trio.sleep(0.9)
    async with arrays.mounted("slow") as pool:
        # As if the last page had been written and copied, and the crash had taken the write
        # back on the source alone: its first write was not durable there.
        (one,) = pool.unshown
        (extent,) = one.record.extents
        await pool.array("slow").array.write(extent.end - PAGE, DATA[:PAGE])
    async with arrays.mounted() as pool:
        volume = pool.find("late")[1]
        assert await content(volume) == DATA[: PAGES // 2 * PAGE] + bytes(PAGES // 2 * PAGE)
        await move_of(pool.array("fast")).finished.wait()
        assert pool.find("late")[0] is pool.array("slow")
        assert await content(volume) == DATA[: PAGES // 2 * PAGE] + bytes(PAGES // 2 * PAGE)


async def test_no_mark_names_a_copy_that_is_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a watermark nor the end of the move (law 2 of transfer.py)."""
    store, save, arrived = Transfer.store, Transfer._save_watermark, Transfer._arrived
    copied = durable = saves = 0

    async def watched_store(transfer: Transfer, low: int, data: bytes) -> None:
        nonlocal copied
        await store(transfer, low, data)
        copied = low + len(data)

    async def watched_save(transfer: Transfer, watermark: int, back: bool) -> None:
        nonlocal saves
        assert watermark <= durable
        saves += 1
        await save(transfer, watermark, back)

    def watched_arrived(transfer: Transfer, table: VolumeTable) -> VolumeTable:
        assert durable == transfer.size
        return arrived(transfer, table)

    monkeypatch.setattr(Transfer, "store", watched_store)
    monkeypatch.setattr(Transfer, "_save_watermark", watched_save)
    monkeypatch.setattr(Transfer, "_arrived", watched_arrived)
    arrays = await with_mail()
    async with arrays.mounted() as pool:
        target = pool.array("slow").array
        flush = target.flush

        async def watched_flush() -> None:
            nonlocal durable
            before = copied
            await flush()
            durable = max(durable, before)

        monkeypatch.setattr(target, "flush", watched_flush)
        await begin_slowly(pool)
        await trio.sleep(0.9)
        await pool.find("mail")[1].write(0, DATA[:PAGE])  # saves the watermark before it
        assert saves
        await ended(pool)
    assert durable == PAGES * PAGE


async def test_a_window_waits_for_the_writes_that_are_on_their_way_to_the_source() -> None:
    pool = await mounted(await with_mail())
    source, volume = pool.find("mail")
    await begin_slowly(pool)
    await trio.sleep(0.1)
    transfer = move_of(source)._legs[0].transfer
    assert transfer is not None
    write_here, last = transfer._write_here, (PAGES - 1) * PAGE

    async def late(at: int, part: ReadBuffer) -> None:
        await trio.sleep(30)  # far longer than the move would take
        await write_here(at, part)

    transfer._write_here = late
    await volume.write(last, noise(PAGE, 9))
    await ended(pool)
    assert pool.find("mail")[0] is not source
    assert (await content(volume))[last:] == noise(PAGE, 9)
