"""Writes that got no answer in time and land later: never over anything newer.

A is written to a member that hangs and is refused; B goes to the same bytes; then A lands.
"""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from raidx_fuse.errors import BusyError, MemberError, RaidxError
from raidx_fuse.format.superblock import read_superblock
from raidx_fuse.members.overdue import came_back, give_up, is_overdue
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import SpyRig, restarted

CHUNK = 4096
TIMEOUT_S = 2.0
OVER_S = 2 * TIMEOUT_S  # a hang has been noticed
CLOSED_S = 10 * OVER_S


def noise(length: int, seed: int = 0) -> bytes:
    """Return bytes that no mistake produces."""
    return random.Random(seed).randbytes(length)


class DeepRig(SpyRig):
    """A rig whose members work on *depth* operations at once, as disks do."""

    depth = 4

    def new_member(self, role: int | None = None) -> FaultMember:
        """Return a fresh member."""
        member = super().new_member(role)
        member.depth = self.depth
        return member


@asynccontextmanager
async def running(
    layout: str, width: int, depth: int = 4, **options: Any
) -> AsyncIterator[DeepRig]:
    """Make members and an array, and close it in the end, whatever hangs."""
    rig = DeepRig(layout, width, chunk_bytes=CHUNK, **options)
    rig.depth = depth
    await rig.create()
    try:
        yield rig
    finally:
        began_s = trio.current_time()
        await rig.close()
        assert trio.current_time() - began_s < CLOSED_S


async def landed() -> None:
    """Return when writes that were held have landed."""
    await trio.sleep(0.1)


async def prepare(rig: SpyRig, mode: str = "partial") -> None:
    """Write the whole image, all of it in its place; hangs are noticed soon."""
    await rig.running.set("io.timeout_s", str(TIMEOUT_S))
    await rig.running.set("journal", mode)
    await rig.put(0, noise(len(rig.model), 99))
    await rig.in_place()


async def refused(step: Callable[[], Awaitable[None]], within_s: float = OVER_S) -> RaidxError:
    """Return the error of *step*, which ends soon."""
    with trio.fail_after(within_s), pytest.raises(RaidxError) as caught:
        await step()
    return caught.value


async def write_until_taken(rig: SpyRig, offset: int, data: bytes, tries_s: float = 60) -> None:
    """Write *data*, again and again until it is acknowledged, as somebody stubborn would."""
    with trio.fail_after(tries_s):
        while True:
            try:
                await rig.put(offset, data)
                return
            except RaidxError:
                await trio.sleep(0.5)


async def flush_until_done(rig: SpyRig) -> None:
    """Flush, again and again until it succeeds."""
    with trio.fail_after(60):
        while True:
            try:
                await rig.running.flush()
                return
            except RaidxError:
                await trio.sleep(0.5)


@pytest.mark.parametrize("mode", ["partial", "full", "none"])
@pytest.mark.parametrize("lands", ["before", "after"])
def test_what_was_given_up_never_lands_over_what_was_acknowledged(lands: str, mode: str) -> None:
    """raid0: *lands* before or after B is tried for the first time."""

    async def main() -> None:
        async with running("raid0", 2) as rig:
            await prepare(rig, mode)
            a, b = noise(CHUNK, 1), noise(CHUNK, 2)
            fault = rig.members[0].hang(("write",), count=1)
            error = await refused(lambda: rig.running.write(0, a))
            assert error.errno == errno.ETIMEDOUT
            taken = False
            if lands == "after":
                try:
                    await rig.put(0, b)
                    await rig.running.flush()
                    taken = True
                except RaidxError as caught:
                    error = caught
                if not taken:
                    assert error.errno == errno.EIO, "at once: A may still land"
            fault.lift()
            await landed()
            if not taken:
                await write_until_taken(rig, 0, b)
                await rig.running.flush()
            await trio.sleep(OVER_S)
            assert await rig.get(0, CHUNK) == b
            await rig.compare()
            await rig.close()
            await rig.open()
            await rig.compare()

    run(main)


