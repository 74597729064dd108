"""The last part of a stripe that earlier requests have filled from the front goes directly home.

    log                   [ 0.0 | 0.1 ]                  earlier requests ended here
    request                             [ 0.2 | 1.0 ... ]
    home places           [ 0.0 | 0.1 | 0.2 | parity ]   all cells known, with parity

All data of the stripe is known now, as if one request had covered it. So it bypasses the log like a
full-stripe write: one I/O per member, nothing is read, and the stripe is *closed*
(journal/unsettled.py). Its data in the log stays valid: recovery would redo it. Three conditions
must hold:

* The log holds nothing else of the stripe. Recovery would redo such an older record over the data
  of this request (journal/unsettled.py). Otherwise the log is asked to release the stripe.
* The checkpoint is not placing the stripe now. It could write older content to the home places, or
  log an older parity, after this write.
* Its region is marked in the dirty bitmap. A stream without full stripes has to mark it.

Recovery computes the parity of the logged cells from the home places, which now agree with the log.
"""

from __future__ import annotations

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.pending import PendingWrite, keep_locked, write_synchronously
from raidx_fuse.engine.write.route import healthy_routes
from raidx_fuse.layouts.numbers import Stripe, cell_range, stripe_and_inner
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.xor import encoder


class StripeEnd:
    """Completes stripes that were filled from the front."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        layout, code = context.layout, context.code
        self._stripe_bytes = context.data_count << context.shift
        self._fits = layout.contiguous and layout.aligned and code.parity_count > 0
        self._routes = healthy_routes(context.code.parity_count > 0)
        self._encoder = encoder(code)
        self._is_synchronous = True  # the members took the last stripe so

    def completed(self, offset: int, length: int) -> Stripe | None:
        """Return the stripe that a write of *length* bytes at *offset* completes, or None.

        The log has all data of the stripe before *offset*, in whole cells, and nothing else of it.
        """
        context = self.context
        stripe, inner = stripe_and_inner(offset, self._stripe_bytes)
        if not inner or inner & context.inner_mask or not self._fits:
            return None
        journal, unsettled = context.journal, context.journal.unsettled
        if self._stripe_bytes - inner > length or not self._routes[journal.mode].fills:
            return None
        if stripe not in unsettled.current or unsettled.paused:
            return None
        journal.write_batch()  # it may have data of the stripe
        if not unsettled.whole_cells.is_all_of(stripe, (1 << (inner >> context.shift)) - 1):
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
            journal.is_gated
            or stripe in context.locks.held
            or not context.dirty_bitmap.touch(stripe)
        ):
            return None
        if not context.written.whole(context.layout, stripe, stripe + 1):
            return None
        places = [context.position(stripe, cell) for cell in cells_of(context.code.all_mask)]
        if overlay.frozen and any(overlay.is_placing(*at, context.chunk_bytes) for at in places):
            return None
        context.unflushed_writes.add()
        if context.cache is not None:
            context.forget_stripe(stripe)
        size = (stripe + 1) * self._stripe_bytes - offset
        filled = (1 << (self._stripe_bytes - size >> context.shift)) - 1
        self._is_synchronous, pending = self._place(stripe, filled, view[:size])
        if not self._is_synchronous:
            return None
        context.counters.count_full_stripes(1)
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
        position = context.data_offset + (stripe * code.rows << context.shift)
        size = code.rows << context.shift
        roles = context.layout.roles(stripe)
        left = write_synchronously(
            context,
            [
                (role, position, [cells[cell] for cell in column], size)
                for role, column in zip(roles, code.column_cells, strict=True)
            ],
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
