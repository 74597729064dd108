"""Members that fail: tried once more, then out; the others say so before anything is acknowledged.

EIO is the answer only where the code cannot help, and there it is never a guess.
"""

from __future__ import annotations

import errno
import random

import pytest
import trio

from raidx_fuse.errors import ArrayFailedError, MemberError, RaidxError, UnrecoverableError
from raidx_fuse.format.superblock import read_superblock
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import FLUSH, WRITE, SpyRig, restarted, spying

CHUNK = 4096


def noise(length: int, seed: int = 0) -> bytes:
    """Return bytes that no mistake produces."""
    return random.Random(seed).randbytes(length)


async def fill(rig: SpyRig) -> None:
    """Write the whole image once."""
    await rig.put(0, noise(len(rig.model), 99))
    await rig.running.flush()


def state_of(rig: SpyRig, role: int) -> str:
    """Return the state of the member in *role*."""
    return rig.running.member_set.config.record(role).state


async def rot_area(rig: SpyRig, role: int, stripe: int) -> None:
    """Make the member of *role* refuse to read one chunk, for good."""
    rig.members[role].error(
        ("read",), offset_bytes=rig.data.offset + stripe * CHUNK, length_bytes=CHUNK
    )


# -- one error is a hiccup, two are a failure ----------------------------------------------------


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("operation", ["read", "write"])
def test_one_error_is_tried_again_and_forgiven(operation: str, slow: bool) -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, slow=slow) as rig:
            await fill(rig)
            for member in rig.members:
                member.error((operation,), count=1)  # type: ignore[arg-type]
            await rig.put(0, noise(rig.chunk_bytes * 3, 1))
            await rig.compare()
            assert sum(member.injected["error"] for member in rig.members) == 4
            assert rig.running.status()["state"] == "clean"
            assert [state_of(rig, role) for role in range(4)] == ["active"] * 4

    run(main)


@pytest.mark.parametrize("slow", [False, True])
def test_a_member_that_keeps_failing_is_out_and_reading_goes_on(slow: bool) -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, slow=slow) as rig:
            await fill(rig)
            rig.members[1].error(("read",))
            layout = rig.running.context.layout
            chunk = next(c for c in range(4) if layout.place(*layout.locate(c))[0] == 1)
            assert await rig.get(chunk * CHUNK, 512) == rig.model[chunk * CHUNK :][:512]
            assert state_of(rig, 1) == "failed"
            assert rig.running.status()["redundancy_left"] == 0
            assert rig.running.status()["state"] == "degraded"
            tries = rig.members[1].injected["error"]
            assert tries == 2
            await rig.compare()
            assert rig.members[1].injected["error"] == tries, "nobody asks a failed member again"

    run(main)


def test_a_failed_flush_fails_the_member_not_the_flush() -> None:
    async def main() -> None:
        async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
            await rig.put(0, noise(CHUNK))
            rig.members[0].error(("flush",))
            await rig.running.flush()
            assert state_of(rig, 0) == "failed"
            await rig.compare()

    run(main)


def test_flush_without_redundancy_says_that_it_failed() -> None:
    async def main() -> None:
        async with spying("raid0", 2, chunk_bytes=CHUNK) as rig:
            await rig.put(0, noise(4 * CHUNK))
            fault = rig.members[0].error(("flush",))
            with pytest.raises(MemberError) as caught:
                await rig.running.flush()
            assert caught.value.errno == errno.EIO
            with pytest.raises(MemberError):
                await rig.running.flush()  # still not durable: the error must not be swallowed
            await trio.sleep(60)  # what works in the background must live with it
            await rig.compare()
            fault.lift()
            await rig.running.flush()

    run(main)


def test_a_flush_that_fails_on_several_members_is_still_due_on_all_of_them() -> None:
    async def main() -> None:
        async with spying("raid0", 3, chunk_bytes=CHUNK) as rig:
            await rig.put(0, noise(6 * CHUNK))
            faults = [rig.members[role].error(("flush",)) for role in (0, 2)]
            with pytest.raises(MemberError):
                await rig.running.flush()
            for fault in faults:
                fault.lift()
            rig.log.touches.clear()
            await rig.running.flush()
            flushed = {touch.member for touch in rig.log.touches if touch.kind == FLUSH}
            assert flushed == {"ram0", "ram2"}

    run(main)


