"""The read path: healthy cells directly from their members, degraded reads by the chains.

A 4 KiB read that its member answers synchronously does not suspend and allocates nothing but its
tuples. The answer is in one static buffer, valid until the caller's next await; the FUSE reply has
been sent by then. Every other read takes the general path, with a buffer of its own.
"""

from __future__ import annotations

import logging
import mmap
from functools import partial
from math import inf
from typing import Any

from raidx_fuse.engine.access_stats import SAMPLE_MASK
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.gate import Gate, enter, enter_now, leave
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.errors import MemberError, RaidxError, UnrecoverableError
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import bands_of, cells_of
from raidx_fuse.store.buffers import ZEROS
from raidx_fuse.store.io_tuples import MemberLostError, MemberRead

log = logging.getLogger(__name__)

REPLY_BYTES = 1 << 20  # the largest FUSE read
_VIEWS_KEPT = 64
AT_ONCE_S = 20e-6  # looking for a faster copy would cost as much time as it could save


class Reader:
    """Reads ranges of the image of one array; *read* is `read_for` without a volume."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        self._reply = memoryview(mmap.mmap(-1, REPLY_BYTES))
        self._replies: dict[int, memoryview] = {}
        self.read = partial(self.read_for, None)
        self._take_layout()
        context.on_layout.append(self._take_layout)

    def _take_layout(self) -> None:
        code = self.context.code
        self._copies = cell_range(0, code.columns) if code.is_copies else None

    def _reply_of(self, length: int) -> memoryview:
        view = self._replies.get(length)
        if view is None:
            if len(self._replies) >= _VIEWS_KEPT:
                self._replies.clear()
            view = self._replies[length] = self._reply[:length]
        return view

    def _nearest(self, stripe: Stripe) -> tuple[CellIndex, Role, MemberChunk]:
        """Return (cell, role, member chunk) of the copy of *stripe* that should answer first.

        Copies are compared by queue length times service time, as in section V.E of the raidx
        paper: a short queue of a fast member may end before an idle slow member has begun. While a
        resync is due the first copy is always taken: copies may still differ, and a read must not
        return other content than an earlier read did.
        """
        context = self.context
        place, readable = context.layout.place, context.member_set.readable
        nearest = None
        least_s = inf
        for copy in (
            self._copies if self._copies and not context.dirty_bitmap.pending_regions() else ()
        ):
            role, chunk = place(stripe, copy)
            queue = readable[role]
            if queue is not None:
                answer_s = queue.read_service_s
                if queue.reads_waiting or queue.writes_waiting:
                    answer_s = queue.answer_s()
                elif answer_s < AT_ONCE_S:
                    return copy, role, chunk
                if answer_s < least_s:
                    nearest, least_s = (copy, role, chunk), answer_s
        return nearest or (CellIndex(0), *place(stripe, CellIndex(0)))

    async def read_for(self, volume: Gate | None, offset: int, length: int) -> memoryview:
        """Return *length* bytes at *offset*; the buffer is valid until the caller's next await.

        A read that suspends enters the gate of *volume* (None: of no volume, or it is inside).
        Raises UnrecoverableError or MemberError (EIO) when the code cannot give the bytes back.
        """
        context = self.context
        member_set = context.member_set
        started_s = member_set.clock()
        traffic = context.traffic
        heat = traffic.heat
        traffic.reads += 1
        traffic.read_bytes += length
        chunk_bytes = context.chunk_bytes
        chunk = offset // chunk_bytes
        inner = offset % chunk_bytes
        if context.dirty_bitmap.guarded:
            pass
        elif inner + length <= chunk_bytes and not context.bad_chunks:
            if not context.written.bits[chunk >> 3] >> (chunk & 7) & 1:
                traffic.count_synchronous(started_s)
                return ZEROS[:length]
            cache = context.cache
            if cache is not None:
                reply = self._reply_of(length)
                if cache.fill(offset, reply):
                    traffic.cache_hits += 1
                    traffic.count_synchronous(started_s)
                    return reply
            if heat is not None:
                noted = heat.noted
                noted.append(chunk)
                if not len(noted) & SAMPLE_MASK:
                    heat.sample()
            layout = context.layout
            stripe, cell = layout.locate(chunk)
            if self._copies is None:
                role, member_chunk = layout.place(stripe, cell)
            else:
                _cell, role, member_chunk = self._nearest(stripe)
            if member_set.readable[role] is not None:
                position = member_set.data_offset + member_chunk * chunk_bytes + inner
                reply = self._reply_of(length)
                try:
                    newest = member_set.try_read(role, position, (reply,), length)
                except MemberError:
                    newest = None  # the general path retries, excludes the member and plans again
                if newest is not None:
                    if newest is not reply:
                        reply = memoryview(newest)
                    elif cache is not None:
                        traffic.cache_misses += 1
                        self._keep(offset, reply)
                    traffic.count_synchronous(started_s)
                    return reply
        elif length <= REPLY_BYTES and not member_set.lost and not context.bad_chunks:
            if context.cache is not None:
                reply = self._reply_of(length)
                if context.cache.fill(offset, reply):
                    traffic.cache_hits += 1
                    traffic.count_synchronous(started_s)
                    return reply
            if heat is not None:
                heat.note(chunk, (offset + length - 1) // chunk_bytes, is_write=False)
            reply = self._reply_of(length)
            if self._read_at_once(offset, length, reply):
                if context.cache is not None:
                    traffic.cache_misses += 1
                    self._keep(offset, reply)
                traffic.count_synchronous(started_s)
                return reply
        gate = context.gate
        passage = await enter(volume, gate) if gate.is_closed else enter_now(volume, gate)
        try:
            answer = await self._read_general(offset, length)
        finally:
            leave(passage)
        traffic.count_suspended(started_s)
        return answer

    def _keep(self, offset: int, content: memoryview) -> None:
        """Cache what was read, except chunks that are unwritten or whose stripe is locked."""
        context = self.context
        cache, bits, held = context.cache, context.written.bits, context.locks.held
        assert cache is not None
        length, at = len(content), 0
        while at < length:
            chunk = (offset + at) // context.chunk_bytes
            size = min(context.chunk_bytes - (offset + at) % context.chunk_bytes, length - at)
            if bits[chunk >> 3] >> (chunk & 7) & 1 and context.layout.locate(chunk)[0] not in held:
                cache.keep(offset + at, content[at : at + size])
            at += size

    def _read_at_once(self, offset: int, length: int, reply: memoryview) -> bool:
        """Fill *reply* from healthy members without suspending; return False if that fails."""
        requests, zeros = self._segments(offset, length, reply)
        try:
            if not self.context.member_set.try_read_all(requests):
                return False
        except MemberError:
            return False
        for view in zeros:
            view[:] = ZEROS[: len(view)]
        return True

    def _segments(
        self, offset: int, length: int, target: memoryview
    ) -> tuple[list[MemberRead], list[memoryview]]:
        """Return the joined member reads of a range without lost members, and its unwritten parts.

        Bytes that are in the cache are copied to *target* and need no read.
        """
        context = self.context
        chunk_bytes, data_offset = context.chunk_bytes, context.member_set.data_offset
        bits, cache = context.written.bits, context.cache
        layout = context.layout
        locate, place = layout.locate, layout.place
        # The last I/O of each role, still open to be extended: within a request the chunks of one
        # member come in rising order.
        latest: dict[int, list[Any]] = {}
        requests: list[list[Any]] = []
        zeros: list[memoryview] = []
        done = 0
        while done < length:
            chunk = (offset + done) // chunk_bytes
            inner = (offset + done) % chunk_bytes
            size = min(chunk_bytes - inner, length - done)
            view = target[done : done + size]
            done += size
            if cache is not None and cache.fill(offset + done - size, view):
                continue
            if not bits[chunk >> 3] >> (chunk & 7) & 1:
                zeros.append(view)
                continue
            stripe, cell = locate(chunk)
            if self._copies is None:
                role, member_chunk = place(stripe, cell)
            else:
                _cell, role, member_chunk = self._nearest(stripe)
            position = data_offset + member_chunk * chunk_bytes + inner
            open_request = latest.get(role)
            if open_request is not None and open_request[1] + open_request[3] == position:
                open_request[2].append(view)
                open_request[3] += size
            else:
                latest[role] = request = [role, position, [view], size]
                requests.append(request)
        return requests, zeros  # type: ignore[return-value]  # lists serve as tuples here

    async def _read_general(self, offset: int, length: int) -> memoryview:
        """Return the bytes whatever is lost, slow or failing. Raises as `read_for`."""
        context = self.context
        if context.dirty_bitmap.guarded:
            await self._finish_torn(offset, length)
        cache = context.cache
        stamp = 0 if cache is None else cache.stamp(offset, length)
        chunks = offset // context.chunk_bytes, (offset + length - 1) // context.chunk_bytes
        while True:
            # A new buffer for each try: an operation that timed out may still fill the old one.
            answer = memoryview(bytearray(length))
            mark = context.layout.mark(*chunks)
            if context.bad_chunks:
                self._refuse_bad(offset, length)
            try:
                if cache is not None and cache.fill(offset, answer):
                    context.traffic.cache_hits += 1
                    return answer
                if not context.member_set.lost and not context.member_set.unreadable:
                    requests, _zeros = self._segments(offset, length, answer)
                    await context.member_set.read(requests)
                else:
                    await self._read_pieces(offset, answer)
                if context.bad_chunks:  # perhaps given up meanwhile
                    self._refuse_bad(offset, length)
                if mark == context.layout.mark(*chunks):
                    if cache is not None and cache is context.cache:
                        context.traffic.cache_misses += 1
                        if stamp == cache.stamp(offset, length):
                            self._keep(offset, answer)
                    return answer  # else the place read may belong to another chunk by now
            except MemberLostError:
                continue

    def _chunks(self, offset: int, length: int) -> range:
        size = self.context.chunk_bytes
        return range(offset // size, (offset + length - 1) // size + 1)

    async def _read_pieces(self, offset: int, answer: memoryview) -> None:
        """Fill *answer* with the bytes from *offset* on, one stripe after the other."""
        context = self.context
        done, length = 0, len(answer)
        while done < length:
            start = offset + done
            span = (
                context.code.data_count * context.chunk_bytes
                if context.layout.contiguous
                else context.chunk_bytes
            )
            size = min(span - start % span, length - done)
            await self._read_degraded(start, size, answer[done : done + size])
            done += size

    async def _finish_torn(self, offset: int, length: int) -> None:
        """Resync the stripes of a range that await it after a crash.

        Otherwise a later resync could change content that this read has returned.
        """
        context = self.context
        for chunk in self._chunks(offset, length):
            stripe, _ = context.layout.locate(chunk)
            if context.dirty_bitmap.awaits_resync(stripe):
                await context.locks.acquire(stripe)
                try:
                    await context.dirty_bitmap.finish((stripe,))
                # no space for parity, for example: the read is possible all the same
                except RaidxError as error:
                    log.warning("stripe %d still awaits its resync: %s", stripe, error)
                finally:
                    context.locks.release(stripe)

    def _refuse_bad(self, offset: int, length: int) -> None:
        at = self.context.refused(offset, length)
        if at is not None:
            raise UnrecoverableError(
                f"the content of image offset {at} was lost: "
                "no member, parity or copy can give it back",
                action="write it again or restore it from a copy",
            )

    async def _read_degraded(self, offset: int, length: int, answer: memoryview) -> None:
        """Fill *answer* with bytes of one stripe; recover those of lost members (degraded read)."""
        context = self.context
        if context.cache is not None and context.cache.fill(offset, answer):
            return
        epoch = context.layout_epoch
        stripe, first = context.layout.locate(offset // context.chunk_bytes)
        _, last = context.layout.locate((offset + length - 1) // context.chunk_bytes)
        touched = (2 << last) - (1 << first)
        if self._copies:
            touched = 1 << self._nearest(stripe)[0]
        if not touched & context.member_set.lost_cells(stripe) & ~context.unwritten_cells(stripe):
            requests, _zeros = self._segments(offset, length, answer)
            await context.member_set.read(requests)
            return
        # The chains hold only while no write to this stripe is under way.
        await context.locks.acquire(stripe)
        try:
            if epoch != context.layout_epoch:
                # a chunk may have moved while this read waited: look it up again
                raise MemberLostError
            if context.member_set.sums is not None:  # so that what misfits is judged once
                await context.member_set.unreadable.mend((stripe,))
            await context.journal.settle((stripe,))
            await self._solve(stripe, first, last, offset, length, answer)
        finally:
            context.locks.release(stripe)

    async def _solve(
        self, stripe: Stripe, first: int, last: int, offset: int, length: int, answer: memoryview
    ) -> None:
        context, chunk_bytes = self.context, self.context.chunk_bytes
        start = offset % chunk_bytes
        end = (offset + length - 1) % chunk_bytes + 1
        parts = []  # no comprehension: it would be one more function entered
        for cell in cell_range(first, last + 1):
            parts.append(
                (cell, start if cell == first else 0, end if cell == last else chunk_bytes)
            )
        unwritten = context.unwritten_cells(stripe)
        reader = CellReader(context, background=False)
        for low, high, touched in bands_of(parts):
            into = {}
            for cell in cells_of(touched & ~unwritten):
                at = (cell - first) * chunk_bytes + low - start
                into[cell] = answer[at : at + high - low]
            known = context.cached(stripe, context.code.all_mask & ~unwritten, low, high)
            context.traffic.degraded_reads += reader.add(stripe, into, low, high - low, known)
        await reader.run()
