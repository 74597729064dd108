"""One workload while it runs: its arrays, disks and volumes, and what is noted about them.

1. Create the arrays, unrecorded: one, or the two of a pool.
2. Perhaps run some steps, cut the power, and begin again from what the cut left.
3. Mount, play the script, compare every sector, end cleanly; all of it is recorded.

The steps that every workload is made of: which ranges are written, and what overlaps in time.

- Ranges of all sizes and alignments, mostly small; written alone, again and in bursts.
- Staggered requests: writes and flushes that begin while a flush is under way. A flush covers every
  write that ended before it began, even if an earlier flush is still running. Writes that came just
  too late for the earlier flush are the hard case. On disks with slow flushes (disks.py) they
  overlap.
- Batches: requests that come together and run as the session loop runs them (`through_door`).
  Most are small writes, which share log records (group commit).
- Discards, and what is written there around that time. A place that was discarded counts as zero.
  So the hard case is a first write to a part of it, which relies on that, and a power cut before or
  after its old content is gone for good.
- Moves of chunks of bundles (a rebundle), perhaps while a write runs.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import ArrayFailedError, RaidxError
from raidx_fuse.jobs.rebundle.operation import RebundleOperation
from raidx_fuse.journal.group_commit import (
    Deferral,
    Handler,
    HeldHandlers,
    continue_held,
    to_its_end,
)
from raidx_fuse.journal.journal import Journal
from raidx_fuse.journal.ring import HEAD_BYTES
from raidx_fuse.journal.unsettled import Unsettled
from raidx_fuse.lab.crash.disks import MOODY, PACES, SLOTS_BYTES, SectorDisk, is_member
from raidx_fuse.lab.crash.hardware import (
    CHUNK_BYTES,
    POOL,
    POOL_STRIPES,
    SCATTERED_STRIPES,
    Fronts,
    Hardware,
    Parts,
    Shape,
    in_sectors,
    read_all,
    read_sectors,
    sectors_on_lost,
)
from raidx_fuse.lab.crash.history import History, Span, Timeline, WriteSpan
from raidx_fuse.lab.crash.mounting import DiskLaws, VolumePlayer, acknowledged, drawn_moves, mounted
from raidx_fuse.lab.crash.recording import Recording, Roles
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.sums import check_calm, check_vacant, check_whole
from raidx_fuse.layouts.numbers import Stripe, stripe_range
from raidx_fuse.layouts.registry import LAYOUTS
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.simulated.powercut import CutRecord, Event, Image
from raidx_fuse.pool.allocate import EXTENTS_MAX, unit_bytes
from raidx_fuse.pool.array_volumes import ArrayVolumes

CACHE_BYTES = (0, 8 << 10, 256 << 10)  # no chunk cache, a small one, one for everything; in turn
DISCARD_SHARE = 0.3  # of the workloads: they have discards
SCATTERED_SHARE = 0.5  # of the workloads on a pool: two volumes have many extents
REGIONS_SHARE = 0.5  # of the workloads of these themes: their dirty regions have many stripes
# Not those whose jobs move every stripe: few of their moments would be at stripes that are used.
REGION_THEMES = {
    *("writes", "remounts", "hangs", "replaces", "disks", "returns", "scrub", "latent", "squeeze"),
    *("discards", "streams", "door", "refusals", "checkpoints", "rewrites", "copies", "errors"),
}
DOOR_SHARE = 0.35  # of the workloads: some of their small writes share commit batches
STEPS = {"write": 9, "again": 3, "burst": 4, "stagger": 3, "flush": 5, "tidy": 3, "policy": 1}
MOVES_WEIGHT = 8
DOOR_WEIGHT = 14
DISCARD_WEIGHT = 7
# After either pause the log is checkpointed; after the longer one, quiet dirty regions are clean.
TIDY_S = (3.0, 12.0)
STAGGERED_MAX = 6
APART_S = 0.015  # mean distance; about as long as a flush of slow disks takes
TOGETHER_MAX = 8
DISCARD_SIZES = ("stripe", "stripe", "stripes", "chunks", "many", "sectors", "bytes")
KINDS = ("sector", "sectors", "bytes", "page", "chunks", "stripe", "stripes", "many")
KIND_WEIGHTS = (3, 3, 2, 3, 2, 3, 1, 2)
WAKES = (0.1, 0.5, 0.9)  # shares of the changes at which the writer wakes, one for each workload
WRITES_MAX = 80  # of a workload: a placement saves the head of the log, for each of these writes
SECTORS_MAX = 3


class ChangeWriter:
    """Writes at the moments when the configuration changes: at superblocks and the log's head.

    There, members join and leave and the log gets other holders: what is written and flushed in
    between must be on enough members by the old configuration and by the new one. Steps of a
    workload seldom hit these moments. This writer wakes when a superblock or the head of the log is
    written. It has *sectors* of its own, so that the order of the workload's writes stays known.
    """

    def __init__(self, player: Player, sectors: range) -> None:
        self.may_write = True
        self._player = player
        self._rng = random.Random(f"{player.cell} {player.seed} changes")
        self._sectors = sectors
        log = player.regions.log
        self._head = range(log.offset, log.offset + HEAD_BYTES)
        self._share = self._rng.choice(WAKES)
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._left = WRITES_MAX

    def note(self, event: Event) -> None:
        """Wake at a write of a superblock or of the head of the log, by chance."""
        if self.may_write and self._left and event.operation == "write":
            is_change = event.offset_bytes < SLOTS_BYTES or event.offset_bytes in self._head
            if is_change and self._rng.random() < self._share:
                self._left -= 1
                self._wanted.set()

    async def pause(self) -> None:
        """Let it write no more; return when it does nothing."""
        self.may_write = False
        await self._idle.wait()

    async def run(self) -> None:
        """Write whenever something changes, until cancelled."""
        rng = self._rng
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if not self.may_write:
                continue
            self._idle = trio.Event()
            try:
                count = rng.randint(1, SECTORS_MAX)
                first = rng.choice(self._sectors[: len(self._sectors) - count + 1])
                await self._player.write(first * SECTOR_BYTES, count * SECTOR_BYTES)
                if rng.random() < 0.8:
                    await self._player.flush()
            finally:
                self._idle.set()


async def through_door(handlers: Sequence[Handler], deferral: Deferral) -> None:
    """Run *handlers* to their ends as a front end does, each held for a record if it can be.

    *deferral* is that of their journal. Raises their exceptions in an ExceptionGroup.
    """
    waiting = list(handlers)
    try:
        async with trio.open_nursery() as nursery:
            await _stretch(waiting, nursery, deferral)
    finally:
        for handler in waiting:  # a failure came first
            handler.close()


async def _stretch(waiting: list[Handler], nursery: trio.Nursery, deferral: Deferral) -> None:
    """Run each of *waiting* until it is held or done, and remove it from the list."""
    held: HeldHandlers[None] = HeldHandlers(
        lambda handler, _: nursery.start_soon(continue_held, handler), deferral
    )
    suspended = None
    try:
        while waiting and suspended is None:
            deferral.allow(True)
            try:
                suspended = held.run(waiting.pop(0), None)
            finally:
                deferral.allow(False)
    finally:
        if suspended is None:
            suspended = held.release()
        else:
            held.let_go()
    if waiting:
        nursery.start_soon(_stretch, waiting, nursery, deferral)
    if suspended is not None:
        await to_its_end(*suspended[:2])


# Arrays that break one ordering rule on purpose, to show that the campaign notices (`--broken`).
# The product has no switch for it. A subclass leaves out or swaps the step that the rule is about,
# and `break_order` makes it the class of the mounted array's object.


class UnorderedJournal(Journal):
    """A log whose checkpoint does not wait for flushes between its steps."""

    async def _barrier(self) -> None:
        pass


class ParitylessLog(Unsettled):
    """A log whose checkpoint does not log the parities first."""

    async def settle_frozen(self) -> list[int]:
        self.frozen.clear()
        return []


class UnorderedRebundle(RebundleOperation):
    """Counts new bundles before their places are durable, and retires a role with its records."""

    async def _announce(self, cells: range, bundles: int) -> None:
        await self._count_bundles(bundles)
        await self.context.journal.chunk_table.save_places(cells)

    async def _clear_log(self) -> None:
        pass


def break_order(array: Array, theme: str) -> None:
    """Make *array* break the rule that the workloads of *theme* depend on."""
    if theme == "members" and array.rebundle is not None:
        array.rebundle.__class__ = UnorderedRebundle
    elif theme == "streams":
        array.context.journal.unsettled.__class__ = ParitylessLog
    else:
        array.context.journal.__class__ = UnorderedJournal


class Player(VolumePlayer):
    """One workload while it runs; its steps are public, so that scripts can call them.

    *at_changes*: it also writes when the configuration changes (`ChangeWriter`). With the theme
    "pool" it has the *pool* of two arrays, whose volumes come and go; else one *array*.
    """

    def __init__(
        self,
        cell: Cell,
        seed: int,
        theme: str,
        shape: Shape | None = None,
        *,
        at_changes: bool = False,
    ) -> None:
        self.cell = cell
        self.theme = theme
        self.seed = seed
        self.is_pool = theme == POOL
        pool = ":pool" if self.is_pool else ""
        self.rng = rng = random.Random(f"{cell.layout}:{cell.journal}{pool} {seed}")
        # A separate generator: the other choices of a seed do not depend on this one.
        door = random.Random(f"{cell} {seed} door")
        by_chance = not cell.theme and cell.journal != "none" and shape is None
        self.has_door = theme == "door" or (by_chance and door.random() < DOOR_SHARE)
        discards = random.Random(f"{cell} {seed} discards")
        by_chance = not cell.theme and shape is None and discards.random() < DISCARD_SHARE
        self.discards = theme == "discards" or by_chance
        self.is_scattered = random.Random(f"{cell} {seed} scattered").random() < SCATTERED_SHARE
        if self.is_pool:  # each array has its own width
            stripes = SCATTERED_STRIPES if self.is_scattered else POOL_STRIPES
            shape = Shape(0, stripes, PACES[seed % len(PACES)], zeroed=False)
        self.shape = shape or Shape.drawn(cell, theme, rng)
        if shape is None and theme == "off":  # what rots is in a region with what is written
            self.shape = replace(self.shape, regions=True)
        elif shape is None and theme in REGION_THEMES:
            regions = random.Random(f"{cell} {seed} regions").random() < REGIONS_SHARE
            self.shape = replace(self.shape, regions=regions)
        if self.has_door and shape is None and self.shape.pace != "inline":
            self.shape = replace(self.shape, pace=MOODY)
        self.hardware = Hardware(cell, theme, self.shape, rng)
        self.at_changes = at_changes and not self.shape.huge
        self.width, self.stripes = self.shape.width, self.shape.stripes - self.at_changes
        self.tolerance = LAYOUTS[cell.layout].tolerance(self.width) if self.width else 0
        self.bundled = LAYOUTS[cell.layout].bundled
        self.record = CutRecord()
        self.timeline = Timeline()
        self.disks: list[SectorDisk] = []
        self.uuids = {}
        self._stack = AsyncExitStack()
        self._fronts = Fronts()
        self._changes: ChangeWriter | None = None
        self.refusals = False  # whether writes and flushes may end in errors
        self.whole_sectors = False  # what is in a sector may be unknown: none is written in part
        self.hanging = False  # whether a refused write may still be under way
        self.array: Array
        self.history: History
        self.recording: Recording

    # -- the whole workload --------------------------------------------------------------------

    async def play(self, script: Script, writes: int, had_power_cut: bool) -> Recording:
        """Run *script* on an array that holds *writes* writes; return what happened.

        If *had_power_cut*, the array has lost power before; the script begins with its recovery.
        """
        if self.is_pool:
            return await self._play_pool(script)
        await self._prepare(writes)
        if not self.at_changes:
            return await self._play(script, had_power_cut, None)
        async with trio.open_nursery() as nursery:  # around those of the arrays
            recording = await self._play(script, had_power_cut, nursery)
            nursery.cancel_scope.cancel()
        return recording

    async def _play(
        self, script: Script, had_power_cut: bool, nursery: trio.Nursery | None
    ) -> Recording:
        try:
            if had_power_cut:
                await self._live_and_crash()
            roles = Roles(
                self.layout, self.regions, [(0, role, role) for role in range(self.width)]
            )
            self.recording = Recording(
                *(self.cell, self.seed, self.record, self.timeline, [self.history], [roles]),
                self.parts,
                zeroed=self.shape.zeroed,
                has_poison=self.theme == "latent",
                has_ends=self.shape.ends,
            )
            await self.open()
            for sector in self.history.undecided():  # the recovery had a choice of contents
                await self.observe(sector)
            if nursery is not None:
                # Its sectors are behind the others.
                self._changes = ChangeWriter(self, range(self.sectors, self.parts.sectors))
                nursery.start_soon(self._changes.run)
                for disk in self.disks:
                    disk.cut.tell(self._changes.note)
            await script(self)
            await self.compare()
            self._check_holders()
            if self.cell.sums:
                await self._check_sums()
            await self.close()
        finally:
            await self._stack.aclose()
        return self.recording

    async def _play_pool(self, script: Script) -> Recording:
        created = await self.hardware.create_pool()
        roles: list[Roles] = []
        self.recording = Recording(self.cell, self.seed, self.record, self.timeline, [], roles)
        if self.is_scattered:
            arrays = [[self.hardware.disk(i, 0, None) for i in images] for *_, images in created]
            async with mounted(arrays) as self.pool:
                await self._scatter()
        for number, (layout, regions, images) in enumerate(created):
            holders = [(0, role, len(self.disks) + role) for role in range(len(images))]
            roles.append(Roles(layout, regions, holders))
            for image in images:
                disk = self.hardware.disk(image, len(self.disks), self.record)
                self.disks.append(disk)
                self.recording.array_of.append(number)
        await self.open()
        try:
            await script(self)
        finally:
            await self._stack.aclose()
        return self.recording

    async def _scatter(self) -> None:
        """Create two volumes that lie between each other, and write them; unrecorded."""
        volumes = self.rng.choice(self.pool.arrays)
        layout = volumes.array.context.layout
        unit = unit_bytes(layout.code.data_count * layout.chunk_bytes)
        histories = [await self.new_volume(volumes, unit) for _ in range(2)]
        for number in range(2, self.rng.randint(2, EXTENTS_MAX) + 1):
            for history in histories:
                await self.resize_volume(history, number * unit)
        for history in histories:
            await self.write_volume(history, 0, history.size)
            await self.flush_volume(history)

    @property
    def roles(self) -> Roles:
        return self.recording.roles

    def _check_holders(self) -> None:
        """Check which disk holds each role: an oracle that is wrong there loses too many disks."""
        for record in self.array.member_set.config.members:
            if record.role >= 0 and record.state == "active":
                disk = self.roles.holder(record.role, self.event)
                assert record.path_hint == f"disk{disk}", f"{record.path_hint} is not disk{disk}"

    async def _prepare(self, writes: int) -> None:
        """Create the array and its first content, unrecorded; then make recorded disks of it."""
        disks = await self.hardware.create()
        async with open_array(disks) as self.array:
            self.layout = self.array.context.layout
            self.regions = self.array.member_set.config.regions
            self.stripe_bytes = self.layout.code.data_count * CHUNK_BYTES
            self.parts = self.hardware.parts(self.stripe_bytes, self.array.context.dirty_bitmap)
            self.sectors = self.parts.sectors
            if self.at_changes:  # the last stripe is for those writes
                own = self.stripe_bytes // SECTOR_BYTES
                self.sectors -= own
                spans = [(self.parts.in_image(at), count) for at, count in self.parts.spans()]
                first, count = spans.pop()
                spans += [(first, count - own), (first + count - own, own)]
                self.parts = Parts([span for span in spans if span[1]])
            self.history = History(self.seed, self.parts.sectors, self.timeline)
            await self.array.set("journal", self.cell.journal)
            await self._keep_few_sums(self.array)
            for _ in range(writes):
                await self.write(*self.place("many"))
            flush = self.history.begin_flush("prepare", self.event)
        self.history.end(flush, self.event)
        self._record_from([disk.cut.state.image for disk in disks])

    def _record_from(self, images: Sequence[Image]) -> None:
        self.record = CutRecord()
        self.disks = [
            self.hardware.disk(image, number, self.record) for number, image in enumerate(images)
        ]

    async def _live_and_crash(self) -> None:
        """Run some steps and cut the power: the workload then begins with the recovery."""
        await self.open()
        for _ in range(self.rng.randint(1, 4)):
            await self.step()
        await self.close()
        moment = self.rng.randrange(len(self.record.events) + 1)
        for index, disks, _event in self.record.moments():
            if index == moment:
                cuts = [disk.sample(self.rng) for disk in disks]
                images = [disk.crash(cut) for disk, cut in zip(disks, cuts, strict=True)]
        self.history = self.history.after(moment)
        self.timeline = self.history.timeline
        self._record_from(images)

    @property
    def event(self) -> int:
        """Number of the next event of the record; -1 before the record begins."""
        return len(self.record.events) if self.disks else -1

    def new_disk(self, size_bytes: int = 0) -> int:
        """Make one more disk, not yet a member, as large as the others; return its number."""
        number = len(self.disks)
        image = self.hardware.blank(size_bytes or max(disk.size_bytes for disk in self.disks))
        self.disks.append(self.hardware.disk(image, number, self.record))
        if self._changes is not None:
            self.disks[number].cut.tell(self._changes.note)
        return number

    async def open(self, without: int | None = None) -> None:
        """Mount the disks, all but the one with the number *without*."""
        if self.is_pool:
            await self._open_pool()
            return
        with self.doing("mount"):
            self._fronts = Fronts()  # a mount begins with an empty log
            for disk in self.disks:
                disk.reopen()
            self.array = await self._stack.enter_async_context(
                open_array(
                    [
                        disk
                        for number, disk in enumerate(self.disks)
                        if number != without and is_member(disk.cut.state.image)
                    ],
                    start_degraded=True,
                )
            )
            for disk in self.disks:
                disk.judge = DiskLaws([self.array]).judge
            self.array.context.use_cache(CACHE_BYTES[self.seed % len(CACHE_BYTES)])
            if self.cell.broken:
                break_order(self.array, self.cell.theme)
        if self._changes is not None:
            self._changes.may_write = True

    async def _open_pool(self) -> None:
        arrays: list[list[Member]] = [[] for _ in self.recording.arrays]
        for disk, number in zip(self.disks, self.recording.array_of, strict=True):
            disk.give_fault(None)
            arrays[number].append(disk)
        self.pool = await self._stack.enter_async_context(mounted(arrays))
        self.hold_to_laws(self.disks)
        for volumes in self.pool.arrays:
            if self.cell.broken:
                break_order(volumes.array, "")
            if volumes.array.get("journal") != self.cell.journal:
                await volumes.array.set("journal", self.cell.journal)
            await self._keep_few_sums(volumes.array)

    async def _keep_few_sums(self, array: Array) -> None:
        """Let *array*, in a third of the workloads, have no sums in memory but those in use."""
        if self.cell.sums and self.seed % 3 == 0 and array.get("sums.cache"):
            await array.set("sums.cache", "0")

    async def close(self) -> None:
        """Close the arrays cleanly; all writes are durable afterwards."""
        if self._changes is not None:
            await self._changes.pause()
        if hasattr(self, "recording"):
            self.check_calm("before the end")
        if self.is_pool:
            flushes = [(one, one.begin_flush("close", self.event)) for one in self.present()]
        else:
            flushes = [(self.history, self._begin_flush("close"))]
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        if self.is_pool or self.array.member_set.config.clean:
            for history, flush in flushes:
                history.end(flush, self.event)
        else:  # the log was lost before: the next mount continues with what was flushed
            self.history.fail_flush(flushes[0][1], self.event)
            self.doubt(self.event)

    async def remount(self) -> None:
        await self.close()
        await self.open()

    def doubt(self, event: int) -> None:
        """Note that what no flush has covered at *event* may be lost, whatever is flushed later."""
        self.whole_sectors = True
        self.history.doubt(event)

    def _begin_flush(self, verb: str) -> Span:
        if not self.array.context.dirty_bitmap.pending_regions():
            self.history.resync_ended(self.event)
        return self.history.begin_flush(verb, self.event)

    async def compare(self) -> None:
        """Read everything while the arrays run, and compare it with the newest content."""
        if self.is_pool:
            await self.compare_volumes("before any cut")
            return
        if self._changes is not None:
            await self._changes.pause()
        ranges = self.parts.ranges(self.sectors * SECTOR_BYTES)
        for sector, got in enumerate(await read_all(self.array, ranges)):
            if got != self.history.newest(sector):
                self._check(sector, got)
        if self._changes is not None:
            self._changes.may_write = True

    def _check(self, sector: int, content: bytes | None) -> None:
        """Check that *sector* may read as *content* (None: an error). Raises ViolationError.

        An error is allowed in two cases:

        - a write past the log was refused: the stripe's chunk on a lost member cannot be solved;
        - a write that hangs may still reach the sector.
        """
        is_lost = self.cell.journal != "full" and self.array.member_set.lost
        if content is not None or not (self.hanging or (self.refusals and is_lost)):
            self.history.check(sector, content)

    @contextmanager
    def doing(self, verb: str) -> Iterator[None]:
        span = self.timeline.begin(verb, self.event)
        yield
        self.timeline.end(span, self.event)

    def check_calm(self, when: str) -> None:
        """Check that checksums have found nothing, unless something was damaged on purpose."""
        if self.cell.sums and not self.is_pool and not self._is_damaged():
            check_calm([self.array], when)

    def _is_damaged(self) -> bool:
        """Return whether checksums may find something: planted, or writes that a disk has lost."""
        return bool(self.roles.damaged) or any(disk.has_lost_writes for disk in self.disks)

    async def _check_sums(self) -> None:
        if self._changes is not None:  # a page that is being written fits neither sum
            await self._changes.pause()
        self.check_calm("in the end")
        if not self._is_damaged():
            for job in self.array.jobs.running():
                job.resume()  # one that moves chunks pauses where a member hangs
            await self.jobs_end()
            begins = self.recording.sums_begin or self.theme in ("errors", "hangs")
            await check_whole(self.array, complete=not begins)
            self.check_calm("in the end")
            if self.theme == "discards":  # others may leave places for larger or other stripes
                await check_vacant(self.array)

    # -- requests ------------------------------------------------------------------------------

    def present(self) -> list[History]:
        return [history for history in self.recording.volumes if history.size]

    async def flush(self) -> None:
        """Flush the array, and note it in the history."""
        span = self._begin_flush("flush")
        try:
            with acknowledged([self.array]):
                await self.array.flush()
        except RaidxError:
            if not self.refusals:
                raise
            self.history.fail_flush(span, self.event)
            return
        self.history.end(span, self.event)

    async def jobs_end(self) -> None:
        for job in self.array.jobs.running():
            await job.finished.wait()

    async def unless_data_would_be_lost(self, take_out: Callable[[], Awaitable[object]]) -> None:
        """Call *take_out*, which fails a member, perhaps while a resync runs.

        Where the array refuses because chunks that await the resync would be lost
        (`journal=none`), call it again when the resync has ended.
        """
        try:
            await take_out()
        except ArrayFailedError:
            await self.jobs_end()
            await take_out()

    async def observe(self, sector: int) -> None:
        """Read *sector*, and note which of several writes to it came last."""
        place = self.parts.place(sector * SECTOR_BYTES, SECTOR_BYTES)
        (got,) = await read_sectors(self.array, *place)
        if got is None:
            self._check(sector, got)
        else:
            self.history.observe(sector, got)

    async def fill(self) -> None:
        """Write all that the workload uses, one part after the other."""
        for first, count in self.parts.spans():
            if first < self.sectors:
                await self.write(first * SECTOR_BYTES, count * SECTOR_BYTES)

    async def new_volume(self, volumes: ArrayVolumes, size: int) -> History:
        """Create a volume of *size* bytes. Raises BusyError, NoSpaceError."""
        number = len(self.recording.volumes)
        history = History(self.seed, 0, self.timeline, number=number, name=f"v{number}")
        self.recording.volumes.append(history)
        try:
            await self.create_volume(history, volumes, size)
        except RaidxError:
            self.recording.volumes.remove(history)
            raise
        return history

    async def write(self, offset: int, length: int, *, discard: bool = False) -> None:
        """Write *length* bytes at *offset*, fewer where a part ends, and note the write.

        A *discard* counts as a write of zeros. *offset* counts in the workload's parts of the
        image (`Parts`).
        """
        if self.whole_sectors:
            offset, length = in_sectors(offset, length)
        at, length = self.parts.place(offset, length)
        span, data = self._begin_write(offset, at, length, discard)
        traffic = self.array.context.traffic
        before = traffic.past_log
        try:
            with acknowledged([self.array]):
                if discard:
                    await self.array.discard(at, length)
                else:
                    await self.array.write(at, data)
        except RaidxError:
            if not self.refusals:
                raise
            self.recording.sums_begin = True  # what a refused write has left has none
            torn = {"none": span.stripes, "partial": span.full, "full": ()}[self.cell.journal]
            context = self.array.context
            # What their chains would solve is lost for ever, also where the chunk of a bundle comes
            # to another member later.
            given_up = sectors_on_lost(context.layout, self.parts, torn, context.member_set.lost_at)
            self.history.refuse(span, self.event, given_up)
            return
        if traffic.past_log == before:  # all of it went through the log
            span.closes = frozenset()
            span.full = frozenset() if discard else span.full
        self.history.end(span, self.event)

    def _begin_write(
        self, offset: int, at: int, length: int, discard: bool = False
    ) -> tuple[WriteSpan, bytes]:
        """Note a write of *length* bytes at *offset*, which is byte *at* of the image.

        Returns its span and its content. The span has the stripes of the write, those that it
        covers whole, and the sectors that it completes.
        """
        layout, end = self.array.context.layout, at + length
        full, closes = frozenset[Stripe](), frozenset[int]()
        if layout.restriping:  # a restripe sends every write through the log
            chunks = range(at // CHUNK_BYTES, -(-end // CHUNK_BYTES))
            stripes = frozenset(layout.locate(chunk)[0] for chunk in chunks)
        else:
            size = self.stripe_bytes  # counts if the stripes are not contiguous
            if layout.contiguous:
                size = layout.code.data_count * layout.chunk_bytes
                closed = (Fronts() if discard else self._fronts).note(at, end, size)
                closes = frozenset(s for one in closed for s in self.parts.sectors_of(one, 1))
            stripes = frozenset(stripe_range(at // size, -(-end // size)))
            full = frozenset(s for s in stripes if at <= s * size and (s + 1) * size <= end)
        verb = "write stripes" if len(full) == len(stripes) else "write part"
        if full and verb == "write part":
            verb = "write mixed"
        if discard:
            verb = "discard"
        span: WriteSpan = self.history.begin_write(verb, self.event, stripes, full)
        span.closes = closes
        return span, self.history.add_bytes(span, offset, length, zeros=discard)

    # -- places --------------------------------------------------------------------------------

    def place(self, kind: str | None = None) -> tuple[int, int]:
        """Draw (offset, length) in bytes: all sizes and alignments, mostly small.

        *kind* fixes the size class; None draws one.
        """
        rng = self.rng
        total = self.sectors * SECTOR_BYTES
        stripe_bytes = self.stripe_bytes
        kind = kind or rng.choices(KINDS, KIND_WEIGHTS)[0]
        unit, length = SECTOR_BYTES, SECTOR_BYTES
        if kind == "sectors":
            length = rng.randint(2, 11) * SECTOR_BYTES
        elif kind == "bytes":
            unit, length = 1, rng.randint(1, 6000)
        elif kind == "page":
            unit = length = 4096
        elif kind == "chunks":
            unit, length = CHUNK_BYTES, rng.randint(1, 3) * CHUNK_BYTES
        elif kind == "stripe":
            unit = length = stripe_bytes
        elif kind == "stripes":
            unit, length = stripe_bytes, rng.randint(2, 3) * stripe_bytes
        elif kind == "many":
            length = rng.randint(stripe_bytes // 512, 3 * stripe_bytes // 512) * 512
        length = min(length, total)
        return rng.randrange((total - length) // unit + 1) * unit, length

    def near(self, where: tuple[int, int]) -> tuple[int, int]:
        """Draw a range that overlaps *where* or is adjacent to it."""
        offset, length = where
        total = self.sectors * SECTOR_BYTES
        size = max(1, min(length + self.rng.randint(-4, 4) * SECTOR_BYTES, 4 * length))
        start = offset + self.rng.randint(-2, 2) * SECTOR_BYTES
        start = max(0, min(start, total - 1))
        return start, max(1, min(size, total - start))

    def small(self) -> tuple[int, int]:
        """Draw (offset, length) in bytes of a few sectors inside one chunk."""
        sectors = CHUNK_BYTES // SECTOR_BYTES
        count = self.rng.randint(1, 3)
        first = self.rng.randrange(self.sectors // sectors) * sectors
        first += self.rng.randint(0, sectors - count)
        return first * SECTOR_BYTES, count * SECTOR_BYTES

    # -- random steps --------------------------------------------------------------------------

    async def steps(self, least: int, most: int) -> None:
        """Do *least* to *most* random steps."""
        for _ in range(self.rng.randint(least, most)):
            await self.step()

    async def step(self) -> None:
        kinds = dict(STEPS)
        if self.bundled:
            kinds["move_some"] = MOVES_WEIGHT
        if self.has_door:
            kinds["come_together"] = DOOR_WEIGHT
        if self.discards:
            kinds["discard_some"] = DISCARD_WEIGHT
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        if kind == "write":
            await self.write(*self.place())
        elif kind == "again":
            where = self.place()
            for _ in range(self.rng.randint(2, 3)):
                await self.write(*self.near(where))
        elif kind != "policy":
            await getattr(self, kind)()
        else:
            policy = self.rng.choice(("traditional", "rmw", "rcw"))
            with self.doing("setting"):
                try:
                    await self.array.set("parity.policy", policy)
                except RaidxError:
                    if not self.refusals:
                        raise

    async def tidy(self) -> None:
        await trio.sleep(self.rng.choice(TIDY_S))

    async def write_and_flush(self, offset: int, length: int, flush: bool) -> None:
        """Write *length* bytes at *offset*; if *flush*, flush afterwards."""
        await self.write(offset, length)
        if flush:
            await self.flush()

    async def burst(self) -> None:
        """Run several writes concurrently, apart or overlapping, and perhaps a flush."""
        where = self.place()
        together = self.rng.random() < 0.5
        ranges = []
        for _ in range(self.rng.randint(2, 4)):
            offset, length = self.near(where) if together else self.place()
            ranges.append(in_sectors(offset, length))
        async with trio.open_nursery() as nursery:
            for offset, length in ranges:
                nursery.start_soon(self.write, offset, length)
            if self.rng.random() < 0.5:
                nursery.start_soon(self.flush)
        await self.observe_met(ranges)

    async def stagger(self) -> None:
        """Begin a flush, then one write after the other while it runs; some writes are flushed."""
        rng = self.rng
        where = self.place("sectors")
        ranges: list[tuple[int, int]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flush)
            for _ in range(rng.randint(2, STAGGERED_MAX)):
                await trio.sleep(rng.expovariate(1 / APART_S))
                place = self.near(where) if rng.random() < 0.5 else self.place("sectors")
                ranges.append(in_sectors(*place))
                nursery.start_soon(self.write_and_flush, *ranges[-1], rng.random() < 0.6)
        await self.observe_met(ranges)

    async def come_together(self) -> None:
        """Run one random batch of requests."""
        rng, journal = self.rng, self.array.context.journal
        if rng.random() < 0.5:  # a log without free space holds no handler, and this log is small
            await journal.drain()
        where = self.small()
        ranges: list[tuple[int, int]] = []
        handlers: list[Handler] = []
        for _ in range(rng.randint(2, TOGETHER_MAX)):
            draw = rng.random()
            if draw < 0.05:
                handlers.append(self.flush())
                continue
            if draw < 0.1:
                handlers.append(journal.place())
                continue
            if ranges and draw < 0.25:  # an earlier range again
                offset, length = rng.choice(ranges)
            elif draw < 0.33:
                offset, length = self.place(rng.choice(("stripe", "chunks", "page")))
            elif draw < 0.6:
                offset, length = self.near(where)
            else:
                offset, length = self.small()
            ranges.append(in_sectors(offset, length))
            handlers.append(self.write_and_flush(*ranges[-1], rng.random() < 0.25))
        await through_door(handlers, journal.deferral)
        await self.observe_met(ranges)

    async def discard_some(self) -> None:
        """Discard a range, alone or beside other requests, and perhaps write to it again."""
        rng = self.rng
        where = self.place(rng.choice(DISCARD_SIZES))
        if rng.random() < 0.6:
            await self.write(*where, discard=True)
        else:
            ranges = [in_sectors(*where)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(self.write, discard=True), *ranges[0])
                for _ in range(rng.randint(1, 3)):
                    await trio.sleep(rng.choice((0.0, 0.0, 0.002, 0.02)))
                    place = self.near(where) if rng.random() < 0.7 else self.place()
                    ranges.append(in_sectors(*place))
                    discard = rng.random() < 0.3
                    nursery.start_soon(partial(self.write, discard=discard), *ranges[-1])
                if rng.random() < 0.4:
                    nursery.start_soon(self.flush)
            await self.observe_met(ranges)
        draw = rng.random()
        if draw < 0.2:
            await self.flush()
        if draw < 0.5:
            await self.write(*self.near(where))
        elif draw < 0.9:  # a part of a sector at each end: the rest comes from the place itself
            await self.write(where[0] + rng.randrange(where[1]), rng.randint(1, 3000))

    async def move_some(self) -> None:
        """Move some chunks of bundles, perhaps while a write runs."""
        rng, layout = self.rng, self.array.context.journal.chunk_table.layout
        assert layout is not None
        mover = ChunkMover(self.array.context, layout)
        with self.doing("move"):
            async with trio.open_nursery() as nursery:
                if rng.random() < 0.4:
                    nursery.start_soon(self.write, *self.place())
                for _ in range(rng.randint(1, 4)):
                    moves = drawn_moves(mover, layout, rng, self.stripes * layout.length)
                    if mover.problem(moves) is not None:
                        continue
                    try:
                        await mover.move(moves)
                    except RaidxError:
                        if not self.refusals:
                            raise

    async def observe_met(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read the sectors where *ranges*, written concurrently, overlap: which write was last?"""
        seen: set[int] = set()
        for offset, length in ranges:
            sectors = set(range(offset // SECTOR_BYTES, (offset + length) // SECTOR_BYTES))
            for sector in sorted(sectors & seen):
                await self.observe(sector)
            seen |= sectors


Script = Callable[[Player], Awaitable[None]]
