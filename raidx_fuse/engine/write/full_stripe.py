"""Full-stripe writes: the middle of a large write, one I/O per member, without suspending.

    request            [ part | whole  | whole  | whole  | part ]
    member 0                  [ 0.0    | 1.0    | 2.P    ]         one pwritev of three buffers
    member 1                  [ 0.1    | 1.P    | 2.1    ]
    member 2                  [ 0.P    | 1.0    | 2.0    ]

Nothing is read first, and nothing depends on the old content of the stripes. If some members cannot
write synchronously, their writes are returned as a pending write, which the caller completes
(pending.py). If no member can, nothing was written, and the general path (write.py) writes
everything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.pending import PendingWrite, keep_locked, write_synchronously
from raidx_fuse.engine.write.route import Route, healthy_routes
from raidx_fuse.layouts.numbers import by_role, stripe_range
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.elastic_mapping import Generation
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.xor import encoder

BUFFERS_MAX = 512  # in one I/O


class FullStripeWrite:
    """Writes the full stripes inside a range of the image."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        layout, code = context.layout, context.code
        self.stripe_bytes = context.data_count << context.shift
        self._fits = layout.contiguous and layout.aligned
        self._encoder = encoder(code)
        self._routes = healthy_routes(context)

    def write(
        self, offset: int, view: memoryview, length: int
    ) -> tuple[int, int, PendingWrite | None] | None:
        """Write the full stripes inside a range; return their first and end byte in the image.

        The third item is the pending write, if some members could not write synchronously: the
        caller completes it. Returns None if the conditions are not met: the general path then
        writes everything. The caller has checked that no member is lost, no chunk is lost and no
        membership change is under way.
        """
        stripe_bytes = self.stripe_bytes
        first, end = -(-offset // stripe_bytes), (offset + length) // stripe_bytes
        context = self.context
        rows = context.code.rows
        if first >= end or not self._fits or (end - first) * rows > BUFFERS_MAX:
            return None
        if not context.written.whole(context.layout, first, end) or not self._may_bypass(
            first, end
        ):
            return None
        arena = context.arenas.get(
            max(1, (end - first) * context.code.parity_count << context.shift)
        )
        buffers = self._buffers(first, end, view, first * stripe_bytes - offset, arena)
        position = context.data_offset + (first * rows << context.shift)
        size = (end - first) * rows << context.shift
        if context.cache is not None:
            self._forget(first, end)
        context.unflushed_writes.add()
        left = write_synchronously(
            context, [(r, position, parts, size) for r, parts in by_role(buffers)]
        )
        if left is None:
            return None
        pending = keep_locked(context, stripe_range(first, end), left, arena)
        context.counters.count_full_stripes(end - first)
        if context.cache is not None and pending is None:
            at = first * stripe_bytes
            context.cache.keep(at, view[at - offset : end * stripe_bytes - offset])
        return first * stripe_bytes, end * stripe_bytes, pending

    def _forget(self, first: int, end: int) -> None:
        """Drop the cached pages of the stripes: data, then parity at addresses below zero."""
        cache, sums = self.context.cache, self.context.code.parity_count
        assert cache is not None
        cache.forget(first * self.stripe_bytes, (end - first) * self.stripe_bytes)
        if sums:
            shift = self.context.shift
            cache.forget(-(end * sums << shift), (end - first) * sums << shift)

    def _may_bypass(self, first: int, end: int) -> bool:
        """Return True if the stripes may be written past the log now."""
        context = self.context
        journal, held = context.journal, context.locks.held
        routes = self._routes[journal.mode]
        if routes.whole is Route.LOG:
            return False
        for stripe in stripe_range(first, end):
            if stripe in held or journal.holds(stripe):
                return False
            if routes.marks and not context.dirty_bitmap.touch(stripe):
                return False
        return True

    def _buffers(
        self, first: int, end: int, view: memoryview, start: int, arena: Arena
    ) -> list[list[memoryview]]:
        """Return the buffers of each role in member order; compute the parities into *arena*."""
        context = self.context
        chunk_bytes, code, layout = context.chunk_bytes, context.code, context.layout
        buffers: list[list[memoryview]] = [[] for _ in range(layout.width)]
        cells = [view[:0]] * (code.data_count + code.parity_count)
        sums = code.parity_count
        content: Bytes | None = np.frombuffer(view, dtype=np.uint8) if sums else None
        slots = iter(arena.slots(chunk_bytes, (end - first) * sums) if sums else [])
        at = start
        for stripe in stripe_range(first, end):
            for cell in range(code.data_count):
                cells[cell] = view[at + cell * chunk_bytes : at + (cell + 1) * chunk_bytes]
            if content is not None:
                starts = range(at, at + self.stripe_bytes, chunk_bytes)
                arrays = [content[begin : begin + chunk_bytes] for begin in starts]
                for parity in range(code.data_count, len(cells)):
                    cells[parity], out = next(slots)
                    arrays.append(out)
                self._encoder.run(arrays)
            for role, column in zip(layout.roles(stripe), code.column_cells, strict=True):
                buffers[role].extend(cells[cell] for cell in column)
            at += self.stripe_bytes
        return buffers


# Full-stripe writes of an array that has grown.
#
# A stripe of a grown array holds chunks of several generations (`Generation` in
# layouts/placements/elastic_mapping.py): the original image is one generation, and each growth adds
# one. The chunks of one generation may follow one another in the image, stripe by stripe; chunks of
# different generations do not. While all written chunks of a stripe belong to one generation, a
# write of all of them is a write of the full stripe. After a growth this holds for every stripe
# until the new end of the image is written:
#
#     raid4, 4 to 5 data disks, stripes 0, 1, 2       disk 0   1   2   3     parity
#     write of blocks 0 to 8                               -   1   2   0     0+1+2     - newer,
#                                                          3   -   5   4     3+4+5       unwritten
#                                                          6   7   -   8     6+7+8

Run = list[Any]  # byte offset on the member, buffers, size


class GrownFullStripeWrite(FullStripeWrite):
    """Writes the full stripes inside a range of an array that has grown or can grow."""

    def __init__(self, context: ArrayContext) -> None:
        super().__init__(context)
        assert isinstance(context.layout, ElasticLayout)
        self._layout: ElasticLayout = context.layout

    def write(
        self, offset: int, view: memoryview, length: int
    ) -> tuple[int, int, PendingWrite | None] | None:
        """Write the full stripes inside a range, as `FullStripeWrite.write` does."""
        context, layout = self.context, self._layout
        if context.growth is not None:
            return None
        shift = context.shift
        first, end = -(-offset >> shift), min(offset + length >> shift, layout.chunks)
        if first >= end:
            return None
        born = layout.generation_at(first)
        if not born.in_order or (born.start and born.rows > 1):
            return None
        count = born.columns * born.rows
        row = -(-(first - born.start) // count)
        stop = min((end - born.start) // count, layout.stripes)
        if row >= stop or (stop - row) * born.rows > BUFFERS_MAX:
            return None
        first, end = born.start + row * count, born.start + stop * count
        if not self._is_alone(row, stop, born) or not context.written.all_written(first, end):
            return None
        if not self._may_bypass(row, stop):
            return None
        sums = context.code.parity_count
        arena = context.arenas.get(max(1, (stop - row) * sums << shift))
        begin = first << shift
        runs = self._runs(row, stop, born, view[begin - offset : (end << shift) - offset], arena)
        if context.cache is not None:
            context.cache.forget(begin, end - first << shift)
            context.cache.forget(-(stop * sums << shift), (stop - row) * sums << shift)  # parity
        context.unflushed_writes.add()
        requests = [
            (role, position, buffers, size)
            for role, parts in by_role(runs)
            for position, buffers, size in parts
        ]
        left = write_synchronously(context, requests)
        if left is None:
            return None
        pending = keep_locked(context, stripe_range(row, stop), left, arena)
        context.counters.count_full_stripes(stop - row)
        if context.cache is not None and pending is None:
            context.cache.keep(begin, view[begin - offset : (end << shift) - offset])
        return begin, end << shift, pending

    def _is_alone(self, row: int, stop: int, born: Generation) -> bool:
        """Return True if all written chunks of the stripes row..stop-1 are of generation *born*."""
        if not self.context.code.parity_count:
            return True  # without parity no chunk of a stripe depends on the others
        written = self.context.written
        for other in self._layout.generations:
            if other is born:
                continue
            if other.in_order:
                count = other.columns * other.rows
                first, end = other.start + row * count, other.start + stop * count
                alone = written.none_written(first, end)
            else:
                alone = written.none_written(other.start, other.end)
            if not alone:
                return False
        return True

    def _runs(
        self, row: int, stop: int, born: Generation, content: memoryview, arena: Arena
    ) -> list[list[Run]]:
        """Return the runs of *content* and parity that each role writes in stripes row..stop-1."""
        context, layout = self.context, self._layout
        size, start, shift = context.chunk_bytes, context.data_offset, context.shift
        code = layout.code_of(born)
        runs: list[list[Run]] = [[] for _ in range(layout.width)]
        array = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
        slots = iter(arena.slots(size, (stop - row) * code.parity_count))
        # by member chunk, so that the chunks of a strip join
        cells = sorted(enumerate(layout.cells_of(born)), key=lambda pair: code.row_of[pair[0]])
        at = 0
        for stripe in stripe_range(row, stop):
            buffers: list[memoryview] = [
                content[index * size : (index + 1) * size]
                for index in range(at, at + code.data_count)
            ]
            arrays = list(array[at : at + code.data_count])
            at += code.data_count
            for _ in range(code.parity_count):
                buffer, out = next(slots)
                buffers.append(buffer)
                arrays.append(out)
            if code.parity_count:
                encoder(code).run(arrays)
            for number, cell in cells:
                role, chunk = layout.place(stripe, cell)
                offset, parts = start + (chunk << shift), runs[role]
                if parts and parts[-1][0] + parts[-1][2] == offset:
                    parts[-1][1].append(buffers[number])
                    parts[-1][2] += size
                else:
                    parts.append([offset, [buffers[number]], size])
        return runs
