"""Writes that timed out and take effect later: never over anything newer.

A is written to a member that hangs and is refused; B goes to the same bytes; then A lands.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.both_ends import read_superblock
from tests.support.hanging import (
    CLOSED_S,
    OVER_S,
    TIMEOUT_S,
    DeepRig,
    flush_until_done,
    hanging,
    landed,
    prepare,
    refused,
    write_until_taken,
)
from tests.support.spy import SpyRig, noise, restarted

CHUNK = 4096


@pytest.mark.parametrize("mode", ["partial", "full", "none"])
@pytest.mark.parametrize("lands", ["before", "after"])
async def test_what_was_given_up_never_lands_over_what_was_acknowledged(
    lands: str, mode: str
) -> None:
    """raid0: *lands* before or after B is tried for the first time."""
    rig = await hanging("raid0", 2, mode=mode)
    a, b = noise(CHUNK, 1), noise(CHUNK, 2)
    fault = rig.members[0].hang(("write",), count=1)
    error = await refused(lambda: rig.array.write(0, a))
    assert error.errno == errno.ETIMEDOUT
    if lands == "after":
        error = await refused(lambda: rig.put(0, b))
        assert error.errno == errno.EIO, "at once: A may still land"
    fault.lift()
    await landed()
    await write_until_taken(rig, 0, b)
    await rig.array.flush()
    await trio.sleep(OVER_S)
    assert await rig.get(0, CHUNK) == b
    await rig.compare()
    await rig.reopen()
    await rig.compare()


@pytest.mark.parametrize("size", [512, CHUNK, 2 * CHUNK, 6 * CHUNK])
@pytest.mark.parametrize(
    ("layout", "width", "losses"), [("raid5", 4, 1), ("raid1", 2, 1), ("rdp", 4, 2)]
)
@pytest.mark.parametrize("hangs", [2, 3])
async def test_a_degraded_array_keeps_what_it_acknowledged_through_a_cut(
    layout: str, width: int, losses: int, hangs: int, size: int
) -> None:
    """The record of A has the place and the number of B's; the power goes when both are there."""
    rig = await hanging(layout, width, rows=4)
    for role in range(losses):
        await rig.array.fail_disk(role)
    await rig.in_place()
    hung = min(hangs, width - 1)
    fault = rig.members[hung].hang(("write",), count=1)
    a, b = noise(size, 1), noise(size, 2)
    a_taken = True
    try:
        await rig.array.write(0, a)
    except RaidxError:
        a_taken = False
    taken = True
    try:
        await rig.put(0, b)
        await rig.array.flush()
    except RaidxError:
        taken = False
    await trio.sleep(OVER_S)  # whatever is put off meets the hang, too
    fault.lift()
    await landed()
    if not taken:
        await write_until_taken(rig, 0, b)
        await flush_until_done(rig)
    images, model = rig.images(), bytes(rig.model)
    await rig.compare()
    assert a_taken or await rig.get(0, size) == b
    del images[:losses]
    async with restarted(images, start_degraded=True) as array:  # the power went
        assert bytes(await array.read(0, len(model))) == model
    await rig.reopen()
    await rig.compare()


async def test_a_withdrawn_record_at_the_end_of_a_lap_is_not_taken_for_the_next_one() -> None:
    """The next record does not fit behind it and begins a lap, with the same number."""
    rig = await hanging("raid5", 4, rows=4)
    await rig.array.fail_disk(0)
    await rig.in_place()
    ring = rig.array.context.journal.ring
    room = CHUNK * 3
    while True:  # until less than a large record is left of the lap
        left = ring.capacity - ring.position % ring.capacity
        if left < room:
            break
        await rig.put(0, noise(CHUNK, left))
        await rig.in_place()
    log = rig.array.member_set.config.regions.log
    fault = rig.members[1].hang(("write",), offset_bytes=log.offset, length_bytes=log.length)
    small, large = noise(100, 1), noise(6 * CHUNK, 2)
    await refused(lambda: rig.array.write(CHUNK * 6, small))
    before = ring.position
    fault.lift()
    await landed()
    await rig.put(0, large)
    await rig.array.flush()
    assert before % ring.capacity > ring.position % ring.capacity, "another lap"
    await rig.compare()
    images, model = rig.images(), bytes(rig.model)
    async with restarted(images[1:], start_degraded=True) as array:
        assert bytes(await array.read(0, CHUNK * 3)) == model[: CHUNK * 3]


async def test_what_waits_behind_a_hang_times_out_as_well() -> None:
    """A depth of one: the next requests, the flush and the close all end, and say so."""
    rig = DeepRig("raid0", 2, chunk_bytes=CHUNK)
    rig.depth = 1
    await rig.create()
    await prepare(rig)
    fault = rig.members[0].hang()
    ended: list[str] = []

    async def hear(name: str, step: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(RaidxError):
            await step()
        ended.append(name)

    with trio.fail_after(4 * OVER_S):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                at = 2 * CHUNK * number
                write = partial(rig.array.write, at, noise(CHUNK))
                nursery.start_soon(hear, "write", write)
                nursery.start_soon(hear, "read", partial(rig.get, at, CHUNK))
            nursery.start_soon(hear, "flush", rig.array.flush)
    assert len(ended) == 9
    began_s = trio.current_time()
    await rig.close()
    assert trio.current_time() - began_s < CLOSED_S
    assert not fault.lifted.is_set()


async def test_a_queue_that_is_only_busy_ends_nothing() -> None:
    """Waiting longer than the time-out is no fault while somebody is served."""
    rig = await hanging("raid0", 2, depth=1)
    rig.members[0].slow(TIMEOUT_S / 2, ("write",))
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(rig.put, 2 * CHUNK * number, noise(CHUNK, number))
    assert trio.current_time() > 3 * TIMEOUT_S
    rig.members[0].clear()
    await rig.compare()


@pytest.mark.parametrize(("layout", "width", "state"), [("raid0", 2, False), ("raid5", 4, True)])
async def test_closing_with_a_member_that_hangs_ends_and_says_so(
    layout: str, width: int, state: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig = SpyRig(layout, width)
    await rig.create()
    await prepare(rig)
    await rig.put(0, noise(700, 5))
    await rig.array.flush()
    rig.members[0].hang()
    began_s = trio.current_time()
    await rig.close()
    assert trio.current_time() - began_s < CLOSED_S
    rig.members[0].clear()
    assert state or rig.members[0].overdue, "nothing hung"
    rig.members[0].overdue = ()  # as in a new process; the write was cancelled, not delayed
    superblock = await read_superblock(rig.members[1])
    assert superblock is not None
    assert superblock.config.clean == state
    async with restarted(rig.images()) as array:  # the write that hung ended with its process
        assert bytes(await array.read(0, len(rig.model))) == rig.model
    said = [record.message for record in caplog.records]
    assert any("ram0" in line and "no answer" in line for line in said)
    if not state:
        assert any("could not be closed cleanly" in line for line in said)
