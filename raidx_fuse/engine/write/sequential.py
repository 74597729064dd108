"""Sequential writes: requests that begin a stripe, continue it, or complete it (append)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.pending import PendingWrite, keep_locked, write_synchronously
from raidx_fuse.engine.write.prepare import Work
from raidx_fuse.engine.write.route import healthy_routes
from raidx_fuse.engine.write.split import Piece
from raidx_fuse.errors import MemberError
from raidx_fuse.journal.deferred_parity import Filling
from raidx_fuse.layouts.numbers import CellIndex, Stripe, cell_range, stripe_and_inner
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, cells_of, write_plans
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.member_io import MemberIO
from raidx_fuse.store.xor import encoder, xor_output


class StripeBegin:
    """Writes the beginnings of stripes through the log with deferred parity."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        layout, code = context.layout, context.code
        self._stripe_bytes = context.data_count << context.shift
        self._fits = layout.contiguous and layout.aligned and code.parity_count > 0
        self._routes = healthy_routes(context)
        # Keyed by the number of cells written.
        self._plans = {n: write_plans(code, (1 << n) - 1, 0, 0) for n in range(1, code.data_count)}

    def write(self, offset: int, view: memoryview) -> bool:
        """Write *view*, whole chunks from the front of a stripe, without suspending.

        Returns False if that is impossible; the general path then writes everything again, under
        the stripe's lock. The caller has checked that no member is lost, no chunk is lost and no
        membership change is under way.
        """
        context = self.context
        stripe, inner = stripe_and_inner(offset, self._stripe_bytes)
        cells, rest = divmod(len(view), context.chunk_bytes)
        if inner or rest or not self._fits or not 0 < cells < context.data_count:
            return False
        journal = context.journal
        deferred = journal.deferred
        if not self._routes[journal.mode].fills or stripe in deferred.unfinished:
            return False
        if stripe in journal.unsettled:
            return False
        if context.growth is not None or context.cache is not None or stripe in context.locks.held:
            return False
        if context.unflushed_writes.may_tear(offset, len(view)):
            return False
        if not context.written.whole(context.layout, stripe, stripe + 1) or not deferred.reserve(
            stripe
        ):
            return False
        plan = context.policy(*self._plans[cells], stripe, 0)
        count = len(plan.reads) + len(plan.outputs)
        arena = context.arenas.get(count * context.chunk_bytes)
        try:
            parities = self._parities(stripe, view, plan, arena)
            if parities is None:
                return False
            touched = (1 << cells) - 1
            filling = Filling(stripe, 0, touched, self._data(stripe, touched, view), parities)
            if not journal.commit_filled_now(filling):
                return False
        except MemberError:
            return False  # the general path retries, and excludes the member
        finally:
            context.arenas.put(arena)
            deferred.release((stripe,))
        context.counters.count_plan(plan.kind, len(plan.reads))
        return True

    def _data(self, stripe: Stripe, touched: int, view: memoryview) -> list[MemberIO]:
        chunk_bytes, position = self.context.chunk_bytes, self.context.position
        return [
            (*position(stripe, cell), [view[at : at + chunk_bytes]], chunk_bytes)
            for cell in cells_of(touched)
            for at in (cell * chunk_bytes,)
        ]

    def _parities(
        self, stripe: Stripe, view: memoryview, plan: BandPlan, arena: Arena
    ) -> list[MemberIO] | None:
        """Do *plan*'s pre-reads and compute its parities in *arena*; None if that would suspend."""
        context = self.context
        chunk_bytes = context.chunk_bytes
        slots = iter(arena.slots(chunk_bytes, len(plan.reads) + len(plan.outputs)))
        old: dict[CellIndex, Bytes] = {}
        for cell in plan.reads:
            buffer, old[cell] = next(slots)
            newest = context.member_set.try_read(
                *context.position(stripe, cell), [buffer], chunk_bytes
            )
            if newest is None:
                return None
            if newest is not buffer:
                old[cell] = np.frombuffer(newest, dtype=np.uint8)
        content = np.frombuffer(view, dtype=np.uint8)
        rows = content.reshape(-1, chunk_bytes)
        new = dict(zip(cell_range(0, len(rows)), rows, strict=True))
        parities: list[MemberIO] = []
        for output in plan.outputs:
            buffer, out = next(slots)
            xor_output(out, output, old, new)
            parities.append((*context.position(stripe, output.cell), [buffer], chunk_bytes))
        return parities


