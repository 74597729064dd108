"""Group commit, seen from the engine: concurrent small writes share one record of the log.

The writes are stepped as by the session loop: lab/crash/player.py.
"""

from __future__ import annotations

import errno
import random
import types
from collections.abc import Generator, Sequence

import pytest
import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.journal.group_commit import (
    CommitBatch,
    Deferral,
    Handler,
    HeldHandlers,
    continue_held,
)
from raidx_fuse.lab.crash.player import through_door
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.simulated.faulty import WRITE as WRITES
from raidx_fuse.members.simulated.faulty import Fault
from tests.support.arrays import parity_holds
from tests.support.spy import WRITE, SpyRig, lift, noise, placed, restarted, spying

CHUNK = 16384
PAGE = 4096
STRIPES = 24
LAYOUTS = pytest.mark.parametrize(
    ("layout", "width", "mode"),
    [("raid5", 4, "partial"), ("raid4", 3, "full"), ("rdp", 4, "partial"), ("raid0", 2, "full")],
)


async def prepare(rig: SpyRig, mode: str = "partial") -> None:
    """Write the whole image, all of it in its place, and let the log be empty and large enough."""
    await rig.array.set("journal", mode)
    await rig.put(0, noise(len(rig.model), 99))
    await rig.in_place()
    rig.log.clear()


def stripe_bytes(rig: SpyRig) -> int:
    """Return how much of the image is in one stripe."""
    return rig.array.context.code.data_count * CHUNK


def refuse(rig: SpyRig, times: int | None = 1) -> list[Fault]:
    """Let the next write to the log of each member wait for the queues, 10 ms long."""
    log = rig.array.member_set.config.regions.log
    return [
        member.inject(
            Fault(
                "slow",
                WRITES,
                offset_bytes=log.offset,
                length_bytes=log.length,
                delay_s=0.01,
                count=times,
            )
        )
        for member in rig.members
    ]


def held(rig: SpyRig, *writes: tuple[int, bytes]) -> tuple[list[Handler], list[CommitBatch]]:
    """Begin writes as the session loop does, and hold them; each must be held."""
    handlers: list[Handler] = []
    gatherings = []
    deferral = rig.array.context.journal.deferral
    for offset, data in writes:
        handler = rig.array.write(offset, data)
        deferral.allow(True)
        try:
            batch = handler.send(None)
        finally:
            deferral.allow(False)
        assert isinstance(batch, CommitBatch), "it was not held"
        handlers.append(handler)
        gatherings.append(batch)
        rig.model[offset : offset + len(data)] = data
    return handlers, gatherings


def all_answer(handlers: Sequence[Handler]) -> None:
    """Let handlers answer, which they do at once."""
    for handler in handlers:
        with pytest.raises(StopIteration):
            handler.send(None)


def in_the_log(rig: SpyRig) -> int:
    """Return how many writes the logs of all members took."""
    return len(rig.log.of(WRITE, rig.array.member_set.config.regions.log))


