"""A rig that grows: small members, windows of a few stripes, unmounts and kills meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import trio

from raidx_fuse.array.check import check_members
from raidx_fuse.engine.growth_position import LIVE, SURROGATE
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from tests.support.arrays import Rig, jobs_ended
from tests.support.load import CHUNK, under_load
from tests.support.spy import SpyRig, restarted


class SmallRig(Rig):
    """A rig with about seventy chunks on each member."""

    def __init__(self, layout: str = "raid4", width: int = 4, **options: Any) -> None:
        super().__init__(layout, width, chunk_bytes=CHUNK, **options)
        self.member_bytes = 640 << 10


def small_spies() -> SpyRig:
    """Return a rig that logs what its members do."""
    rig = SpyRig("raid4", 4, chunk_bytes=CHUNK)
    rig.member_bytes = 640 << 10
    return rig


def ram_of(member: FaultMember) -> RamMember:
    """Return the memory under a member of a rig that is not slow."""
    assert isinstance(member.inner, RamMember)
    return member.inner


def job_of(rig: Rig) -> Grow:
    """Return the running growth job."""
    (job,) = (job for job in rig.array.jobs.running() if isinstance(job, Grow))
    return job


async def grow(
    rig: Rig, added: int, *, windows: int = 4, parity: str = LIVE, chunks_a_second: int = 0
) -> Grow:
    """Begin a growth by *added* members, and perhaps a surrogate, whose windows are small.

    It goes at *chunks_a_second*, if any, whatever users do.
    """
    surrogate = rig.new_member() if parity == SURROGATE else None
    members = [rig.new_member() for _ in range(added)]
    if surrogate is not None:
        await rig.array.grow(members, surrogate=surrogate)
        members.append(surrogate)
    else:
        await rig.array.grow(members, parity)
    rig.members += members
    rig.width += added
    job = job_of(rig)
    job.window = windows
    if chunks_a_second:
        job.speed_max_bytes = job.speed_min_bytes = chunks_a_second * CHUNK
    return job


async def check_after_kill(rig: Rig, lost: Sequence[int]) -> None:
    """Start from the members' present content, as after a kill, without each of *lost* in turn.

    All that was written is there; with all members (-1) the growth then comes to its end.
    """
    images = [bytes(ram_of(member).memory) for member in rig.members]
    model, size = bytes(rig.model), len(rig.model)
    for missing in lost:
        held = [image for number, image in enumerate(images) if number != missing]
        async with restarted(held) as array:
            with trio.fail_after(3600):
                assert bytes(await array.read(0, size)) == model, f"lost {missing}"
                if missing >= 0:
                    continue
                await jobs_ended(array)
                assert array.context.growth is None
                assert bytes(await array.read(0, size)) == model


async def write_about(rig: Rig, rng: random.Random, most: int) -> None:
    """Write fewer than *most* times, anywhere in what the model has."""
    size = len(rig.model)
    for _ in range(rng.randrange(most)):
        start = rng.randrange(size)
        data = rng.randbytes(min(rng.choice((100, CHUNK, 9000)), size - start))
        await rig.put(start, data)
        await trio.sleep(rng.choice((0.0, 0.002)))


async def remount_until_done(
    rig: Rig, job: Grow, chunks_a_second: int, check: Callable[[Grow], None]
) -> int:
    """Unmount and mount again, under load, until *job* ends; return how many times.

    *check* is called with the job of each mount.
    """
    mounts = 0
    while True:
        job.speed_max_bytes = job.speed_min_bytes = chunks_a_second * CHUNK
        async with under_load(rig, pause_s=0.001):
            with trio.move_on_after(0.3):
                await job.finished.wait()
        if job.finished.is_set():
            return mounts
        before = job.layout.migrated
        await rig.close()
        if not mounts:
            report = await check_members(rig.members)  # at rest, in the middle
            assert report["ok"], report["problems"]
            assert report["state"] == "growing"
        await rig.open()
        mounts += 1
        job = job_of(rig)
        assert job.layout.migrated >= before  # a clean end loses no progress
        check(job)
        job.window = 4
        await rig.compare()
