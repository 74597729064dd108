"""A small write whose record no member takes: it is as if it had never been begun."""

from __future__ import annotations

import errno
import random

import pytest

from raidx_fuse.errors import RaidxError
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import restarted, spying

CHUNK = 16384
PAGE = 4096


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid1", 2), ("rdp", 4)])
def test_what_no_member_logs_is_withdrawn(layout: str, width: int) -> None:
    """`Journal.commit_now` leaves the record to `finish`, which fails on every log member."""

    async def main() -> None:
        async with spying(layout, width, chunk_bytes=CHUNK, rows=4) as rig:
            await rig.put(0, random.Random(1).randbytes(len(rig.model)))
            await rig.in_place()
            member_set, journal = rig.running.member_set, rig.running.context.journal
            lost = rig.running.context.code.tolerance
            for role in range(lost):  # nobody can be spared any more
                await rig.running.fail_disk(role)
            await rig.in_place()
            log = member_set.config.regions.log
            faults = [
                member.error(("write",), offset_bytes=log.offset, length_bytes=log.length)
                for member in rig.members
            ]
            before = journal.ring.next_sequence, journal.ring.position, len(journal.ring.open)
            stripe = 5
            content = random.Random(2).randbytes(PAGE)
            role, offset = rig.running.context.position(stripe, 0)
            done = journal.commit_now(stripe, [(role, offset, [content], PAGE)])
            assert done is not None
            sequence, left = done
            assert left, "no member took it at once"
            await rig.compare()  # readers see nothing of it
            assert isinstance(left, list)
            with pytest.raises(RaidxError) as caught:
                await journal.finish(sequence, left)
            assert caught.value.errno == errno.EIO
            after = journal.ring.next_sequence, journal.ring.position, len(journal.ring.open)
            assert after == before, "the next record takes its place"
            assert journal.holds(stripe), "half of it may lie on a member: not to be bypassed"
            await rig.compare()
            for fault in faults:
                fault.lift()
            await rig.put(3 * CHUNK, random.Random(3).randbytes(700))  # the journal goes on
            await rig.running.flush()
            await rig.compare()
            images, model = rig.images(), bytes(rig.model)
        del images[:lost]
        async with restarted(images, start_degraded=True) as array:  # the power went before
            assert bytes(await array.read(0, 1 << 18)) == model[: 1 << 18]

    run(main)
