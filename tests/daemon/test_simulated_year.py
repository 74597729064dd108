"""A year of one array in virtual time, mounted for some minutes each week.

Every week a sector becomes unreadable; there are scrubs, two failures, replacements of members that
still work, and members that are absent and return. No byte is lost, the redundancy is never below
what the dry runs said, and the events are complete and in order.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from raidx_fuse.daemon.commands.commands import cost_of_replacing
from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.sources import LOOK_S, Watch
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import SpyRig, noise

CHUNK = 4096
WEEK_S = 7 * 86400.0
WIDTH = 5
STRIPES = 12
SCRUBS = range(3, 52, 4)
FAILURES = {9: "replacement", 33: "spare"}
REPLACEMENTS = (20, 44)
ABSENCES = {14: 15, 39: 41}  # first week without a member -> the week of its return


class Year:
    """The array, its events, and what is to come."""

    def __init__(self) -> None:
        self.rig = SpyRig("rdp", WIDTH, chunk_bytes=CHUNK, stripes=STRIPES, rows=4)
        self.draw = random.Random(20)
        self.told: list[Event] = []
        self.expected: list[str] = []
        self.absent: FaultMember | None = None
        self.least = 2  # what the last dry run said of the redundancy

    def member(self, role: int) -> FaultMember:
        queue = self.rig.array.member_set.queues[role]
        assert queue is not None
        return next(m for m in self.rig.members if m.path == queue.member.path)

    async def live(self) -> None:
        """Live through 52 weeks."""
        await self.rig.create()
        await self.rig.put(0, noise(len(self.rig.model), 1))
        await self.rig.close()
        for week in range(52):
            await trio.sleep(WEEK_S - 600)
            await self.week(week)

    async def week(self, week: int) -> None:
        """Mount the array, let happen what happens in *week*, and unmount it."""
        rig, told = self.rig, self.told
        self.expected = ["NewArray"]
        if week in ABSENCES:
            self.absent = rig.members.pop(self.draw.randrange(WIDTH))
        returns = week in ABSENCES.values()
        if returns:
            assert self.absent is not None
            rig.members.append(self.absent)
            self.absent = None
        array = await rig.open()
        watch = Watch(told.append, "/mnt", lambda: int(trio.current_time()))
        watch.begin(array)
        array.nursery.start_soon(watch.run)
        if self.absent is not None:
            self.expected.append("DegradedArray")
        if returns:  # the role is lost, in part, until it is caught up
            self.expected += ["DegradedArray", "RebuildStarted", "RebuildFinished", "SpareActive"]
            await self.jobs_end()
        await self.write()
        if week in FAILURES:
            await self.fail(FAILURES[week])
        if week in REPLACEMENTS:
            await self.replace()
        await self.lose_sector(by_scrub=week in SCRUBS)
        assert array.status()["redundancy_left"] == 2 - (self.absent is not None)
        await rig.close()
        watch.ended()
        self.expected.append("ArrayStopped")
        kinds = [event.event for event in told if event.event != "LogFull"]  # it is small
        assert kinds == self.expected, f"in week {week}"
        assert [event.at_s for event in told] == sorted(event.at_s for event in told)
        told.clear()

    async def jobs_end(self) -> None:
        """Wait until no job runs, and check the redundancy meanwhile."""
        with trio.fail_after(86400):
            while jobs := self.rig.array.jobs.running():
                assert self.rig.array.status()["redundancy_left"] >= self.least - 1
                await jobs[0].finished.wait()
                await trio.sleep(1)

    async def write(self) -> None:
        """Write here and there, and check everything."""
        for _ in range(3):
            length = self.draw.choice((512, 3000, CHUNK, 5 * CHUNK))
            at = self.draw.randrange(len(self.rig.model) - length)
            await self.rig.put(at, self.draw.randbytes(length))
        await self.rig.array.flush()
        await self.rig.compare()

    async def lose_sector(self, *, by_scrub: bool) -> None:
        """Make a sector unreadable; a scrub finds it, or somebody reads everything."""
        array, rig = self.rig.array, self.rig
        await rig.in_place()
        code = array.context.code
        cells = [c for c in range(len(code.cells)) if by_scrub or c < code.data_count]
        while True:
            stripe, cell = self.draw.randrange(STRIPES), self.draw.choice(cells)
            role, place = array.context.position(Stripe(stripe), CellIndex(cell))
            if array.member_set.queues[role] is not None:
                break
        member = self.member(role)
        member.lose_sectors(place + self.draw.randrange(8) * SECTOR_BYTES)
        if by_scrub:
            result = await array.jobs.wait(await array.start_scrub(repair=False))
            assert result["mismatches"] == 0
            self.expected += ["ScrubStarted", "ScrubFinished"]
        else:
            await rig.compare()
        await trio.sleep(1.5 * LOOK_S)
        assert not member.unreadable
        self.expected.append("ReadErrorMended")

    async def told_before(self, role: int, path: str) -> dict[str, Any]:
        """Return what a dry run says of giving *role* to *path*."""
        record = self.rig.array.member_set.config.record(role)
        dry = await cost_of_replacing(
            self.rig.array,
            _Newcomers(),
            record,
            path,
            overwrite_signature=False,
            may_create=True,
        )
        return dict(dry)

    async def fail(self, by: str) -> None:
        """Let a member fail; a new one, or a hot spare, takes its role."""
        array, rig = self.rig.array, self.rig
        role = self.draw.randrange(WIDTH)
        old, new = self.member(role), rig.new_member()
        if by == "spare":
            await array.add_spare(new)
            rig.members.append(new)
        old.vanish()
        await self.write()  # notices it
        rig.members.remove(old)
        self.expected += ["Fail", "DegradedArray"]
        if by != "spare":
            dry = await self.told_before(role, new.path)
            assert dry["redundancy_left"] == array.status()["redundancy_left"] == 1
            rig.members.append(new)
            await array.replace_disk(role, new)
        self.expected += ["RebuildStarted", "RebuildFinished", "SpareActive"]
        await self.jobs_end()

    async def replace(self) -> None:
        """Replace a member that still works, while the array is used."""
        array, rig = self.rig.array, self.rig
        role, new = self.draw.randrange(WIDTH), rig.new_member()
        old = self.member(role)
        dry = await self.told_before(role, new.path)
        assert not dry["redundancy_reduced"]
        rig.members.append(new)
        job = array.jobs._jobs[(await array.replace_disk(role, new))["job"]]
        job.limit(1 << 14, 1 << 14)
        for _ in range(5):
            await self.write()
            assert array.status()["redundancy_left"] == dry["redundancy_left"] == 2
        job.limit(0, 0)
        await job.finished.wait()
        rig.members.remove(old)
        self.expected += ["JobStarted", "JobFinished"]


class _Newcomers:
    async def check(
        self,
        _path: str,
        *,
        look: Callable[[Any], Awaitable[None]] | None = None,
        **_options: object,
    ) -> None:
        pass


def test_a_year() -> None:
    run(Year().live)
