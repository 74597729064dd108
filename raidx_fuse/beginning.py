"""The last part of a request that begins a stripe: only its data goes to the log, at once.

    request            ... | whole  | whole  | 7.0  7.1 ]   the next one brings 7.2 (closing.py)
    log                                      [ 7.0  7.1 ]   their parity follows
    (journal/deferred_parity.py)

What filler.py does under the stripe's lock, without a suspension: nothing else runs between the
look and the last log member's write. So it costs half, and sequential writing needs it with most
requests. Whatever does not fit is left to the general way, before anything was changed.
"""

from __future__ import annotations

import numpy as np

from raidx_fuse.core import Core
from raidx_fuse.errors import MemberError
from raidx_fuse.journal.deferred_parity import Filling
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, cells_of, write_plans
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.member_set import Request
from raidx_fuse.store.xor import xor_into


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

    def _data(self, stripe: int, touched: int, view: memoryview) -> list[Request]:
        chunk_bytes, position = self.core.chunk_bytes, self.core.position
        return [
            (*position(stripe, cell), [view[at : at + chunk_bytes]], chunk_bytes)
            for cell in cells_of(touched)
            for at in (cell * chunk_bytes,)
        ]

    def _parities(
        self, stripe: int, view: memoryview, plan: BandPlan, arena: Arena
    ) -> list[Request] | None:
        """Read what *plan* needs and compute its parities in *arena*; None if not at once."""
        core = self.core
        chunk_bytes, overlay = core.chunk_bytes, core.store.overlay
        slots = iter(arena.slots(chunk_bytes, len(plan.reads) + len(plan.outputs)))
        old: dict[int, Bytes] = {}
        for cell in plan.reads:
            buffer, old[cell] = next(slots)
            role, position = core.position(stripe, cell)
            if overlay and overlay.read(role, position, buffer):
                continue
            queue = core.store.readable[role]
            if queue is None or not queue.try_readv(position, [buffer], chunk_bytes):
                return None
            if overlay:
                overlay.patch(role, position, [buffer])
        content = np.frombuffer(view, dtype=np.uint8)
        parities: list[Request] = []
        for output in plan.outputs:
            buffer, out = next(slots)
            new = [content[c * chunk_bytes : (c + 1) * chunk_bytes] for c in output.new]
            xor_into(out, [old[cell] for cell in output.old] + new)
            parities.append((*core.position(stripe, output.cell), [buffer], chunk_bytes))
        return parities
