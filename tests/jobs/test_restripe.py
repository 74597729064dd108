"""Restripes in virtual time: what every read gives back, before, during and after; its cost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raidx_fuse.errors import JobRunningError, RaidxError
from raidx_fuse.members.base import Member
from tests.support.arrays import Rig
from tests.support.load import CHUNK, ended, opened, scrubbed, under_load
from tests.support.restriping import PAIRS, SmallRig, reach, restripe


@pytest.mark.parametrize(("old", "before", "new", "after"), PAIRS)
async def test_a_restripe_keeps_every_byte_under_writes_and_reads(
    old: str, before: int, new: str, after: int
) -> None:
    rig = SmallRig(old, before, slow=True, reads_zero=old != "raid5")
    if new in ("rdp", "evenodd") or (old, new) == ("raid5", "upc"):
        rig.member_bytes = 2 << 20  # for a log that holds one of their stripes twice
    windows = 6 if rig.member_bytes < 2 << 20 else 24
    await opened(rig, 0.7)
    async with under_load(rig, 2):
        job = await restripe(rig, new, after, window_bytes=windows * CHUNK)
        await job.finished.wait()
    context = rig.array.context
    turns = context.journal.log_members.turns
    assert {len(roles) for roles in turns} == {context.code.tolerance + 1}, "as many as may be lost"
    await ended(rig, job)
    assert rig.array.member_set.config.layout == new
    assert rig.array.member_set.config.params == {}
    # Beyond the old end, and everywhere: the new layout serves as one made so.
    data = random.Random(3).randbytes(len(rig.model))
    await rig.put(0, data)
    await scrubbed(rig)


async def test_the_cost_is_md_s_or_less_and_one_flush_a_window() -> None:
    """4+1: all data read once and written once, with a parity for four chunks; more in the log."""
    rig = SmallRig("raid4", 4)
    rig.member_bytes = 4 << 20

    def moved_bytes(rig: Rig) -> int:
        queues = [queue for queue in rig.array.member_set.queues if queue is not None]
        return sum(queue.read_bytes + queue.write_bytes for queue in queues)

    await opened(rig, 1.0)
    await rig.array.context.journal.drain()
    before, size = moved_bytes(rig), rig.array.size_bytes
    job = await restripe(rig, "raid4", 5, window_bytes=1 << 20)
    await job.finished.wait()
    assert 2.25 <= (moved_bytes(rig) - before) / size < 2.6
    assert job.checkpoints < 40


@pytest.mark.parametrize("when", [0.2, 0.8])
@pytest.mark.parametrize(("old", "before", "new", "after"), [PAIRS[1], PAIRS[3], PAIRS[4]])
async def test_a_cancel_moves_everything_back_and_lets_go_of_the_newcomers(
    old: str, before: int, new: str, after: int, when: float
) -> None:
    rig = await opened(SmallRig(old, before, slow=True), 0.8)
    released: list[Member] = []
    rig.array.on_release.append(released.append)
    size = rig.array.size_bytes
    async with under_load(rig, 2):
        job = await restripe(rig, new, after)
        await reach(job, when * job.total_bytes)
        job.cancel()
        assert job.status()["going_back"]
        await job.finished.wait()
    assert released == rig.members[before:]
    del rig.members[before:]
    await ended(rig, job, "cancelled")
    assert rig.array.size_bytes == size
    config = rig.array.member_set.config
    assert (config.layout, config.width, config.params) == (old, before, {})


async def test_what_cannot_be_is_refused_in_one_line_and_changes_nothing() -> None:
    async def refuse(rig: Rig, words: str, added: int, name: str | None, **params: Any) -> None:
        before = rig.array.member_set.config
        with pytest.raises(RaidxError, match=words) as refused:
            await rig.array.restripe([rig.new_member() for _ in range(added)], name, params)
        assert "\n" not in str(refused.value)
        assert rig.array.member_set.config.width == before.width
        assert rig.array.context.journal.mode == "partial"

    rig = await opened(SmallRig("raid5", 4))
    await refuse(rig, "is raid5 on 4 members already", 0, None)
    await refuse(rig, "rdp on . members (holds|has room)", 0, "rdp")
    await refuse(rig, "does not exist for 5 members", 1, "upc")
    await refuse(rig, "unknown layout", 1, "raid9")
    await refuse(rig, "place each chunk by a table", 1, "raidx-parity")
    await refuse(rig, "too small for stripes of rdp on 20 members", 16, "rdp")
    await rig.array.fail_disk(1)
    await refuse(rig, "role 1 is lost: a degraded array is not restriped", 1, None)
    rig = await opened(SmallRig("raid4", 4))
    await rig.array.jobs.wait((await rig.array.grow([rig.new_member()]))["job"])
    await refuse(rig, "rdp on . members (holds|has room)", 0, "rdp")
    rig = await opened(SmallRig("raid4", 4), 0.5)
    job = await restripe(rig, "raid5", 5, window_bytes=CHUNK)
    with pytest.raises(JobRunningError):
        await rig.array.restripe([], "raid0", {})
    with pytest.raises(JobRunningError):
        await rig.array.grow([rig.new_member()])
    await ended(rig, job)


@pytest.mark.parametrize(("old", "before", "new", "after"), [PAIRS[1], PAIRS[3], PAIRS[4]])
async def test_it_skips_unwritten_chunks_but_not_while_a_write_to_them_runs(
    old: str, before: int, new: str, after: int
) -> None:
    rig = await opened(SmallRig(old, before, slow=True), 0.02)
    async with under_load(rig, 2):
        job = await restripe(rig, new, after)
        await job.finished.wait()
    await ended(rig, job)
