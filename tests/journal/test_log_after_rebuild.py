"""A rebuilt member counts as whole only when the log is on it: then any other may be lost."""

from __future__ import annotations

import random

import pytest

from raidx_fuse.errors import AssemblyError
from raidx_fuse.journal.ring import TURN_BYTES
from tests.support.spy import Touch, fill, restarted, spying

PAGE = 4096


@pytest.mark.parametrize("lost", [2, 3])
async def test_what_was_logged_during_a_rebuild_survives_another_loss_right_after_it(
    lost: int,
) -> None:
    moments: list[list[bytes]] = []
    async with spying("raid5", 4, chunk_bytes=PAGE) as rig:
        await fill(rig)
        await rig.in_place()
        array, journal = rig.array, rig.array.context.journal
        await array.fail_disk(lost)
        while lost not in journal.log_members.at(journal.ring.next_place(PAGE)[1]):
            await rig.put(0, bytes(TURN_BYTES // 4))
        result = await array.replace_disk(lost, rig.new_member())
        await rig.put(5 * PAGE, random.Random(1).randbytes(1024))
        await array.flush()

        def note(_touch: Touch) -> None:
            if array.member_set.config.record(lost).state == "active":
                moments.append(rig.images())

        rig.log.hook = note
        await array.jobs.wait(result["job"])
        await rig.in_place()
        rig.log.hook = None
        model = bytes(rig.model)
    checked = 0
    for images in moments:
        for gone in {0, 1, 2, 3} - {lost}:
            left = [image for role, image in enumerate(images) if role not in (gone, lost)]
            try:
                async with restarted(left, start_degraded=True) as array:
                    assert bytes(await array.read(0, len(model))) == model
            except AssemblyError:
                continue  # the rebuild is not complete yet by the superblocks
            checked += 1
    assert checked > 6