# -- what the survivors say, and when ------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True])
def test_the_event_counter_moves_before_a_degraded_write_is_acknowledged(slow: bool) -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, slow=slow) as rig:
            await fill(rig)
            before = rig.running.member_set.config.events
            rig.members[0].vanish()
            rig.log.clear()
            acknowledged: list[int] = []
            place, data_count = rig.running.context.layout.place, rig.running.context.data_count

            async def write(offset: int) -> None:
                await rig.put(offset, noise(CHUNK, offset))
                stripe, cell = divmod(offset // CHUNK, data_count)
                if 0 in (place(stripe, cell)[0], place(stripe, data_count)[0]):
                    acknowledged.append(len(rig.log.touches))  # it would have needed role 0

            async with trio.open_nursery() as nursery:  # all of them, not only the first to notice
                for chunk in range(6):
                    nursery.start_soon(write, chunk * CHUNK)
            assert state_of(rig, 0) == "failed"
            assert len(acknowledged) >= 2
            superblocks = rig.running.member_set.config.regions.superblock
            for role in (1, 2, 3):
                path = rig.members[role].path
                touches = rig.log.touches[: min(acknowledged)]
                written = [
                    index
                    for index, touch in enumerate(touches)
                    if touch.member == path
                    and touch.kind == WRITE
                    and touch.offset_bytes < superblocks.end
                ]
                assert written, f"{path} did not hear of it before the first acknowledgement"
                assert any(
                    touch.member == path and touch.kind == FLUSH for touch in touches[written[-1] :]
                ), f"{path} heard of it, but not durably"
                superblock = await read_superblock(rig.members[role])
                assert superblock is not None
                assert superblock.config.events > before
                assert superblock.config.record(0).state == "failed"
            await rig.compare()

    run(main)


def test_a_member_that_vanished_and_came_back_stays_out_after_a_crash() -> None:
    async def main() -> None:
        async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
            await fill(rig)
            rig.members[1].vanish()
            await rig.put(0, noise(4 * CHUNK, 5))
            await rig.running.flush()
            images, model = rig.images(), bytes(rig.model)  # the returned disk among them
            async with restarted(images, start_degraded=True) as array:
                assert array.member_set.config.record(1).state == "failed"
                assert any("failed" in line for line in array.warnings), array.warnings
                for at in range(0, len(model), 1 << 18):
                    assert (
                        bytes(await array.read(at, len(model[at : at + (1 << 18)])))
                        == (model[at : at + (1 << 18)])
                    )

    run(main)


# -- hanging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["read", "write", "flush"])
def test_a_member_that_hangs_is_failed_after_the_timeout_and_the_array_goes_on(
    operation: str,
) -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            await fill(rig)
            await rig.running.set("io.timeout_s", "2")
            await trio.sleep(40)  # the watchdog has noticed the new time-out
            fault = rig.members[2].hang((operation,))  # type: ignore[arg-type]
            start_s = trio.current_time()
            await rig.put(0, noise(6 * CHUNK, 3))
            await rig.running.flush()
            await rig.compare()
            assert 2 <= trio.current_time() - start_s <= 10
            assert state_of(rig, 2) == "failed"
            fault.lift()  # the late answer must hurt nobody
            await trio.sleep(1)
            await rig.put(0, noise(6 * CHUNK, 4))
            await rig.compare()

    run(main)


# -- beyond what the code tolerates --------------------------------------------------------------


def test_a_second_bad_area_gives_eio_there_and_nowhere_else() -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            await fill(rig)
            await rig.running.fail_disk(0)
            await rot_area(rig, 1, stripe=5)
            bad = []
            for at in range(0, len(rig.model), CHUNK):
                try:
                    got = await rig.get(at, CHUNK)
                except RaidxError as error:
                    bad.append((at // CHUNK // 3, error.errno))
                else:
                    assert got == rig.model[at : at + CHUNK]
            # In stripe 5: the chunk on the bad area, or on the lost member (both if both are data).
            assert 1 <= len(bad) <= 2
            assert set(bad) == {(5, errno.EIO)}
            assert state_of(rig, 1) == "active", "an array with one bad sector too many goes on"
            with pytest.raises(ArrayFailedError, match="cannot be spared"):
                await rig.running.fail_disk(1)

    run(main)


def test_raid0_keeps_a_member_with_a_bad_area() -> None:
    async def main() -> None:
        async with spying("raid0", 2, chunk_bytes=CHUNK) as rig:
            await fill(rig)
            await rot_area(rig, 0, stripe=3)
            with pytest.raises(RaidxError) as caught:
                await rig.get(6 * CHUNK, 512)
            assert caught.value.errno == errno.EIO
            assert rig.members[0].path in str(caught.value)
            assert await rig.get(7 * CHUNK, CHUNK) == rig.model[7 * CHUNK : 8 * CHUNK]
            assert state_of(rig, 0) == "active"

    run(main)


def lost_chunk_of(rig: SpyRig, stripe: int, role: int) -> int | None:
    """Return the logical chunk of *stripe* that lies on *role*, None for parity."""
    layout = rig.running.context.layout
    for cell in range(layout.code.data_count):
        if layout.place(stripe, cell)[0] == role:
            return layout.logical(stripe, cell)
    return None


async def tear_a_degraded_stripe(rig: SpyRig) -> tuple[int, int]:
    """Lose role 0, then let role 1 refuse writes; return (stripe, chunk that was on role 0).

    The stripe is one where roles 0 and 1 hold data, and the write is to role 1's chunk: its old
    content on role 1 stays, the new parity may be there already, role 0's content hangs on both.
    Without the journal: with it, a stripe is never half written.
    """
    await rig.running.set("journal", "none")
    await fill(rig)
    await rig.in_place()
    await rig.running.fail_disk(0)
    stripe = next(
        s
        for s in range(8)
        if lost_chunk_of(rig, s, 0) is not None and lost_chunk_of(rig, s, 1) is not None
    )
    target, gone = lost_chunk_of(rig, stripe, 1), lost_chunk_of(rig, stripe, 0)
    assert target is not None
    assert gone is not None
    fault = rig.members[1].error(("write",), offset_bytes=rig.data.offset)
    with pytest.raises(RaidxError) as caught:
        await rig.running.write(target * CHUNK, noise(CHUNK, 7))
    assert caught.value.errno == errno.EIO
    fault.lift()
    assert state_of(rig, 1) == "active"
    return stripe, gone


def test_a_write_torn_in_a_degraded_stripe_leaves_eio_not_garbage() -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            stripe, gone = await tear_a_degraded_stripe(rig)
            with pytest.raises(UnrecoverableError) as caught:
                await rig.get(gone * CHUNK + 100, 10)
            assert str(gone * CHUNK) in str(caught.value), "the message names the image offset"
            status = rig.running.status()
            assert status["lost_chunks"] == 1
            assert "restore" in status["action"]
            assert rig.running.stats()["array"]["lost_image_offsets"] == [gone * CHUNK]
            for at in range((stripe + 1) * 3 * CHUNK, len(rig.model), CHUNK):
                assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]

    run(main)


def test_a_lost_chunk_stays_lost_over_a_remount_and_a_rebuild_until_it_is_written_whole() -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            stripe, gone = await tear_a_degraded_stripe(rig)
            await rig.close()
            await rig.open()
            with pytest.raises(UnrecoverableError):
                await rig.get(gone * CHUNK, CHUNK)
            new = rig.new_member()
            job = (await rig.running.replace_disk(0, new))["job"]
            rig.members[0] = new
            assert (await rig.running.jobs.wait(job))["state"] == "done"
            with pytest.raises(UnrecoverableError):
                await rig.get(gone * CHUNK, CHUNK)
            await rig.running.write(gone * CHUNK, noise(512, 8))
            with pytest.raises(UnrecoverableError):
                await rig.get(gone * CHUNK + 1024, 512)  # the rest is as lost as before
            await rig.put(gone * CHUNK, noise(CHUNK, 9))
            assert await rig.get(gone * CHUNK, CHUNK) == noise(CHUNK, 9)
            assert rig.running.status()["lost_chunks"] == 0
            await rig.close()
            await rig.open()
            assert await rig.get(gone * CHUNK, CHUNK) == noise(CHUNK, 9)
            first = stripe * 3 * CHUNK
            for at in range(0, len(rig.model), CHUNK):
                if not first <= at < first + 3 * CHUNK:
                    assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]
            job = await rig.running.start_scrub(repair=False)
            assert (await rig.running.jobs.wait(job))["mismatches"] == 0

    run(main)


def test_a_first_write_that_cannot_come_alive_leaves_eio_beside_it_not_garbage() -> None:
    """Parity has taken up a chunk that still counts as zero, when the flush before its bit fails:
    what a lost member held of the stripe cannot be told any more."""

    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK, reads_zero=False) as rig:
            await rig.running.set("journal", "none")
            stripe = next(
                s
                for s in range(8)
                if None not in (lost_chunk_of(rig, s, 0), lost_chunk_of(rig, s, 1))
            )
            gone, fresh = lost_chunk_of(rig, stripe, 0), lost_chunk_of(rig, stripe, 1)
            assert gone is not None
            assert fresh is not None
            await rig.put(gone * CHUNK, noise(CHUNK, 1))
            await rig.running.fail_disk(0)
            await rig.running.context.dirty_bitmap.enter(
                [stripe]
            )  # marked: its flush is not the one
            rig.running.context.dirty_bitmap.leave([stripe])
            fault = rig.members[1].error(("flush",))
            with pytest.raises(RaidxError):
                await rig.running.write(fresh * CHUNK, noise(CHUNK, 2))
            fault.lift()
            assert await rig.get(fresh * CHUNK, CHUNK) == bytes(CHUNK)
            with pytest.raises(UnrecoverableError):
                await rig.get(gone * CHUNK, CHUNK)
            await rig.put(gone * CHUNK, noise(CHUNK, 3))
            await rig.put(fresh * CHUNK, b"x" * 512)
            await rig.compare()

    run(main)


