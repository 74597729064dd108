"""Moves that are refused, that members or arrays fail in, that another change meets."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from raidx_fuse.errors import BusyError, FormatError, NoSpaceError, UsageError
from raidx_fuse.pool.move import plan_move, start, start_move
from tests.support.two_arrays import (
    PAGE,
    PAGES,
    Arrays,
    content,
    ended,
    is_tidy,
    make,
    move_of,
    noise,
    play,
    slow_move,
)


def test_refused_with_one_line() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            await make(pool)
            await make(pool, name="news", pages=8)
            big = pool.array("fast").free_bytes() // PAGE + 1
            await make(pool, "slow", "big", big)
            tables = [volumes.table() for volumes in pool.arrays]
            for words, error, said in (
                (("none", "slow"), UsageError, "there is no volume none; there is mail, news, big"),
                (("mail", "none"), UsageError, "there is no array none here; there is fast, slow"),
                (("mail", "fast"), UsageError, "volume mail is on array fast already"),
                (("big", "fast"), NoSpaceError, "do not fit"),
            ):
                with pytest.raises(error) as caught:
                    await start_move(pool, *words)
                assert said in str(caught.value)
            assert [volumes.table() for volumes in pool.arrays] == tables
            await slow_move(pool)
            for call in (
                lambda: start_move(pool, "mail", "slow"),
                lambda: pool.array("fast").rename(pool.find("mail")[1], "post"),
                lambda: pool.array("fast").resize(pool.find("mail")[1], PAGE),
                lambda: pool.array("fast").delete(pool.find("mail")[1], lose_data=True),
            ):
                with pytest.raises(BusyError, match="volume mail is on its way"):
                    await call()
            with pytest.raises(BusyError, match="a move from array fast is running already"):
                await start_move(pool, "news", "slow")
            await ended(pool)
            await pool.array("slow").array.fail_disk(1)
            with pytest.raises(UsageError, match="array slow is degraded: role 1 is lost"):
                await start_move(pool, "news", "slow")
            await start_move(pool, "news", "slow", accept_degraded=True)
            await ended(pool)
            assert await content(pool.find("news")[1]) == noise(4 * PAGE) + bytes(4 * PAGE)

    play(scene)


@pytest.mark.parametrize("name", ["fast", "slow"])
def test_a_member_that_fails_in_the_middle_is_its_arrays_own_business(name: str) -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            volume = await make(pool)
            before = await content(volume)
            await slow_move(pool)
            await trio.sleep(0.6)
            arrays.shelf[name][1].vanish()
            await ended(pool)
            assert await content(volume) == before
            assert pool.array(name).array.member_set.lost == {1}

    play(scene)


@pytest.mark.parametrize("name", ["fast", "slow"])
def test_an_array_that_fails_in_the_middle_pauses_the_move(name: str) -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            volume = await make(pool)
            before = await content(volume)
            await slow_move(pool)
            await trio.sleep(0.6)
            for member in arrays.shelf[name]:
                member.vanish()
            await trio.sleep(60)
            job = move_of(pool.array("fast"))
            status = job.status()
            assert status["state"] == "paused"
            assert status["error"].endswith("resume`, or cancel it"), status
            for member in arrays.shelf[name]:
                member.come_back()
            job.resume()
            await ended(pool)
            assert await content(volume) == before

    play(scene)


def test_a_superblock_without_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            volume = await make(pool)
            tables = [volumes.table() for volumes in pool.arrays]

            async def full(*_: object, **__: object) -> None:
                raise FormatError("the configuration does not fit")

            monkeypatch.setattr(pool.array("fast"), "change", full)
            with pytest.raises(FormatError, match="does not fit"):
                await start_move(pool, "mail", "slow")
            monkeypatch.undo()
            assert [volumes.table() for volumes in pool.arrays] == tables
            assert pool.transfers == {}
            await start_move(pool, "mail", "slow")
            await ended(pool)
            assert await content(volume) == noise(PAGES // 2 * PAGE) + bytes(PAGES // 2 * PAGE)

    play(scene)


def test_a_volume_that_changes_while_its_move_begins_stays() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            volume = await make(pool)
            fast, size = pool.array("fast"), (PAGES - 5) * PAGE
            planned = plan_move(pool, "mail", "slow")
            async with trio.open_nursery() as nursery:
                resize = partial(fast.resize, volume, size, lose_data=True)
                nursery.start_soon(resize)
                with pytest.raises(BusyError, match="volume mail has changed meanwhile; try again"):
                    await start(pool, planned)
            await ended(pool)
            assert volume.size_bytes == size
            await is_tidy(pool)

    play(scene, slow=True)
