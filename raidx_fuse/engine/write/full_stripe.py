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
from raidx_fuse.layouts.numbers import Role, by_role, stripe_range
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.xor import encoder, xor_into

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
# A stripe of a grown RAID-4 holds blocks of several generations (`generations` in
# layouts/placements/elastic.py): the original image is one generation, and each growth adds one.
# The blocks of one generation follow one another in the image; blocks of different generations do
# not. While all written blocks of a stripe belong to one generation, a write of all of them is a
# write of the full stripe. After a growth this holds for every stripe until the new end of the
# image is written:
#
#     4 to 5 disks, stripes 0, 1, 2           data disk 0   1   2   3     parity
#     write of blocks 0 to 8                            -   1   2   0     0+1+2        - newer,
#                                                       3   -   5   4     3+4+5          unwritten
#                                                       6   7   -   8     6+7+8

Run = list[Any]  # byte offset on the member, buffers, size


class GrownFullStripeWrite(FullStripeWrite):
    """Writes the full stripes inside a range of an array that has grown or can grow."""

    def __init__(self, context: ArrayContext) -> None:
        super().__init__(context)
        assert isinstance(context.layout, ElasticLayout)
        self._layout: ElasticLayout = context.layout
        self._generations = context.layout.mapping.generations()

    def write(
        self, offset: int, view: memoryview, length: int
    ) -> tuple[int, int, PendingWrite | None] | None:
        """Write the full stripes inside a range, as `FullStripeWrite.write` does."""
        context = self.context
        if context.growth is not None:
            return None
        shift = context.shift
        first, end = -(-offset >> shift), offset + length >> shift
        start, count = next(each for each in reversed(self._generations) if each[0] <= first)
        row = -(-(first - start) // count)
        stop = min((end - start) // count, self._layout.stripes)
        if row >= stop or stop - row > BUFFERS_MAX:
            return None
        first, end = start + row * count, start + stop * count
        if not self._is_alone(row, stop, start) or not context.written.all_written(first, end):
            return None
        if not self._may_bypass(row, stop):
            return None
        arena = context.arenas.get(max(1, (stop - row) * context.code.parity_count << shift))
        begin = first << shift
        runs = self._runs(first, count, view[begin - offset : (end << shift) - offset], arena)
        if context.cache is not None:
            context.cache.forget(begin, end - first << shift)
            context.cache.forget(-(stop << shift), stop - row << shift)  # parity
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

    def _is_alone(self, row: int, stop: int, start: int) -> bool:
        """Return True if all written blocks of the rows are of the generation from *start* on."""
        if not self.context.code.parity_count:
            return True  # without parity no block of a row depends on the others
        none_written = self.context.written.none_written
        return all(
            none_written(other + row * count, other + stop * count)
            for other, count in self._generations
            if other != start
        )

    def _runs(self, first: int, count: int, content: memoryview, arena: Arena) -> list[list[Run]]:
        """Return the runs that each role writes: blocks from *first* on, *count* in each stripe."""
        context, layout = self.context, self._layout
        size, start = context.chunk_bytes, context.data_offset
        runs: list[list[Run]] = [[] for _ in range(layout.width)]
        blocks = len(content) // size
        array = np.frombuffer(content, dtype=np.uint8).reshape(blocks, size)
        sums = iter(arena.slots(size, blocks // count) if context.code.parity_count else [])
        locate, place = layout.locate, layout.place

        def put(role: Role, offset: int, buffer: memoryview) -> None:
            parts = runs[role]
            if parts and parts[-1][0] + parts[-1][2] == offset:
                parts[-1][1].append(buffer)
                parts[-1][2] += size
            else:
                parts.append([offset, [buffer], size])

        for number in range(0, blocks, count):
            for index in range(number, number + count):
                stripe, cell = locate(first + index)
                offset = start + stripe * size
                put(place(stripe, cell)[0], offset, content[index * size : (index + 1) * size])
            if not context.code.parity_count:
                continue
            buffer, out = next(sums)
            xor_into(out, list(array[number : number + count]))
            put(place(stripe, layout.parity_cell)[0], offset, buffer)
        return runs
