"""Writing: plan, read what the plan needs, XOR, write; one stripe at a time, stripes in parallel.

The order that keeps a stripe solvable: the region is marked dirty on the members before the first
byte changes; data and parity go down together; only then do the written map's bits, so that a
crash in between leaves a dead cell dead. A member that fails during the writes is excluded and the
request goes on: the other cells of the stripe carry its content. Nothing is acknowledged before the
superblocks say who is out (`Store.settled`).
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raidx_fuse.core import Core
from raidx_fuse.errors import MemberError, NoSpaceError, RaidxError
from raidx_fuse.layouts.code import Unrecoverable
from raidx_fuse.layouts.plan import BandPlan, bands, cells_of, write_plans
from raidx_fuse.parity import Arena, Bytes, xor_into
from raidx_fuse.store import MemberLostError, Request, join
from raidx_fuse.zeros import zero_buffers

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Piece:
    """The part of a request inside one stripe: bytes *start* of cell *first* .. *end* of *last*.

    *data_at* is where it begins in the request.
    """

    stripe: int
    first: int
    start: int
    last: int
    end: int
    data_at: int


@dataclass(slots=True)
class Work:
    """What is prepared for a request before its writes begin."""

    reads: list[Request] = field(default_factory=list)
    xors: list[tuple[Bytes, list[Bytes]]] = field(default_factory=list)
    writes: list[Request] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)  # logical chunks that come alive
    reserve: list[tuple[int, int]] = field(default_factory=list)  # (role, byte offset) of chunks
    arenas: list[Arena] = field(default_factory=list)
    plans: list[BandPlan] = field(default_factory=list)


class Writer:
    """Writes ranges of the image through *core*."""

    def __init__(self, core: Core) -> None:
        self.core = core

    async def write(self, offset: int, data: Any) -> None:
        """Write all of *data* at *offset*; returns when it is acknowledged (not flushed).

        Raises NoSpaceError, UnrecoverableError or MemberError; old content stays readable or is
        reported as lost, never guessed.
        """
        core = self.core
        started_s = core.store.clock()
        view = memoryview(data)
        length = len(view)
        core.counters.writes += 1
        core.counters.write_bytes += length
        if not length:
            return
        pieces = self._split(offset, length)
        stripes = [piece.stripe for piece in pieces]
        if len(stripes) > 1:
            stripes.sort()
        await core.locks.acquire_all(stripes)
        try:
            if not core.dirty.enter_now(stripes):
                await core.dirty.enter(stripes)
            try:
                await self._write_locked(pieces, view)
            finally:
                core.dirty.leave(stripes)
        finally:
            core.locks.release_all(stripes)
        core.touch(started_s)

    def _split(self, offset: int, length: int) -> list[Piece]:
        core = self.core
        layout, shift, mask = core.layout, core.shift, core.inner_mask
        span = core.data_count if layout.contiguous else 1
        pieces = []
        at = 0
        while at < length:
            chunk = offset + at >> shift
            stripe, first = layout.locate(chunk)
            start = offset + at & mask
            room = ((span - (first if span > 1 else 0)) << shift) - start
            size = min(room, length - at)
            last = first + (start + size - 1 >> shift)
            end = (start + size - 1 & mask) + 1
            pieces.append(Piece(stripe, first, start, last, end, at))
            at += size
        return pieces

    async def _write_locked(self, pieces: list[Piece], view: memoryview) -> None:
        core = self.core
        store = core.store
        while True:
            epoch = store.rebuild_epoch
            work = Work()
            for piece in pieces:
                self._prepare(piece, view, work)
            if work.reads:
                try:
                    await store.read(join(work.reads))
                except MemberLostError:
                    continue  # nothing was written: plan again without that member
            if work.reserve:
                self._reserve(work.reserve)
            for out, sources in work.xors:
                xor_into(out, sources)
            try:
                await store.write(join(work.writes))
            except RaidxError:
                self._note_torn(pieces)
                raise
            # A rebuild passes stripes that were never written without their locks; if one of ours
            # was passed meanwhile, write it again, now also to the member being rebuilt.
            if epoch == store.rebuild_epoch or not work.fresh:
                break
        if work.fresh:
            await core.written.mark(work.fresh)
        if core.bad_chunks:
            self._forgive(pieces)
        for arena in work.arenas:
            core.arenas.put(arena)
        self._count(work.plans)
        if store.unsettled:
            await store.settled()

    def _prepare(self, piece: Piece, view: memoryview, work: Work) -> None:
        """Add the reads, XORs and writes of *piece* to *work*."""
        core = self.core
        stripe = piece.stripe
        lost_roles = core.store.lost
        lost = 0
        if lost_roles:
            lost = core.layout.lost_cells(stripe, core.store.lost_at(stripe))
        dead = core.dead(stripe)
        covered: dict[int, list[tuple[int, int]]] = {}
        for low, high, touched in bands(
            piece.first, piece.start, piece.last, piece.end, core.chunk_bytes
        ):
            try:
                rmw, rcw = write_plans(core.code, touched, lost, dead)
            except Unrecoverable as error:
                raise core.lost_error(stripe, cells_of(error.cells)) from None
            plan = core.policy(rmw, rcw)
            work.plans.append(plan)
            self._prepare_band(piece, plan, low, high, view, work)
            if dead:
                for cell in plan.writes:
                    covered.setdefault(cell, []).append((low, high))
                for output in plan.outputs:
                    covered.setdefault(output.cell, []).append((low, high))
        if dead:
            self._enliven(piece, dead, covered, work)

    def _prepare_band(
        self, piece: Piece, plan: BandPlan, low: int, high: int, view: memoryview, work: Work
    ) -> None:
        core = self.core
        stripe, size = piece.stripe, high - low
        base = piece.data_at + low - piece.start  # of the band in cell *first*'s data
        shift, first = core.shift, piece.first
        old: dict[int, Bytes] = {}
        slots: list[tuple[memoryview, Bytes]] = []
        used = len(plan.reads)
        if plan.outputs:
            arena = core.arenas.get((used + len(plan.outputs)) * size)
            work.arenas.append(arena)
            slots = arena.slots(size, used + len(plan.outputs))
            for cell, (buffer, array) in zip(plan.reads, slots, strict=False):
                role, position = core.position(stripe, cell)
                old[cell] = array
                work.reads.append((role, position + low, [buffer], size))
        for cell in plan.writes:
            role, position = core.position(stripe, cell)
            at = base + (cell - first << shift)
            work.writes.append((role, position + low, [view[at : at + size]], size))
        new: dict[int, Bytes] = {}
        for output in plan.outputs:
            role, position = core.position(stripe, output.cell)
            if not output.old and len(output.new) == 1:  # a replica: the data as it came
                at = base + (output.new[0] - first << shift)
                work.writes.append((role, position + low, [view[at : at + size]], size))
                continue
            sources = [old[cell] for cell in output.old]
            for cell in output.new:
                if cell not in new:
                    at = base + (cell - first << shift)
                    new[cell] = np.frombuffer(view[at : at + size], dtype=np.uint8)
                sources.append(new[cell])
            buffer, out = slots[used]
            used += 1
            work.xors.append((out, sources))
            work.writes.append((role, position + low, [buffer], size))

    def _enliven(
        self, piece: Piece, dead: int, covered: dict[int, list[tuple[int, int]]], work: Work
    ) -> None:
        """Complete cells that come alive: zeros around what is written, unless it reads as zero."""
        core = self.core
        for cell in range(piece.first, piece.last + 1):
            if dead >> cell & 1:
                work.fresh.append(core.layout.logical(piece.stripe, cell))
        for cell, ranges in covered.items():
            if not dead >> cell & 1:
                continue
            role, position = core.position(piece.stripe, cell)
            work.reserve.append((role, position))
            if role in core.zero_roles:
                continue
            at = 0
            for low, high in [*sorted(ranges), (core.chunk_bytes, core.chunk_bytes)]:
                if low > at:
                    work.writes.append((role, position + at, zero_buffers(low - at), low - at))
                at = high

    def _reserve(self, places: list[tuple[int, int]]) -> None:
        """Make sure that chunks that come alive have room on their host, before anything changes.

        A sparse member on a full disk then refuses a write whole: no stripe is left half written.
        """
        core = self.core
        size = core.chunk_bytes
        for role, position, _buffers, length in join(
            [(role, position, [], size) for role, position in places]
        ):
            queue = core.store.queues[role]
            if queue is not None:
                try:
                    queue.member.reserve(position, length)
                except MemberError as error:
                    if error.errno != errno.ENOSPC:
                        continue  # the write itself will find the member out
                    raise NoSpaceError(
                        error.message, action="free space on the host file system"
                    ) from error

    def _note_torn(self, pieces: list[Piece]) -> None:
        """Remember which lost chunks a half-done write took down with it."""
        core = self.core
        for piece in pieces:
            lost = core.layout.lost_cells(piece.stripe, core.store.lost_at(piece.stripe))
            lost &= core.code.data_mask & ~core.dead(piece.stripe)
            for cell in cells_of(lost):
                chunk = core.layout.logical(piece.stripe, cell)
                log.error(
                    "the content of %s is lost: a member failed during a degraded write",
                    core.where(piece.stripe, (cell,)),
                )
                core.bad_chunks.add(chunk)

    def _forgive(self, pieces: list[Piece]) -> None:
        """Chunks that were written whole have content again."""
        core = self.core
        for piece in pieces:
            for cell in range(piece.first, piece.last + 1):
                whole_start = cell > piece.first or piece.start == 0
                whole_end = cell < piece.last or piece.end == core.chunk_bytes
                if whole_start and whole_end:
                    core.bad_chunks.discard(core.layout.logical(piece.stripe, cell))

    def _count(self, plans: list[BandPlan]) -> None:
        counters = self.core.counters
        for plan in plans:
            counters.pre_reads += len(plan.reads)
            if plan.kind == "rmw":
                counters.rmw += 1
            elif plan.kind == "rcw":
                counters.rcw += 1
            else:
                counters.full_stripe += 1
