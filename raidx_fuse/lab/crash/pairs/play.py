"""One pair: the first operation runs to its k-th disk operation, which is held; the second begins.

1. Mount, prepare both operations; the disks count from here on.
2. The k-th operation of a disk is held. The second operation runs; the space that it gives up goes
   to a new volume at once, which is written and flushed.
3. The held operation goes on when the second has ended, or after HOLD_S; perhaps it ends in an
   error then, with its disk or alone, or later than `io.timeout_s`. So each flush, superblock, home
   write and read inside a request, a job or a volume's move fails in some meeting.
4. Both end: what runs for more than LIMIT_S is a deadlock.
5. All that runs in the background ends, disks that failed are taken back; content and parity are
   compared with what was written, also when members are lost and have come back.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import trio

from raidx_fuse.errors import RaidxError, UsageError, ungrouped
from raidx_fuse.lab.crash.history import Span
from raidx_fuse.lab.crash.mounting import check_parity, take_back, wait_for_jobs
from raidx_fuse.lab.crash.pairs import disks
from raidx_fuse.lab.crash.pairs.disks import Trigger
from raidx_fuse.lab.crash.pairs.operations import (
    OPERATIONS,
    REFUSALS,
    Operation,
    create_volume,
)
from raidx_fuse.lab.crash.pairs.scene import PairRecording, Scene, Weakness
from raidx_fuse.lab.crash.state import Cell, ViolationError, as_violations
from raidx_fuse.members.simulated.virtual_time import run, sleep, waiting_places

PAIRS = "pairs"
HOLD_S = 8.0  # less than io.timeout_s and what a twin is given: the held operation costs no member
LATE_S = 45.0  # more
FAULT_S = 90.0  # longest time that disks fail
LIMIT_S = 900.0  # of virtual time for both, and for what runs in the background
GOES_ON, AFTER, DRAGS, BREAKS, LATE = "goes on", "after its effect", "drags", "breaks", "late"
FATES = (GOES_ON, AFTER, DRAGS, BREAKS, LATE)
ERRS = "errs"
ERRS_SHARE = 0.3  # of the pairs: only the held operation fails
ERRORS = (1, 2, 2, 4)  # tries of it: one error may be transient
LOSE_SHARE = 0.4


def is_pair(cell: Cell) -> bool:
    """Return whether the workloads of *cell* are pairs."""
    return cell.theme.partition(":")[0] == PAIRS


class Meeting(NamedTuple):
    """Which operations meet, and at which disk operation of the first one; None: one by one."""

    first: str
    second: str
    at: int | None

    def __str__(self) -> str:
        return f"{PAIRS}:{self.first}:{self.second}:{'-' if self.at is None else self.at}"

    @staticmethod
    def of(cell: Cell, seed: int) -> Meeting:
        """Return the meeting of *cell*; where its theme leaves it open, *seed* decides."""
        _, *names = cell.theme.split(":")
        if len(names) == 3:
            return Meeting.parse(cell.theme)
        if len(names) == 2:
            return Meeting.parse(f"{cell.theme}:-")
        suited = [name for name, one in OPERATIONS.items() if one.suits(cell.layout)]
        pairs = [(first, second) for first in suited for second in suited]
        random.Random(f"{cell.layout}").shuffle(pairs)
        return Meeting(*pairs[seed % len(pairs)], None)

    @staticmethod
    def parse(theme: str) -> Meeting:
        """Return the meeting of a cell with *theme*. Raises UsageError."""
        try:
            _, first, second, at = theme.split(":")
            meeting = Meeting(first, second, None if at == "-" else int(at))
        except ValueError:
            meeting = Meeting("", "", None)
        if meeting.first not in OPERATIONS or meeting.second not in OPERATIONS:
            raise UsageError(f"{theme!r} is no pair", action=f"write it like {PAIRS}:trim:shrink:7")
        return meeting


class _Pair:
    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.meeting = meeting = Meeting.parse(cell.theme)
        self.first, self.second = OPERATIONS[meeting.first], OPERATIONS[meeting.second]
        # Apart from the place, a pair does not depend on it: all places of a seed are one run.
        self.base = Cell(cell.layout, cell.journal, cell.broken, str(meeting._replace(at=0)))
        rng = random.Random(f"{self.base} {seed} fate")
        self.fate = rng.choice(FATES)
        self.lose = rng.random() < LOSE_SHARE
        errs = random.Random(f"{self.base} {seed} errors")  # the other choices stay as they were
        if errs.random() < ERRS_SHARE:
            self.fate = ERRS
        self.trigger = Trigger(
            meeting.at or None,
            after=self.fate == AFTER,
            breaks=self.fate in (BREAKS, ERRS),
            errors=errs.choice(ERRORS) if self.fate == ERRS else 0,
        )
        operations = self.first, self.second
        self.scene = Scene(
            self.base,
            seed,
            self.trigger,
            with_there=any(operation.pool for operation in operations),
            latent=any(operation.latent for operation in operations),
            killed=any(operation.killed for operation in operations),
            larger=any(operation.larger for operation in operations),
        )
        scene = self.scene
        self.recording = scene.recording
        self.recording.cell = cell
        self._held: Weakness | None = None

    async def play(self) -> PairRecording:
        """Run the pair; return what happened. Raises ViolationError."""
        scene, recording = self.scene, self.recording
        suits = [operation.suits(self.cell.layout) for operation in (self.first, self.second)]
        lacking = self.first.away + self.second.away
        if not all(suits) or (lacking > 1 and self.first.prepare and self.second.prepare):
            recording.void = True
            return recording
        with ungrouped():
            async with scene.mounted():
                for operation in (self.first, self.second):
                    if operation.prepare is not None:
                        try:
                            await operation.prepare(scene)
                        except RaidxError as error:
                            if not isinstance(error, REFUSALS) and not scene.is_weak:
                                raise
                            recording.void = True
                            return recording
                begin = scene.event
                await self._meet()
                recording.met = begin, scene.event
                await self._settle()
        return recording

    # -- both operations -----------------------------------------------------------------------

    async def _meet(self) -> None:
        trigger = self.trigger
        first, second, given = trio.Event(), trio.Event(), trio.Event()
        stuck: ViolationError | None = None
        async with trio.open_nursery() as nursery:
            trigger.armed = True
            nursery.start_soon(self._run, self.first, first)
            if self.meeting.at != 0:
                nursery.start_soon(self._note_first, first)
                await _either(trigger.reached, first)
                if trigger.reached.is_set():
                    self._note_held()
            nursery.start_soon(self._run, self.second, second)
            nursery.start_soon(self._give_away, second, given)
            with trio.move_on_after(LATE_S if self.fate == LATE else HOLD_S) as patience:
                await given.wait()
            if self.fate == LATE and not patience.cancelled_caught and trigger.reached.is_set():
                await sleep(LATE_S)
            if self.fate == DRAGS:
                with trio.move_on_after(LIMIT_S):
                    await given.wait()
                for disk in self.scene.disks:
                    if disk.fault == disks.DRAGS:
                        disk.revive()
            self._let_go()
            with trio.move_on_after(FAULT_S):
                for event in (first, second, given):
                    await event.wait()
            for disk in self.scene.disks:  # else requests that no member can be spared for wait on
                disk.revive()
            with trio.move_on_after(LIMIT_S) as limit:
                for event in (first, second, given):
                    await event.wait()
            if limit.cancelled_caught:
                stuck = _stuck("the operations")
                nursery.cancel_scope.cancel()
        if stuck is not None:
            raise stuck

    async def _note_first(self, first: trio.Event) -> None:
        await first.wait()
        self.trigger.armed = False
        self.recording.steps = self.trigger.count

    def _note_held(self) -> None:
        holder = self.trigger.holder
        if self.fate == DRAGS:
            self.trigger.released.set()
            for disk, array in zip(self.scene.disks, self.recording.array_of, strict=True):
                if array == 0:
                    disk.fail(disks.DRAGS)
        if holder is not None and self.fate in (BREAKS, ERRS, LATE):
            array = self.recording.array_of[self.scene.disks.index(holder)]
            self.scene.weaken(array)
            holder.loses_cache = self.scene.spares(array)

    def _let_go(self) -> None:
        """Let the held operation go on; a flush loses no cache that has the only copy by now."""
        holder = self.trigger.holder
        if holder is not None and holder.loses_cache:
            array = self.recording.array_of[self.scene.disks.index(holder)]
            holder.loses_cache = self.scene.spares(array)
        self.trigger.released.set()

    async def _run(self, operation: Operation, done: trio.Event) -> None:
        scene = self.scene
        span = Span(operation.name, scene.event, 0)
        self.recording.spans.append(span)
        try:
            await operation.act(scene)
        except RaidxError as error:  # of users' requests Scene is stricter
            if not isinstance(error, REFUSALS) and not scene.is_weak:
                raise
        span.end(scene.event, 0)
        done.set()

    async def _give_away(self, second: trio.Event, given: trio.Event) -> None:
        """When the second operation has ended, give what is free to a new volume."""
        await second.wait()
        scene = self.scene
        unit = scene.extent_bytes
        size = min(scene.here.free_bytes(), scene.extents * unit) // unit * unit
        if size and self.trigger.reached.is_set():
            await create_volume(scene, f"w{len(scene.volumes)}", size)
        given.set()

    # -- afterwards ----------------------------------------------------------------------------

    async def _settle(self) -> None:
        scene, recording = self.scene, self.recording
        for disk in scene.disks:
            disk.revive()
        await sleep(1.0)  # what hung reaches the disks
        await self._rest()
        await scene.compare_volumes("after both")
        await self._take_back()
        if not recording.burdened:
            for volumes in scene.pool.arrays:
                await check_parity(volumes.array)
            if self.lose:
                await self._lose()
        for history in scene.volumes:
            if history.size and history.volume in scene.uuids:
                await scene.flush(history.volume)
        await scene.compare_volumes("at the end")

    async def _rest(self) -> None:
        """Wait until all jobs have ended and nothing is left to wipe."""
        with trio.move_on_after(LIMIT_S) as limit:
            await wait_for_jobs(self.scene.pool)
        if limit.cancelled_caught:
            raise _stuck("jobs")

    async def _take_back(self) -> None:
        """Take the members back that are lost; they are caught up."""
        scene = self.scene
        for number, volumes in enumerate(scene.pool.arrays):
            array = volumes.array
            gone = [scene.disk_of(number, role) for role in sorted(array.member_set.lost)]
            for disk in gone:
                await take_back(array, disk)
        await self._rest()
        lost = [sorted(v.array.member_set.lost) for v in scene.pool.arrays]
        if scene.overburdened():
            self.recording.burdened = True
        elif not any(lost):
            for volumes in scene.pool.arrays:  # else a cut makes mended pages unreadable again
                await volumes.array.flush()
            for roles in self.recording.arrays:
                for weak in roles.weaknesses:
                    weak.end = min(weak.end, scene.event)
        else:
            raise ViolationError(f"roles {lost} are lost after their members are back")
        await scene.compare_volumes("after the return")

    async def _lose(self) -> None:
        """Lose as many members as the array tolerates; take them back."""
        scene = self.scene
        rng, array = scene.rng, scene.array
        width = array.member_set.config.width
        roles = rng.sample(range(width), array.context.code.tolerance)
        if not roles:
            return
        weak = scene.weaken(0, len(roles))
        for role in roles:
            await array.fail_disk(role)
        await scene.compare_volumes("without members")
        if rng.random() < 0.5:
            await scene.write("u", rng.randrange(8), rng.randint(1, 8))
        for role in roles:
            await take_back(array, scene.disk_of(0, role))
            await self._rest()
        weak.end = scene.event
        await scene.compare_volumes("after the return of members")
        for volumes in scene.pool.arrays:
            await check_parity(volumes.array)


def _stuck(what: str) -> ViolationError:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return ViolationError(f"{what} never end:\n" + "\n".join(waiting_places(root)))


async def _either(one: trio.Event, other: trio.Event) -> None:
    """Wait until one of two events has happened."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait, one)
        nursery.start_soon(wait, other)


def record_pair(cell: Cell, seed: int) -> PairRecording:
    """Run pair *seed* on *cell*. Raises ViolationError, and whatever the arrays raise."""
    pair = _Pair(cell, seed)
    with as_violations("the pair never ends"):
        return run(pair.play, seed=seed)
