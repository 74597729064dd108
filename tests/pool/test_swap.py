"""Volumes that change places: through free space of either array, or of a third one."""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.errors import BusyError, NoSpaceError
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.move import cost, plan_swap, start_move, start_swap
from tests.support.two_arrays import (
    PAGE,
    SLOW_BYTES,
    Arrays,
    Spec,
    content,
    ended,
    is_tidy,
    make,
    move_of,
    play,
)


def test_two_volumes_change_places_through_free_space() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            mail, big = await make(pool), await make(pool, "slow", "big", 60)
            before = await content(mail), await content(big)
            assert [leg.volume for leg in plan_swap(pool, "mail", "big").legs] == [mail, big]
            await start_swap(pool, "mail", "big")
            await ended(pool)
            assert pool.find("mail")[0] is pool.array("slow")
            assert pool.find("big")[0] is pool.array("fast")
            assert (await content(mail), await content(big)) == before
            await is_tidy(pool)

    play(scene)


def test_volumes_change_places_by_way_of_a_third_array() -> None:
    async def whole() -> None:
        specs = (Spec("a", "raid0", 2), Spec("b", "raid0", 2), Spec("c", "raid0", 2))
        arrays = Arrays(specs)
        await arrays.create()
        async with arrays.mounted() as pool:
            room = pool.array("a").free_bytes() // PAGE
            one, two = (
                await make(pool, "a", "one", room - 5),
                await make(pool, "b", "two", room - 6),
            )
            before = await content(one), await content(two)
            planned = plan_swap(pool, "one", "two")
            assert [(leg.volume.name, leg.target.array.name) for leg in planned.legs] == [
                *(("two", "c"), ("one", "b"), ("two", "a"))
            ]
            price = cost(planned)
            assert price["volume_bytes"] == (2 * room - 11) * PAGE  # Eq. 3
            written = [(room - 5) // 2 * PAGE, (room - 6) // 2 * PAGE]
            assert price["bytes_moved"] == written[0] + 2 * written[1]
            await start_swap(pool, "one", "two")
            with pytest.raises(BusyError, match="volume one is on its way already"):
                await start_move(pool, "one", "c")  # its leg is still to come
            await ended(pool)
            assert pool.find("one")[0] is pool.array("b")
            assert pool.find("two")[0] is pool.array("a")
            assert (await content(one), await content(two)) == before
            await pool.array("c").wiper.wiped()
            await make(pool, "c", "three", room)
            with pytest.raises(NoSpaceError, match="volumes one and two cannot change places"):
                await start_swap(pool, "one", "two")
            await is_tidy(pool)

    run(whole)


def test_a_volume_that_is_deleted_before_its_leg_ends_the_swap() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            await make(pool)
            big = await make(pool, "slow", "big", 60)
            await start_swap(pool, "mail", "big")
            job = move_of(pool.array("fast"))
            job.limit(0, SLOW_BYTES)
            await pool.array("slow").delete(big, lose_data=True)
            await ended(pool)
            assert job.status()["state"] == "cancelled"
            assert pool.find("mail")[0] is pool.array("slow")
            await is_tidy(pool)

    play(scene)


def test_a_cancelled_swap_ends_where_it_is() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            await make(pool)
            await make(pool, "slow", "big", 60)
            await start_swap(pool, "mail", "big")
            job = move_of(pool.array("fast"))
            job.limit(0, SLOW_BYTES)
            job.set_window(1)
            while job.detail()["legs_left"] == 2:  # noqa: ASYNC110  # a leg has no event
                await trio.sleep(0.1)
            await trio.sleep(0.5)
            assert job.detail()["volume"] == "big"
            job.cancel()
            await ended(pool)
            assert job.status()["state"] == "cancelled"
            assert pool.find("mail")[0] is pool.find("big")[0] is pool.array("slow")
            await is_tidy(pool)

    play(scene)