@pytest.mark.parametrize("size", [512, CHUNK, 2 * CHUNK, 6 * CHUNK])
@pytest.mark.parametrize(
    ("layout", "width", "losses"), [("raid5", 4, 1), ("raid1", 2, 1), ("rdp", 4, 2)]
)
@pytest.mark.parametrize("hanging", [2, 3])
def test_a_degraded_array_keeps_what_it_acknowledged_through_a_cut(
    layout: str, width: int, losses: int, hanging: int, size: int
) -> None:
    """The record of A has the place and the number of B's; the power goes when both are there."""

    async def main() -> None:
        async with running(layout, width, rows=4) as rig:
            await prepare(rig)
            for role in range(losses):
                await rig.running.fail_disk(role)
            await rig.in_place()
            hung = min(hanging, width - 1)
            fault = rig.members[hung].hang(("write",), count=1)
            a, b = noise(size, 1), noise(size, 2)
            a_taken = True
            try:
                await rig.running.write(0, a)
            except RaidxError:
                a_taken = False
            taken = True
            try:
                await rig.put(0, b)
                await rig.running.flush()
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
            await rig.close()
            await rig.open()
            await rig.compare()

    run(main)


def test_a_withdrawn_record_at_the_end_of_a_lap_is_not_taken_for_the_next_one() -> None:
    """The next record does not fit behind it and begins a lap, with the same number."""

    async def main() -> None:
        async with running("raid5", 4, rows=4) as rig:
            await prepare(rig)
            await rig.running.fail_disk(0)
            await rig.in_place()
            ring = rig.running.context.journal.ring
            room = CHUNK * 3
            while True:  # until less than a large record is left of the lap
                left = ring.capacity - ring.position % ring.capacity
                if left < room:
                    break
                await rig.put(0, noise(CHUNK, left))
                await rig.in_place()
            log = rig.running.member_set.config.regions.log
            fault = rig.members[1].hang(
                ("write",), offset_bytes=log.offset, length_bytes=log.length
            )
            small, large = noise(100, 1), noise(6 * CHUNK, 2)
            await refused(lambda: rig.running.write(CHUNK * 6, small))
            before = ring.position
            fault.lift()
            await landed()
            await rig.put(0, large)
            await rig.running.flush()
            assert before % ring.capacity > ring.position % ring.capacity, "another lap"
            await rig.compare()
            images, model = rig.images(), bytes(rig.model)
            async with restarted(images[1:], start_degraded=True) as array:
                assert bytes(await array.read(0, CHUNK * 3)) == model[: CHUNK * 3]

    run(main)


def test_what_waits_behind_a_hang_times_out_as_well() -> None:
    """A depth of one: the next requests, the flush and the close all end, and say so."""

    async def main() -> None:
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
                    write = partial(rig.running.write, at, noise(CHUNK))
                    nursery.start_soon(hear, "write", write)
                    nursery.start_soon(hear, "read", partial(rig.get, at, CHUNK))
                nursery.start_soon(hear, "flush", rig.running.flush)
        assert len(ended) == 9
        began_s = trio.current_time()
        await rig.close()
        assert trio.current_time() - began_s < CLOSED_S
        assert not fault.lifted.is_set()

    run(main)


def test_a_queue_that_is_only_busy_ends_nothing() -> None:
    """Waiting longer than the time-out is no fault while somebody is served."""

    async def main() -> None:
        async with running("raid0", 2, depth=1) as rig:
            await prepare(rig)
            rig.members[0].slow(TIMEOUT_S / 2, ("write",))
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(rig.put, 2 * CHUNK * number, noise(CHUNK, number))
            assert trio.current_time() > 3 * TIMEOUT_S
            rig.members[0].clear()
            await rig.compare()

    run(main)


