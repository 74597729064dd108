"""The window loop of jobs: speed limits, pauses, cancels, and the progress that is reported."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from raidx_fuse.errors import Reason, UsageError
from tests.support.arrays import jobs_ended
from tests.support.reasons import because
from tests.support.spy import SpyRig, spied, spying

CHUNK = 64 << 10
MIB = 1 << 20
IMAGE = 24 * MIB
SCRUBBED = 32 * MIB  # 4 members, 8 MiB each


@asynccontextmanager
async def full() -> AsyncIterator[SpyRig]:
    """An array whose scrub reads 32 MiB of memory, which takes no time of its own."""
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=140) as rig:
        await rig.array.write(0, random.Random(1).randbytes(IMAGE))
        await rig.array.flush()
        await trio.sleep(10)  # users have left
        yield rig


def job_of(rig: SpyRig, job_id: int) -> Mapping[str, Any]:
    """Return the status of one job."""
    return next(job for job in rig.array.jobs.list() if job["id"] == job_id)


@pytest.mark.parametrize("rate_mib", [2, 8])
async def test_speed_max_is_kept_and_used(rate_mib: int) -> None:
    async with full() as rig:
        await rig.array.set("speed_max", f"{rate_mib}MiB")
        start_s = trio.current_time()
        job = await rig.array.start_scrub(repair=False)
        expected_s = SCRUBBED / MIB / rate_mib
        await trio.sleep(expected_s / 2)
        status = job_of(rig, job)
        assert status["done"] <= SCRUBBED / 2 + 4 * MIB
        assert status["rate"] == pytest.approx(rate_mib * MIB, rel=0.1)
        assert status["eta_seconds"] == pytest.approx(expected_s / 2, rel=0.25)
        await rig.array.jobs.wait(job)
        assert trio.current_time() - start_s == pytest.approx(expected_s, rel=0.02)


async def test_a_job_that_is_stopped_ends_though_its_last_window_would_pause_it() -> None:
    """Else an unmount, or a member that takes the role, would wait for ever."""
    async with full() as rig:
        number = await rig.array.start_scrub(repair=False)
        (job,) = rig.array.jobs.running()
        job.stop()
        job.pause()  # as at an error of the window that is under way
        with trio.fail_after(60):
            assert (await rig.array.jobs.wait(number))["state"] == "cancelled"


async def test_without_users_and_limit_a_job_runs_as_fast_as_it_can() -> None:
    async with full() as rig:
        start_s = trio.current_time()
        result = await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
        assert result["done"] == result["total"] == SCRUBBED
        assert trio.current_time() - start_s < 0.5


async def test_speed_min_is_what_a_job_may_use_while_users_work() -> None:
    async with full() as rig:
        await rig.array.set("speed_min", "2MiB")
        job = await rig.array.start_scrub(repair=False)
        start_s = trio.current_time()
        for _ in range(200):  # a user who reads every 50 ms, for 10 s
            await rig.array.read(0, 512)
            await trio.sleep(0.05)
        done = job_of(rig, job)["done"]
        assert done == pytest.approx(10 * 2 * MIB, rel=0.2)
        await rig.array.jobs.wait(job)  # nobody works any more: the rest takes no time
        assert trio.current_time() - start_s < 11


async def test_limits_change_while_the_job_runs() -> None:
    async with full() as rig:
        await rig.array.set("speed_max", "1MiB")
        job = await rig.array.start_scrub(repair=False)
        await trio.sleep(5)
        slow = job_of(rig, job)["done"]
        rig.array.jobs.limit(job, None, 8 * MIB)
        await trio.sleep(3)
        assert job_of(rig, job)["done"] - slow >= 20 * MIB
        await rig.array.set("speed_max", "0")
        start_s = trio.current_time()
        await rig.array.jobs.wait(job)
        assert trio.current_time() - start_s < 1


async def test_a_paused_job_stands_still_until_it_is_resumed() -> None:
    async with full() as rig:
        await rig.array.set("speed_max", "8MiB")
        job = await rig.array.start_scrub(repair=False)
        await trio.sleep(2)
        rig.array.jobs.pause(job)
        await trio.sleep(2)  # the window that it was in
        status = job_of(rig, job)
        assert status["paused"]
        await trio.sleep(3600)
        assert job_of(rig, job)["done"] == status["done"]
        assert 0 < status["done"] < status["total"]
        rig.array.jobs.resume(job)
        start_s = trio.current_time()
        await trio.sleep(1)
        assert not job_of(rig, job)["paused"]
        result = await rig.array.jobs.wait(job)
        assert result["state"] == "done"
        rest_s = (SCRUBBED - status["done"]) / 8 / MIB
        assert trio.current_time() - start_s == pytest.approx(rest_s, rel=0.1)


@pytest.mark.parametrize("paused", [False, True])
async def test_a_cancelled_job_ends_and_another_can_start(paused: bool) -> None:
    async with full() as rig:
        await rig.array.set("speed_max", "1MiB")
        job = await rig.array.start_scrub(repair=False)
        await trio.sleep(2)
        if paused:
            rig.array.jobs.pause(job)
            await trio.sleep(5)
        rig.array.jobs.cancel(job)
        start_s = trio.current_time()
        result = await rig.array.jobs.wait(job)
        assert result["state"] == "cancelled"
        assert trio.current_time() - start_s < 1, "a cancel does not wait for the speed limit"
        again = await rig.array.start_scrub(repair=False)
        assert again != job
        rig.array.jobs.cancel(again)
        await rig.array.jobs.wait(again)


async def test_a_cancelled_rebuild_leaves_the_role_rebuilding_for_the_next_mount() -> None:
    async with full() as rig:
        await rig.array.set("speed_max", "1MiB")
        await rig.array.fail_disk(1)
        new = rig.new_member()
        job = (await rig.array.replace_disk(1, new))["job"]
        rig.members[1] = new
        await trio.sleep(4)
        rig.array.jobs.cancel(job)
        assert (await rig.array.jobs.wait(job))["state"] == "cancelled"
        assert rig.array.status()["redundancy_left"] == 0
        assert rig.array.status()["state"] == "degraded"
        await rig.reopen()
        await rig.array.set("speed_max", "0")
        await jobs_ended(rig.array)
        assert rig.array.status()["state"] == "clean"
        await rig.array.fail_disk(0)
        expected = random.Random(1).randbytes(IMAGE)
        for at in range(0, IMAGE, MIB):
            assert await rig.get(at, MIB) == expected[at : at + MIB]


async def test_unmounting_waits_for_no_job() -> None:
    async with full() as rig:
        await rig.array.set("speed_max", "64KiB")
        await rig.array.start_scrub(repair=False)
        await trio.sleep(1)
        start_s = trio.current_time()
        await rig.close()
        assert trio.current_time() - start_s < 1
        await rig.open()


async def test_a_job_that_does_not_exist_is_named() -> None:
    rig = await spied("raid5", 3)
    for act in (rig.array.jobs.pause, rig.array.jobs.resume, rig.array.jobs.cancel):
        with pytest.raises(UsageError, check=because(Reason.NO_SUCH_JOB)):
            act(7)
