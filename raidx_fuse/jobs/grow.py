"""Grow: move the blocks that McPod's mapping gives to the new disks, and nothing else.

The `live` method of DESIGN.md, section 2. A stripe's parity stays as it is: the place that a block
leaves belongs to a block that nobody has written yet, which counts as zero. So a window reads the
written blocks that move, writes them to the new disks in runs that are as long as the mapping
allows (the mcpod paper, section 3.2), and lets the growth's position pass it; growth.py says when
the position becomes durable, and why a crash at any point leaves every block whole.

Cancelled, the job goes the same way back: blocks return to their old places, which are dead until
the growth is over, and the array has its old shape again. A block is only ever moved onto a member
that is there and has room: while one is lost, or its host full, the job waits. What lies on a lost
member is read by its chain.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import trio

from raidx_fuse.core import Core
from raidx_fuse.errors import NoSpaceError, RaidxError
from raidx_fuse.growth import JOB_KEY, Growth
from raidx_fuse.jobs.window import BUSY_S, WINDOW_BYTES, Job
from raidx_fuse.layouts.code import Unrecoverable
from raidx_fuse.layouts.plan import read_plan
from raidx_fuse.parity import Arena, Bytes, xor_into
from raidx_fuse.store import MemberLostError, Request, join
from raidx_fuse.write_work import Preparer

STRIPES_MAX = 4096  # whose locks one window takes
BATCH_BYTES_MAX = 16 << 20  # read at once, from all members together
BATCHES_IDLE = 32  # in a window at full speed with no users: one is read while one is written
UNSAVED_BYTES_MAX = 1 << 30  # of a member: how far the position may run ahead of its checkpoint
COUNT_STRIPES = 1 << 14
POLL_S = 0.25
NO_SPACE_S = 5.0  # until a host without room for a new member's blocks is tried again

log = logging.getLogger(__name__)

End = Callable[[bool], Awaitable[None]]
Batch = tuple[Sequence[int], Sequence[int], Sequence[int]]  # stripes, sources, targets


class Copy:
    """One block: *chunk_bytes* from *source* to *target*, data disks, in *stripe*."""

    __slots__ = ("array", "source", "stripe", "target", "view")

    def __init__(self, stripe: int, source: int, target: int, view: Any, array: Bytes) -> None:
        self.stripe = stripe
        self.source = source
        self.target = target
        self.view = view
        self.array = array


class Grow(Job):
    """Moves the blocks of the growth under way; *back* undoes it. *end* concludes the growth."""

    kind = "grow"

    def __init__(self, core: Core, job_id: int, back: bool, end: End) -> None:
        super().__init__(core, job_id)
        assert core.growth is not None
        self.growth: Growth = core.growth
        self.layout = core.growth.layout
        self.back = back
        self.waits_for: int | None = None
        self._end = end
        self._turn = False
        self._ending = False
        self._preparer = Preparer(core)
        sources = self.layout.disks_before
        self._batch = max(1, min(sources * WINDOW_BYTES, BATCH_BYTES_MAX) >> core.shift)

    def detail(self) -> dict[str, Any]:
        """Say where the growth stands."""
        return {
            "members_before": self.layout.history[-2],
            "members_after": self.layout.history[-1],
            "size_after": self.layout.chunks << self.core.shift,
            "going_back": self.back or self._turn,
            "waits_for_role": self.waits_for,
            "waits_for_resync": bool(self.core.dirty.pending_regions()),
            "checkpoints": self.growth.checkpoints,
        }

    def cancel(self) -> None:
        """Turn round: from the next window on the array goes back to its old shape."""
        if not self._ending:
            self._turn = not self.back
        self.resume()

    def result(self, completed: bool) -> str:
        """Return the state after the end: a growth that went back was cancelled."""
        return "cancelled" if self.back else super().result(completed)

    # -- where ---------------------------------------------------------------------------------

    def _rest(self) -> tuple[int, int]:
        """Return (first, end) of the stripes that still have to change."""
        migrated = self.layout.migrated
        return (0, migrated) if self.back else (migrated, self.layout.stripes)

    def _targets(self) -> range:
        """Return the data disks that blocks move to."""
        before = self.layout.disks_before
        return range(before) if self.back else range(before, self.layout.mapping.disks)

    def _reach(self) -> tuple[int, int | None]:
        """Return the first stripe where a target is lost, and its role; the end and None if none.

        A role that is being rebuilt is there below its watermark.
        """
        store = self.core.store
        reach, missing = self.layout.stripes, None
        if store.lost:
            for disk in self._targets():
                role = self.layout.role_of(disk)
                if role in store.lost and store.watermarks.get(role, 0) < reach:
                    reach, missing = store.watermarks.get(role, 0), role
        return reach, missing

    def _live(self, first: int, end: int) -> tuple[Any, Any, Any]:
        """Return stripes, sources and targets of the written blocks that move, stripes rising."""
        stripes, old, new, chunks = self.layout.moving(first, end)
        live = self.core.written.is_written_many(chunks)
        stripes, old, new = stripes[live], old[live], new[live]
        return (stripes, new, old) if self.back else (stripes, old, new)

    # -- the job -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Count the written blocks that still have to move."""
        await self._count()

    async def _count(self) -> None:
        first, end = self._rest()
        self.done_bytes = self.total_bytes = 0
        for at in range(first, end, COUNT_STRIPES):
            stripes, _, _ = self._live(at, min(at + COUNT_STRIPES, end))
            self.total_bytes += len(stripes) << self.core.shift
            await trio.lowlevel.checkpoint()

    async def ready(self) -> None:
        """Before each window: turn round if asked to, save what ran far ahead, wait for targets."""
        if self._turn and not self.back:
            await self._turn_round()
        if len(self.growth.unsaved) << self.core.shift > UNSAVED_BYTES_MAX:
            await self.growth.save()
        again_s = self.core.store.clock() + (NO_SPACE_S if self.error else 0.0)
        while not self._cancelled and not (self._turn and not self.back):
            self.waits_for = self._blocked_by()
            # A resync fills dead places with zeros, and blocks may have left them only just now;
            # and what is lost follows from parity, which it makes good.
            resync = self.core.dirty.pending_regions()
            if self.waits_for is None and not resync and self.core.store.clock() >= again_s:
                break
            await trio.sleep(POLL_S)

    def _blocked_by(self) -> int | None:
        """Return the lost role without which the next stripes cannot change, None if they can."""
        reach, role = self._reach()
        first, end = self._rest()
        if first == end:
            return None
        return role if (end > reach if self.back else first >= reach) else None

    async def _turn_round(self) -> None:
        store = self.core.store
        await self.growth.save()
        await store.update(lambda c: replace(c, jobs={**c.jobs, JOB_KEY: {"back": True}}))
        self.back = True
        await self._count()

    def next_window(self) -> list[int] | None:
        """Return the stripes that change next; all between the positions, written or not."""
        first, end = self._rest()
        if first == end:
            self._ending = True
            return None
        busy = self.core.store.clock() - self.core.foreground_s < BUSY_S
        limit = self._batch * (1 if busy or self.speed_max_bytes else BATCHES_IDLE)
        if self.back:
            first = max(first, end - STRIPES_MAX)
            stripes, _, _ = self._live(first, end)
            if len(stripes) > limit:
                first = min(int(stripes[-limit]), end - 1)
        else:
            end = min(end, first + STRIPES_MAX, max(self._reach()[0], first))
            stripes, _, _ = self._live(first, end)
            if len(stripes) > limit:
                end = max(int(stripes[limit]), first + 1)
        return list(range(first, end))

    async def work(self, stripes: list[int]) -> int:
        """Copy what moves in *stripes* and let the position pass them."""
        if not stripes or (self._turn and not self.back):
            return 0  # a target went, or a cancel came, while the locks were waited for
        core = self.core
        first, end = stripes[0], stripes[-1] + 1
        moves = self._live(first, end)  # now: more may be written than before we had the locks
        if not len(moves[0]):
            core.migrate_to(first if self.back else end)
            return 0
        copied = await self._copy_all(moves, stripes)
        core.counters.chunks_moved += copied
        return copied << core.shift

    async def checkpoint(self) -> None:
        """Make the position durable."""
        await self.growth.save()

    async def finish(self, completed: bool) -> None:
        """Conclude the growth, or keep its position for the next mount."""
        await self.growth.save()
        if completed:
            await self._end(self.back)

    # -- copying -------------------------------------------------------------------------------

    async def _copy_all(self, moves: tuple[Any, Any, Any], window: list[int]) -> int:
        """Copy in batches, the next one read while one is written; the position follows.

        Returns how many blocks were copied: fewer than all when a member went (`ready` sees who)
        or when somebody waits for the window. Raises RaidxError.
        """
        stripes, sources, targets = (
            (column[::-1] if self.back else column).tolist() for column in moves
        )
        cuts = [0, *self._cuts(stripes), len(stripes)]
        batches = [
            (stripes[at:to], sources[at:to], targets[at:to]) for at, to in itertools.pairwise(cuts)
        ]
        copied = 0
        try:
            copies, arenas = await self._read(*batches[0])
            for number, batch in enumerate(batches):
                following = batches[number + 1] if number + 1 < len(batches) else None
                read = await self._write_and_read(copies, following)
                for arena in arenas:
                    self.core.arenas.put(arena)
                if self._reach()[0] <= max(batch[0]):
                    return copied  # a target went while it was written
                copied += len(copies)
                self.error = None
                if following is None or read is None:
                    self.core.migrate_to(window[0] if self.back else window[-1] + 1)
                    return copied
                self.core.migrate_to(following[0][0] + self.back)
                if self.core.locks.awaited(window):
                    return copied
                copies, arenas = read
        except MemberLostError:
            pass
        except NoSpaceError as error:
            if self.error is None:
                log.error("the growth waits: %s", error)
            self.error = str(error)
        return copied

    def _cuts(self, stripes: list[int]) -> list[int]:
        """Return where to cut moves into batches, between two stripes."""
        cuts = []
        at = self._batch
        while at < len(stripes):
            if stripes[at] != stripes[at - 1]:
                cuts.append(at)
                at += self._batch
            else:
                at += 1
        return cuts

    async def _write_and_read(
        self, copies: list[Copy], following: Batch | None
    ) -> tuple[list[Copy], list[Arena]] | None:
        """Write *copies* and read the *following* batch side by side; raise what either raises."""
        errors: list[Exception] = []
        read: list[tuple[list[Copy], list[Arena]]] = []

        async def read_next(batch: Batch) -> None:
            try:
                read.append(await self._read(*batch))
            except (MemberLostError, RaidxError) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            if following is not None:
                nursery.start_soon(read_next, following)
            try:
                await self._write(copies)
            except (MemberLostError, RaidxError) as error:
                errors.insert(0, error)
        if errors:
            raise errors[0]
        return read[0] if read else None

    async def _read(
        self, stripes: Sequence[int], sources: Sequence[int], targets: Sequence[int]
    ) -> tuple[list[Copy], list[Arena]]:
        """Read blocks, those on lost members by their chains."""
        core = self.core
        store = core.store
        size = core.chunk_bytes
        arenas = [core.arenas.get(len(stripes) * size)]
        slots = arenas[0].slots(size, len(stripes))
        requests: list[Request] = []
        xors: list[tuple[Bytes, list[Bytes]]] = []
        copies = []
        for (view, array), stripe, source, target in zip(
            slots, stripes, sources, targets, strict=False
        ):
            copies.append(Copy(stripe, source, target, view, array))
            lost = self.layout.lost_cells(stripe, store.lost_at(stripe)) if store.lost else 0
            if not lost >> source & 1:
                requests.append((*core.position(stripe, source), [view], size))
                continue
            try:
                plan = read_plan(core.code, 1 << source, lost, core.dead(stripe))
            except Unrecoverable:
                raise core.lost_error(stripe, (source,)) from None
            arena = core.arenas.get(len(plan.reads) * size)
            arenas.append(arena)
            values = {}
            for cell, (buffer, value) in zip(
                plan.reads, arena.slots(size, len(plan.reads)), strict=False
            ):
                values[cell] = value
                requests.append((*core.position(stripe, cell), [buffer], size))
            xors.append((array, [values[cell] for cell in plan.outputs[0].old]))
        await store.read(join(requests), background=True)
        for out, parts in xors:
            xor_into(out, parts)
        return copies, arenas

    async def _write(self, copies: list[Copy]) -> None:
        """Write blocks to their targets; by way of the journal where it may replay (law 4)."""
        core = self.core
        epoch = core.store.seat_epoch
        direct: list[Request] = []
        held: dict[int, list[Request]] = {}
        for copy in copies:
            request = (*core.position(copy.stripe, copy.target), [copy.view], core.chunk_bytes)
            if core.journal.holds(copy.stripe):
                held.setdefault(copy.stripe, []).append(request)
            else:
                direct.append(request)
        every = [request for part in (direct, *held.values()) for request in part]
        self._preparer.reserve([(role, offset) for role, offset, _, _ in every])
        await core.store.write(join(direct), background=True)
        for stripe, requests in held.items():
            await core.write_cells(stripe, requests, epoch)