@pytest.mark.parametrize(("layout", "width", "state"), [("raid0", 2, False), ("raid5", 4, True)])
def test_closing_with_a_member_that_hangs_ends_and_says_so(
    layout: str, width: int, state: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = SpyRig(layout, width)
        await rig.create()
        await prepare(rig)
        await rig.put(0, noise(700, 5))
        await rig.running.flush()
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

    run(main)
    said = [record.message for record in caplog.records]
    assert any("ram0" in line and "no answer" in line for line in said)
    if not state:
        assert any("could not be closed cleanly" in line for line in said)


def test_an_overdue_superblock_never_lands_over_a_newer_one() -> None:
    """A round that one member does not answer, two more updates, then it lands."""

    async def main() -> None:
        async with running("raid0", 2) as rig:
            await prepare(rig)
            fault = rig.members[0].hang(("write",), count=1)
            await rig.running.set("speed_max", "1MiB")
            await rig.running.set("speed_max", "2MiB")
            await rig.running.set("speed_max", "3MiB")
            fault.lift()
            await landed()
            await rig.running.set("speed_max", "4MiB")
            await trio.sleep(OVER_S)
            for member in rig.members:
                superblock = await read_superblock(member)
                assert superblock is not None
                assert superblock.config.settings["speed_max"] == 4 << 20
            await rig.compare()

    run(main)


def test_an_overdue_superblock_and_a_kill_leave_an_array_that_starts() -> None:
    """The member missed two rounds, and nobody else may rule without it."""

    async def main() -> None:
        async with running("raid0", 2) as rig:
            await prepare(rig)
            rig.members[0].hang(("write",), count=1)
            await rig.running.set("speed_max", "1MiB")
            await rig.running.set("speed_max", "2MiB")
            await rig.put(CHUNK, noise(CHUNK, 3))
            await rig.running.flush()
            images, model = rig.images(), bytes(rig.model)
            rig.members[0].clear()
            async with restarted(images) as array:
                assert bytes(await array.read(0, len(model))) == model

    run(main)


def test_of_two_overdue_writes_the_second_one_stays_so_when_the_first_one_lands() -> None:
    member = RamMember(1 << 20, name="ram")
    give_up(member, 0, CHUNK)
    give_up(member, 4 * CHUNK, CHUNK)
    came_back(member, 0, CHUNK)
    assert not is_overdue(member, 0, CHUNK)
    assert is_overdue(member, 5 * CHUNK - 1, 1)
    came_back(member, 4 * CHUNK, CHUNK)
    assert not member.overdue


def test_a_member_with_an_overdue_write_takes_no_role() -> None:
    async def main() -> None:
        async with running("raid5", 4) as rig:
            await prepare(rig)
            fault = rig.members[1].hang(("write",), count=1)
            await rig.put(0, noise(6 * CHUNK, 1))
            assert rig.running.member_set.config.record(1).state == "failed"
            with pytest.raises(BusyError, match="may still arrive"):
                await rig.running.replace_disk(1, rig.members[1])
            fault.lift()
            await landed()
            job = (await rig.running.replace_disk(1, rig.members[1]))["job"]
            assert (await rig.running.jobs.wait(job))["state"] == "done"
            await rig.compare()
            await rig.running.fail_disk(0)
            await rig.compare()

    run(main)


def test_parity_is_not_computed_from_bytes_that_may_still_change() -> None:
    """A member hangs while a degraded stripe is rewritten, and while the lost one is rebuilt."""

    async def main() -> None:
        async with running("raid5", 4) as rig:
            await prepare(rig, "none")
            await rig.running.fail_disk(0)
            fault = rig.members[1].hang(("write",), count=1)
            written = noise(len(rig.model) // 2, 1)
            await refused(lambda: rig.running.write(0, written))
            spare = rig.new_member()
            job = (await rig.running.replace_disk(0, spare))["job"]
            await trio.sleep(3 * OVER_S)
            fault.lift()
            await landed()
            result = await rig.running.jobs.wait(job)
            if result["state"] != "done":
                job = (await rig.running.replace_disk(0, rig.new_member()))["job"]
                assert (await rig.running.jobs.wait(job))["state"] == "done"
            scrub = await rig.running.jobs.wait(await rig.running.start_scrub(repair=False))
            assert scrub["mismatches"] == 0

    run(main)


def test_reads_around_an_overdue_placement_still_work() -> None:
    """What is logged is known: only its way to its place hangs."""

    async def main() -> None:
        async with running("raid5", 4) as rig:
            await prepare(rig)
            await rig.running.fail_disk(0)
            await rig.in_place()
            data = rig.data
            for member in rig.members[1:]:
                member.hang(("write",), offset_bytes=data.offset, length_bytes=data.length)
            await rig.put(700, noise(100, 1))
            await rig.running.flush()
            await trio.sleep(2 * OVER_S)
            await rig.compare()
            for member in rig.members:
                member.clear()
            await trio.sleep(2 * OVER_S)
            await rig.compare()
            await rig.in_place()
            await rig.compare()

    run(main)


def test_errors_name_the_member() -> None:
    async def main() -> None:
        async with running("raid0", 2) as rig:
            await prepare(rig)
            fault = rig.members[0].hang(("write",), count=1)
            await refused(lambda: rig.running.write(0, noise(CHUNK)))
            error = await refused(lambda: rig.running.write(0, noise(CHUNK)))
            assert isinstance(error, MemberError)
            assert "ram0: write at byte" in str(error)
            fault.lift()
            await landed()
            await rig.put(0, noise(CHUNK))

    run(main)
