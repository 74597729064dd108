"""More is lost than the code can recover: the answer is EIO there, and never a guess."""

from __future__ import annotations

import errno

import pytest
import trio

from raidx_fuse.errors import ArrayFailedError, RaidxError, UnrecoverableError
from tests.support.arrays import parity_holds
from tests.support.spy import SpyRig, fill, filled, noise, restarted, spied, spying, state_of

CHUNK = 4096


async def rot_area(rig: SpyRig, role: int, stripe: int) -> None:
    """Make the member of *role* refuse to read one chunk, for good."""
    rig.members[role].error(
        ("read",), offset_bytes=rig.data.offset + stripe * CHUNK, length_bytes=CHUNK
    )


async def test_a_second_bad_area_gives_eio_there_and_nowhere_else() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    await rig.array.fail_disk(0)
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
        await rig.array.fail_disk(1)


async def test_raid0_keeps_a_member_with_a_bad_area() -> None:
    rig = await filled("raid0", 2, chunk_bytes=CHUNK)
    await rot_area(rig, 0, stripe=3)
    with pytest.raises(RaidxError) as caught:
        await rig.get(6 * CHUNK, 512)
    assert caught.value.errno == errno.EIO
    assert "role 0 (image offset 24576)" in str(caught.value)
    assert await rig.get(7 * CHUNK, CHUNK) == rig.model[7 * CHUNK : 8 * CHUNK]
    assert state_of(rig, 0) == "active"


def lost_chunk_of(rig: SpyRig, stripe: int, role: int) -> int | None:
    """Return the logical chunk of *stripe* that lies on *role*, None for parity."""
    layout = rig.array.context.layout
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
    await rig.array.set("journal", "none")
    await fill(rig)
    await rig.in_place()
    await rig.array.fail_disk(0)
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
        await rig.array.write(target * CHUNK, noise(CHUNK, 7))
    assert caught.value.errno == errno.EIO
    fault.lift()
    assert state_of(rig, 1) == "active"
    return stripe, gone


async def test_a_write_torn_in_a_degraded_stripe_leaves_eio_not_garbage() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    stripe, gone = await tear_a_degraded_stripe(rig)
    with pytest.raises(UnrecoverableError) as caught:
        await rig.get(gone * CHUNK + 100, 10)
    assert str(gone * CHUNK) in str(caught.value), "the message names the image offset"
    status = rig.array.status()
    assert status["lost_chunks"] == 1
    assert "restore" in str(status["action"])
    assert rig.array.stats()["array"]["lost_image_offsets"] == [gone * CHUNK]
    for at in range((stripe + 1) * 3 * CHUNK, len(rig.model), CHUNK):
        assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]


async def test_a_lost_chunk_stays_lost_over_remount_and_rebuild_until_it_is_written_whole() -> None:
    rig = await spied("raid5", 4, chunk_bytes=CHUNK)
    stripe, gone = await tear_a_degraded_stripe(rig)
    await rig.reopen()
    with pytest.raises(UnrecoverableError):
        await rig.get(gone * CHUNK, CHUNK)
    new = rig.new_member()
    job = (await rig.array.replace_disk(0, new))["job"]
    rig.members[0] = new
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    with pytest.raises(UnrecoverableError):
        await rig.get(gone * CHUNK, CHUNK)
    await rig.array.write(gone * CHUNK, noise(512, 8))
    with pytest.raises(UnrecoverableError):
        await rig.get(gone * CHUNK + 1024, 512)  # the rest is as lost as before
    await rig.put(gone * CHUNK, noise(CHUNK, 9))
    assert await rig.get(gone * CHUNK, CHUNK) == noise(CHUNK, 9)
    assert rig.array.status()["lost_chunks"] == 0
    await rig.reopen()
    assert await rig.get(gone * CHUNK, CHUNK) == noise(CHUNK, 9)
    first = stripe * 3 * CHUNK
    for at in range(0, len(rig.model), CHUNK):
        if not first <= at < first + 3 * CHUNK:
            assert await rig.get(at, CHUNK) == rig.model[at : at + CHUNK]
    await parity_holds(rig.array)


