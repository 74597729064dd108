"""The write path: plan, read what the plan needs, XOR, write. Stripes run in parallel.

The order of steps keeps every stripe recoverable:

1. The region is marked in the dirty bitmap (write intent) before the first byte changes.
2. Data and parity are written together.
3. Only then the bits of the written map are set. A crash in between leaves an unwritten cell
   unwritten.

A member that fails during the writes is excluded and the request continues: the other cells of the
stripe carry its content. Nothing is acknowledged before the superblocks exclude every failed member
(`MemberSet.published`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from raidx_fuse.engine.access_stats import SAMPLE_MASK
from raidx_fuse.engine.chunk_cache import address_of
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.contradictions import give_sum
from raidx_fuse.engine.gate import Gate, Passage, enter, enter_now, leave
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.engine.write.full_stripe import FullStripeWrite, StripeEnd
from raidx_fuse.engine.write.pending import complete, complete_locked
from raidx_fuse.engine.write.prepare import (
    Piece,
    Work,
    doubted_places,
    find_unproven,
    fresh_chunks,
    prepare,
    split,
)
from raidx_fuse.engine.write.route import (
    Route,
    is_cached,
    is_whole,
    logs_data_only,
    must_mark,
    route,
    shape_of,
    state_of,
)
from raidx_fuse.engine.write.small import SmallWrite
from raidx_fuse.errors import RaidxError
from raidx_fuse.journal.group_commit import CommitBatch
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import CellIndex, Chunk, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import BandCells, Part, bands_of
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.store.buffers import ZEROS
from raidx_fuse.store.cells import Cover
from raidx_fuse.store.io_tuples import (
    PAGE_BYTES,
    PAGE_MASK,
    MemberIO,
    MemberLostError,
    MemberRead,
    join,
)
from raidx_fuse.store.xor import combine

log = logging.getLogger(__name__)

RECORD_SHARE = 8  # a record takes at most 1/RECORD_SHARE of the ring, unless one stripe has more


def data_writes(context: ArrayContext, piece: Piece, view: Any) -> list[MemberIO]:
    """Return the writes of the data of *piece*, whose request has the content *view*."""
    writes: list[MemberIO] = []
    for cell, low, high in piece.parts():
        role, position = context.position(piece.stripe, cell)
        content = piece.content(view, cell, low, high)
        writes.append((role, position + low, [content], high - low))
    return writes


async def log_data(context: ArrayContext, pieces: Sequence[Piece], view: memoryview) -> list[Piece]:
    """Log the data of *pieces*, whose stripes are locked.

    Returns the pieces that must be logged with their parity, because the layout is about to change
    or the ring is too small for it. Raises what the members raise.
    """
    done = 0
    while done < len(pieces):
        end = done
        changes: list[tuple[Stripe, list[Part], list[MemberIO]]] = []
        left_bytes = context.journal.capacity // RECORD_SHARE
        for piece in pieces[done:]:
            writes = data_writes(context, piece, view)
            left_bytes -= sum(request[3] for request in writes)
            if changes and left_bytes < 0:
                break
            changes.append((piece.stripe, piece.parts(), writes))
            end += 1
        if not await context.journal.commit_data(changes):
            return list(pieces[done:])
        if context.cache is not None:
            for piece in pieces[done:end]:
                _cache(context, piece, view)
        done = end
    if pieces and context.member_set.unpublished:
        await context.member_set.published()
    return []


def _cache(context: ArrayContext, piece: Piece, view: memoryview) -> None:
    """Put the data of *piece* into the chunk cache."""
    assert context.cache is not None
    for cell, low, high in piece.parts():
        address = address_of(context.layout, piece.stripe, cell) + low
        context.cache.wrote(address, piece.content(view, cell, low, high))


class _UnreadableError(Exception):
    """A page is unreadable: it is mended, then the stripes are written."""


class Writer:
    """Writes ranges of the image of one array; *write* is `write_for` without a volume."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        self.write = partial(self.write_for, None)
        self._prepare_fast()
        context.on_layout.append(self._prepare_fast)

    def _prepare_fast(self) -> None:
        self._small_write = SmallWrite(self.context)
        self._stripe_end = StripeEnd(self.context)
        self._full_stripe = FullStripeWrite(self.context)

    async def write_for(self, volume: Gate | None, offset: int, data: ReadBuffer) -> None:
        """Write all of *data* at *offset*; return when it is acknowledged (not yet durable).

        A write that suspends enters the gate of *volume* (None: of no volume, or it is inside).
        Raises NoSpaceError, UnrecoverableError or MemberError. After an error the old content or
        the new one is readable, or it is reported as lost.
        """
        context = self.context
        started_s = context.member_set.clock()
        view = memoryview(data)
        length = len(view)
        traffic = context.traffic
        traffic.writes += 1
        traffic.write_bytes += length
        if not length:
            return
        heat, chunk_bytes = traffic.heat, context.chunk_bytes
        if heat is not None:
            first, last = offset // chunk_bytes, (offset + length - 1) // chunk_bytes
            if first == last:
                noted = heat.noted
                noted.append(~first)
                if not len(noted) & SAMPLE_MASK:
                    heat.sample()
            else:
                heat.note(first, last, is_write=True)
        passage: Passage | None = None  # of a write that suspends
        fast = self._is_healthy()
        if context.member_set.sums is not None and (offset | length) & PAGE_MASK:
            fast = False  # parts of pages
        at = 0
        whole_cells = length >= chunk_bytes and not offset % chunk_bytes
        try:
            if fast and whole_cells and context.journal.unsettled.current:
                stripe = self._stripe_end.completed(offset, length)
                if stripe is not None and self._stripe_end.lacks_mark(stripe):
                    passage = enter_now(volume, context.gate)
                    await self._mark(stripe)
                    fast = self._is_healthy()
                    stripe = self._stripe_end.completed(offset, length) if fast else None
                ended = None if stripe is None else self._stripe_end.write(stripe, offset, view)
                if ended is not None:
                    at, pending = ended
                    if pending is not None:
                        passage = passage or enter_now(volume, context.gate)
                        await complete_locked(context, pending)
                        context.member_set.require_published("a write")
                        fast = False  # a member may have failed meanwhile
                if at == length:
                    traffic.count_synchronous(started_s)
                    return
            ranges = [(at, length)]  # left for the general path
            small = not at and offset % chunk_bytes + length <= chunk_bytes
            if (
                fast
                and small
                and not (context.cache is not None and self._is_cached(offset, length))
            ):
                done = self._small_write.write(offset, data, length)
                if done is not None:
                    if done[1]:
                        if done[1].__class__ is not CommitBatch:  # of which the log keeps the locks
                            passage = passage or enter_now(volume, context.gate)
                        await complete(context, done, offset, view)
                        context.member_set.require_published("a write")
                    elif context.cache is not None:
                        context.cache.wrote(offset, view)
                    traffic.count_synchronous(started_s)
                    return
            # One chunk may be a full stripe, of one data cell.
            if fast and (whole_cells or not small):
                whole = self._full_stripe.write(offset + at, view[at:], length - at)
                if whole is not None:
                    middle, tail, pending = whole[0], whole[1] - offset, whole[2]
                    if pending is not None:
                        passage = passage or enter_now(volume, context.gate)
                        await complete_locked(context, pending)
                        context.member_set.require_published("a write")
                    ranges = [(at, middle - offset), (tail, length)]
                    if middle == offset + at and tail == length:
                        traffic.count_synchronous(started_s)
                        return
            if passage is None:
                gate = context.gate
                passage = await enter(volume, gate) if gate.is_closed else enter_now(volume, gate)
            await self._write_general(offset, view, ranges)
            if context.member_set.unpublished:
                context.member_set.require_published("a write")
            traffic.count_suspended(started_s)
        finally:
            if passage is not None:
                leave(passage)

    async def _write_general(
        self, offset: int, view: memoryview, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Write those *ranges* of *view*, which begins at *offset*, under the stripes' locks."""
        context = self.context
        written = [(offset + at, offset + end) for at, end in ranges if at < end]
        while True:
            epoch = context.layout_epoch
            pieces = [piece for at, end in ranges for piece in split(context, offset, at, end)]
            stripes = sorted(piece.stripe for piece in pieces)
            await context.locks.acquire_all(stripes)
            if epoch == context.layout_epoch:
                break
            # a chunk may have moved while this task waited: look again
            context.locks.release_all(stripes)
        cache = context.cache
        try:
            if context.dirty_bitmap.guarded:
                await context.dirty_bitmap.finish(stripes)
            if context.member_set.sums is not None and (offset | len(view)) & PAGE_MASK:
                whole = {piece.stripe: piece.whole_cells(context.chunk_bytes) for piece in pieces}
                offset, view, unverified = await self._whole_pages(offset, view)
                pieces = split(context, offset, 0, len(view))
                for piece in pieces:
                    piece.keeps = piece.whole_cells(context.chunk_bytes) != whole[piece.stripe]
                    piece.unverified = [
                        (cell, at) for s, cell, at in unverified if s == piece.stripe
                    ]
            while not await self._write_stripes(pieces, stripes, view, offset):
                pass
            if context.bad_chunks:
                for at, end in written:
                    self._forgive(at, end)
        finally:
            # switched on meanwhile: readers may have cached old content
            if context.cache is not cache:
                for stripe in stripes:
                    context.forget_stripe(stripe)
            context.locks.release_all(stripes)

    async def _whole_pages(
        self, offset: int, view: memoryview
    ) -> tuple[int, memoryview, list[tuple[Stripe, CellIndex, int]]]:
        """Return *view* at *offset* with what its first and last page hold beside it.

        With them come (stripe, cell, byte in it) of those pages of which nothing says that they are
        right: they have no sum, and the code cannot tell. The locks of its stripes are held. Raises
        what the members raise, and UnrecoverableError if a page of which a part stays is lost.
        """
        begin, end = offset & ~PAGE_MASK, -(-(offset + len(view)) // PAGE_BYTES) * PAGE_BYTES
        whole = memoryview(bytearray(end - begin))
        unverified = []
        for at in sorted({begin, end - PAGE_BYTES}):
            if offset <= at and at + PAGE_BYTES <= offset + len(view):
                continue
            if not await self._read_page(at, whole[at - begin :][:PAGE_BYTES]):
                chunk, low = divmod(at, self.context.chunk_bytes)
                unverified.append((*self.context.layout.locate(chunk), low))
        whole[offset - begin :][: len(view)] = view
        return begin, whole, unverified

    async def _read_page(self, at: int, page: memoryview) -> bool:
        """Fill *page* with the bytes of the image from *at* on; the lock of its stripe is held.

        Returns whether they are verified, or known.
        """
        context, sums = self.context, self.context.member_set.sums
        chunk, low = divmod(at, context.chunk_bytes)
        stripe, cell = context.layout.locate(chunk)
        while True:
            if context.unwritten_cells(stripe) >> cell & 1 or context.refused(at, PAGE_BYTES) == at:
                page[:] = ZEROS[:PAGE_BYTES]
                return True
            if context.member_set.lost_cells(stripe):
                await context.member_set.unreadable.mend((stripe,))
                await context.journal.settle((stripe,))
            reader = CellReader(context, background=False)
            try:
                is_verified = sums is None or await give_sum(context, sums, stripe, cell, low)
                reader.add(stripe, {cell: page}, low, PAGE_BYTES)
                await reader.run()
                return is_verified
            except MemberLostError:
                continue

    def _is_healthy(self) -> bool:
        """Return whether fast paths may write: no member, chunk or page is lost, nothing is due.

        Due are a membership change that is not published, a resync, and a change for which the gate
        is closed.
        """
        context, member_set = self.context, self.context.member_set
        healthy = not member_set.lost and not member_set.unpublished and not context.bad_chunks
        calm = not context.dirty_bitmap.guarded and not member_set.unreadable
        return healthy and calm and not context.gate.is_closed

    async def _mark(self, stripe: Stripe) -> None:
        """Mark the region of *stripe* in the dirty bitmap, unless the layout changes meanwhile.

        The lock of the stripe keeps the layout while the mark is written. Raises what a flush of
        the members raises.
        """
        context, epoch = self.context, self.context.layout_epoch
        await context.locks.acquire_all([stripe])
        try:
            if epoch == context.layout_epoch:
                async with context.cells.marked([stripe]):
                    pass
        finally:
            context.locks.release_all([stripe])

    async def _write_stripes(
        self, pieces: list[Piece], stripes: list[Stripe], view: memoryview, offset: int
    ) -> bool:
        """Write *pieces* under the locks of *stripes*: decide their routes, carry them out.

        Returns False, with nothing written, if a page that was to be read first is unreadable.
        """
        context, member_set = self.context, self.context.member_set
        if member_set.unreadable:
            needed = {p.stripe: p.needed(view) for p in pieces}
            await member_set.unreadable.mend(stripes, needed)
        growth = context.growth
        if growth is not None and any(growth.threatens(p.stripe, p.touched) for p in pieces):
            await growth.save()
            if any(growth.threatens(p.stripe, p.touched) for p in pieces):
                raise member_set.laws.broken(Law.SAVED, f"a write to stripes {stripes}")
        logged: list[Piece] = []
        direct: list[Piece] = []
        marked: list[Stripe] = []
        data_only: list[Piece] = []
        for piece in pieces:
            state, touched = state_of(context, piece.stripe), piece.touched
            if route(state, touched, is_whole(context, state, piece)) is Route.LOG:
                only = logs_data_only(state, shape_of(context, piece)) and not piece.unverified
                if only and context.cache is not None:
                    only = not is_cached(context, piece.stripe, bands_of(piece.parts()))
                (data_only if only else logged).append(piece)
                continue
            direct.append(piece)
            if must_mark(state, touched):
                marked.append(piece.stripe)
        through_log = bool(logged or data_only)
        if through_log and context.traffic.may_tear(offset, len(view)):
            await member_set.flush()
        async with context.cells.marked(marked) if marked else nullcontext():
            try:
                if data_only:
                    logged += await log_data(context, data_only, view)
                if logged:
                    await context.journal.settle([piece.stripe for piece in logged])
                if direct or logged:
                    await self._write_locked(direct, logged, view)
                if not context.code.parity_count and member_set.unreadable:
                    await member_set.unreadable.mend(stripes)  # what was written can be read
            except _UnreadableError:
                return False
            except BaseException:
                for stripe in stripes:
                    context.forget_stripe(stripe)
                raise
        return True

    async def _write_locked(
        self, direct: list[Piece], logged: list[Piece], view: memoryview
    ) -> None:
        """Carry the pieces out under their locks: plan, read, XOR, then write or commit.

        Another member may take a role meanwhile (see `_write_content`). Pieces that are
        already written in stripes with written chunks stay as they are: a rebuild waits for the
        locks of those stripes. Writing such a piece again would be wrong: the parity already
        includes it, but it counts as zero until its bits in the written map are set.
        """
        context = self.context
        placed: list[Piece] = []
        begun: list[Piece] = []
        try:
            while True:
                every, epoch = await self._prepare(direct, placed, logged, view)
                begun = placed + direct
                if every[0].writes:
                    if context.journal.ring.stripes or context.journal.forced:
                        self._require_bypass(direct)
                    context.traffic.past_log += 1
                    changed = [piece.stripe for piece in direct]
                    unverified = every[0].unverified + [
                        place for piece in direct for place in piece.unverified_places(context)
                    ]
                    await context.cells.write(
                        *(join(every[0].writes), Cover.MARKED, changed),
                        background=False,
                        unverified=context.sum_pages(unverified),
                    )
                if await self._write_content(every[0], logged, every[1:], epoch):
                    break
                placed += [piece for piece in direct if not context.is_unwritten(piece.stripe)]
                direct = [piece for piece in direct if context.is_unwritten(piece.stripe)]
        except RaidxError:
            first_writes = [piece for piece in begun if fresh_chunks(context, piece)]
            if first_writes:  # an unwritten place, and the parity, may hold part of it now
                context.note_torn(piece.stripe for piece in first_writes)
                context.zeros.distrust()
            raise
        if context.cache is not None:
            self._keep(every)
            for piece in placed:
                context.forget_stripe(piece.stripe)
        for part in every:
            for arena in part.arenas:
                context.arenas.put(arena)
            for plan, pre_reads in part.plans:
                context.traffic.count_plan(plan.kind, pre_reads)
        if context.member_set.unpublished:
            await context.member_set.published()

    def _require_bypass(self, direct: list[Piece]) -> None:
        """Raise LawError unless *direct* may go past the log now."""
        context = self.context
        moves = context.layout.restriping  # law 4 of jobs/restripe/job.py
        for piece in direct:
            if moves or context.journal.holds(piece.stripe):
                raise context.member_set.laws.broken(Law.BYPASS, f"stripe {piece.stripe}")

    async def _prepare(
        self, direct: list[Piece], placed: list[Piece], logged: list[Piece], view: memoryview
    ) -> tuple[list[Work], int]:
        """Plan, read and XOR; return the work past the log, that of each record, and the epoch.

        The pieces in *placed* need no further work; the chunks that they write for the first time
        are listed in the work past the log, the first item of the list.
        """
        context = self.context
        member_set = context.member_set
        unproven: BandCells = {}
        while True:
            epoch = member_set.role_epoch
            if member_set.lost:
                context.changes.note_degraded(piece.stripe for piece in (*direct, *placed, *logged))
            work = Work()
            for piece in direct:
                prepare(context, piece, view, work, unproven)
            for piece in placed:
                work.fresh.extend(fresh_chunks(context, piece))
            every = [work]
            for piece in logged:
                record = Work()
                prepare(context, piece, view, record, unproven)
                every.append(record)
            if member_set.sums is not None and await self._is_unproven(every, unproven):
                continue  # plan again without it, if that is possible
            if context.cache is not None:
                for part in every:
                    for address, size, _data, changed in part.contents:
                        if changed:
                            context.cache.forget(address, size)
            reads: list[MemberRead] = []
            for part in every:
                reads += part.reads
            if reads:
                try:
                    await member_set.read(join(reads))
                except MemberLostError:
                    if member_set.unreadable and not placed:
                        raise _UnreadableError from None
                    continue  # nothing is written yet: plan again without that member
            for part in every:
                if part.reserve:
                    member_set.reserve_chunks(part.reserve)
                for out, terms in part.xors:
                    combine(out, terms)
            return every, epoch

    async def _is_unproven(self, every: Sequence[Work], unproven: BandCells) -> bool:
        """Enter what is to be read and nothing proves; return whether there is more of it.

        The parities that come from it get no sums.
        """
        context, sums = self.context, self.context.member_set.sums
        bands = [band for part in every for band in part.read_bands]
        if sums is None or not bands:
            return False
        try:
            again = await find_unproven(context, sums, bands, unproven)
        except MemberLostError:
            again = True
        if again:
            for part in every:
                for arena in part.arenas:
                    context.arenas.put(arena)
            return True
        for part in every:
            part.unverified.extend(doubted_places(context, part.read_bands, unproven))
        return False

    async def _write_content(
        self, work: Work, logged: list[Piece], records: list[Work], epoch: int
    ) -> bool:
        """Commit logged pieces and first writes; return False if a role was taken meanwhile.

        Writes planned for the former member must not reach the new one: the caller plans again.
        """
        context = self.context
        journal = context.journal
        fresh = list(work.fresh)

        def still_valid() -> bool:
            return epoch == context.member_set.role_epoch

        if fresh and not context.zeros.all_roles:
            # If the bit survives a power cut, so must the content: otherwise the chunk would show
            # what the members held there before. Mode none; or it was, when the route was chosen.
            await context.member_set.flush()
        if fresh and journal.mode == "none":
            if not still_valid():
                return False
            await context.written.mark(fresh)
            fresh = []
        stripes: list[Stripe] = []
        writes: list[MemberIO] = []
        unverified: list[tuple[Role, int]] = []
        size = 0
        for piece, record in zip(logged, records, strict=True):
            # Each stripe is atomic by itself; a request of many stripes is split into records
            # that fit the ring.
            more = sum(request[3] for request in record.writes)
            if stripes and size + more > journal.capacity // 4:
                if not await journal.commit(
                    stripes, join(writes), fresh, still_valid, unverified=unverified
                ):
                    return False
                stripes, writes, fresh, unverified, size = [], [], [], [], 0
            stripes.append(piece.stripe)
            writes += record.writes
            fresh += record.fresh
            unverified += piece.unverified_places(context)
            unverified += record.unverified
            size += more
        if not stripes and not fresh:
            return True
        return await journal.commit(
            stripes, join(writes), fresh, still_valid, unverified=unverified
        )

    def _forgive(self, offset: int, end: int) -> None:
        """Take the pages of *offset* .. *end* - 1, which were written whole, off the list."""
        context, size = self.context, self.context.chunk_bytes
        for chunk in range(offset // size, (end - 1) // size + 1):
            begin = chunk * size
            context.forgive(Chunk(chunk), max(offset - begin, 0), min(end - begin, size))

    def _is_cached(self, offset: int, length: int) -> bool:
        """Return True if the cache holds what a write inside one chunk reads or changes."""
        context = self.context
        stripe, cell = context.layout.locate(offset // context.chunk_bytes)
        low = offset % context.chunk_bytes
        return is_cached(context, stripe, [(low, low + length, 1 << cell)])

    def _keep(self, every: list[Work]) -> None:
        """Put the new content of the stripes into the cache; their locks are held."""
        context = self.context
        cache = context.cache
        assert cache is not None
        for part in every:
            context.traffic.cache_pre_reads += part.cached
            for address, size, data, changed in part.contents:
                if changed:
                    cache.forget(address, size)
                if data is not None:
                    cache.keep(address, data)
