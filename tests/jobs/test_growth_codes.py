"""Growth of codes whose parity moves, when things go wrong: raid5, rdp and evenodd."""

from __future__ import annotations

import random

import pytest
import trio

from raidx_fuse.errors import NotWithLayoutError, UsageError
from tests.support.arrays import job_ended
from tests.support.growing import SmallRig, check_after_kill, grow, write_about
from tests.support.load import CHUNK, ended, enlarge, eventually, opened, scrubbed, under_load
from tests.support.spy import restarted


def two_losses(name: str, width: int, **options: object) -> SmallRig:
    """Return a rig of a code of two losses with room for eight members."""
    rig = SmallRig(name, width, params={"prime": 7, "rotate": True}, **options)
    rig.member_bytes = 1200 << 10
    return rig


def rig_of(name: str) -> SmallRig:
    """Return a small rig of *name* that can grow by two."""
    return SmallRig(name, 4) if name == "raid5" else two_losses(name, 5)


@pytest.mark.parametrize(
    ("name", "roles"), [("raid5", (1,)), ("raid5", (5,)), ("rdp", (1, 6)), ("evenodd", (0, 2))]
)
async def test_members_may_be_lost_on_the_way(name: str, roles: tuple[int, ...]) -> None:
    rig = await opened(rig_of(name), 0.8)
    array = rig.array
    array.grow_operation.set_granule(2)
    job = await grow(rig, 2, chunks_a_second=150)
    async with under_load(rig):
        await eventually(lambda: job.layout.migrated > 4)
        for role in roles:
            await array.fail_disk(role)
        await trio.sleep(0.2)
    await rig.compare()
    for role in roles:
        disk = rig.new_member()
        await array.replace_disk(role, disk)
        rig.members[role] = disk
        with trio.fail_after(900):
            for other in array.jobs.running():
                if other is not job:
                    await other.finished.wait()
    job.speed_max_bytes = job.speed_min_bytes = 600 * CHUNK
    async with under_load(rig):
        await job.finished.wait()
    await ended(rig, job)
    for role in range(rig.array.context.code.tolerance):
        await rig.array.fail_disk(2 * role + 1)
    await rig.compare()


@pytest.mark.parametrize("name", ["raid5", "rdp"])
async def test_a_write_that_changes_a_parity_that_moved_waits_for_a_checkpoint(name: str) -> None:
    rig = await opened(rig_of(name), 1.0)
    array = rig.array
    job = await grow(rig, 2)
    job.speed_max_bytes = 100 * CHUNK
    await eventually(lambda: len(job.growth.unsaved) >= 8)
    job.pause()
    await trio.sleep(1.0)
    layout, growth, code = job.layout, job.growth, array.context.code

    def is_moved(stripe: int, cell: int) -> tuple[bool, bool]:
        moved = layout.moved_cells(stripe)
        return bool(moved >> cell & 1), any(moved >> p & 1 for p in code.affects[cell])

    written = [
        (s, c)
        for s in growth.unsaved
        for c in range(code.data_count)
        if array.context.written.is_written(layout.logical(s, c))
    ]
    with_parity = next(at for at in written if is_moved(*at) == (False, True))
    saves = growth.checkpoints
    if name == "raid5":
        still = next(at for at in written if is_moved(*at) == (False, False))
        chunk = layout.logical(*still)
        await rig.put(chunk * CHUNK, b"still")
        assert growth.checkpoints == saves
    chunk = layout.logical(*with_parity)
    await rig.put(chunk * CHUNK, b"parity")
    assert growth.checkpoints == saves + 1
    await check_after_kill(rig, (-1, 0, 4))
    job.resume()
    await ended(rig, job)


async def test_an_array_that_grew_by_the_plain_rule_grows_on_by_the_turned_one() -> None:
    rig = await opened(SmallRig("raid4", 5, params={"history": [3, 5]}), 0.8)
    array = rig.array
    job = await grow(rig, 2)
    await trio.sleep(0.0)
    job.cancel()
    await job.finished.wait()
    rig.width -= 2
    del rig.members[-2:]
    assert array.member_set.config.params == {"history": [3, 5]}
    job = await grow(rig, 2)
    await job.finished.wait()
    params = array.member_set.config.params
    assert params["history"] == [3, 5, 7]
    assert params["rules"][0] is None
    enlarge(rig)
    await scrubbed(rig)


async def test_the_end_of_a_prime_is_named_with_the_way_out() -> None:
    rig = await opened(two_losses("rdp", 5))
    with pytest.raises(UsageError, match="at most 8 members, not 9") as refused:
        await rig.array.grow([rig.new_member() for _ in range(4)])
    assert "restripe" in str(refused.value)
    with pytest.raises(NotWithLayoutError):
        await rig.array.grow([rig.new_member()], "piggyback")


async def test_the_log_leaves_the_members_that_a_cancelled_growth_releases() -> None:
    """With two of four members lost, the log of a code of two losses is on a newcomer, too."""
    rig = await opened(two_losses("evenodd", 4), 0.5)
    array = rig.array
    job = await grow(rig, 2)
    job.pause()
    for role in (0, 1):
        await array.fail_disk(role)
    await array.context.journal.reform()
    await write_about(rig, random.Random(1), 6)
    assert max(array.context.journal.log_members.roles) == 5
    job.cancel()
    await job_ended(job, "cancelled")
    rig.width -= 2
    del rig.members[4:]
    assert max(array.context.journal.log_members.roles) < 4
    await write_about(rig, random.Random(2), 12)
    await rig.compare()
    images = [bytes(m.inner.memory) for m in rig.members[2:]]  # type: ignore[attr-defined]
    async with restarted(images) as again:
        assert bytes(await again.read(0, len(rig.model))) == rig.model