async def test_a_failed_first_write_leaves_eio_beside_it_not_garbage() -> None:
    """Parity has taken up a chunk that still counts as zero, when the flush before its bit fails:
    what a lost member held of the stripe cannot be told any more."""
    rig = await spied("raid5", 4, chunk_bytes=CHUNK, reads_zero=False)
    await rig.array.set("journal", "none")
    stripe = next(
        s for s in range(8) if None not in (lost_chunk_of(rig, s, 0), lost_chunk_of(rig, s, 1))
    )
    gone, fresh = lost_chunk_of(rig, stripe, 0), lost_chunk_of(rig, stripe, 1)
    assert gone is not None
    assert fresh is not None
    await rig.put(gone * CHUNK, noise(CHUNK, 1))
    await rig.array.fail_disk(0)
    await rig.array.context.dirty_bitmap.enter([stripe])  # marked: its flush is not the one
    rig.array.context.dirty_bitmap.leave([stripe])
    fault = rig.members[1].error(("flush",))
    with pytest.raises(RaidxError):
        await rig.array.write(fresh * CHUNK, noise(CHUNK, 2))
    fault.lift()
    assert await rig.get(fresh * CHUNK, CHUNK) == bytes(CHUNK)
    with pytest.raises(UnrecoverableError):
        await rig.get(gone * CHUNK, CHUNK)
    await rig.put(gone * CHUNK, noise(CHUNK, 3))
    await rig.put(fresh * CHUNK, b"x" * 512)
    await rig.compare()


@pytest.mark.parametrize("whole_stripe", [False, True])
@pytest.mark.parametrize("mode", ["none", "partial", "full"])
async def test_a_failed_first_write_leaves_no_trace_below_what_was_never_written(
    mode: str, whole_stripe: bool
) -> None:
    """What a refused write left in a chunk must not come up when its neighbour is written."""
    rig = await spied("raid5", 3, chunk_bytes=CHUNK)
    await rig.array.set("journal", mode)
    await rig.array.fail_disk(2)
    layout = rig.array.context.layout
    stripe = next(s for s in range(6) if {layout.place(s, c)[0] for c in (0, 2)} == {0, 1})
    chunk = layout.logical(stripe, 0)
    parity_role = layout.place(stripe, 2)[0]
    fault = rig.members[parity_role].error(("write",), offset_bytes=rig.data.offset)
    size = (2 if whole_stripe else 1) * CHUNK
    error = None
    try:
        await rig.array.write(chunk * CHUNK, noise(size, 1))
    except RaidxError as caught:
        error = caught
    fault.lift()
    at_first = await rig.get(chunk * CHUNK, 2 * CHUNK)
    if error is None:
        assert at_first[:size] == noise(size, 1)
    else:
        assert at_first[:size] in (bytes(size), noise(size, 1))
    await rig.array.write(chunk * CHUNK, b"x" * 512)
    expected = b"x" * 512 + at_first[512:]
    assert await rig.get(chunk * CHUNK, 2 * CHUNK) == expected, "content from nowhere"
    new = rig.new_member()
    job = (await rig.array.replace_disk(2, new))["job"]
    rig.members[2] = new
    assert (await rig.array.jobs.wait(job))["state"] == "done"
    assert await rig.get(chunk * CHUNK, 2 * CHUNK) == expected
    await parity_holds(rig.array)


async def test_what_cannot_reach_its_place_stays_in_the_journal() -> None:
    """A degraded array, and a member that refuses to write one place: no content is lost."""
    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await fill(rig)
        await rig.in_place()
        await rig.array.fail_disk(0)
        fault = rig.members[1].error(("write",), offset_bytes=rig.data.offset)
        for number in range(12):
            await rig.put(number * 5 * CHUNK + 700, noise(900, number))
            await trio.sleep(0.7)
        await rig.array.flush()
        await rig.compare()
        images, model = rig.images(), bytes(rig.model)
        fault.lift()
        await rig.in_place()
        await rig.compare()
    del images[0]
    async with restarted(images, start_degraded=True) as array:  # the power went before
        for at in range(0, len(model), 1 << 18):
            assert (
                bytes(await array.read(at, len(model[at:][: 1 << 18]))) == (model[at:][: 1 << 18])
            )


async def test_an_error_on_the_journal_of_a_degraded_array_does_not_end_all_writing() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    await rig.array.fail_disk(3)
    log = rig.array.member_set.config.regions.log
    fault = rig.members[0].error(("write",), offset_bytes=log.offset, length_bytes=log.length)
    fault2 = rig.members[1].error(("write",), offset_bytes=log.offset, length_bytes=log.length)
    try:
        await rig.put(100, noise(700, 1))
    except RaidxError as caught:
        assert caught.errno == errno.EIO  # noqa: PT017  # either is right
    fault.lift()
    fault2.lift()
    await rig.put(100, noise(700, 2))
    await rig.array.flush()
    await rig.compare()
