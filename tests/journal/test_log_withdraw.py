"""A small write whose record no member takes is withdrawn without a trace."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.store.member_io import MemberIO
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


def test_a_withdrawn_record_is_not_the_one_of_another_number_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two are withdrawn, and the records after them end just before where the second one lies."""

    async def main() -> None:
        async with spying("raid0", 2, chunk_bytes=PAGE) as rig:
            await rig.put(0, bytes([1]) * len(rig.model))
            await rig.in_place()
            member_set, journal = rig.running.member_set, rig.running.context.journal
            place = rig.running.context.position(0, 0)[1]
            write, may_fail = member_set.write, trio.Event()

            async def land_and_fail(requests: Sequence[MemberIO], **options: Any) -> None:
                await write(requests, **options)
                if requests[0][3] > PAGE:
                    await may_fail.wait()
                raise MemberError("ram0", "write", 0, errno.EIO)

            async def commit(size: int, content: int) -> None:
                data = bytes([content]) * size
                with pytest.raises(MemberError):
                    await journal.commit([0], [(0, place, [data], size)], ())

            def not_now(offset: int, record: bytes) -> list[MemberIO]:
                return [
                    (role, offset, [record], len(record)) for role in journal.log_members.at(offset)
                ]

            monkeypatch.setattr(journal, "write_now", not_now)
            monkeypatch.setattr(member_set, "write", land_and_fail)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(commit, PAGE, 2)
                await trio.sleep(0.01)
                await commit(512, 3)
                may_fail.set()
            monkeypatch.undo()
            assert journal.torn
            # An empty record of one sector comes first.
            assert await journal.commit([0], [(0, place, [bytes([4]) * 3584], 3584)], ())
            await rig.running.flush()
            images = rig.images()
        async with restarted(images) as array:
            assert array.replayed is not None
            assert array.replayed.records == 2
            assert bytes(await array.read(0, PAGE)) == bytes([4]) * 3584 + bytes([1]) * 512

    run(main)


def test_a_record_is_overwritten_wherever_it_lies_although_others_have_their_turn_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint gave the turn to others while the record was written (log_members.py)."""

    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=PAGE) as rig:
            await rig.put(0, bytes([1]) * len(rig.model))
            await rig.in_place()
            member_set, journal = rig.running.member_set, rig.running.context.journal
            log_members = journal.log_members
            log_members.turns = (log_members.roles[:2],)
            write = member_set.write
            role, place = rig.running.context.position(0, 0)

            async def land_and_fail(requests: Sequence[MemberIO], **options: Any) -> None:
                await write(requests, **options)
                log_members.turns = (log_members.roles[2:],)
                raise MemberError("ram0", "write", 0, errno.EIO)

            def not_now(offset: int, record: bytes) -> list[MemberIO]:
                return [(role, offset, [record], len(record)) for role in log_members.at(offset)]

            monkeypatch.setattr(journal, "write_now", not_now)
            monkeypatch.setattr(member_set, "write", land_and_fail)
            with pytest.raises(MemberError):
                await journal.commit([0], [(role, place, [bytes([2]) * PAGE], PAGE)], ())
            monkeypatch.undo()
            assert journal.torn
            await rig.put(8 * PAGE, bytes([3]) * 512)  # behind what overwrites it
            await rig.running.flush()
            images, model = rig.images(), bytes(rig.model)
        async with restarted(images) as array:
            assert bytes(await array.read(0, len(model))) == model

    run(main)
