"""A plan that an unmount has cut: what had begun arrives, what had not stays, nothing is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.format.configuration.saved_jobs import RETIRED
from raidx_fuse.pool.hotspots.balancer import Balancer, JobMover, watched
from raidx_fuse.pool.move import start_move
from raidx_fuse.pool.pool import Pool
from tests.support.reasons import because
from tests.support.two_arrays import PAGE, Arrays, Spec, content, move_of, noise

PAGES = 16
NAMES = ("one", "two", "three")
SPECS = (Spec("fast", "raid1", 2, data_pages=96), Spec("slow", "raid5", 4, 2 * PAGE))


class SlowMover(JobMover):
    """A mover whose moves last for some seconds each."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.pool = pool

    async def move(self, volume: str, array: str) -> None:
        """Move as a JobMover does."""
        source, _ = self.pool.find(volume)
        job = await start_move(self.pool, volume, array)
        move_of(self.pool.array("fast")).limit(0, 4 * PAGE)
        move_of(self.pool.array("fast")).window = 1
        await source.array.jobs.wait(job)


async def begun(pool: Pool, balancer: Balancer) -> None:
    """Begin to empty "fast", slowly; return in the middle of the second of three moves."""
    fast = pool.array("fast")
    for number, name in enumerate(NAMES):
        volume = await fast.create(name, PAGES * PAGE)
        await volume.write(0, noise(PAGES * PAGE, number))
    balancer.start(await balancer.planning.evacuation("fast"), solved=False)
    for _ in range(100):
        if balancer.status()["steps_done"]:
            break
        await trio.sleep(0.1)
    await trio.sleep(1)
    assert 0 < move_of(fast).done_bytes < PAGES * PAGE


def where(pool: Pool) -> dict[str, str]:
    return {v.name: part.array.name for part in pool.arrays for v in part.volumes}


async def test_a_mount_resumes_the_move_that_had_begun_and_the_rest_is_planned_anew() -> None:
    arrays = Arrays(SPECS, slow=True)
    await arrays.create()
    async with arrays.mounted() as pool, watched(pool.arrays, SlowMover(pool)) as balancer:
        await begun(pool, balancer)
    async with arrays.mounted() as pool, watched(pool.arrays, JobMover(pool)) as balancer:
        assert sorted(where(pool).values()) == ["fast", "fast", "slow"]
        await move_of(pool.array("fast")).finished.wait()
        await trio.sleep(60)
        assert sorted(where(pool).values()) == ["fast", "slow", "slow"]
        status = balancer.status()
        assert (status["state"], status["steps"], status["note"]) == ("idle", [], None)
        balancer.start(await balancer.planning.evacuation("fast"), solved=False)
        await balancer.finished.wait()
        assert where(pool) == dict.fromkeys(NAMES, "slow")
        for number, name in enumerate(NAMES):
            assert await content(pool.find(name)[1]) == noise(PAGES * PAGE, number)


async def test_a_plan_is_dropped_by_cancel_and_the_present_move_arrives() -> None:
    arrays = Arrays(SPECS, slow=True)
    await arrays.create()
    async with arrays.mounted() as pool, watched(pool.arrays, SlowMover(pool)) as balancer:
        await begun(pool, balancer)
        await balancer.cancel()
        assert balancer.status()["state"] == "cancelled"
        await move_of(pool.array("fast")).finished.wait()
        await trio.sleep(5)
        assert sorted(where(pool).values()) == ["fast", "slow", "slow"]
        with pytest.raises(UsageError, check=because(Reason.NO_SUCH_JOB)):
            await balancer.cancel()


@pytest.mark.parametrize("kept", [7, {"goal": "balance", "steps": [["a", "b", "c", 0]]}])
async def test_a_plan_that_an_earlier_program_has_kept_is_dropped(kept: object) -> None:
    arrays = Arrays()
    await arrays.create()
    async with arrays.mounted("fast") as pool:
        member_set = pool.array("fast").array.member_set
        await member_set.update(lambda c: replace(c, jobs=dict.fromkeys(RETIRED, kept)))
    async with arrays.mounted("fast", read_only=True) as pool:
        assert not pool.array("fast").array.warnings
    for _ in range(2):
        async with arrays.mounted("fast") as pool:
            assert not RETIRED & pool.array("fast").array.member_set.config.jobs.keys()
