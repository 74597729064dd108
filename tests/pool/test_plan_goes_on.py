"""A plan that an unmount has cut: the next mount goes on, plans anew what is stale, or waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

from raidx_fuse.errors import UsageError
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.hotspots.balancer import Balancer, watched
from raidx_fuse.pool.hotspots.kept_plan import (
    EVACUATE,
    KEY,
    Goal,
    KeptPlan,
    Step,
    assumed,
    plan_of,
    with_plan,
)
from raidx_fuse.pool.hotspots.mover import JobMover
from raidx_fuse.pool.move import start_move
from raidx_fuse.pool.move_job import Leg
from raidx_fuse.pool.pool import Pool
from tests.pool.test_swap import full, rounds
from tests.support.two_arrays import PAGE, Arrays, Spec, content, is_tidy, move_of, noise
from tests.support.two_arrays import play as play_arrays

PAGES = 16
NAMES = ("one", "two", "three")
SPECS = (Spec("fast", "raid1", 2, data_pages=96), Spec("slow", "raid5", 4, 2 * PAGE))


@asynccontextmanager
async def mounted(
    arrays: Arrays, *names: str, read_only: bool = False
) -> AsyncIterator[tuple[Pool, Balancer]]:
    async with arrays.mounted(*names, read_only=read_only) as pool:
        if pool.transfers and not read_only:
            slowly(pool)
        async with watched(pool.arrays, JobMover(pool)) as balancer:
            yield pool, balancer


class SlowMover(JobMover):
    """A mover whose moves last for some seconds each."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.pool = pool

    async def move(self, volume: str, array: str) -> None:
        """Move as a JobMover does."""
        source, _ = self.pool.find(volume)
        job = await start_move(self.pool, volume, array)
        slowly(self.pool)
        await source.array.jobs.wait(job)


def slowly(pool: Pool) -> None:
    """Have the move under way last for some seconds."""
    move_of(pool.array("fast")).limit(0, 4 * PAGE)
    move_of(pool.array("fast")).set_window(1)


async def begun(pool: Pool, balancer: Balancer) -> None:
    """Begin to empty "fast", slowly; return in the middle of the second of three moves."""
    fast = pool.array("fast")
    for number, name in enumerate(NAMES):
        volume = await fast.create(name, PAGES * PAGE)
        await volume.write(0, noise(PAGES * PAGE, number))
    proposal = await balancer.planning.evacuation("fast")
    balancer.carry_out(proposal, Goal(EVACUATE, array=fast.array.uuid))
    for _ in range(100):
        if balancer.status()["steps_done"]:
            break
        await trio.sleep(0.1)
    await trio.sleep(1)
    assert 0 < move_of(fast).done_bytes < PAGES * PAGE


def play(scene: Callable[[Arrays], Awaitable[None]]) -> None:
    """Play *scene* on arrays whose last mount ended in the middle of a plan."""

    async def whole() -> None:
        arrays = Arrays(SPECS, slow=True)
        await arrays.create()
        async with arrays.mounted() as pool, watched(pool.arrays, SlowMover(pool)) as balancer:
            await begun(pool, balancer)
        await scene(arrays)

    run(whole)


def kept(pool: Pool) -> bool:
    return any(KEY in part.array.member_set.config.jobs for part in pool.arrays)


def where(pool: Pool) -> dict[str, str]:
    return {v.name: part.array.name for part in pool.arrays for v in part.volumes}


def test_the_rest_of_the_plan_is_done_after_the_next_mount() -> None:
    async def scene(arrays: Arrays) -> None:
        async with mounted(arrays) as (pool, balancer):
            assert sorted(where(pool).values()) == ["fast", "fast", "slow"]
            status = balancer.status()
            assert (status["state"], status["note"]) == (
                "running",
                "this plan was cut by an unmount and goes on",
            )
            await balancer.finished.wait()
            status = balancer.status()
            assert (status["state"], status["steps_done"], status["note"]) == ("done", 3, None)
            assert sorted(status["steps"]) == sorted(f"move {n} from fast to slow" for n in NAMES)
            assert where(pool) == dict.fromkeys(NAMES, "slow")
            for number, name in enumerate(NAMES):
                assert await content(pool.find(name)[1]) == noise(PAGES * PAGE, number)
            assert not kept(pool)
        async with mounted(arrays) as (_, balancer):
            assert balancer.status()["state"] == "idle"

    play(scene)


def test_a_plan_that_is_out_of_date_is_planned_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            await pool.array("fast").create("four", PAGE)
        async with mounted(arrays) as (pool, balancer):
            await balancer.finished.wait()
            assert "a plan was cut by an unmount, and planned again: it was" in caplog.text
            assert balancer.status()["state"] == "done"
            assert where(pool) == dict.fromkeys((*NAMES, "four"), "slow")
            assert not kept(pool)

    play(scene)


