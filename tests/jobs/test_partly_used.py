"""Members leave an array that has grown, and whose last growth is in use in part."""

from __future__ import annotations

from typing import Any

import pytest

from raidx_fuse.errors import UsageError
from raidx_fuse.layouts.placements.numbering import OrderedLayout
from tests.support.arrays import Rig
from tests.support.load import CHUNK, ended, opened, scrubbed, under_load
from tests.support.restriping import SmallRig, job_of, kill_often, reach_share, restripe

ALIKE = r"in use in part.*make them alike first: raidx reshape ARRAY --layout raid5$"


class PartRig(SmallRig):
    """A rig of raid5 that has grown from 4 to 6 members, with an image that fits on 5."""

    def __init__(self, granule: int = 2, **options: Any) -> None:
        params = {"history": [4, 6], "rules": [[granule, 1]]}
        super().__init__("raid5", 6, params=params, **options)
        self.image_bytes = 340 * CHUNK  # of 3 * 100 and 2 * 100 chunks


async def alike(rig: Rig) -> Any:
    """Begin to make all stripes alike; return the job."""
    return await restripe(rig, "raid5", 6, window_bytes=24 * CHUNK)


@pytest.mark.parametrize("role", [1, 5])
async def test_any_member_leaves_in_two_steps_under_load(role: int) -> None:
    rig = await opened(PartRig(slow=True), 0.9)
    with pytest.raises(UsageError, match=ALIKE):
        await rig.array.remove_disk(role)
    async with under_load(rig, 2):
        job = await alike(rig)
        await job.finished.wait()
    await ended(rig, job)
    array = rig.array
    assert isinstance(array.context.layout, OrderedLayout)
    assert array.size_bytes == len(rig.model)
    async with under_load(rig, 2):
        await array.remove_disk(role)
        job = job_of(rig)
        job.window = 24 * CHUNK
        await job.finished.wait()
    del rig.members[role]
    rig.width -= 1
    await ended(rig, job)
    assert rig.array.member_set.config.width == 5
    await rig.array.fail_disk(2)
    await rig.compare()


@pytest.mark.parametrize("when", [0.2, 0.8])
async def test_the_first_step_is_cancelled_and_done_again(when: float) -> None:
    rig = await opened(PartRig(slow=True), 0.9)
    params = dict(rig.array.member_set.config.params)
    async with under_load(rig, 2):
        job = await alike(rig)
        job.speed_max_bytes = job.speed_min_bytes = 400 * CHUNK
        await reach_share(job, when)
        job.speed_max_bytes = job.speed_min_bytes = 0
        job.cancel()
        await job.finished.wait()
    await ended(rig, job, "cancelled")
    assert rig.array.member_set.config.params == params
    job = await alike(rig)
    await ended(rig, job)


async def test_a_kill_in_the_first_step_loses_nothing_even_with_a_member() -> None:
    rig = await opened(PartRig(granule=1), 0.9)
    job = await alike(rig)
    job.speed_max_bytes = job.speed_min_bytes = 60 * CHUNK
    await kill_often(rig, seed=2, pause_s=0.5)
    assert not job.finished.is_set()
    job.speed_max_bytes = job.speed_min_bytes = 0
    await job.finished.wait()
    await scrubbed(rig)


async def test_what_is_too_large_for_one_member_less_is_told_how_small_it_must_be() -> None:
    rig = PartRig()
    rig.image_bytes = None
    await opened(rig)
    for role in (0, 5):
        with pytest.raises(UsageError, match=r"raid5 on 5 members holds (\d+) bytes;") as found:
            await rig.array.remove_disk(role)
        holds = int(str(found.value).split(" holds ")[1].split()[0])
        assert f"volume resize MOUNT rig {holds}" in str(found.value)
        layout = rig.array.context.layout
        most = (layout.chunks - layout.stripes) * CHUNK
        assert most - 12 * 2 * CHUNK < holds <= most  # less than a region of the rule is lost
