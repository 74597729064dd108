"""A rig for restripes in small windows."""

from __future__ import annotations

from typing import Any

import trio
import trio.lowlevel

from raidx_fuse.format.create import create_array
from raidx_fuse.jobs.restripe.job import Restripe
from tests.support.arrays import Rig
from tests.support.load import CHUNK, enlarge, eventually, scrubbed


class SmallRig(Rig):
    """A rig with some hundred chunks on each member, and a log for windows of several stripes."""

    def __init__(self, layout: str, width: int, **options: Any) -> None:
        super().__init__(layout, width, chunk_bytes=CHUNK, **options)
        self.member_bytes = 660 << 10


async def create_limited(rig: Rig, image_bytes: int | None) -> object:
    """Make members and array of *rig*, as `Rig.create`, with a limit on the image."""
    rig.members = [rig.new_member(role) for role in range(rig.width)]
    await create_array(
        rig.members,
        rig.layout,
        chunk_bytes=rig.chunk_bytes,
        name="rig",
        now_s=0,
        params=rig.params,
        size_bytes=image_bytes,
    )
    array = await rig.open()
    rig.model = bytearray(array.size_bytes)
    return array


async def restripe(rig: Rig, name: str, width: int, *, window_bytes: int = 6 * CHUNK) -> Restripe:
    """Begin a restripe to *name* on *width* members, with small windows."""
    assert rig.array is not None
    members = [rig.new_member() for _ in range(width - rig.width)]
    await rig.array.restripe(members, name, {})
    rig.members += members
    rig.width = width
    job = job_of(rig)
    job.window_bytes = window_bytes
    return job


def job_of(rig: Rig) -> Restripe:
    """Return the running restripe job."""
    assert rig.array is not None
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


async def ended(rig: Rig, job: Restripe, state: str = "done") -> None:
    """Wait for the end; everything reads as before, parity holds, a remount changes nothing."""
    await job.finished.wait()
    assert job.state == state, job.status()
    enlarge(rig)
    await rig.compare()
    await scrubbed(rig)
    await rig.close()
    await rig.open()
    await rig.compare()
    await scrubbed(rig)


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
