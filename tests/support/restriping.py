"""A rig for restripes in small windows."""

from __future__ import annotations

import random
from typing import Any

import trio
import trio.lowlevel

from raidx_fuse.jobs.restripe.job import Restripe
from tests.support.arrays import Rig
from tests.support.growing import ram_of
from tests.support.load import CHUNK, eventually
from tests.support.spy import restarted


class SmallRig(Rig):
    """A rig with some hundred chunks on each member, and a log for windows of several stripes."""

    def __init__(self, layout: str, width: int, **options: Any) -> None:
        super().__init__(layout, width, chunk_bytes=CHUNK, **options)
        self.member_bytes = 660 << 10


async def restripe(rig: Rig, name: str, width: int, *, window_bytes: int = 6 * CHUNK) -> Restripe:
    """Begin a restripe to *name* on *width* members, with small windows."""
    members = [rig.new_member() for _ in range(width - rig.width)]
    await rig.array.restripe(members, name, {})
    rig.members += members
    rig.width = width
    job = job_of(rig)
    job.window = window_bytes
    return job


def job_of(rig: Rig) -> Restripe:
    """Return the running restripe job."""
    (job,) = (job for job in rig.array.jobs.running() if isinstance(job, Restripe))
    return job


async def reach(job: Restripe, done_bytes: float) -> None:
    """Wait until the job has done so much, or has ended."""
    while True:
        if job.finished.is_set() or job.done_bytes >= done_bytes:
            return
        await trio.sleep(0.01)


async def reach_share(job: Restripe, share: float) -> None:
    """Wait until the job has done a *share* of what it has to do; it must not have ended then."""
    await eventually(lambda: job.total_bytes > 0)  # it counts before its first window
    await reach(job, share * job.total_bytes)
    assert not job.finished.is_set()


async def kill_often(rig: Rig, *, seed: int, pause_s: float) -> None:
    """Write and kill four times: a restart, even without a member, reads all and ends the job."""
    rng = random.Random(seed)
    size = len(rig.model)
    for _ in range(4):
        at = rng.randrange(size - 9000)
        data = rng.randbytes(9000)
        await rig.put(at, data)
        images = [bytes(ram_of(member).memory) for member in rig.members]
        for missing in (-1, rng.randrange(rig.width)):
            held = [image for number, image in enumerate(images) if number != missing]
            async with restarted(held) as again:
                with trio.fail_after(3600):
                    assert bytes(await again.read(0, size)) == rig.model
                    for other in again.jobs.running() if missing < 0 else ():
                        await other.finished.wait()
                    assert bytes(await again.read(0, size)) == rig.model
        await trio.sleep(pause_s)


PAIRS = [
    ("raid0", 2, "raid0", 4),
    ("raid0", 3, "raid5", 4),
    ("raid4", 4, "raid4", 5),
    ("raid4", 4, "raid5", 4),
    ("raid5", 4, "raid5", 5),
    ("raid5", 4, "upc", 6),
    ("raid5", 4, "rdp", 6),
    ("raid5", 4, "raid0", 4),
    ("raid1", 2, "raid5", 3),
    ("rdp", 4, "evenodd", 5),
    ("pcode", 6, "upc", 6),
    ("upc", 4, "raid5", 5),
]
