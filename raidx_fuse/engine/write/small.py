"""Small writes: inside one chunk of a healthy stripe, done without suspending.

No other task runs between the first check and the last member's write. So there is no lock to take,
no dirty count to keep and no plan to repeat: what costs the general path (write.py) 20 us takes
half of that here. The plan is the same as there. It does not depend on the offset inside the chunk,
and is prepared for each data cell. Through the log goes the data alone, or with its copies: parity
follows at the checkpoint (journal/unsettled.py), unless the log is filling up (route.py).

Everything else is left to the general path before anything has changed:

* a write to several chunks, and a full stripe, of one chunk, that may bypass the log;
* anything lost or unwritten;
* a stripe whose lock is held;
* a stripe in the log whose parity must follow first;
* queues that the parity policy has to weigh;
* a member that cannot read synchronously;
* parity of what has no checksum, in an array with checksums.

A member that reads synchronously may still not write so. The writes that are left are then returned
to the caller, which completes them under the stripe's lock. They are never computed again: the old
data, from which the parity was computed, is already overwritten.
"""

from __future__ import annotations

from typing import Any

from numpy import frombuffer, uint8

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.parity_policies import BpuPolicy, OwnPolicy, Policy
from raidx_fuse.engine.write.pending import Done
from raidx_fuse.engine.write.route import healthy_routes, may_follow
from raidx_fuse.errors import MemberError
from raidx_fuse.layouts.numbers import CellIndex, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import BandPlan, write_plans
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.io_tuples import MemberIO
from raidx_fuse.store.xor import combine_output, combine_two

_LENGTHS_KEPT = 64

Slot = tuple[list[Any], Bytes]  # the buffers of one I/O; the same memory as an array


