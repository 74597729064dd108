"""A rebuild does not pass a stripe whose first write is under way.

The record of that write lacks the member that is rebuilt. Passed over, the stripe would need a
second record; if that one failed, the log would hold a record that readers do not see, and recovery
would redo it under records that were planned without it.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from tests.support.spy import lift, noise, restarted, spying

CHUNK = 4096
ROLE = 1  # the one that is lost and rebuilt
SKIPPED = Stripe(5)
WINDOW = 8  # stripes


@pytest.mark.parametrize("mode", ["partial", "full"])
async def test_flushed_content_beside_a_first_write_survives_a_cut_and_a_loss(mode: str) -> None:
    async with spying("rdp", 6, chunk_bytes=CHUNK, stripes=64) as rig:
        array = rig.array
        context = array.context
        await array.set("journal", mode)
        stripe_bytes = context.code.data_count * CHUNK
        await rig.put(0, noise(SKIPPED * stripe_bytes))
        await rig.put((SKIPPED + 1) * stripe_bytes, noise(40 * stripe_bytes))
        await rig.in_place()
        await array.fail_disk(ROLE)
        await array.set("speed_max", "1KiB")  # after its first window the rebuild waits
        await array.replace_disk(ROLE, rig.new_member())
        (job,) = array.jobs.running()
        assert isinstance(job, Rebuild)
        job.pause()
        job.window = WINDOW
        data = cells_of(context.code.data_mask)
        cells = [cell for cell in data if context.position(SKIPPED, cell)[0] != ROLE]
        first, beside = [context.layout.logical(SKIPPED, cell) * CHUNK for cell in cells[:2]]
        log = array.member_set.config.regions.log
        where = {"offset_bytes": log.offset, "length_bytes": log.end - log.offset}
        others = [member for role, member in enumerate(rig.members) if role != ROLE]
        hangs = [member.hang(("write",), **where) for member in others]

        async def write_first() -> None:
            with suppress(RaidxError):
                await array.write(first, noise(CHUNK, 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_first)
            await trio.sleep(0.1)
            assert any(hang.hits for hang in hangs)
            job.resume()
            await trio.sleep(1)
            errors = [member.error(("write",), **where) for member in others]  # a second record
            lift(hangs)
        lift(errors)
        await array.write(beside, noise(CHUNK, 2))
        await array.flush()
        images = rig.images()
        images[ROLE] = images.pop()  # of the member that is rebuilt
        seen = bytes(await array.read(first, CHUNK))
        failed = array.member_set.lost - {ROLE} or {context.position(SKIPPED, cells[1])[0]}
    lost = {ROLE, *failed}  # as many as the code tolerates: the rebuild had not ended
    left = [image for role, image in enumerate(images) if role not in lost]
    async with restarted(left) as array:
        assert bytes(await array.read(beside, CHUNK)) == noise(CHUNK, 2)
        assert bytes(await array.read(first, CHUNK)) == seen == noise(CHUNK, 1)
