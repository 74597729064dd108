"""Resync: stripes in flight become consistent after a crash; others are not visited."""

from __future__ import annotations

import errno

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.members.base import Member, WrapperMember
from tests.support.arrays import job_ended, parity_holds
from tests.support.spy import (
    FLUSH,
    READ,
    WRITE,
    Log,
    SpyMember,
    SpyRig,
    Touch,
    members_from,
    noise,
    restarted,
    spied,
    spying,
)

CHUNK = 4096
STRIPES = 2000


class Crash:
    """Takes pictures of all members of *rig* before each write to any of them."""

    def __init__(self, rig: SpyRig) -> None:
        self.rig = rig
        self.pictures: list[list[bytes]] = []
        rig.log.hook = self._before

    def _before(self, _touch: Touch) -> None:
        self.pictures.append(self.rig.images())

    async def stop(self) -> None:
        """Let everything reach its place, take the last picture, and no more."""
        await self.rig.in_place()
        self.rig.log.hook = None
        self.pictures.append(self.rig.images())


async def content(array: Array) -> bytes:
    """Return the whole image."""
    parts = []
    for at in range(0, array.size_bytes, 1 << 20):
        parts.append(bytes(await array.read(at, min(1 << 20, array.size_bytes - at))))
    return b"".join(parts)


async def settle(array: Array) -> None:
    """Wait until every job has ended well."""
    for job in array.jobs.running():
        await job_ended(job)


def old_or_new(got: bytes, old: bytes, new: bytes) -> None:
    """Assert that each sector is the old one or the new one."""
    if got in (old, new):
        return
    for at in range(0, len(got), 512):
        sector = got[at : at + 512]
        assert sector in (old[at : at + 512], new[at : at + 512]), f"a third value at byte {at}"


async def test_a_resync_visits_the_dirty_regions_only() -> None:
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=STRIPES) as rig:
        await rig.array.set("journal", "none")
        await rig.put(0, noise(len(rig.model), 1))
        await rig.in_place()
        await trio.sleep(30)  # all quiet: the regions are clean again
        per_region = rig.array.context.dirty_bitmap.per_region
        assert per_region * 10 < STRIPES
        crash = Crash(rig)
        at = (per_region * 5 + 3) * 3 * CHUNK
        await rig.put(at, noise(512, 2))
        rig.log.hook = None
        data = rig.data
    log = Log()
    members: list[Member] = [SpyMember(m, log) for m in members_from(crash.pictures[-1])]
    async with open_array(members) as array:
        (job,) = array.jobs.running()
        assert job.kind == "resync"
        await job.finished.wait()
        first = data.offset + per_region * 5 * CHUNK
        touched = log.of(READ, data) + log.of(WRITE, data)
        assert touched
        for touch in touched:
            assert first <= touch.offset_bytes < first + per_region * CHUNK
            assert touch.offset_bytes + touch.size_bytes <= first + per_region * CHUNK
        assert log.bytes_of(READ, data) <= 4 * per_region * CHUNK
        assert log.bytes_of(WRITE, data) <= 2 * CHUNK, "only what differs is written"
        assert array.status()["state"] == "clean"
        await parity_holds(array)


@pytest.mark.parametrize("end", ["unmount", "power cut"])
async def test_what_is_resynced_is_not_resynced_again_at_the_next_mount(end: str) -> None:
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=STRIPES) as rig:
        await rig.array.set("journal", "none")
        await rig.put(0, noise(len(rig.model), 1))
        pictures = rig.images()
    members: list[Member] = list(members_from(pictures))
    async with open_array(members) as array:
        dirty = array.context.dirty_bitmap
        await array.set("speed_max", "128KiB")
        before = dirty.pending_regions()
        assert before > 10
        await trio.sleep(125)
        (job,) = array.jobs.running()
        done = job.done_bytes / job.total_bytes
        assert 0.3 < done < 0.9, job.status()
        if end == "power cut":
            members = list(members_from([bytes(m.memory) for m in members]))  # type: ignore[attr-defined]
    async with open_array(members) as array:
        left = array.context.dirty_bitmap.pending_regions()
        assert before * (1 - done) <= left <= before * (1 - done) + 2
        await array.set("speed_max", "0")
        await settle(array)
        assert (await array.jobs.wait(await array.start_scrub(repair=False)))["mismatches"] == 0
        assert await content(array) == bytes(rig.model)