@LAYOUTS
async def test_eight_writes_share_one_record(layout: str, width: int, mode: str) -> None:
    async with spying(layout, width, chunk_bytes=CHUNK, stripes=STRIPES, rows=4) as rig:
        await prepare(rig, mode)
        journal = rig.array.context.journal
        sequence = journal.ring.next_sequence
        writes = [(n * 3 * CHUNK // 2, noise(512, n)) for n in range(8)]
        handlers, gatherings = held(rig, *writes)
        assert len(set(map(id, gatherings))) == 1
        assert in_the_log(rig) == 0
        await rig.compare()  # everybody sees it, though nobody was told that it is done
        gatherings[0].write()
        all_answer(handlers)
        assert in_the_log(rig) == rig.array.context.code.tolerance + 1, "one on each log member"
        assert journal.ring.next_sequence == sequence + 1
        await rig.compare()
        images, model = rig.images(), bytes(rig.model)
        await rig.in_place()
        await rig.compare()
    async with restarted(images) as array:  # the process was killed behind the answers
        assert array.replayed is not None
        assert array.replayed.records == 1
        assert bytes(await array.read(0, len(model))) == model
        await parity_holds(array)


@LAYOUTS
@pytest.mark.parametrize("cache", [0, 1 << 20])
async def test_the_same_place_several_times_in_one_record(
    layout: str, width: int, mode: str, cache: int
) -> None:
    rig = await placed(layout, width, chunk_bytes=CHUNK, stripes=STRIPES, rows=4, journal=mode)
    await rig.array.set("cache.size", str(cache))
    ranges = [(0, 512), (0, 512), (100, 900), (CHUNK, 512), (700, 99), (2 * PAGE, 700)]
    writes = [(at, noise(length, number)) for number, (at, length) in enumerate(ranges)]
    handlers, gatherings = held(rig, *writes)
    assert len(set(map(id, gatherings))) == 1
    await rig.compare()
    gatherings[0].write()
    all_answer(handlers)
    await rig.compare()
    await rig.survives()
    await rig.in_place()
    await rig.compare()
    if rig.array.context.code.tolerance:
        result = await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
        assert result["mismatches"] == 0, "parity goes with the last of them"
        await rig.array.fail_disk(0)
        await rig.compare()


@LAYOUTS
async def test_a_late_record_locks_its_stripes_and_is_placed_after_it_is_written(
    layout: str, width: int, mode: str
) -> None:
    rig = await placed(layout, width, chunk_bytes=CHUNK, stripes=STRIPES, rows=4, journal=mode)
    context = rig.array.context
    far = 3 * stripe_bytes(rig)
    handlers, (batch, _) = held(rig, (0, noise(PAGE, 1)), (far, noise(PAGE, 2)))
    refuse(rig)
    batch.write()
    assert batch.over is not None
    assert set(context.locks.held) == {0, context.layout.locate(far // context.chunk_bytes)[0]}
    await rig.compare()
    order: list[str] = []

    async def place() -> None:
        await context.journal.place()
        assert batch.over is not None
        assert batch.over.is_set()
        order.append("placed")

    async def again() -> None:
        await rig.put(100, noise(3000, 3))  # of the same page: built on what is late
        assert batch.over is not None
        assert batch.over.is_set()
        order.append("written again")

    async def finish(handler: Handler) -> None:
        await continue_held(handler)
        order.append("answered")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(place)
        nursery.start_soon(again)
        await trio.sleep(0.001)
        assert not order
        assert rig.log.of(WRITE, rig.data) == [], "nothing is placed"
        for handler in handlers:
            nursery.start_soon(finish, handler)
    assert sorted(order) == ["answered", "answered", "placed", "written again"]
    assert not context.locks.held
    await rig.compare()
    await rig.survives()
    await rig.in_place()
    await rig.compare()


async def test_a_record_that_no_member_takes_is_written_again_before_anything_follows_it() -> None:
    """All its writes fail, and nothing is placed; it is the next one once members take it."""
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=STRIPES) as rig:
        await prepare(rig)
        context = rig.array.context
        await rig.array.fail_disk(3)  # nobody can be spared any more
        newcomer = rig.new_member()
        await rig.array.replace_disk(3, newcomer)
        await rig._step_settle()
        await rig.in_place()
        await rig.put(5 * PAGE, noise(PAGE, 9))
        acknowledged = bytes(rig.model)
        handlers, gatherings = held(rig, (0, noise(PAGE, 1)), (9 * CHUNK, noise(PAGE, 2)))
        log = context.member_set.config.regions.log
        faults = [
            member.error(WRITES, offset_bytes=log.offset, length_bytes=log.length)
            for member in (*rig.members, newcomer)
        ]
        rig.log.clear()
        gatherings[0].write()
        errors = []

        async def finish(handler: Handler) -> None:
            with pytest.raises(RaidxError) as caught:
                await continue_held(handler)
            errors.append(caught.value.errno)

        async def behind() -> None:
            with pytest.raises(RaidxError):
                await rig.array.write(20 * CHUNK, noise(PAGE, 3))
            errors.append(errno.EIO)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(behind)
            for handler in handlers:
                nursery.start_soon(finish, handler)
        assert errors == [errno.EIO] * 3
        assert not context.locks.held
        for attempt in (context.journal.place, context.journal.drain, context.journal.reform):
            with pytest.raises(MemberError, match="EIO"):
                await attempt()
        with pytest.raises(MemberError, match="EIO"):
            await rig.array.write(30 * CHUNK, noise(PAGE, 4))
        assert rig.log.of(WRITE, rig.data) == []
        images = rig.images()
        lift(faults)
        rig.model[:PAGE], rig.model[9 * CHUNK : 9 * CHUNK + PAGE] = (
            noise(PAGE, 1),
            noise(PAGE, 2),
        )
        await rig.compare()  # readers have seen it all the time
        await rig.put(30 * CHUNK, noise(PAGE, 4))
        await rig.array.flush()
        gone_on, model = rig.images(), bytes(rig.model)
        await rig.in_place()
        await rig.compare()
    async with restarted(gone_on[:2] + gone_on[3:]) as array:
        assert bytes(await array.read(0, len(model))) == model
    async with restarted(images[:3] + images[4:]) as array:
        assert bytes(await array.read(0, len(acknowledged))) == acknowledged


async def test_what_is_filled_while_a_placement_waits_for_a_late_record_is_finished_first() -> None:
    """Else its parity would be in neither the log nor its place."""
    rig = await placed("raid5", 4, chunk_bytes=PAGE, stripes=1500, journal="partial")
    context = rig.array.context
    for turn in range(12):  # who of those that a late record lets go is first is chance
        handlers, gatherings = held(rig, (90 * PAGE, noise(PAGE, turn)))
        refuse(rig)
        gatherings[0].write()
        at = 4 * turn
        async with trio.open_nursery() as nursery:
            nursery.start_soon(context.journal.place)
            nursery.start_soon(rig.put, at * PAGE, noise(4 * PAGE, turn))
            await trio.sleep(0.001)
            nursery.start_soon(continue_held, handlers[0])
        await rig.put((at + 4) * PAGE, noise(512, turn))
        await rig.compare()
    await rig.survives()


async def test_a_record_behind_one_that_no_member_takes_is_not_acknowledged() -> None:
    """A replay ends at the gap, and would never come to it."""
    async with spying("raid0", 2, chunk_bytes=CHUNK, stripes=STRIPES) as rig:
        await prepare(rig, "full")
        model = bytes(rig.model)
        handlers, gatherings = held(rig, (0, noise(512, 1)))
        refuse(rig, None)  # this record and the next go through the queues, side by side
        ring = rig.array.context.journal.ring
        for member in rig.members:
            at = ring.offset + ring.position % ring.capacity
            member.error(WRITES, offset_bytes=at, length_bytes=512)
        gatherings[0].write()
        assert gatherings[0].over is not None
        failed = []

        async def fails(name: str, handler: Handler) -> None:
            with pytest.raises(RaidxError):
                await continue_held(handler)
            failed.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails, "first", handlers[0])
            nursery.start_soon(fails, "behind", rig.array.write(5 * CHUNK, noise(512, 2)))
        assert sorted(failed) == ["behind", "first"]
        images = rig.images()
    async with restarted(images) as array:
        assert bytes(await array.read(0, len(model))) == model


@LAYOUTS
async def test_what_is_too_large_or_has_no_room_is_logged_by_itself(
    layout: str, width: int, mode: str
) -> None:
    large = 2 * CHUNK  # more than a batch takes from one write
    rig = await placed(layout, width, chunk_bytes=large, stripes=STRIPES // 2, rows=4, journal=mode)
    journal = rig.array.context.journal
    stripe = rig.array.context.code.data_count * large

    async def together(*writes: tuple[int, bytes]) -> int:
        before = journal.ring.next_sequence
        await through_door([rig.put(*write) for write in writes], journal.deferral)
        return journal.ring.next_sequence - before

    middle = (stripe, noise(large, 2))
    assert await together((0, noise(512, 1)), middle, (2 * stripe, noise(512, 3))) == 3
    await rig.compare()
    await rig.in_place()
    assert await together(*((n * CHUNK, noise(512, n)) for n in range(8))) == 1
    await rig.compare()
    rng = random.Random(5)
    placements = journal.placements
    for number in range(150):  # round the ring, several times
        places = [rng.randrange(len(rig.model) // 512) * 512 for _ in range(8)]
        await together(*((place, noise(512)) for place in places))
        for place in places:
            assert await rig.get(place, 512) == rig.model[place : place + 512]
        if number % 10 == 9:
            await rig.compare()
    assert journal.placements > placements
    await rig.survives()


async def test_a_member_that_fails_under_a_held_write_is_out_before_it_is_acknowledged() -> None:
    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=STRIPES) as rig:
        await prepare(rig)
        member_set = rig.array.member_set
        handlers, gatherings = held(rig, (0, noise(512, 1)), (9 * CHUNK, noise(512, 2)))
        journal = rig.array.context.journal
        role = journal.log_members.at(journal.ring.next_place(PAGE)[1])[0]
        rig.members[role].vanish()
        gatherings[0].write()
        assert gatherings[0].over is not None
        async with trio.open_nursery() as nursery:
            for handler in handlers:
                nursery.start_soon(continue_held, handler)
        assert member_set.lost == {role}
        assert not member_set.unpublished, "the superblocks say so"
        await rig.compare()
        images, model = rig.images(), bytes(rig.model)
    del images[role]
    async with restarted(images) as array:
        assert bytes(await array.read(0, len(model))) == model


async def test_a_held_write_waits_for_the_exclusion_of_a_member_that_then_fails() -> None:
    """All log members have the record; but no answer says so before the superblocks do."""
    rig = await placed("raid5", 4, chunk_bytes=CHUNK, stripes=STRIPES, journal="partial")
    member_set = rig.array.member_set
    handlers, gatherings = held(rig, (0, noise(512, 1)))
    gatherings[0].write()
    assert gatherings[0].over is None, "at once"
    member_set.fail(Role(1), "for the test")
    assert member_set.unpublished
    await continue_held(handlers[0])
    assert not member_set.unpublished
    await rig.compare()


def test_handlers_behind_one_that_raises_are_finished() -> None:
    batch = CommitBatch.__new__(CommitBatch)
    batch.written = True

    @types.coroutine
    def handler(name: str) -> Generator[CommitBatch, None, None]:
        yield batch
        if name == "raises":
            raise ValueError(name)
        ended.append(name)

    ended: list[str] = []
    finished: list[str] = []
    held: HeldHandlers[str] = HeldHandlers(lambda _handler, name: finished.append(name), Deferral())
    for name in ("first", "raises", "third", "fourth"):
        assert held.run(handler(name), name) is None
    with pytest.raises(ValueError, match="raises"):
        held.release()
    assert (ended, finished, held.held) == (["first"], ["third", "fourth"], [])
