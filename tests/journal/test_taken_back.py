"""Records that no member takes are taken back; those that readers have seen are written again."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.journal.journal import Journal
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.store.io_tuples import MemberIO
from tests.support.spy import FLUSH, WRITE, lift, locked, placed, restarted, spying

CHUNK = 16384
PAGE = 4096


def put_off(journal: Journal) -> Callable[[int, bytes], list[MemberIO]]:
    """Return a `write_now` that leaves everything to the queues."""

    def write_now(offset: int, record: bytes) -> list[MemberIO]:
        return [(role, offset, [record], len(record)) for role in journal.log_members.at(offset)]

    return write_now


@pytest.mark.parametrize(
    ("layout", "width"), [("raid0", 2), ("raid5", 4), ("raid1", 2), ("rdp", 4)]
)
async def test_what_readers_have_seen_is_logged_before_the_next_change(
    layout: str, width: int
) -> None:
    """`Journal.commit_now` leaves a record to the queues, where it fails on every log member."""
    async with spying(layout, width, chunk_bytes=CHUNK, rows=4) as rig:
        await rig.array.set("journal", "full")
        await rig.put(0, random.Random(1).randbytes(len(rig.model)))
        await rig.in_place()
        member_set, context = rig.array.member_set, rig.array.context
        journal = context.journal
        log = member_set.config.regions.log
        faults = [
            member.error(("write",), offset_bytes=log.offset, length_bytes=log.length)
            for member in rig.members
        ]
        offset, content = 5 * context.code.data_count * CHUNK, random.Random(2).randbytes(PAGE)
        with pytest.raises(MemberError) as caught:
            await rig.array.write(offset, content)
        assert caught.value.errno == errno.EIO
        assert journal.is_late, "no member took it at once"
        assert journal.holds(5), "half of it may lie on a member: not to be bypassed"
        place = context.position(5, 0)
        seen = bytearray(PAGE)
        assert journal.overlay.read(*place, memoryview(seen))
        assert seen == content, "readers see it"
        with pytest.raises(MemberError):
            await rig.array.write(3 * CHUNK, bytes(700))
        lift(faults)
        rig.model[offset : offset + PAGE] = content
        await rig.put(3 * CHUNK, random.Random(3).randbytes(700))  # the journal goes on
        assert not journal.is_late
        await rig.array.flush()
        await rig.compare()
        images, model = rig.images(), bytes(rig.model)
    async with restarted(images, start_degraded=True) as array:  # the power went before
        assert bytes(await array.read(0, 1 << 18)) == model[: 1 << 18]


async def test_a_record_that_was_taken_back_is_not_the_next_one_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two are taken back, and the one after them ends just before where the second one lies."""
    async with spying("raid0", 2, chunk_bytes=PAGE) as rig:
        await rig.put(0, bytes([1]) * len(rig.model))
        await rig.in_place()
        member_set, journal = rig.array.member_set, rig.array.context.journal
        place = rig.array.context.position(0, 0)[1]
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

        monkeypatch.setattr(journal, "write_now", put_off(journal))
        monkeypatch.setattr(member_set, "write", land_and_fail)
        rig.array.context.locks.take_free([Stripe(0)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, PAGE, 2)
            await trio.sleep(0.01)
            await commit(512, 3)
            may_fail.set()
        monkeypatch.undo()
        assert journal.torn
        assert await journal.commit([0], [(0, place, [bytes([4]) * PAGE], PAGE)], ())
        rig.array.context.locks.release(Stripe(0))
        await rig.array.flush()
        images = rig.images()
    async with restarted(images) as array:
        assert array.replayed is not None
        assert array.replayed.records == 1
        assert bytes(await array.read(0, PAGE)) == bytes([4]) * PAGE


@pytest.mark.parametrize("empty", [False, True], ids=["", "emptied first"])
async def test_a_record_is_overwritten_wherever_it_lies_although_others_have_their_turn_now(
    empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint gave the turn to others while the record was written (append.py)."""
    rig = await placed("raid5", 4, chunk_bytes=PAGE)
    member_set, journal = rig.array.member_set, rig.array.context.journal
    log_members = journal.log_members
    log_members.turns = (log_members.roles[:2],)
    write = member_set.write
    role, place = rig.array.context.position(0, 0)

    async def land_and_fail(requests: Sequence[MemberIO], **options: Any) -> None:
        await write(requests, **options)
        log_members.turns = (log_members.roles[2:],)
        raise MemberError("ram0", "write", 0, errno.EIO)

    monkeypatch.setattr(journal, "write_now", put_off(journal))
    monkeypatch.setattr(member_set, "write", land_and_fail)
    with locked(rig.array.context, 0), pytest.raises(MemberError):
        await journal.commit([0], [(role, place, [bytes([2]) * PAGE], PAGE)], ())
    monkeypatch.undo()
    assert journal.torn
    if empty:
        await journal.drain()
        assert journal.torn is None, "other members may become log members now"
    await rig.put(8 * PAGE, bytes([3]) * 512)  # behind what overwrites it
    await rig.array.flush()
    await rig.survives()


@pytest.mark.parametrize("early", [False, True], ids=["last", "first"])
async def test_records_behind_one_that_failed_are_taken_back_as_well(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are under way, the second one fails, and the third one is written last, or first."""
    rig = await placed("raid0", 2, chunk_bytes=PAGE, stripes=16)
    context = rig.array.context
    journal, member_set, write = context.journal, context.member_set, rig.array.write
    await rig.array.set("journal", "full")
    monkeypatch.setattr(journal, "write_now", put_off(journal))
    monkeypatch.setattr(journal, "commit_now", lambda *_: None)
    send, answers = member_set.write, {0: trio.Event(), 1: trio.Event(), 2: trio.Event()}
    turns = iter(answers)

    async def answer(requests: Sequence[MemberIO], **options: Any) -> None:
        turn = next(turns, None)
        if turn is not None:
            await answers[turn].wait()
        await send(requests, **options)
        if turn == 1:
            raise MemberError("ram0", "write", 0, errno.EIO)

    monkeypatch.setattr(member_set, "write", answer)
    ends: list[str] = []

    async def one(turn: int) -> None:
        try:
            await write(turn * 2 * PAGE, bytes([2 + turn]) * PAGE)
            ends.append(f"{turn} done")
        except MemberError as error:
            ends.append(f"{turn} {error.message[-3:]}")

    async with trio.open_nursery() as nursery:
        for turn in answers:
            nursery.start_soon(one, turn)
            await trio.sleep(0.001)
        if early:
            answers[2].set()
            await trio.sleep(0.001)
            assert not ends, "the earlier ones are not written"
        answers[1].set()
        answers[0].set()
        await trio.sleep(0.001)
        assert sorted(ends[:2]) == ["0 done", "1 EIO"]
        if not early:  # a checkpoint meanwhile
            await journal.place()
            await rig.array.flush()
        nursery.start_soon(one, 3)
        await trio.sleep(0.001)
        answers[2].set()
    assert ends[2:] == ["2 EIO", "3 done"], "no record is begun while that of 2 may land"
    numbers = [number for number, _ in journal.ring.open]
    assert numbers == sorted(set(numbers))
    kinds = [touch.kind for touch in rig.log.touches if touch.kind in (WRITE, FLUSH)]
    flushes = 1 + (kinds[-3] == FLUSH)  # of one member or two
    zeros = [WRITE] * 2 + [FLUSH] * flushes  # of two records, each on one member
    assert kinds[-3 - flushes :] == [*zeros, WRITE], "durable before the next is begun"
    monkeypatch.undo()
    rig.model[6 * PAGE : 7 * PAGE] = bytes([5]) * PAGE
    rig.model[:PAGE] = bytes([2]) * PAGE
    await rig.compare()
    await rig.array.flush()
    await rig.compare()
    await rig.survives()
