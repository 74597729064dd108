"""A power cut while a recovery runs: the second one must not mistake what the first one added."""

from __future__ import annotations

from raidx_fuse.array.open import open_array
from raidx_fuse.layouts.numbers import Stripe
from tests.support.spy import Log, SpyMember, locked, members_from, restarted, spying

PAGE = 4096
WIDTH = 4
SECTOR = bytes([2]) * 512


async def _cut_log() -> tuple[list[bytes], bytes]:
    """Return members whose log ends before a record that the power cut took, and the content.

    Behind the lost record lies the parity over its data, which one of the caches has written.
    """
    async with spying("raid5", WIDTH, chunk_bytes=PAGE) as rig:
        await rig.put(0, bytes(range(1, 256)) * (len(rig.model) // 255))
        await rig.in_place()
        journal = rig.array.context.journal
        await rig.put(0, SECTOR)
        await rig.array.flush()
        model = bytes(rig.model)
        before = rig.images()
        low = journal.ring.next_place(512)[1]
        await rig.put(0, bytes([3]) * 512)
        high = journal.ring.next_place(512)[1]
        assert Stripe(0) in journal.unsettled
        with locked(rig.array.context, 0):
            await journal.settle([Stripe(0)])
        images = [
            new[:low] + old[low:high] + new[high:]
            for old, new in zip(before, rig.images(), strict=True)
        ]
    return images, model


async def test_a_record_behind_a_lost_one_does_not_follow_the_record_that_takes_its_place() -> None:
    images, model = await _cut_log()
    log, moments = Log(), []
    rams = members_from(images)
    log.hook = lambda _touch: moments.append([bytes(ram.memory) for ram in rams])
    async with open_array([SpyMember(ram, log) for ram in rams]) as array:
        assert bytes(await array.read(0, len(model))) == model
    for moment in moments:
        async with restarted(moment) as array:
            await array.fail_disk(array.context.position(0, 1)[0])  # not the member written to
            assert bytes(await array.read(0, 3 * PAGE)) == model[: 3 * PAGE]