async def test_a_clean_unmount_leaves_nothing_to_resync() -> None:
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    await rig.put(0, noise(9 * CHUNK))
    await rig.reopen()
    assert not rig.array.jobs.running()
    assert rig.array.context.dirty_bitmap.pending_regions() == 0


@pytest.mark.parametrize("mode", ["none", "partial"])
async def test_a_crash_and_a_lost_member_at_once(mode: str) -> None:
    """The journal closes the write hole; without it such a start is refused by default."""
    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await rig.array.set("journal", mode)
        await rig.put(0, noise(len(rig.model), 1))
        await rig.in_place()
        await trio.sleep(30)
        old = bytes(rig.model)
        crash = Crash(rig)
        await rig.put(2 * CHUNK + 512, noise(700, 2))
        await crash.stop()
        new = bytes(rig.model)
    for picture in crash.pictures:
        for lost in range(4):
            left = [image for role, image in enumerate(picture) if role != lost]
            refusal = ""
            try:
                async with restarted(left) as array:
                    old_or_new(await content(array), old, new)
            except RaidxError as error:
                refusal = str(error)
            if refusal:
                assert mode == "none", refusal
                assert "--start-degraded" in refusal
                async with restarted(left, start_degraded=True) as array:
                    assert array.status()["state"] == "degraded"
                    got = await content(array)
                    assert got[6 * CHUNK :] == old[6 * CHUNK :]


async def test_what_is_zeroed_is_durable_before_the_regions_are_forgotten() -> None:
    """A cut would leave it where zeros are relied on, and parity does not know of it."""
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=64) as rig:
        await rig.put(0, noise(9 * CHUNK, 1))
        await rig.array.flush()
        bitmap = rig.array.member_set.config.regions.bitmap
        data, picture = rig.data, rig.images()
    log = Log()
    members: list[Member] = [SpyMember(m, log) for m in members_from(picture)]
    async with open_array(members) as array:
        (resync,) = array.jobs.running()
        await resync.finished.wait()
        for member in members:
            mine = [touch for touch in log.touches if touch.member == member.path]
            zeroed = max(at for at, t in enumerate(mine) if t.offset_bytes >= data.offset)
            cleared = next(
                at
                for at, t in enumerate(mine)
                if t.kind == WRITE and at > zeroed and t.offset_bytes - bitmap.offset >= 0
            )
            assert FLUSH in {touch.kind for touch in mine[zeroed:cleared]}, member.path


class Punchless(WrapperMember):
    """A member that hangs, or refuses with EIO, when a hole is to be punched."""

    def __init__(self, inner: Member, hangs: bool) -> None:
        super().__init__(inner)
        self.hangs = hangs

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        if self.hangs:
            await trio.sleep_forever()
        raise MemberError(self.path, "punch", offset_bytes, errno.EIO, "EIO")


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_member_that_cannot_punch_a_hole_does_not_stop_the_resync(hangs: bool) -> None:
    """What hangs is failed, as it must not come through later; an error is written over."""
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=64) as rig:
        await rig.put(0, noise(9 * CHUNK, 1))
        await rig.array.flush()
        old, picture = bytes(rig.model), rig.images()
    members: list[Member] = [*members_from(picture)]
    members[1] = Punchless(members[1], hangs)
    async with open_array(members) as array:
        await settle(array)
        assert array.member_set.lost == ({1} if hangs else set())
        assert array.context.dirty_bitmap.pending_regions() == 0
        assert await content(array) == old