class SmallWrite:
    """Does small writes; `write` returns what it did."""

    def __init__(self, context: ArrayContext) -> None:
        self.context = context
        self._plans = [
            write_plans(context.code, 1 << cell, 0, 0) for cell in range(context.code.data_count)
        ]
        self._slots_needed = max(
            len(plan.reads) + len(plan.outputs) for pair in self._plans for plan in pair if plan
        )
        has_sums = context.member_set.sums is not None
        self._routes = healthy_routes(context.code.parity_count > 0, has_sums)
        self._large = context.code.data_count < 2  # a cell is more than half of the stripe
        self._whole_bytes = context.chunk_bytes if self._large else -1  # of a full stripe
        self._fills = context.layout.contiguous and context.layout.aligned
        self._has_parity = context.code.parity_count > 0 and not context.code.is_copies
        self._policy: Policy | None = None  # the policy that made *_chosen*
        self._chosen: list[BandPlan] = []
        cells = cell_range(0, context.code.data_count)
        self._rmw_parities = [_changed_by(cell, self._plans[cell][0]) for cell in cells]
        self._slots: dict[int, list[Slot]] = {}
        self._renew()

    def write(self, offset: int, data: ReadBuffer, length: int) -> Done | None:
        """Write *data* inside one chunk; return None, with nothing done, if that is impossible.

        `complete` (pending.py) does what is left. The caller has checked that no member is lost, no
        chunk is lost and no membership change is under way.
        """
        context = self.context
        chunk_bytes = context.chunk_bytes
        chunk = offset // chunk_bytes
        if not context.written.bits[chunk >> 3] >> (chunk & 7) & 1:
            return None
        layout = context.layout
        stripe, cell = layout.locate(chunk)
        if stripe in context.locks.held:
            return None
        if context.growth is not None and stripe in context.growth.unsaved:
            return None
        journal = context.journal
        routes = self._routes[journal.mode]
        logged = routes.logs[0] or routes.logs[journal.holds(stripe)]
        if logged:
            if length == self._whole_bytes and routes.fills and not journal.holds(stripe):
                return None
            if context.traffic.may_tear(offset, length):
                return None
            if self._has_parity and may_follow(context, stripe):
                # As in `logs_data_only`.
                follows = not (self._large or journal.is_filling) or stripe in journal.unsettled
                if follows or (not cell and length == context.chunk_bytes and self._fills):
                    return self._log_data(stripe, cell, offset, data, length)
        policy = context.policies.current
        plan = self._chosen[cell] if policy is self._policy else self._choose(policy, cell)
        if plan is None:
            return None
        if self._has_parity and context.unwritten_cells(stripe):
            return None  # what is unwritten is not read: the plan may be another one
        if logged:
            if journal.unsettled and stripe in journal.unsettled:
                return None  # its parity must follow first
            if data.__class__ is not bytes:  # the log keeps it: it must not change
                data = bytes(data)
        elif routes.marks and not context.dirty_bitmap.touch(stripe):
            return None
        queues = context.member_set.readable
        base = context.member_set.data_offset + offset % context.chunk_bytes
        role, member_chunk = layout.place(stripe, cell)
        position = base + member_chunk * chunk_bytes
        writes: list[MemberIO] = [(role, position, [data], length)]
        if plan.outputs:
            parities = self._rmw_parities[cell] if plan.kind == "rmw" else None
            try:
                done = (
                    self._combine(stripe, cell, plan, base, data, length, writes, logged)
                    if parities is None
                    else self._modify(stripe, parities, base, data, length, writes, logged)
                )
            except MemberError:
                return None  # the general path retries, and excludes the member
            if not done:
                return None
        if logged:
            committed = journal.commit_now(stripe, writes)
            if committed is None:
                return None  # no space, or not synchronously: the general path waits
            context.traffic.count_plan(plan.kind, len(plan.reads))
            return stripe, committed
        left: list[MemberIO] = []
        sums = context.member_set.sums
        if sums is not None and not sums.is_ready(writes):
            return None
        for request in writes:
            role, position, buffers, _ = request
            try:
                if queues[role].try_writev(position, buffers, length):  # type: ignore[union-attr]
                    if sums is not None:
                        sums.note(role, position, buffers, length)
                    continue
            except MemberError:
                pass  # retried once with the other writes left, then excluded
            left.append(request)
        if left:
            self._renew()  # the writes that are left own the memory now
        context.traffic.past_log += 1
        context.traffic.count_plan(plan.kind, len(plan.reads))
        return stripe, left

    def _log_data(
        self, stripe: Stripe, cell: CellIndex, offset: int, data: Any, length: int
    ) -> Done | None:
        """Log *data* without its parity, which follows at the checkpoint; return as `write`."""
        context = self.context
        low = offset % context.chunk_bytes
        role, position = context.position(stripe, cell)
        if data.__class__ is not bytes:  # the log keeps it: it must not change
            data = bytes(data)
        writes: list[MemberIO] = [(role, position + low, [data], length)]
        committed = context.journal.commit_now(stripe, writes, ((cell, low, low + length),))
        return None if committed is None else (stripe, committed)

    def _modify(
        self,
        stripe: Stripe,
        parities: tuple[CellIndex, ...],
        base: int,
        data: ReadBuffer,
        length: int,
        writes: list[MemberIO],
        kept: bool,
    ) -> bool:
        """Read-modify-write: XOR the change of the data into each parity; False if not possible.

        *kept*: the log keeps the buffers of *writes*, so they are not used again.
        """
        context, sums = self.context, self.context.member_set.sums
        try_read = context.member_set.try_read
        place, chunk_bytes = context.layout.place, context.chunk_bytes
        slots = self._slots.get(length) or self._cut(length)
        change_buffers, change = slots[0]
        role, position, _, _ = writes[0]
        newest = try_read(role, position, change_buffers, length)
        if newest is None or (sums is not None and sums.is_unproven(role, position, length)):
            return False
        old = change if newest is change_buffers[0] else frombuffer(newest, uint8)
        combine_two(old, frombuffer(data, uint8), change)
        for number, parity in enumerate(parities, 1):
            buffers, content = slots[number]
            role, member_chunk = place(stripe, parity)
            position = base + member_chunk * chunk_bytes
            newest = try_read(role, position, buffers, length)
            if newest is None or (sums is not None and sums.is_unproven(role, position, length)):
                return False
            old = content if newest is buffers[0] else frombuffer(newest, uint8)
            if kept:
                # Stored as bytes, which the garbage collector does not scan.
                buffers = [combine_two(old, change, content).tobytes()]
            else:
                combine_two(old, change, content)
            writes.append((role, position, buffers, length))
        return True

    def _combine(
        self,
        stripe: Stripe,
        cell: CellIndex,
        plan: BandPlan,
        base: int,
        data: ReadBuffer,
        length: int,
        writes: list[MemberIO],
        kept: bool,
    ) -> bool:
        """Carry out any *plan*: read its cells, compute its outputs; *kept* as in `_modify`."""
        context, sums = self.context, self.context.member_set.sums
        try_read = context.member_set.try_read
        place, chunk_bytes = context.layout.place, context.chunk_bytes
        slots = self._slots.get(length) or self._cut(length)
        old: dict[CellIndex, Bytes] = {}
        number = 0
        for source in plan.reads:
            buffers, content = slots[number]
            number += 1
            role, member_chunk = place(stripe, source)
            position = base + member_chunk * chunk_bytes
            newest = try_read(role, position, buffers, length)
            if newest is None or (sums is not None and sums.is_unproven(role, position, length)):
                return False
            old[source] = content if newest is buffers[0] else frombuffer(newest, uint8)
        new = {cell: frombuffer(data, uint8)}
        for output in plan.outputs:
            buffers, out = slots[number]
            number += 1
            role, member_chunk = place(stripe, output.cell)
            if not output.old:  # a replica: the request's own data
                buffers = [data]
            else:
                combine_output(out, output, old, new)
                if kept:
                    buffers = [bytes(buffers[0])]
            writes.append((role, base + member_chunk * chunk_bytes, buffers, length))
        return True

    def _choose(self, policy: Policy, cell: CellIndex) -> BandPlan | None:
        """Return the plan that *policy* chooses, or None if it has to weigh queues.

        A policy that looks only at the plans is asked once, for all cells.
        """
        if isinstance(policy, BpuPolicy | OwnPolicy):
            return policy.choose_now(*self._plans[cell])
        self._policy = policy
        self._chosen = [policy(*pair, Stripe(0)) for pair in self._plans]
        return self._chosen[cell]

    def _renew(self) -> None:
        self._slots.clear()
        self._arena = Arena(max(1, self._slots_needed) * self.context.chunk_bytes)

    def _cut(self, length: int) -> list[Slot]:
        if len(self._slots) >= _LENGTHS_KEPT:
            self._slots.clear()
        slots = self._arena.slots(length, self._slots_needed)[: self._slots_needed]
        self._slots[length] = [([view], array) for view, array in slots]
        return self._slots[length]


def _changed_by(cell: CellIndex, rmw: BandPlan | None) -> tuple[CellIndex, ...] | None:
    """Return the parities that a change of *cell* goes into; None if *rmw* is no such plan."""
    if rmw is None or rmw.kind != "rmw":
        return None
    if any(set(output.old) != {cell, output.cell} for output in rmw.outputs):
        return None
    return tuple(output.cell for output in rmw.outputs)
