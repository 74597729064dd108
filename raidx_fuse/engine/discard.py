"""Discard: a range of the image reads as zeros from now on and costs as little as possible.

    whole groups of chunks    locks -> mark -> record (bits cleared) -> checkpoint -> holes punched
    everything else           zeros are written, where there is content

A chunk may lose its bit in the written map alone only if no parity changes by that. A parity cell
counts as zero once all of its data cells are unwritten, so chunks go in groups: for each parity
that depends on one of them, the range covers every written chunk that this parity protects. Without
parity, and for copies, each chunk is such a group.

The order, and what a crash leaves after each step:

1. The regions are marked dirty. A crash changes nothing: the chains hold.
2. One record clears the bits. Recovery redoes it whole or not at all. It also redoes older records
   of the stripes, whose content then lies at places that count as unwritten; and where the holes
   are not punched yet, the old content does.
3. The checkpoint places what the log held of the stripes, so that nothing comes after the holes.
4. Holes are punched (`LocalMember.punch` in members/local.py); zeros are written where a member
   cannot punch, but is relied on to read as zero where it is unwritten. The holes are flushed: a
   first write may rely on them now, and a crash that kept the write must keep them, too. Until then
   a resync would zero these places again.

The stripes stay locked throughout: a first write comes before step 1 or after step 4. While the
layout changes (growth, restripe), the old places of chunks count after a crash; then nothing is
dropped, and zeros are written.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.errors import MemberError, NotFastError, RaidxError
from raidx_fuse.format.regions import COUNTER_MAX
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.store.buffers import zero_buffers
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import MemberLostError

log = logging.getLogger(__name__)

ZEROS_BYTES = 1 << 20  # of one write
CHUNKS_AT_ONCE = 1 << 16  # of the written map
STRIPES_AT_ONCE = 4096  # locked at a time
FAST_SHARE = 4  # zeros in so much of a range cost less than half of a write to all of it
ENTRY_SHARE = 64  # a record of a discard takes at most 1/4 of the log: 16 bytes for each chunk

Choose = Callable[[Sequence[Stripe]], Awaitable[dict[Stripe, int]]]


class Discarder:
    """Discards ranges of the image of one array; *write* is that of its `Writer`."""

    def __init__(
        self, context: ArrayContext, write: Callable[[int, ReadBuffer], Awaitable[None]]
    ) -> None:
        self.context = context
        self._write = write
        self.kept_bytes = COUNTER_MAX  # of the image, that volumes may have
        self._not_asked: dict[Role, object] = {}  # role -> the queue of a member that cannot punch

    async def give_up(self, size_bytes: int) -> None:
        """Make the image behind *size_bytes*, where nothing is in use, unwritten and keep it so.

        No volume gets any of it until `keep_all`. Raises RaidxError.
        """
        self.kept_bytes = size_bytes
        layout = self.context.layout
        if size_bytes < layout.size_bytes:  # behind a smaller image lie old copies (piggyback)
            await self.discard(size_bytes, layout.size_bytes - size_bytes)
            first = -(-size_bytes // layout.chunk_bytes)
            await self.forget_zeros(first, layout.chunks)

    def keep_all(self) -> None:
        self.kept_bytes = COUNTER_MAX

    async def discard(self, offset: int, length: int, fast_only: bool = False) -> None:
        """Let a range read as zeros; return when that is acknowledged (not yet durable).

        A crash before the next flush may leave any part of the old content. Raises as
        `Writer.write`; with *fast_only* `NotFastError`, with nothing done, where zeros would have
        to be written to more than 1/FAST_SHARE of the range.
        """
        context = self.context
        if fast_only and await self._zeros_due(offset, length) > length // FAST_SHARE:
            raise NotFastError("this range is not zeroed faster than by writing")
        size, end = context.chunk_bytes, offset + length
        whole = -(-offset // size), end // size
        at = offset
        while at < end:
            stop = min(end, (at // size + CHUNKS_AT_ONCE) * size)
            layout = context.layout
            for stripes in self._batches(max(whole[0], at // size), stop, whole[1]):
                await self._drop(layout, stripes, partial(self._droppable, *whole))
            for start, last in context.written.runs(at // size, -(-stop // size)):
                await self._zero(max(at, start * size), min(stop, last * size))
            at = stop
            if at < end:
                await trio.lowlevel.checkpoint()  # a range of any size, of which nothing is written
        if context.member_set.unpublished:
            await context.member_set.published()
            context.member_set.require_published("a discard")

    async def _zeros_due(self, offset: int, length: int) -> int:
        """Return how many bytes of a range `discard` would overwrite with zeros now."""
        context = self.context
        size, end, layout = context.chunk_bytes, offset + length, context.layout
        whole = -(-offset // size), end // size
        moving = layout.changing
        due = 0
        for at in range(offset // size, -(-end // size), CHUNKS_AT_ONCE):
            stop = min(at + CHUNKS_AT_ONCE, -(-end // size))
            for first, last in context.written.runs(at, stop):
                due += min(end, last * size) - max(offset, first * size)
            inside = max(whole[0], at), min(stop, whole[1])
            for stripes in () if moving else self._batches(inside[0], stop * size, inside[1]):
                dropped = (self._droppable_in(stripe, *whole).bit_count() for stripe in stripes)
                due -= sum(dropped) * size
            await trio.lowlevel.checkpoint()
        return due

    async def forget_zeros(self, first: int, end: int) -> None:
        """Make those chunks *first* .. *end* - 1 unwritten that hold nothing but zeros.

        No parity changes by that. Raises as `discard`.
        """
        context = self.context
        stripe_bytes = context.code.data_count * context.chunk_bytes
        layout, most = context.layout, max(1, ZEROS_BYTES // stripe_bytes)
        for at in range(first, end, CHUNKS_AT_ONCE):
            stop = min(end, at + CHUNKS_AT_ONCE) * context.chunk_bytes
            for stripes in self._batches(at, stop, end):
                for number in range(0, len(stripes), most):
                    part = stripes[number : number + most]
                    await self._drop(layout, part, partial(self._zeros, first, end))

    async def _zero(self, at: int, end: int) -> None:
        """Write zeros from byte *at* to *end*."""
        while at < end:
            stop = min(end, at + ZEROS_BYTES)
            await self._write(at, bytes(stop - at))
            at = stop

    def _batches(self, first: int, stop: int, end: int) -> Iterator[list[Stripe]]:
        """Yield the stripes of the written chunks from *first* on, before *end* and byte *stop*."""
        context = self.context
        locate = context.layout.locate
        last = min(end, -(-stop // context.chunk_bytes))
        if first >= last:
            return
        written = first + np.flatnonzero(context.written.is_written_many(np.arange(first, last)))
        stripes = sorted({locate(Chunk(chunk))[0] for chunk in written.tolist()})
        most = context.journal.capacity // (ENTRY_SHARE * context.code.data_count)
        most = max(1, min(STRIPES_AT_ONCE, most))
        for at in range(0, len(stripes), most):
            yield stripes[at : at + most]

    # -- dropping ------------------------------------------------------------------------------

    async def _drop(self, layout: Layout, stripes: list[Stripe], choose: Choose) -> None:
        """Make the cells of *stripes* of *layout* unwritten that *choose* returns, by stripe."""
        context = self.context
        passage = await context.gate.enter()
        try:
            await self._drop_in(layout, stripes, choose)
        finally:
            passage.leave()

    async def _drop_in(self, layout: Layout, stripes: list[Stripe], choose: Choose) -> None:
        """Do the same inside the gate of the layout."""
        context = self.context
        await context.locks.acquire_all(stripes)
        try:
            if layout is not context.layout or context.growth is not None or layout.restriping:
                return
            if context.dirty_bitmap.guarded:
                await context.dirty_bitmap.finish(stripes)
            found = await choose(stripes)
            dropped = {stripe: cells for stripe, cells in found.items() if cells}
            if dropped:
                await self._drop_locked(dropped)
        finally:
            context.locks.release_all(stripes)

    def _written(self, stripe: Stripe, first: int, end: int) -> tuple[int, int]:
        """Return the written data cells of *stripe*, and those of the chunks *first* .. *end* - 1.

        Both are masks.
        """
        context = self.context
        logical = context.layout.logical
        written = context.code.data_mask & ~context.unwritten_cells(stripe)
        inside = (cell for cell in cells_of(written) if first <= logical(stripe, cell) < end)
        return written, sum(1 << cell for cell in inside)

    async def _zeros(self, first: int, end: int, stripes: Sequence[Stripe]) -> dict[Stripe, int]:
        """Return the cells of *stripes*, which are locked, that hold zeros, as masks."""
        context = self.context
        await context.journal.settle(stripes)
        size = context.chunk_bytes
        while True:
            reader = CellReader(context)
            content: dict[Stripe, dict[CellIndex, bytearray]] = {}
            for stripe in stripes:
                _, cells = self._written(stripe, first, end)
                content[stripe] = {cell: bytearray(size) for cell in cells_of(cells)}
                reader.add(stripe, content[stripe])
            try:
                await reader.run()
            except MemberLostError:
                continue  # the next plan does without it
            return {
                stripe: sum(1 << cell for cell, data in cells.items() if data.count(0) == size)
                for stripe, cells in content.items()
            }

    async def _droppable(
        self, first: int, end: int, stripes: Sequence[Stripe]
    ) -> dict[Stripe, int]:
        """Return the written cells of *stripes* that may lose their bits, as masks."""
        return {stripe: self._droppable_in(stripe, first, end) for stripe in stripes}

    def _droppable_in(self, stripe: Stripe, first: int, end: int) -> int:
        support = self.context.code.support
        written, cells = self._written(stripe, first, end)
        while cells:
            kept = 0
            for protected in support:
                if protected & cells and protected & written & ~cells:
                    kept |= protected & cells
            if not kept:
                break
            cells &= ~kept
        return cells

    async def _drop_locked(self, dropped: dict[Stripe, int]) -> None:
        """Make the cells *dropped* unwritten, by stripe; the stripes are locked."""
        context = self.context
        journal, stripes = context.journal, sorted(dropped)
        chunks = [
            context.layout.logical(stripe, cell)
            for stripe in stripes
            for cell in cells_of(dropped[stripe])
        ]
        before = {stripe: context.unwritten_cells(stripe) for stripe in stripes}
        trusted = bool(context.zeros.recorded())
        async with context.cells.marked(stripes) if trusted else nullcontext():
            await journal.settle(stripes)
            with trio.CancelScope(shield=True):  # the holes belong to the record
                await journal.commit(stripes, (), (), unwritten=chunks)
                for stripe in stripes:
                    context.forget_stripe(stripe)
                if context.bad_chunks:
                    for chunk in chunks:
                        context.bad_chunks.discard(chunk)
                await self._empty(before)

    async def _empty(self, before: dict[Stripe, int]) -> None:
        """Give the places of cells back that are unwritten now, but not in the masks *before*."""
        context = self.context
        left: dict[Role, list[int]] = {}
        absent: list[tuple[Role, int]] = []
        for stripe, unwritten in before.items():
            for cell in cells_of(context.unwritten_cells(stripe) & ~unwritten):
                role, offset = context.position(stripe, cell)
                if role < 0:
                    continue
                if context.member_set.queues[role] is not None:
                    left.setdefault(role, []).append(offset)
                elif context.kept_sums(stripe) >> cell & 1:
                    absent.append((role, offset))
        zeroed, sums, size = context.zeros.recorded(), context.member_set.sums, context.chunk_bytes
        asked = [role for role in left if role in zeroed or self._can_punch(role)]
        if not asked and sums is None:
            return
        try:
            await context.journal.place_before(context.journal.ring.next_sequence)
            if sums is not None:  # after the log, which has set sums with what it placed
                places = [(role, at) for role in left for at in left[role]]
                await sums.forget((role, at, (), size) for role, at in (*places, *absent))
            async with trio.open_nursery() as nursery:
                for role in asked:
                    nursery.start_soon(self._punch_all, role, left[role], role in zeroed)
            if zeroed:
                await context.member_set.flush()
        except* RaidxError as errors:
            log.warning("discarded places are not empty: %s", errors.exceptions[0])
            context.zeros.distrust()

    async def _punch_all(self, role: Role, places: Sequence[int], zeroed: bool) -> None:
        """Punch the chunks at *places* (byte offsets); write zeros if *zeroed* demands it."""
        size = self.context.chunk_bytes
        rows = np.array(sorted(places), np.int64)
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != size) + 1):
            await self._punch(role, int(run[0]), len(run) * size, zeroed)

    def _can_punch(self, role: Role) -> bool:
        queue = self.context.member_set.queues[role]
        return queue is not None and self._not_asked.get(role) is not queue

    async def _punch(self, role: Role, offset: int, size: int, zeroed: bool) -> None:
        member_set = self.context.member_set
        queue = member_set.queues[role]
        done = False
        if self._can_punch(role):
            try:
                done = await member_set.punch(role, offset, size)
            except MemberError as error:
                log.warning("%s; no more holes are punched there", error)
            if not done:
                self._not_asked[role] = queue
        if zeroed and not done:
            for at in range(offset, offset + size, ZEROS_BYTES):
                part = min(ZEROS_BYTES, offset + size - at)
                zeros = (role, at, zero_buffers(part), part)
                await self.context.cells.write([zeros], Cover.VACANT)
