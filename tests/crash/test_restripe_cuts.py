"""A restripe that is killed, or loses its power, where it begins, moves on or turns round."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raidx_fuse.journal.ring import HEAD_BYTES
from tests.support.arrays import Rig
from tests.support.growing import ram_of
from tests.support.load import CHUNK, ended, opened
from tests.support.restriping import SmallRig, reach_share, restripe
from tests.support.spy import FLUSH, SpyRig, Touch, restarted


def left_by_a_kill(rig: Rig) -> list[bytes]:
    """Return what the members hold now."""
    return [bytes(ram_of(member).memory) for member in rig.members]


async def test_a_second_restripe_begins_with_a_watermark_of_its_own() -> None:
    """A crash before its first window must not bring that of the first one back."""
    rig = await opened(SmallRig("raid5", 3), 1.0)
    await ended(rig, await restripe(rig, "raid5", 4))
    rig.model[:] = random.Random(2).randbytes(len(rig.model))
    await rig.array.write(0, bytes(rig.model))
    job = await restripe(rig, "raid5", 5)
    assert job.layout.watermark == job.layout.start
    async with restarted(left_by_a_kill(rig)) as array:
        assert bytes(await array.read(0, len(rig.model))) == rig.model
    await ended(rig, job)


async def test_a_restripe_begins_with_no_stripe_in_flight() -> None:
    """After a crash marks of the old stripes would be taken for others, which await no resync."""
    rig = await opened(SmallRig("raid5", 4), 1.0)
    array = rig.array
    await array.set("journal", "none")
    rig.model[:100] = bytes(100)
    await array.write(0, bytes(100))
    job = await restripe(rig, "raid5", 5)
    async with restarted(left_by_a_kill(rig)) as again:
        assert not again.context.dirty_bitmap.pending_regions()
        assert bytes(await again.read(0, len(rig.model))) == rig.model
    await ended(rig, job)


class Cuts:
    """Power cuts of a rig: each drops the records since the last flush and keeps all else.

    One before every write to a place or to the log, the first *most* of them.
    """

    def __init__(self, rig: SpyRig, most: int) -> None:
        self.images: list[list[bytes]] = []
        self._rig, self._most = rig, most
        regions = rig.array.member_set.config.regions
        self._records = slice(regions.log.offset + HEAD_BYTES, regions.log.end)
        self._data_offset = regions.data.offset
        self._unflushed: dict[str, tuple[int, bytes]] = {}  # member -> touches, records before
        rig.log.hook = self._note

    def _note(self, touch: Touch) -> None:
        log, rams = self._rig.log, {ram.path: ram for ram in self._rig.rams}
        for name, (since, _) in list(self._unflushed.items()):
            if any(t.kind == FLUSH and t.member == name for t in log.touches[since:]):
                del self._unflushed[name]
        is_record = self._records.start <= touch.offset_bytes < self._records.stop
        if len(self.images) < self._most and (is_record or touch.offset_bytes >= self._data_offset):
            images = {name: bytearray(ram.memory) for name, ram in rams.items()}
            for name, (_, records) in self._unflushed.items():
                images[name][self._records] = records
            self.images.append([bytes(image) for image in images.values()])
        if is_record:
            before = bytes(rams[touch.member].memory[self._records])
            self._unflushed.setdefault(touch.member, (len(log.touches), before))

    async def check(self) -> None:
        """Start from what each cut has left: all that was written before is there."""
        assert len(self.images) > 10
        for images in self.images:
            async with restarted(images) as array:
                assert bytes(await array.read(0, len(self._rig.model))) == self._rig.model


def small_spies() -> SpyRig:
    """Return a rig like SmallRig that notes what its members do."""
    rig = SpyRig("raid5", 4, chunk_bytes=CHUNK)
    rig.member_bytes = 660 << 10
    return rig


@pytest.mark.parametrize("back", [False, True])
async def test_a_cut_finds_every_chunk_where_the_durable_watermark_says(back: bool) -> None:
    """On the way forth, and where it turns round: rows are free when a start needs them no more."""
    rig = small_spies()
    _rig = await opened(rig)
    await rig.fill()
    await rig.in_place()
    job = await restripe(rig, "raid5", 5, window_bytes=24 * CHUNK)
    cuts = Cuts(rig, 60)
    if back:
        commit = job.context.journal.commit

        async def commit_and_turn(*change: Any, **options: Any) -> bool:
            job.cancel()
            return await commit(*change, **options)

        job.context.journal.commit = commit_and_turn  # type: ignore[method-assign]
    await job.finished.wait()
    rig.log.hook = None
    await cuts.check()
    if back:
        del rig.members[4:]
    await ended(rig, job, "cancelled" if back else "done")


@pytest.mark.parametrize("back", [False, True])
async def test_a_cut_while_stripes_are_made_alike_loses_nothing(back: bool) -> None:
    """The first stripes are as full before as after, and move by the log; the others are not."""
    params = {"history": [4, 6], "rules": [[2, 1]]}
    rig = SpyRig("raid5", 6, chunk_bytes=CHUNK, params=params)
    rig.image_bytes = 340 * CHUNK
    rig.member_bytes = 660 << 10
    _rig = await opened(rig)
    await rig.fill()
    await rig.in_place()
    job = await restripe(rig, "raid5", 6, window_bytes=24 * CHUNK)
    # The middle, where stripes begin to be emptier: the first 100 stripes have 5 chunks or 3.
    job.speed_max_bytes = job.speed_min_bytes = 100 * CHUNK
    await reach_share(job, 0.6 if back else 0.3)
    job.speed_max_bytes = job.speed_min_bytes = 0
    cuts = Cuts(rig, 60)
    if back:
        job.cancel()
    await job.finished.wait()
    rig.log.hook = None
    await cuts.check()
    await ended(rig, job, "cancelled" if back else "done")