def test_a_plan_whose_rules_have_changed_is_not_carried_out() -> None:
    async def scene(arrays: Arrays) -> None:
        async with mounted(arrays) as (pool, balancer):
            last = next(name for name in NAMES if where(pool)[name] == "fast" and not moving(name))
            await balancer.settings.set("balance.stay", pool.find(last)[1].uuid)
            await balancer.finished.wait()
            status = balancer.status()
            assert status["state"] == "failed"
            assert f"array fast cannot be emptied: {last} may not move" in status["error"]
            assert where(pool)[last] == "fast"
            assert not kept(pool)

    def moving(name: str) -> bool:
        return name == "two"

    play(scene)


def test_a_move_that_is_cancelled_after_the_mount_ends_the_plan() -> None:
    async def scene(arrays: Arrays) -> None:
        async with mounted(arrays) as (pool, balancer):
            await trio.sleep(0.1)
            move_of(pool.array("fast")).cancel()
            await balancer.finished.wait()
            status = balancer.status()
            assert (status["state"], status["error"]) == ("failed", "the move (job 1) cancelled")
            assert sorted(where(pool).values()) == ["fast", "fast", "slow"]
            assert not kept(pool)

    play(scene)


def test_a_plan_is_dropped_by_cancel_and_the_present_move_arrives() -> None:
    async def scene(arrays: Arrays) -> None:
        async with mounted(arrays) as (pool, balancer):
            await trio.sleep(0.1)
            await balancer.cancel()
            assert (balancer.status()["state"], kept(pool)) == ("cancelled", False)
            job = move_of(pool.array("fast"))
            await job.finished.wait()
            await trio.sleep(5)
            assert sorted(where(pool).values()) == ["fast", "slow", "slow"]
            with pytest.raises(UsageError, match="no plan is being carried out"):
                await balancer.cancel()

    play(scene)


def test_a_balance_that_is_out_of_date_looks_for_the_hotspot_again() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            slowly(pool)
            stale = KeptPlan(Goal(), "of another time", ())
            member_set = pool.array("slow").array.member_set
            await member_set.update(lambda config: with_plan(config, stale))
            await pool.array("fast").array.member_set.update(lambda config: with_plan(config, None))
        async with mounted(arrays) as (pool, balancer):
            for key, value in {"hot.interval": "1s", "hot.window": "4"}.items():
                await balancer.settings.set(key, value)
            begin_s = trio.current_time()
            await balancer.finished.wait()
            assert trio.current_time() - begin_s >= 4  # not before a window was observed
            status = balancer.status()
            assert (status["state"], status["steps"]) == ("done", [])
            assert not kept(pool)

    play(scene)


def test_a_plan_waits_for_an_array_that_is_absent_and_for_a_mount_that_may_write() -> None:
    async def scene(arrays: Arrays) -> None:
        async with mounted(arrays, "fast") as (pool, balancer):
            status = balancer.status()
            assert status["state"] == "idle"
            assert "goes on when all of its arrays are mounted" in status["note"]
            assert kept(pool)
        async with mounted(arrays, read_only=True) as (_, balancer):
            assert "goes on when mounted read-write" in balancer.status()["note"]
        async with mounted(arrays, "fast") as (pool, balancer):
            await balancer.cancel()
            assert not kept(pool)
            assert balancer.status()["note"] is None
        async with mounted(arrays) as (_, balancer):
            assert balancer.status()["state"] == "idle"

    play(scene)


def test_what_is_kept_may_be_anything() -> None:
    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted("fast") as pool:
            config = pool.array("fast").array.member_set.config
            plan = plan_of(config)
            assert plan is not None
            assert plan_of(with_plan(config, plan)) == plan
            good = config.jobs[KEY]
            bad: list[Any] = [7, [], {}, {**good, "goal": "x"}, {**good, "assumed": 1}]
            for one in [*bad, *({**good, "steps": steps} for steps in (3, [1], [["a", "b"]]))]:
                assert plan_of(replace(config, jobs={KEY: one})) is None

    play(scene)


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_an_exchange_of_a_plan_goes_on_or_begins_again(begun: int) -> None:
    """The cut comes before it, when one of its two moves has begun, and in the middle of both."""

    async def scene(arrays: Arrays) -> None:
        async with arrays.mounted() as pool:
            one, two = await full(pool)
            before = [await content(one), await content(two)]
            fast, slow = pool.array("fast"), pool.array("slow")
            there, back = fast.array.uuid, slow.array.uuid
            steps = (Step(one.uuid, there, back, 1), Step(two.uuid, back, there, 1))
            async with watched(pool.arrays, JobMover(pool)) as balancer:
                plan = KeptPlan(Goal(), assumed(pool.arrays, balancer.settings), steps)
            await fast.array.member_set.update(partial(with_plan, plan=plan))
            if begun == 1:
                await Leg(one, fast, slow, in_pieces=True).begin()
            elif begun:
                await rounds(pool, 2)
        async with arrays.mounted() as pool, watched(pool.arrays, JobMover(pool)) as balancer:
            await balancer.finished.wait()
            assert balancer.status()["state"] == "done", balancer.status()
            places = where(pool)
            assert (places["one"], places["two"]) == ("slow", "fast")
            assert [await content(pool.find(name)[1]) for name in ("one", "two")] == before
            assert not kept(pool)
            await is_tidy(pool)

    play_arrays(scene)