# The last part of a stripe that earlier requests have filled from the front: it goes directly to
# its home place.
#
#     log (journal/deferred_parity.py)   [ 0.0 | 0.1 ]                  earlier requests ended here
#     request                                        [ 0.2 | 1.0 ... ]
#     home places                        [ 0.0 | 0.1 | 0.2 | parity ]   all cells known, with parity
#
# All data of the stripe is known now, as if one request had covered it. So it bypasses the log like
# a full-stripe write: one I/O per member, nothing is read. The logged part stays valid: recovery
# would redo the same data. Two conditions must hold:
#
# * The log holds nothing else of the stripe. Recovery would redo such an older record over the data
#   of this request (`DeferredParity.is_all_of`). Otherwise the log is asked to release the stripe.
# * The checkpoint is not placing the stripe now. It could write older content to the home places,
#   or log an older parity, after this write.
#
# Recovery computes the parity of the deferred cells from the home places, which now agree with the
# log. Later records of the stripe are redone over them, and carry all parity that they change.


class StripeEnd:
    """Completes stripes that were filled from the front."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        layout, code = context.layout, context.code
        self._stripe_bytes = context.data_count << context.shift
        self._fits = layout.contiguous and layout.aligned and code.parity_count > 0
        self._routes = healthy_routes(context)
        self._encoder = encoder(code)

    def write(
        self, offset: int, view: memoryview, length: int
    ) -> tuple[int, PendingWrite | None] | None:
        """Write what the stripe at *offset* lacks; return the number of bytes written.

        The second item is the pending write, if some members could not write synchronously: the
        caller completes it. Returns None if the conditions are not met: the general path then
        writes everything. The caller has checked that no member is lost, no chunk is lost and no
        membership change is under way.
        """
        context = self.context
        stripe, inner = stripe_and_inner(offset, self._stripe_bytes)
        size = self._stripe_bytes - inner
        if size > length or not inner or inner & context.inner_mask or not self._fits:
            return None
        filled = (1 << (inner >> context.shift)) - 1
        journal, overlay = context.journal, context.journal.overlay
        deferred = journal.deferred
        if deferred.cells(stripe) != filled or deferred.paused:
            return None
        if not self._routes[journal.mode].fills:
            return None
        if not deferred.is_all_of(stripe, filled):
            journal.give_up_soon()
            return None
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
        placed, pending = self._place(stripe, filled, view[:size])
        if not placed:
            return None
        context.counters.count_full_stripes(1)
        if pending is not None:
            return size, pending
        for cell in (*cells_of(filled), *cells_of(context.code.parity_mask)):
            overlay.drop(*context.position(stripe, cell), context.chunk_bytes)
        context.member_set.note_placed()  # a read of a home place under way is repeated
        deferred.finish((stripe,))
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
        self.context.journal.deferred.finish((stripe,))


# Pieces of which only the data is logged: which they are, and their commit.
#
# Such a piece consists of whole chunks and begins where the logged part of its stripe ends; see
# journal/deferred_parity.py.


class StripeFill:
    """Finds and commits the pieces whose parity is deferred."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context

    def logged_before(self, piece: Piece) -> int | None:
        """Return the cells that the log has, as a mask, if it needs only the data of *piece* now.

        The parity is deferred then (journal/deferred_parity.py): ring space for it is reserved.
        Returns None if the parity is logged, too.
        """
        before = self.would_be_logged_before(piece)
        if before is None or not self.context.journal.deferred.reserve(piece.stripe):
            return None
        return before

    def would_be_logged_before(self, piece: Piece) -> int | None:
        """Return the answer that `logged_before` would give now; reserve nothing."""
        context, stripe = self.context, piece.stripe
        layout = context.layout
        deferred = context.journal.deferred
        if not context.code.parity_count or not layout.contiguous or not layout.aligned:
            return None
        if context.member_set.lost or context.bad_chunks:
            return None
        if context.journal.forced:  # a restripe: the layout is about to change
            return None
        if piece.whole_cells(context.chunk_bytes) != piece.touched:
            return None
        if stripe in context.journal.unsettled:
            return None
        before = deferred.cells(stripe)
        if before != (1 << piece.first) - 1:
            return None
        if not context.written.whole(layout, stripe, stripe + 1):
            return None
        return before if deferred.has_space(stripe) else None

    async def commit(
        self, logged: Sequence[Piece], records: Sequence[Work], still_valid: Callable[[], bool]
    ) -> bool:
        """Commit the pieces whose parity is deferred; return False if *still_valid* said no."""
        context = self.context
        filled: list[Filling] = []
        size = 0
        for piece, record in zip(logged, records, strict=True):
            if not piece.fills:
                continue
            more = piece.touched.bit_count() * context.chunk_bytes
            if filled and size + more > context.journal.capacity // 4:
                if not await context.journal.commit_filled(filled, still_valid):
                    return False
                filled, size = [], 0
            data_places = {context.position(piece.stripe, cell) for cell in cells_of(piece.touched)}
            parts: tuple[list[MemberIO], list[MemberIO]] = [], []
            for request in record.writes:
                parts[request[:2] not in data_places].append(request)
            filled.append(Filling(piece.stripe, piece.logged, piece.touched, *parts))
            size += more
        return not filled or await context.journal.commit_filled(filled, still_valid)
