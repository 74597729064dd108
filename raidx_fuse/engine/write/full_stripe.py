"""Whole stripes past the log: the middle of a large write, and the last part of one in parts.

A full-stripe write is one I/O per member, without suspending:

    request            [ part | whole  | whole  | whole  | part ]
    member 0                  [ 0.0    | 1.0    | 2.P    ]         one pwritev of three buffers
    member 1                  [ 0.1    | 1.P    | 2.1    ]
    member 2                  [ 0.P    | 1.0    | 2.0    ]

Nothing is read first, and nothing depends on the old content of the stripes. If some members cannot
write synchronously, their writes are returned as a pending write, which the caller completes
(pending.py). If no member can, nothing was written, and the general path (write.py) writes
everything.

A stripe of an array that has grown holds chunks of several generations (`Generation` in
layouts/placements/elastic_mapping.py): the original image is one generation, and each growth adds
one. The chunks of one generation may follow one another in the image, stripe by stripe; chunks of
different generations do not. While all written chunks of a stripe belong to one generation, a
write of all of them is a write of the full stripe. After a growth this holds for every stripe
until the new end of the image is written:

    raid4, 4 to 5 data disks, stripes 0, 1, 2       disk 0   1   2   3     parity
    write of blocks 0 to 8                               -   1   2   0     0+1+2     - newer,
                                                         3   -   5   4     3+4+5       unwritten
                                                         6   7   -   8     6+7+8
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.pending import PendingWrite, keep_locked
from raidx_fuse.engine.write.route import Route, healthy_routes
from raidx_fuse.format.sum_table import Values
from raidx_fuse.layouts.numbers import Stripe, by_role, cell_range, stripe_and_inner, stripe_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.sums import stripe_crcs
from raidx_fuse.store.xor import Program, encoder

BUFFERS_MAX = 512  # in one I/O

# Chunks that follow one another on a member: position in bytes, and the number of each cell among
# all cells of the request, stripe by stripe.
Run = tuple[int, list[int]]


class Extent(NamedTuple):
    """Chunks of the image that follow one another stripe by stripe, from the first stripe on.

    * *start*, *end*: the first chunk, and the one after the last; *data_count*: in each stripe;
    * *encoder*: computes the parities of a stripe in which nothing else is written;
    * *columns*: columns of the layout's code, each with the cells of *encoder* in it, by row;
    * *others*: start, end and count of the other extents of which chunks may be in the stripes, and
      which parity depends on; count 0: in no order.
    """

    start: int
    end: int
    data_count: int
    encoder: Program
    columns: list[tuple[int, list[int]]]
    others: list[tuple[int, int, int]]


def extents(context: ArrayContext) -> list[Extent]:
    """Return the extents of the present layout; none if its chunks are in no such order."""
    code, found = context.code, []
    every = context.layout.extents()
    bounds = [(extent.start, extent.end, extent.data_count) for extent in every]
    for extent, bound in zip(every, bounds, strict=True):
        if extent.code is None:
            continue
        by_column: dict[int, list[int]] = {}
        cells = enumerate(extent.cells)
        for number, cell in sorted(cells, key=lambda pair: code.row_of[pair[1]]):
            by_column.setdefault(code.column_of[cell], []).append(number)
        others = [other for other in bounds if other is not bound] if code.parity_count else []
        found.append(Extent(*bound, encoder(extent.code), sorted(by_column.items()), others))
    return found


class FullStripeWrite:
    """Writes the full stripes inside a range of the image."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        self._extents = extents(context)
        has_sums = context.member_set.sums is not None
        self._routes = healthy_routes(context.code.parity_count > 0, has_sums)

    def write(
        self, offset: int, view: memoryview, length: int
    ) -> tuple[int, int, PendingWrite | None] | None:
        """Write the full stripes inside a range; return their first and end byte in the image.

        The third item is the pending write, if some members could not write synchronously: the
        caller completes it. Returns None if the conditions are not met: the general path then
        writes everything. The caller has checked that no member is lost, no chunk is lost and no
        membership change is under way.
        """
        context = self.context
        size, rows, sums = context.chunk_bytes, context.code.rows, context.code.parity_count
        first, end = -(-offset // size), (offset + length) // size
        for extent in self._extents:
            if extent.start <= first < extent.end:
                break
        else:
            return None
        if context.growth is not None:
            return None
        row = -(-(first - extent.start) // extent.data_count)
        stop = (min(end, extent.end) - extent.start) // extent.data_count
        if row >= stop or (stop - row) * rows > BUFFERS_MAX:
            return None
        first, end = extent.start + row * extent.data_count, extent.start + stop * extent.data_count
        if not context.written.all_written(first, end):
            return None
        if extent.others and not self._is_alone(extent, row, stop):
            return None
        if not self._may_bypass(row, stop):
            return None
        arena = context.arenas.get(max(1, (stop - row) * sums * size))
        content = view[first * size - offset : end * size - offset]
        cells, runs = self._runs(extent, row, stop, content, arena)
        if context.cache is not None:
            context.cache.forget(first * size, (end - first) * size)
            if sums:  # parity has addresses below zero
                context.cache.forget(-stop * sums * size, (stop - row) * sums * size)
        context.traffic.past_log += 1
        places = [(role, *run) for role, of_role in by_role(runs) for run in of_role]
        crcs: Values | None = None
        if context.member_set.sums is not None:
            order = [number for _, _, numbers in places for number in numbers]
            crcs = stripe_crcs(extent.encoder, [content], extent.data_count, stop - row)
            crcs = crcs.take(order, 0).reshape(-1)
        left = context.cells.write_now(
            [
                (role, position, [cells[number] for number in numbers], len(numbers) * size)
                for role, position, numbers in places
            ],
            crcs,
        )
        if left is None:
            return None
        pending = keep_locked(context, stripe_range(row, stop), left, arena)
        context.traffic.full_stripe += stop - row
        if context.cache is not None and pending is None:
            context.cache.keep(first * size, content)
        return first * size, end * size, pending

    def _is_alone(self, extent: Extent, row: int, stop: int) -> bool:
        """Return True if all written chunks of the stripes row..stop-1 are of *extent*.

        Without parity no chunk of a stripe depends on the others.
        """
        written = self.context.written
        for start, end, count in extent.others:
            if count:
                start, end = start + row * count, start + stop * count
            if not written.none_written(start, end):
                return False
        return True

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

    def _runs(
        self, extent: Extent, row: int, stop: int, content: memoryview, arena: Arena
    ) -> tuple[list[memoryview], list[list[Run]]]:
        """Return the cells of stripes row..stop-1, and the runs of them that each role writes.

        Data is that in *content*. Computes the parities into *arena*.
        """
        context, layout = self.context, self.context.layout
        size, rows, sums = context.chunk_bytes, context.code.rows, context.code.parity_count
        strip_bytes, stripe_bytes = rows * size, extent.data_count * size
        columns = extent.columns
        runs: list[list[Run]] = [[] for _ in range(layout.width)]
        array: Bytes | None = np.frombuffer(content, dtype=np.uint8) if sums else None
        slots = iter(arena.slots(size, (stop - row) * sums) if sums else [])
        position, at = context.member_set.data_offset + row * strip_bytes, 0
        every: list[memoryview] = []
        for stripe in stripe_range(row, stop):
            starts = range(at, at + stripe_bytes, size)
            buffers = [content[start : start + size] for start in starts]
            if array is not None:
                arrays = [array[start : start + size] for start in starts]
                for _ in range(sums):
                    buffer, out = next(slots)
                    buffers.append(buffer)
                    arrays.append(out)
                extent.encoder.run(arrays)
            roles, before = layout.roles(stripe), len(every)
            every += buffers
            for column, cells in columns:
                parts = runs[roles[column]]
                strip = [before + cell for cell in cells]
                if parts and parts[-1][0] + len(parts[-1][1]) * size == position:
                    parts[-1][1].extend(strip)
                else:
                    parts.append((position, strip))
            position += strip_bytes
            at += stripe_bytes
        return every, runs


# The last part of a stripe that earlier requests have filled from the front goes directly home.
#
#     log                   [ 0.0 | 0.1 ]                  earlier requests ended here
#     request                             [ 0.2 | 1.0 ... ]
#     home places           [ 0.0 | 0.1 | 0.2 | parity ]   all cells known, with parity
#
# All data of the stripe is known now, as if one request had covered it. So it bypasses the log like
# a full-stripe write: one I/O per member, nothing is read, and the stripe is *closed*
# (journal/unsettled.py). Its data in the log stays valid: recovery would redo it. Three conditions
# must hold:
#
# * The log holds nothing else of the stripe. Recovery would redo such an older record over the data
#   of this request (`WholeCells`). Otherwise the log is asked to release the stripe.
# * The checkpoint is not placing the stripe now. It could write older content to the home places,
#   or log an older parity, after this write.
# * Its region is marked in the dirty bitmap. A stream without full stripes has to mark it.
#
# Recovery computes the parity of the logged cells from the home places, which now agree with the
# log.


class StripeEnd:
    """Completes stripes that were filled from the front."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        layout, code = context.layout, context.code
        self._stripe_bytes = context.code.data_count * context.chunk_bytes
        self._fits = layout.contiguous and layout.aligned and code.parity_count > 0
        has_sums = context.member_set.sums is not None
        self._routes = healthy_routes(context.code.parity_count > 0, has_sums)
        self._encoder = encoder(code)
        self._is_synchronous = True  # the members took the last stripe so

    def completed(self, offset: int, length: int) -> Stripe | None:
        """Return the stripe that a write of *length* bytes at *offset* completes, or None.

        The log has all data of the stripe before *offset*, in whole cells, and nothing else of it.
        """
        context = self.context
        stripe, inner = stripe_and_inner(offset, self._stripe_bytes)
        if not inner or inner % context.chunk_bytes or not self._fits:
            return None
        journal, unsettled = context.journal, context.journal.unsettled
        if self._stripe_bytes - inner > length or not self._routes[journal.mode].fills:
            return None
        if stripe not in unsettled.current or unsettled.paused:
            return None
        journal.write_batch()  # it may have data of the stripe
        if not unsettled.whole_cells.is_all_of(stripe, (1 << (inner // context.chunk_bytes)) - 1):
            journal.give_up_soon()
            return None
        return stripe

    def lacks_mark(self, stripe: Stripe) -> bool:
        """Return whether `write` could complete *stripe* if its region were marked.

        Not if the members did not take the last one synchronously: its mark was of no use.
        """
        return self._is_synchronous and not self.context.dirty_bitmap.is_marked(stripe)

    def write(
        self, stripe: Stripe, offset: int, view: memoryview
    ) -> tuple[int, PendingWrite | None] | None:
        """Write what *stripe*, which is `completed`, lacks; return the number of bytes written.

        The second item is the pending write, if some members could not write synchronously: the
        caller completes it. Returns None if the conditions are not met: the general path then
        writes everything. The caller has checked that no member is lost, no chunk is lost and no
        membership change is under way.
        """
        context = self.context
        journal, overlay = context.journal, context.journal.overlay
        if (
            journal.gate is not None
            or stripe in context.locks.held
            or not context.dirty_bitmap.touch(stripe)
        ):
            return None
        if not context.written.whole(context.layout, stripe, stripe + 1):
            return None
        places = [context.position(stripe, cell) for cell in cells_of(context.code.all_mask)]
        if overlay.frozen and any(overlay.is_placing(*at, context.chunk_bytes) for at in places):
            return None
        context.traffic.past_log += 1
        if context.cache is not None:
            context.forget_stripe(stripe)
        size = (stripe + 1) * self._stripe_bytes - offset
        filled = (1 << ((self._stripe_bytes - size) // context.chunk_bytes)) - 1
        self._is_synchronous, pending = self._place(stripe, filled, view[:size])
        if not self._is_synchronous:
            return None
        context.traffic.full_stripe += 1
        if pending is not None:
            return size, pending
        for cell in (*cells_of(filled), *cells_of(context.code.parity_mask)):
            overlay.drop(*context.position(stripe, cell), context.chunk_bytes)
        context.member_set.note_placed()  # a read of a home place under way is repeated
        journal.unsettled.close(stripe, with_parity=False)
        if context.cache is not None:
            context.cache.keep(offset, view[:size])
        return size, None

    def _place(
        self, stripe: Stripe, filled: int, view: memoryview
    ) -> tuple[bool, PendingWrite | None]:
        """Write all of *stripe*; return if any member could, and what the others left."""
        context = self.context
        chunk_bytes, code, overlay = context.chunk_bytes, context.code, context.journal.overlay
        known = filled.bit_count()
        arena = context.arenas.get((known + code.parity_count) * chunk_bytes)
        slots = arena.slots(chunk_bytes, known + code.parity_count)
        cells: list[memoryview] = []
        arrays = []
        for cell in cell_range(0, known):
            place = context.position(stripe, cell)
            buffer, array = slots[cell]
            as_logged = overlay.span(*place, chunk_bytes)
            if as_logged is not None:
                buffer, array = as_logged, np.frombuffer(as_logged, dtype=np.uint8)
            elif not overlay.read(*place, buffer):
                return False, None
            cells.append(buffer)
            arrays.append(array)
        for at in range(0, len(view), chunk_bytes):
            cells.append(view[at : at + chunk_bytes])
            arrays.append(np.frombuffer(cells[-1], dtype=np.uint8))
        for buffer, array in slots[known:]:
            cells.append(buffer)
            arrays.append(array)
        self._encoder.run(arrays)
        position = context.member_set.data_offset + stripe * code.rows * context.chunk_bytes
        size = code.rows * context.chunk_bytes
        roles = context.layout.roles(stripe)
        crcs: Values | None = None
        if context.member_set.sums is not None:
            order = [cell for column in code.column_cells for cell in column]
            crcs = stripe_crcs(self._encoder, cells[: code.data_count], code.data_count, 1)
            crcs = crcs.take(order, 0).reshape(-1)
        left = context.cells.write_now(
            [
                (role, position, [cells[cell] for cell in column], size)
                for role, column in zip(roles, code.column_cells, strict=True)
            ],
            crcs,
        )
        if left is None:
            context.arenas.put(arena)
            return False, None
        if left:
            self._keep(stripe, cells, known)
        return True, keep_locked(context, (stripe,), left, arena)

    def _keep(self, stripe: Stripe, cells: list[memoryview], known: int) -> None:
        """Put the new data and the new parity of *stripe* into the overlay.

        Only some members have written. Some old data is already overwritten, so that the old parity
        would no longer match and a degraded read would return wrong content. The log does not
        receive this parity before it receives the data. After a power cut the parity still follows
        from the home places, as after an interrupted full-stripe write.
        """
        for cell in cell_range(known, len(self.context.code.cells)):
            role, offset = self.context.position(stripe, cell)
            self.context.journal.overlay.put(role, offset, bytes(cells[cell]))
        self.context.journal.unsettled.close(stripe, with_parity=True)