@pytest.mark.parametrize("whole_stripe", [False, True])
@pytest.mark.parametrize("mode", ["none", "partial", "full"])
def test_a_failed_first_write_leaves_no_trace_below_what_was_never_written(
    mode: str, whole_stripe: bool
) -> None:
    """What a refused write left in a chunk must not come up when its neighbour is written."""

    async def main() -> None:
        async with spying("raid5", 3, chunk_bytes=CHUNK) as rig:
            await rig.running.set("journal", mode)
            await rig.running.fail_disk(2)
            layout = rig.running.context.layout
            stripe = next(s for s in range(6) if {layout.place(s, c)[0] for c in (0, 2)} == {0, 1})
            chunk = layout.logical(stripe, 0)
            parity_role = layout.place(stripe, 2)[0]
            fault = rig.members[parity_role].error(("write",), offset_bytes=rig.data.offset)
            size = (2 if whole_stripe else 1) * CHUNK
            error = None
            try:
                await rig.running.write(chunk * CHUNK, noise(size, 1))
            except RaidxError as caught:
                error = caught
            fault.lift()
            at_first = await rig.get(chunk * CHUNK, 2 * CHUNK)
            if error is None:
                assert at_first[:size] == noise(size, 1)
            else:
                assert at_first[:size] in (bytes(size), noise(size, 1))
            await rig.running.write(chunk * CHUNK, b"x" * 512)
            expected = b"x" * 512 + at_first[512:]
            assert await rig.get(chunk * CHUNK, 2 * CHUNK) == expected, "content from nowhere"
            new = rig.new_member()
            job = (await rig.running.replace_disk(2, new))["job"]
            rig.members[2] = new
            assert (await rig.running.jobs.wait(job))["state"] == "done"
            assert await rig.get(chunk * CHUNK, 2 * CHUNK) == expected
            job = await rig.running.start_scrub(repair=False)
            assert (await rig.running.jobs.wait(job))["mismatches"] == 0

    run(main)


