"""The log has enough copies as soon as a restripe makes more losses tolerable."""

from __future__ import annotations

import itertools
import random

from raidx_fuse.errors import AssemblyError
from tests.support.arrays import job_ended
from tests.support.spy import Touch, fill, restarted, spying

PAGE = 4096


async def test_records_have_the_copies_of_the_new_code_when_the_superblocks_have_it() -> None:
    moments: list[tuple[list[bytes], bytes]] = []
    seeds = itertools.count()
    async with spying("raid5", 4, chunk_bytes=PAGE) as rig:
        await fill(rig)
        array = rig.array
        context, drain = array.context, array.context.journal.drain

        async def write_behind(*then: object) -> None:
            await drain(*then)
            if not then and not context.gate.is_closed:  # what came after the drain
                await rig.put(0, random.Random(next(seeds)).randbytes(700))
                await array.flush()

        context.journal.drain = write_behind  # type: ignore[assignment, method-assign]

        def note(_touch: Touch) -> None:
            if array.member_set.config.layout == "rdp" and len(moments) < 12:
                moments.append((rig.images(), bytes(rig.model)))

        rig.log.hook = note
        await array.restripe([rig.new_member() for _ in range(2)], "rdp", {})
        (job,) = array.jobs.running()
        await job_ended(job)
        rig.log.hook = None
    checked = 0
    for (images, model), gone in itertools.product(moments, itertools.combinations(range(6), 2)):
        left = [image for role, image in enumerate(images) if role not in gone]
        try:
            async with restarted(left, start_degraded=True) as again:
                assert bytes(await again.read(0, 2 * PAGE)) == model[: 2 * PAGE], gone
        except AssemblyError:
            continue  # by the superblocks it is not restriped yet
        checked += 1
    assert checked > 20
