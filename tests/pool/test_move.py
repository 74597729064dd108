"""Volumes that move between two arrays of RAM members, in virtual time."""

from __future__ import annotations

import dataclasses
import random

import pytest
import trio

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.pool.move import start_move, start_swap
from tests.support.load import eventually
from tests.support.reasons import because
from tests.support.two_arrays import (
    PAGE,
    PAGES,
    SLOW_BYTES,
    Arrays,
    Spec,
    content,
    created,
    ended,
    is_tidy,
    make,
    move_of,
    noise,
    slow_move,
)

BIG_PAGES = 24 << 8  # 24 MiB


async def test_a_volume_moves_and_is_all_there() -> None:
    arrays = await created()
    async with arrays.mounted() as pool:
        volume = await make(pool)
        before, uuid = await content(volume), volume.uuid
        free = pool.array("fast").free_bytes()
        source = pool.array("fast").array
        read = source.context.traffic.read_bytes
        job = await start_move(pool, "mail", "slow")
        status = await source.jobs.wait(job)
        assert (status["kind"], status["state"]) == ("move", "done")
        # written chunks alone are read, once
        assert source.context.traffic.read_bytes - read == PAGES // 2 * PAGE
        assert pool.find("mail") == (pool.array("slow"), volume)
        assert await content(volume) == before
        await is_tidy(pool)
        assert pool.array("fast").free_bytes() == free + PAGES * PAGE
        await volume.write(PAGE, noise(3 * PAGE, 2))
    async with arrays.mounted("slow") as pool:
        _, volume = pool.find(uuid)
        assert await content(volume) == before[:PAGE] + noise(3 * PAGE, 2) + before[4 * PAGE :]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_users_read_and_write_everywhere_meanwhile(
    slow: bool, cancelled: bool, seed: int
) -> None:
    arrays = await created(slow=slow)
    rng = random.Random(seed)
    async with arrays.mounted() as pool:
        volume = await make(pool)
        model = bytearray(await content(volume))

        async def write(low: int, size: int) -> None:
            data = rng.randbytes(size)
            model[low : low + size] = data
            await volume.write(low, data)

        async def use(part: int) -> None:  # each its own part, so that the model is exact
            first = part * PAGES // 4 * PAGE
            while not done:
                size = rng.choice((512, 700, PAGE, 5 * PAGE))
                low = first + rng.randrange(PAGES // 4 * PAGE - size)
                await write(low, size)
                assert bytes(await volume.read(low, size)) == model[low : low + size]
                if rng.random() < 0.1:
                    await volume.flush()
                await trio.sleep(rng.uniform(0, 0.05))

        done = False
        async with trio.open_nursery() as nursery:
            for part in range(4):
                nursery.start_soon(use, part)
            await trio.sleep(0.01)
            await slow_move(pool)
            job = move_of(pool.array("fast"))
            if cancelled:
                await trio.sleep(1.5)
                assert job.detail()["watermark"] > 0
                job.cancel()
            await ended(pool)
            done = True
        assert await content(volume) == model
        assert pool.find("mail")[0] is pool.array("fast" if cancelled else "slow")
        await is_tidy(pool)
    async with arrays.mounted() as pool:
        assert await content(pool.find("mail")[1]) == model


async def test_unmounted_in_the_middle_it_goes_on() -> None:
    arrays = await created()
    async with arrays.mounted() as pool:
        volume = await make(pool)
        before = await content(volume)
        await slow_move(pool)
        await trio.sleep(0.6)
    for name in ("fast", "slow"):
        async with arrays.mounted(name) as pool:
            assert pool.array(name).volumes == []
            (unshown,) = pool.unshown
            word = "to array slow" if name == "fast" else "from array fast"
            assert f"volume mail is not shown: it is on its way {word}" in unshown.text
            assert "which is absent" in unshown.text
            assert unshown.text in pool.array(name).array.warnings
            with pytest.raises(UsageError, check=because(Reason.EXISTS)):
                await pool.array(name).create("mail", PAGE)
            with pytest.raises(UsageError, check=because(Reason.MEMBERS_MISSING)):
                await start_move(pool, "mail", name)
    async with arrays.mounted(read_only=True) as pool:
        _, volume = pool.find("mail")
        assert await content(volume) == before
        assert not pool.array("fast").array.jobs.running()
    async with arrays.mounted() as pool:
        _, volume = pool.find("mail")
        job = move_of(pool.array("fast"))
        assert 0 < job.detail()["watermark"] < volume.size_bytes
        assert await content(volume) == before
        await ended(pool)
        assert pool.find("mail")[0] is pool.array("slow")
        assert await content(volume) == before
        await is_tidy(pool)


async def test_a_volume_that_is_the_whole_array_moves_too() -> None:
    arrays = Arrays((Spec("old", "raid0", 2, data_pages=20), Spec("new", "raid5", 4)))
    await arrays.create()
    async with arrays.mounted("old") as pool:
        old = pool.array("old").array
        # as an array of before: without a volume table
        await old.member_set.update(lambda config: dataclasses.replace(config, volumes=None))
    async with arrays.mounted() as pool:
        _, volume = pool.find("old")
        data = noise(volume.size_bytes)
        await volume.write(0, data)
        await start_move(pool, "old", "new")
        await ended(pool)
        assert await content(volume) == data
        assert pool.array("old").volumes == []
        assert pool.array("new").volumes == [volume]
        await is_tidy(pool)
    arrays = await created()
    async with arrays.mounted() as pool:
        volume = await make(pool)
        await start_move(pool, "mail", "slow")
        await ended(pool)
    assert volume.uuid


async def test_a_cancel_takes_back_every_move_that_one_mount_goes_on_with() -> None:
    arrays = await created()
    async with arrays.mounted() as pool:
        await make(pool)
        for name in ("big", "bigger"):
            await make(pool, "slow", name, 30)
        await slow_move(pool, "big", "fast")
        await start_swap(pool, "mail", "bigger")
        swap = move_of(pool.array("fast"))
        swap.window = 1
        swap.limit(0, 2 * SLOW_BYTES)  # its first leg ends before the other move does
        move_of(pool.array("slow")).limit(0, SLOW_BYTES // 4)
        await eventually(lambda: swap.detail()["legs_left"] != 2, 3600, 0.01)
        await trio.sleep(0.3)
        assert len(pool.transfers) == 2
    async with arrays.mounted() as pool:
        job = move_of(pool.array("slow"))
        assert job.detail()["legs_left"] == 2
        job.cancel()
        await ended(pool)
        assert pool.find("big")[0] is pool.find("bigger")[0] is pool.array("slow")
        await is_tidy(pool)


async def test_a_move_alone_reads_and_writes_each_byte_once_at_the_disks_speed() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            volume = await pool.array("fast").create("mail", BIG_PAGES * PAGE)
            data = noise(BIG_PAGES * PAGE)
            await volume.write(0, data)
            await volume.flush()
            other = await pool.array("slow").create("other", BIG_PAGES * PAGE)
            seconds = []
            for low in range(2):  # what either array takes by itself
                started_s = trio.current_time()
                if low:
                    await other.write(0, data)
                    await other.flush()
                else:
                    for at in range(0, len(data), 1 << 20):
                        await volume.read(at, 1 << 20)
                seconds.append(trio.current_time() - started_s)
            await pool.array("slow").delete(other, lose_data=True)
            await pool.array("slow").wiped()
            counters = [pool.array(name).array.context.traffic for name in ("fast", "slow")]
            before = counters[0].read_bytes, counters[1].write_bytes
            started_s = trio.current_time()
            await start_move(pool, "mail", "slow")
            await eventually(lambda: pool.find("mail")[0] is not pool.array("fast"), 3600, 0.001)
            taken_s = trio.current_time() - started_s
            copied = counters[0].read_bytes - before[0] + counters[1].write_bytes - before[1]
            assert copied <= 2.02 * len(data)
            assert max(seconds) >= 0.85 * taken_s, (seconds, taken_s)
            await ended(pool)
            assert await content(volume) == data

    arrays = Arrays(
        (
            Spec("fast", "raid1", 2, 64 << 10, BIG_PAGES),
            Spec("slow", "raid5", 4, 64 << 10, BIG_PAGES),
        ),
        slow=True,
    )
    await arrays.create()
    await scene(arrays)