def test_what_cannot_reach_its_place_stays_in_the_journal() -> None:
    """A degraded array, and a member that refuses to write one place: no content is lost."""

    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            await fill(rig)
            await rig.in_place()
            await rig.running.fail_disk(0)
            fault = rig.members[1].error(("write",), offset_bytes=rig.data.offset)
            for number in range(12):
                await rig.put(number * 5 * CHUNK + 700, noise(900, number))
                await trio.sleep(0.7)
            await rig.running.flush()
            await rig.compare()
            images, model = rig.images(), bytes(rig.model)
            fault.lift()
            await rig.in_place()
            await rig.compare()
        del images[0]
        async with restarted(images, start_degraded=True) as array:  # the power went before
            for at in range(0, len(model), 1 << 18):
                assert (
                    bytes(await array.read(at, len(model[at:][: 1 << 18])))
                    == (model[at:][: 1 << 18])
                )

    run(main)


def test_an_error_on_the_journal_of_a_degraded_array_does_not_end_all_writing() -> None:
    async def main() -> None:
        async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
            await fill(rig)
            await rig.running.fail_disk(3)
            log = rig.running.member_set.config.regions.log
            fault = rig.members[0].error(
                ("write",), offset_bytes=log.offset, length_bytes=log.length
            )
            fault2 = rig.members[1].error(
                ("write",), offset_bytes=log.offset, length_bytes=log.length
            )
            try:
                await rig.put(100, noise(700, 1))
            except RaidxError as caught:
                assert caught.errno == errno.EIO  # noqa: PT017  # either is right
            fault.lift()
            fault2.lift()
            await rig.put(100, noise(700, 2))
            await rig.running.flush()
            await rig.compare()

    run(main)


# -- spares --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["raid1", "raid4", "raid5"])
def test_a_spare_takes_over_by_itself(layout: str) -> None:
    async def main() -> None:
        async with spying(layout, 3, chunk_bytes=CHUNK) as rig:
            await fill(rig)
            spare = rig.new_member()
            await rig.running.add_spare(spare)
            rig.members[1].vanish()
            await rig.put(0, noise(8 * CHUNK, 11))
            for _ in range(100):
                if rig.running.status()["state"] == "clean":
                    break
                await trio.sleep(1)
            assert rig.running.status()["state"] == "clean"
            assert (
                rig.running.membership.path_of(rig.running.member_set.config.record(1))
                == spare.path
            )
            await rig.running.fail_disk(0)  # what the spare holds now carries the data
            await rig.compare()

    run(main)
