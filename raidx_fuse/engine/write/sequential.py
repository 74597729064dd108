"""Sequential writes: requests that fill a stripe from the front, begin it or close it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raidx_fuse.engine.context import Core
from raidx_fuse.engine.write.pending import Begun, keep_locked, write_at_once
from raidx_fuse.engine.write.prepare import Work
from raidx_fuse.engine.write.split import Piece
from raidx_fuse.errors import MemberError
from raidx_fuse.journal.deferred_parity import Filling
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, cells_of, write_plans
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.member_set import MemberIO
from raidx_fuse.store.xor import encoder, xor_into


class Beginning:
    """Writes the beginnings of stripes to *core*."""

    def __init__(self, core: Core) -> None:
        self.core = core
        layout, code = core.layout, core.code
        self._stripe_bytes = core.data_count << core.shift
        self._fits = layout.contiguous and layout.aligned and code.parity_count > 0
        # By how many cells are written.
        self._plans = {n: write_plans(code, (1 << n) - 1, 0, 0) for n in range(1, code.data_count)}

    def write(self, offset: int, view: memoryview) -> bool:
        """Write *view*, whole chunks from the front of a stripe; False if that cannot be at once.

        The caller has seen that no member is lost, no chunk bad and no change of membership under
        way. After False the general way writes the same again, under the stripe's lock.
        """
        core = self.core
        stripe, inner = divmod(offset, self._stripe_bytes)
        cells, rest = divmod(len(view), core.chunk_bytes)
        if inner or rest or not self._fits or not 0 < cells < core.data_count:
            return False
        journal = core.journal
        streams = journal.streams
        if journal.mode != "partial" or journal.forced or stripe in streams.unfinished:
            return False
        if core.growth is not None or core.cache is not None or stripe in core.locks.held:
            return False
        if core.unlogged.may_tear(offset, len(view)):
            return False
        if not core.written.whole(core.layout, stripe, stripe + 1) or not streams.reserve(stripe):
            return False
        plan = core.policy(*self._plans[cells], stripe, 0)
        count = len(plan.reads) + len(plan.outputs)
        arena = core.arenas.get(count * core.chunk_bytes)
        try:
            parities = self._parities(stripe, view, plan, arena)
            if parities is None:
                return False
            touched = (1 << cells) - 1
            filling = Filling(stripe, 0, touched, self._data(stripe, touched, view), parities)
            if not journal.commit_filled_now(filling):
                return False
        except MemberError:
            return False  # the general way tries again, and fails the member
        finally:
            core.arenas.put(arena)
            streams.release((stripe,))
        core.counters.count_plan(plan.kind, len(plan.reads))
        return True

    def _data(self, stripe: int, touched: int, view: memoryview) -> list[MemberIO]:
        chunk_bytes, position = self.core.chunk_bytes, self.core.position
        return [
            (*position(stripe, cell), [view[at : at + chunk_bytes]], chunk_bytes)
            for cell in cells_of(touched)
            for at in (cell * chunk_bytes,)
        ]

    def _parities(
        self, stripe: int, view: memoryview, plan: BandPlan, arena: Arena
    ) -> list[MemberIO] | None:
        """Read what *plan* needs and compute its parities in *arena*; None if not at once."""
        core = self.core
        chunk_bytes, overlay = core.chunk_bytes, core.member_set.overlay
        slots = iter(arena.slots(chunk_bytes, len(plan.reads) + len(plan.outputs)))
        old: dict[int, Bytes] = {}
        for cell in plan.reads:
            buffer, old[cell] = next(slots)
            role, position = core.position(stripe, cell)
            if overlay and overlay.read(role, position, buffer):
                continue
            queue = core.member_set.readable[role]
            if queue is None or not queue.try_readv(position, [buffer], chunk_bytes):
                return None
            if overlay:
                overlay.patch(role, position, [buffer])
        content = np.frombuffer(view, dtype=np.uint8)
        parities: list[MemberIO] = []
        for output in plan.outputs:
            buffer, out = next(slots)
            new = [content[c * chunk_bytes : (c + 1) * chunk_bytes] for c in output.new]
            xor_into(out, [old[cell] for cell in output.old] + new)
            parities.append((*core.position(stripe, output.cell), [buffer], chunk_bytes))
        return parities


# The last part of a stripe that requests have filled from the front: it goes to its place at once.
#
#     log         [ 0.0 | 0.1 ]                 the request before ended here
#     (journal/deferred_parity.py) request                 [ 0.2 | 1.0 ... ]
#     places      [ 0.0 | 0.1 | 0.2 | parity ]  what is known now, and its parity
#
# All of the stripe is known now, as if one request had covered it, so it bypasses the log as such a
# request does: one I/O a member, nothing is read. What the log has of it stays true: a replay lays
# the same data there. But only while the log has nothing else of the stripe, older perhaps, that a
# replay would lay over what the request brought (`Streams.is_all_of`); else it is asked to give up
# what it has. And only if no placement of the stripe is under way, which might bring something
# older to its place, or its parity so far to the log, after us.
#
# The parity that a replay computes for it comes from the places, which agree with the log now.
# Later records of the stripe are placed over them, but those bring all of the parity that they
# change.


class Closing:
    """Writes the ends of stripes that were filled from the front to *core*."""

    def __init__(self, core: Core) -> None:
        self.core = core
        layout, code = core.layout, core.code
        self._stripe_bytes = core.data_count << core.shift
        self._fits = layout.contiguous and layout.aligned and code.parity_count > 0
        self._encoder = encoder(code)
        self.begun: Begun | None = None  # what the last write has left, for the caller to take

    def write(self, offset: int, view: memoryview, length: int) -> int:
        """Write what the stripe at *offset* lacks; return how many bytes that were, 0 if it cannot.

        The caller has seen that no member is lost, no chunk bad and no change of membership under
        way, and takes *begun*. After a 0 the general way writes all of it.
        """
        core = self.core
        stripe, inner = divmod(offset, self._stripe_bytes)
        size = self._stripe_bytes - inner
        if size > length or not inner or inner & core.inner_mask or not self._fits:
            return 0
        filled = (1 << (inner >> core.shift)) - 1
        journal, overlay = core.journal, core.member_set.overlay
        streams = journal.streams
        if streams.cells(stripe) != filled or journal.mode != "partial" or streams.paused:
            return 0
        if not streams.is_all_of(stripe, filled):
            journal.give_up_soon()
            return 0
        if journal.is_gated or stripe in core.locks.held or not core.dirty_bitmap.touch(stripe):
            return 0
        if not core.written.whole(core.layout, stripe, stripe + 1):
            return 0
        places = [core.position(stripe, cell) for cell in cells_of(core.code.all_mask)]
        if overlay.frozen and any(overlay.is_placing(*at, core.chunk_bytes) for at in places):
            return 0
        core.unlogged.count += 1  # also if only some members take it at once
        if core.cache is not None:
            core.forget_stripe(stripe)
        if not self._place(stripe, filled, view[:size]):
            return 0
        core.counters.full_stripe += 1
        if self.begun is not None:
            return size
        for cell in (*cells_of(filled), *cells_of(core.code.parity_mask)):
            overlay.drop(*core.position(stripe, cell), core.chunk_bytes)
        core.member_set.place_epoch += 1  # who reads a place just now looks again
        streams.finish((stripe,))
        if core.cache is not None:
            core.cache.keep(offset, view[:size])
        return size

    def _place(self, stripe: int, filled: int, view: memoryview) -> bool:
        """Write all of *stripe*; False if no member takes anything at once."""
        core = self.core
        chunk_bytes, code, overlay = core.chunk_bytes, core.code, core.member_set.overlay
        known = filled.bit_count()
        arena = core.arenas.get((known + code.parity_count) * chunk_bytes)
        slots = arena.slots(chunk_bytes, known + code.parity_count)
        cells: list[Any] = []
        arrays = []
        for cell in range(known):
            place = core.position(stripe, cell)
            buffer, array = slots[cell]
            as_logged = overlay.span(*place, chunk_bytes)
            if as_logged is not None:
                buffer, array = as_logged, np.frombuffer(as_logged, dtype=np.uint8)
            elif not overlay.read(*place, buffer):
                return False
            cells.append(buffer)
            arrays.append(array)
        for at in range(0, len(view), chunk_bytes):
            cells.append(view[at : at + chunk_bytes])
            arrays.append(np.frombuffer(cells[-1], dtype=np.uint8))
        for buffer, array in slots[known:]:
            cells.append(buffer)
            arrays.append(array)
        self._encoder.run(arrays)
        position = core.data_offset + (stripe * code.rows << core.shift)
        size = code.rows << core.shift
        roles = core.layout.roles(stripe)
        left = write_at_once(
            core,
            [
                (role, position, [cells[cell] for cell in column], size)
                for role, column in zip(roles, code.column_cells, strict=True)
            ],
        )
        if left is None:
            core.arenas.put(arena)
            return False
        if left:
            self._keep(stripe, cells, known)
        self.begun = keep_locked(core, (stripe,), left, arena)
        return True

    def _keep(self, stripe: int, cells: list[Any], known: int) -> None:
        """After some members took it: let all see the new data, and the parity that goes with it.

        Some of the old data is gone from the places, by which the old parity would go on, and give
        back what lies on a member that is lost now. The log does not get this parity before it gets
        the data: after a cut it still follows from the places, as if they had been written whole.
        """
        for cell in range(known, len(self.core.code.cells)):
            role, offset = self.core.position(stripe, cell)
            self.core.member_set.overlay.put(role, offset, bytes(cells[cell]))
        self.core.journal.streams.finish((stripe,))


# Pieces of requests of which only the data is logged: which they are, and their commit.
#
# A piece of whole chunks that begins where the log ends in its stripe; see
# journal/deferred_parity.py.


class Filler:
    """Looks for such pieces of requests to *core*."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def takes(self, piece: Piece) -> bool:
        """Say whether only the data of *piece* need be logged (journal/deferred_parity.py); note
        what is there.
        """
        core, stripe = self.core, piece.stripe
        layout = core.layout
        streams = core.journal.streams
        piece.logged = 0
        if not core.code.parity_count or not layout.contiguous or not layout.aligned:
            return False
        if core.member_set.lost or core.bad_chunks:
            return False
        if core.journal.forced:  # a restripe: the layout is about to change
            return False
        if piece.whole_cells(core.chunk_bytes) != piece.touched:
            return False
        before = streams.cells(stripe)
        if before != (1 << piece.first) - 1:
            return False
        if not core.written.whole(layout, stripe, stripe + 1):
            return False
        if not streams.reserve(stripe):
            return False
        piece.logged = before
        return True

    async def commit(
        self, logged: Sequence[Piece], records: Sequence[Work], still_valid: Callable[[], bool]
    ) -> bool:
        """Commit the pieces of which only the data is logged."""
        core = self.core
        filled: list[Filling] = []
        size = 0
        for piece, record in zip(logged, records, strict=True):
            if not piece.fills:
                continue
            more = piece.touched.bit_count() * core.chunk_bytes
            if filled and size + more > core.journal.capacity // 4:
                if not await core.journal.commit_filled(filled, still_valid):
                    return False
                filled, size = [], 0
            data_places = {core.position(piece.stripe, cell) for cell in cells_of(piece.touched)}
            parts: tuple[list[MemberIO], list[MemberIO]] = [], []
            for request in record.writes:
                parts[request[:2] not in data_places].append(request)
            filled.append(Filling(piece.stripe, piece.logged, piece.touched, *parts))
            size += more
        return not filled or await core.journal.commit_filled(filled, still_valid)
