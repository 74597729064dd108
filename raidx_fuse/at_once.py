"""Small writes at once: those inside one chunk of a healthy stripe, done without a suspension.

Nothing else runs between the first look and the last member's write, so there is nothing to lock,
to count in or to plan anew: what costs the general way (writer.py) 20 us takes half of that here.
The plan is the same; it does not depend on the place in the chunk and is prepared by data cell.

Everything else is left to the general way, before anything was changed: several chunks, anything
lost or dead, a stripe that someone holds, a member that cannot read at once. A member that reads at
once may still not write at once; what is then left is handed back, to be written under the stripe's
lock, and never computed again: the old data is gone by then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raidx_fuse.core import Core
from raidx_fuse.errors import MemberError
from raidx_fuse.layouts.plan import write_plans
from raidx_fuse.parity import Arena, Bytes
from raidx_fuse.store import Request

_LENGTHS_KEPT = 64

Slot = tuple[list[Any], Bytes]  # the buffers of one I/O, and the same memory as an array


class AtOnce:
    """Writes to *core*; `write` says what it did."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._plans = [write_plans(core.code, 1 << cell, 0, 0) for cell in range(core.data_count)]
        self._slots_needed = max(
            len(plan.reads) + len(plan.outputs) for pair in self._plans for plan in pair if plan
        )
        self._slots: dict[int, list[Slot]] = {}
        self._renew()

    def write(
        self, offset: int, data: Any, length: int
    ) -> tuple[int, list[Request], int | None] | None:
        """Write *data* inside one chunk; None if that cannot be done at once: nothing was done.

        Else returns the stripe, the writes that are left, usually none, and for a write that went
        to the journal its sequence number. The caller has seen that no member is lost, no chunk bad
        and no change of membership under way.
        """
        core = self.core
        shift = core.shift
        chunk = offset >> shift
        if not core.written.bits[chunk >> 3] >> (chunk & 7) & 1:
            return None
        layout = core.layout
        stripe, cell = layout.locate(chunk)
        if stripe in core.locks.held:
            return None
        plan = core.policy(*self._plans[cell])
        # The parity of a chunk that was written is alive, but its neighbours may not be.
        if plan.kind == "rcw" and core.dead(stripe):
            return None
        journal = core.journal
        in_parity = core.code.parity_count > 0
        if journal.mode == "none":
            logged = journal.holds(stripe)
        else:
            logged = in_parity or journal.mode == "full" or journal.holds(stripe)
        if not logged and (in_parity or journal.mode == "none") and not core.dirty.touch(stripe):
            return None
        overlay = core.store.overlay
        unplaced = overlay.current or overlay.frozen
        queues = core.store.readable
        place = layout.place
        base = core.data_offset + (offset & core.inner_mask)
        role, member_chunk = place(stripe, cell)
        position = base + (member_chunk << shift)
        writes: list[Request] = [(role, position, [data], length)]
        if plan.outputs:
            slots = iter(self._slots.get(length) or self._cut(length))
            old: dict[int, Bytes] = {}
            known_places = {cell: (role, position)}
            try:
                for source in plan.reads:
                    buffers, old[source] = next(slots)
                    if source == cell:
                        role, position = known_places[cell]
                    else:
                        role, member_chunk = place(stripe, source)
                        position = base + (member_chunk << shift)
                        known_places[source] = role, position
                    if unplaced:
                        known = overlay.whole_page(role, position, length)
                        if known is not None:
                            old[source] = np.frombuffer(known, dtype=np.uint8)
                            continue
                    if not queues[role].try_readv(position, buffers, length):  # type: ignore[union-attr]
                        return None
                    if unplaced:
                        overlay.patch(role, position, buffers)
            except MemberError:
                return None  # the general way tries again, and fails the member
            new = np.frombuffer(data, dtype=np.uint8)
            for output in plan.outputs:
                if output.cell in known_places:
                    role, position = known_places[output.cell]
                else:
                    role, member_chunk = place(stripe, output.cell)
                    position = base + (member_chunk << shift)
                buffers, out = next(slots)
                so_far = new
                for source in output.old:
                    np.bitwise_xor(so_far, old[source], out)
                    so_far = out
                if so_far is new:  # a replica: the data as it came
                    buffers = [data]
                writes.append((role, position, buffers, length))
        if logged:
            committed = journal.commit_now(stripe, writes)
            if committed is None:
                return None  # no room, or not at once: the general way waits for it
            if committed[1]:
                self._renew()
            core.counters.count_plan(plan.kind, len(plan.reads))
            return stripe, committed[1], committed[0]
        left: list[Request] = []
        for request in writes:
            role, position, buffers, _ = request
            try:
                if queues[role].try_writev(position, buffers, length):  # type: ignore[union-attr]
                    continue
            except MemberError:
                pass  # tried once more with what else is left, then failed
            left.append(request)
        if left:
            self._renew()  # the memory belongs to them now
        core.counters.count_plan(plan.kind, len(plan.reads))
        return stripe, left, None

    def _renew(self) -> None:
        self._slots.clear()
        self._arena = Arena(max(1, self._slots_needed) * self.core.chunk_bytes)

    def _cut(self, length: int) -> list[Slot]:
        if len(self._slots) >= _LENGTHS_KEPT:
            self._slots.clear()
        slots = self._arena.slots(length, self._slots_needed)[: self._slots_needed]
        self._slots[length] = [([view], array) for view, array in slots]
        return self._slots[length]
