"""A head page of the log that cannot be written: writes fail in time, and work again afterwards.

Members that cannot all be spared refuse it, as on one full host file system; then the fault ends.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.members.simulated.faulty import Fault
from tests.support.arrays import job_ended
from tests.support.spy import SpyRig, lift, noise, spying

CHUNK = 4096
SOON_S = 30.0

NUMBERS = pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])


def break_head(rig: SpyRig, number: int) -> list[Fault]:
    """Let no member take the head page of the log any more."""
    head = rig.array.member_set.config.regions.log
    return [
        member.error(("write",), number=number, offset_bytes=head.offset, length_bytes=2 * 4096)
        for member in rig.members
    ]


@asynccontextmanager
async def filled(layout: str = "raid0", width: int = 2) -> AsyncIterator[SpyRig]:
    """Make an array that logs everything, and fill it."""
    async with spying(layout, width, chunk_bytes=CHUNK) as rig:
        await rig.put(0, noise(len(rig.model), 99))
        await rig.array.set("journal", "full")
        await rig.in_place()
        yield rig


@NUMBERS
async def test_writes_are_refused_in_time_and_go_on_when_the_fault_is_gone(number: int) -> None:
    async with filled() as rig:
        faults = break_head(rig, number)
        error: RaidxError | None = None
        for at in range(0, len(rig.model), CHUNK):
            before = bytes(rig.model)
            try:
                with trio.fail_after(SOON_S):
                    await rig.put(at, noise(CHUNK, at))
            except RaidxError as caught:
                error = caught
                rig.model[:] = before
                break
            await trio.sleep(2)  # it is placed meanwhile
        for seed in range(200):  # until the ring is full
            if error is not None:
                break
            try:
                with trio.fail_after(SOON_S):
                    await rig.put(0, noise(CHUNK, seed))
            except RaidxError as caught:
                error = caught
        assert error is not None
        assert error.errno == (errno.EIO if number == errno.EIO else errno.ENOSPC)
        assert rig.array.status()["state"] == "clean"
        with trio.fail_after(SOON_S):
            await rig.array.flush()
            with pytest.raises(RaidxError):
                await rig.array.context.journal.drain()
        await rig.compare()
        await rig.survives()  # the power went
        lift(faults)
        with trio.fail_after(SOON_S):
            for at in range(0, len(rig.model), CHUNK):
                await rig.put(at, noise(CHUNK, at + 1))
            await rig.in_place()
        await rig.compare()
        await rig.close()
        superblock = await read_superblock(rig.members[0])
        assert superblock is not None
        assert superblock.config.clean
        await rig.open()
        await rig.compare()


@pytest.mark.parametrize(("layout", "width"), [("raid0", 2), ("raid1", 2), ("raid5", 3)])
async def test_a_close_that_cannot_write_it_ends_and_loses_nothing(layout: str, width: int) -> None:
    async with filled(layout, width) as rig:
        await rig.put(5, noise(3 * CHUNK, 1))
        await rig.array.flush()
        faults = break_head(rig, errno.ENOSPC)
        began_s = trio.current_time()
        await rig.close()
        assert trio.current_time() - began_s < SOON_S
        lift(faults)
        superblock = await read_superblock(rig.members[-1])
        assert superblock is not None
        assert not superblock.config.clean
        await rig.open()
        await rig.compare()


async def test_a_setting_is_in_force_although_the_log_cannot_be_emptied() -> None:
    async with filled() as rig:
        await rig.put(0, noise(CHUNK, 1))
        faults = break_head(rig, errno.EDQUOT)
        with trio.fail_after(SOON_S):
            assert await rig.array.set("journal", "none") == "none"
        assert rig.array.context.journal.mode == "none"
        await rig.put(0, noise(CHUNK, 2))
        lift(faults)
        await trio.sleep(5)
        await rig.compare()
        await rig.reopen()
        await rig.compare()


async def test_a_rebuild_ends_and_the_log_is_formed_again_later() -> None:
    async with filled("raid5", 4) as rig:
        await rig.array.fail_disk(0)
        await rig.put(0, noise(9 * CHUNK, 1))
        await rig.array.replace_disk(0, rig.new_member())
        job = next(job for job in rig.array.jobs.running() if job.kind == "rebuild")
        # The rebuild itself needs no head page: it is refused while the job concludes.
        members = [queue.member for queue in rig.array.member_set.queues if queue is not None]
        head = rig.array.member_set.config.regions.log
        faults = [
            member.error(  # type: ignore[attr-defined]
                ("write",), number=errno.ENOSPC, offset_bytes=head.offset, length_bytes=8192
            )
            for member in members
        ]
        await rig.put(0, noise(100, 2))
        await job_ended(job)
        journal = rig.array.context.journal
        assert journal.to_form, "the head page was not missed"
        lift(faults)
        await trio.sleep(5)
        assert not journal.to_form
        await rig.put(7, noise(5 * CHUNK, 3))
        await rig.compare()


@pytest.mark.parametrize("kind", ["grow", "restripe"])
async def test_growth_and_restripe_wait_and_go_on(kind: str) -> None:
    async with filled("raid0" if kind == "grow" else "raid5", 3) as rig:
        newcomers = [rig.new_member()]
        if kind == "grow":
            await rig.array.grow(newcomers)
        else:
            await rig.array.restripe(newcomers, None, {})
        rig.members += newcomers
        job = next(job for job in rig.array.jobs.running() if job.kind == kind)
        faults = break_head(rig, errno.ENOSPC)
        await trio.sleep(60)
        assert not job.finished.is_set() or kind == "grow"
        lift(faults)
        await job_ended(job)
        await trio.sleep(5)
        assert bytes(await rig.array.read(0, len(rig.model))) == rig.model
        rig.model.extend(bytes(rig.array.size_bytes - len(rig.model)))
        await rig.put(3, noise(len(rig.model) - 3, 5))
        await rig.compare()
        await rig.reopen()
        await rig.compare()


async def test_a_page_whose_save_failed_goes_to_the_same_slot_again() -> None:
    """The other slot has the last copy that a cut would leave."""
    async with filled() as rig:
        pages = next(p for p in rig.array.member_set.page_stores if p.kind == "journal")  # type: ignore[attr-defined]
        slots = [pages._slots[0]]  # type: ignore[attr-defined]
        faults = break_head(rig, errno.EIO)
        for _ in range(3):
            with pytest.raises(RaidxError):
                await pages.save([0])  # type: ignore[attr-defined]
            slots.append(pages._slots[0])  # type: ignore[attr-defined]
            await rig.put(0, noise(CHUNK))
            await rig.array.flush()
        lift(faults)
        assert slots[1:] == [1 - slots[0]] * 3
