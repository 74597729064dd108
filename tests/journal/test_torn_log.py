"""A torn log: a record failed on members that cannot be spared, and is not mended yet."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.simulated.faulty import Fault
from raidx_fuse.store.io_tuples import MemberIO
from tests.journal.test_taken_back import put_off
from tests.support.arrays import jobs_ended
from tests.support.spy import lift, noise, placed, restarted, spied, spying

CHUNK = 4096
WRITES = ("write",)


async def test_a_flush_fails_until_what_was_read_is_in_the_log() -> None:
    """Else a reader could find new content, flush it, and find the old one after a power cut."""
    async with spying("raid1", 2, chunk_bytes=CHUNK, stripes=16) as rig:
        await rig.put(0, noise(len(rig.model)))
        await rig.in_place()
        array = rig.array
        log = array.member_set.config.regions.log
        faults = [
            member.error(WRITES, offset_bytes=log.offset, length_bytes=log.length)
            for member in rig.members
        ]
        new = noise(512, 5)
        with pytest.raises(MemberError):
            await array.write(CHUNK, new)
        assert bytes(await array.read(CHUNK, 512)) == new
        with pytest.raises(MemberError):
            await array.flush()
        lift(faults)
        await array.flush()
        images = rig.images()
    async with restarted(images, start_degraded=True) as array:
        assert bytes(await array.read(CHUNK, 512)) == new


async def test_a_discard_ends_though_the_record_behind_its_own_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await placed("raid0", 2, chunk_bytes=CHUNK, stripes=24, journal="full")
    array, journal = rig.array, rig.array.context.journal
    log = array.member_set.config.regions.log
    send, answers = array.member_set.write, [trio.Event(), trio.Event()]
    places, place = 0, journal.place

    async def answer(requests: Sequence[MemberIO], **options: Any) -> None:
        turn = 2
        if answers and requests and log.offset <= requests[0][1] < log.end:
            turn -= len(answers)
            await answers.pop(0).wait()
        await send(requests, **options)
        if turn == 1:
            raise MemberError("ram0", "write", 0, errno.EIO)

    async def counted(since: int | None = None) -> None:
        nonlocal places
        places += 1
        assert places < 50, "it places again and again"
        await place(since)

    monkeypatch.setattr(journal, "write_now", put_off(journal))
    monkeypatch.setattr(journal, "commit_now", lambda *_: None)
    monkeypatch.setattr(journal, "place", counted)
    monkeypatch.setattr(array.member_set, "write", answer)
    first, second = answers
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.discard, 0, 4 * CHUNK)
            await trio.sleep(0.01)

            async def refused() -> None:
                with pytest.raises(MemberError):
                    await array.write(8 * CHUNK, noise(CHUNK, 1))

            nursery.start_soon(refused)
            await trio.sleep(0.01)
            assert len(journal.inflight.open) == 2
            first.set()
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            second.set()
    rig.model[: 4 * CHUNK] = bytes(4 * CHUNK)
    await rig.compare()


@pytest.mark.parametrize("waits", [False, True], ids=["before", "while it waits for the lock"])
async def test_a_rebuild_passes_no_stripe_of_a_record_that_recovery_may_redo(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it counts as rebuilt with the content that readers see, under another parity."""
    role, stripe = 1, Stripe(12)

    async with spying("raid5", 4, chunk_bytes=CHUNK, stripes=64) as rig:
        array, context = rig.array, rig.array.context
        await rig.put(0, noise(len(rig.model)))
        await rig.in_place()
        await context.dirty_bitmap.clean_quiet(all_regions=True)  # no resync hides it
        await array.fail_disk(role)
        await array.set("speed_max", "1KiB")
        await array.replace_disk(role, rig.new_member())
        (job,) = array.jobs.running()
        assert isinstance(job, Rebuild)
        job.window = 8
        await trio.sleep(0.5)
        job.pause()
        await trio.sleep(3)
        assert job.watermark <= stripe

        def chunk_on(is_role: bool) -> tuple[int, CellIndex]:
            cells = cells_of(context.code.data_mask)
            cell = next(c for c in cells if (context.position(stripe, c)[0] == role) is is_role)
            return context.layout.logical(stripe, cell) * CHUNK, cell

        await context.journal.drain()
        ring, log = context.journal.ring, array.member_set.config.regions.log
        taker, refuser = context.journal.log_members.at(ring.next_place(2 * CHUNK)[1])

        def refuse(role: int) -> Fault:
            member = rig.members[role]
            return member.error(WRITES, offset_bytes=log.offset, length_bytes=log.length)

        faults = [refuse(refuser)]
        send, answered = array.member_set.write, trio.Event()

        async def answer(requests: Sequence[MemberIO], **options: Any) -> None:
            if requests and log.offset <= requests[0][1] < log.end:
                await answered.wait()
            await send(requests, **options)

        async def refused() -> None:
            with pytest.raises(MemberError):
                await array.write(chunk_on(True)[0], noise(CHUNK, 7))

        monkeypatch.setattr(array.member_set, "write", answer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await trio.sleep(0.01)
            if waits:
                await array.set("speed_max", "40KiB")
                job.resume()
                await trio.sleep(2)
            answered.set()
        faults.append(refuse(taker))  # who cannot be made to forget it
        assert context.journal.torn is not None
        await array.set("speed_max", "40KiB")
        job.resume()
        await trio.sleep(2)
        assert job.watermark <= stripe
        assert "EIO" in str(job.error), "it says what it waits for"
        faults.pop().lift()  # the one that takes no write does not have it: it stops nobody
        await trio.sleep(2)
        assert job.watermark > stripe
        job.pause()
        await trio.sleep(0.2)
        assert job.error is None
        await job.checkpoint()
        await array.flush()
        images, model = rig.images(), bytes(rig.model)
        images[role] = images.pop()
    async with restarted(images) as array:
        await jobs_ended(array)
        beside, cell = chunk_on(False)
        await array.fail_disk(array.context.position(stripe, cell)[0])
        assert bytes(await array.read(beside, CHUNK)) == model[beside : beside + CHUNK]


async def test_a_checkpoint_begins_though_every_write_is_late() -> None:
    """One writer whose records no member takes at once: it goes on before the checkpoint does."""
    rig = await placed("raid1", 2, chunk_bytes=4 * CHUNK, stripes=64, slow=True)
    array, draw = rig.array, random.Random(1)
    number, placed_at = 0, 0

    async def place() -> None:
        nonlocal placed_at
        await trio.sleep(0.001)
        begun_at = number
        await array.context.journal.place()
        placed_at = number - begun_at

    async with trio.open_nursery() as nursery:
        nursery.start_soon(place)
        for _ in range(200):
            number += 1
            await array.write(draw.randrange(array.size_bytes // 512) * 512, noise(512, 1))
    assert 0 < placed_at < 20


async def test_places_are_held_while_a_record_that_was_taken_back_may_be_replayed() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, stripes=16)
    await rig.in_place()
    ring = rig.array.context.journal.ring
    assert ring.durable_tail[0] == ring.next_sequence
    sequence, position, _ = ring.take(512)
    ring.take_back(sequence, position)
    ring.hold_from(Stripe(3))
    assert rig.array.context.journal.holds(Stripe(5))
