"""Strips in bulk: runs of stripes whose cells obey the same equations between members.

Rebuild and scrub treat a stripe as equations between places (role, row). Neighbouring stripes with
equal equations form a run, which is computed with one XOR over its whole length. In RAID-5 all
stripes of an array are alike in this sense, whatever the rotation, because the strip of each member
is the XOR of all others. RAM members lend their memory, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.format.sum_table import Values
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.io_tuples import MemberLostError, MemberRead, join
from raidx_fuse.store.sums import Misfits

Place = tuple[Role, int]  # (role, row)
K = TypeVar("K", bound=Hashable)
LOT_RUNS = 32


def runs(
    context: ArrayContext, stripes: Sequence[Stripe], key_of: Callable[[Stripe], K]
) -> Iterator[tuple[Stripe, int, K]]:
    """Yield (first stripe, count, key) of neighbouring *stripes* with equal keys.

    *key_of* may depend only on the stripe's roles, its lost cells and its unwritten cells.
    """
    layout = context.layout
    aligned = layout.aligned
    member_set = context.member_set
    alike = (
        layout.contiguous
        and len(stripes) > 0
        and stripes[-1] - stripes[0] < len(stripes)  # neighbours: a sparse image has few of them
        and context.written.whole(layout, stripes[0], stripes[-1] + 1)
        and member_set.lost_at(stripes[0]) == member_set.lost_at(stripes[-1])
        and not member_set.unreadable
    )
    by_roles: dict[tuple[Role, ...], K] = {}
    first, count, key = Stripe(-1), 0, None
    for stripe in stripes:
        if alike:
            roles = layout.roles(stripe)
            if roles not in by_roles:
                by_roles[roles] = key_of(stripe)
            stripe_key = by_roles[roles]
        else:
            stripe_key = key_of(stripe)
        if count and aligned and stripe == first + count and stripe_key == key:
            count += 1
            continue
        if count:
            assert key is not None
            yield first, count, key
        first, count, key = stripe, 1, stripe_key
    if count:
        assert key is not None
        yield first, count, key


def batches(
    context: ArrayContext, stripes: Sequence[Stripe], key_of: Callable[[Stripe], K]
) -> Iterator[list[tuple[Stripe, int, K]]]:
    """Yield the `runs` of *stripes* in batches that are read, computed and written concurrently.

    If strips of neighbouring stripes are not adjacent on the members, a run is a single stripe; one
    run per batch would then leave members idle. Raises MemberLostError if another member has taken
    a role since the keys were computed: it may have nothing of these stripes yet.
    """
    size = 1 if context.layout.aligned else LOT_RUNS
    found = list(runs(context, stripes, key_of))
    role_epoch = context.member_set.role_epoch
    for at in range(0, len(found), size):
        if role_epoch != context.member_set.role_epoch:
            raise MemberLostError
        yield found[at : at + size]


async def read_all(
    context: ArrayContext,
    wanted: Sequence[tuple[Strips, Sequence[Place]]],
    misfits: Misfits | None = None,
) -> None:
    """Read the places of all *wanted* strips in one round; adjacent ranges share one I/O.

    *misfits*: as `MemberSet.read`.
    """
    requests = [request for strips, places in wanted for request in strips.requests(places)]
    if requests:
        await context.member_set.read(join(requests), background=True, misfits=misfits)


class Strips:
    """The strips of *count* stripes from *first* on, for the roles asked for.

    `array(place)` is a (count, chunk) array of one row of one role. Call `release` when done.
    """

    def __init__(self, context: ArrayContext, first: Stripe, count: int) -> None:
        self.context = context
        self.first = first
        self.count = count
        self.rows = context.code.rows
        self.strip_bytes = self.rows * context.chunk_bytes
        self._strips: dict[Role, Bytes] = {}
        self._rows: dict[Place, Bytes] = {}
        self._crcs: dict[Role, tuple[Values, NDArray[np.bool_]] | None] = {}
        self._arenas: list[Arena] = []

    def offset(self, role: Role) -> int:
        """Return the byte offset on *role*'s member of its strip of the first stripe."""
        context = self.context
        if context.layout.aligned:
            return context.member_set.data_offset + self.first * self.strip_bytes
        column = context.layout.roles(self.first).index(role)
        return context.position(self.first, CellIndex(context.code.column_cells[column][0]))[1]

    def requests(self, places: Sequence[Place]) -> list[MemberRead]:
        """Allocate buffers for *places*; return the reads that fill them, and only those.

        Whole strips or single rows are read; a member that lends its memory needs no read.
        """
        context = self.context
        by_role: dict[Role, list[int]] = {}
        for role, row in places:
            by_role.setdefault(role, []).append(row)
        requests: list[MemberRead] = []
        size = self.strip_bytes * self.count
        chunk_bytes = context.chunk_bytes
        for role, rows in by_role.items():
            offset = self.offset(role)
            # A single stripe borrows no row behind its last one: during a restripe, the stripes of
            # one side have fewer rows than the joined code, and the member may end there.
            lent = size if self.count > 1 else (max(rows) + 1) * chunk_bytes
            view = context.member_set.lend(
                role, offset, lent, len(rows) * self.count * chunk_bytes / lent
            )
            if view is not None:
                self._strips[role] = np.frombuffer(view, dtype=np.uint8)
                continue
            buffer = self._buffer(role, size)
            if len(rows) == self.rows:
                requests.append((role, offset, [buffer], size))
                continue
            for index in range(self.count):
                for row in sorted(rows):
                    at = index * self.strip_bytes + row * chunk_bytes
                    requests.append(
                        (role, offset + at, [buffer[at : at + chunk_bytes]], chunk_bytes)
                    )
        return requests

    def array(self, place: Place) -> Bytes:
        """Return the row *place*: a flat array if it is contiguous, else (count, chunk)."""
        rows = self._rows.get(place)
        if rows is None:
            rows = self._strips[place[0]]
            if self.rows > 1:
                chunk_bytes = self.context.chunk_bytes
                if self.count == 1:
                    rows = rows[place[1] * chunk_bytes : (place[1] + 1) * chunk_bytes]
                else:
                    rows = rows.reshape(self.count, self.rows, chunk_bytes)[:, place[1], :]
            self._rows[place] = rows
        return rows

    def crcs(self, place: Place) -> Bytes | None:
        """Return what `Sums.crcs` has for the pages of a row that was read: [stripe, page], flat.

        None if one is unknown, or newer content may be in the log. Rows follow from one another by
        the same XOR as their CRCs.
        """
        member_set = self.context.member_set
        if member_set.sums is None or member_set.overlay:
            return None
        role, row = place
        if role not in self._crcs:
            found = member_set.sums.crcs(role, self.offset(role), self.strip_bytes * self.count)
            self._crcs[role] = found
        of_role = self._crcs[role]
        if of_role is None:
            return None
        values, known = (part.reshape(self.count, self.rows, -1)[:, row] for part in of_role)
        return values.ravel().view(np.uint8) if known.all() else None

    def space(self, role: Role, whole: bool) -> memoryview | None:
        """Allocate *role*'s strips; return the buffer to write, None if no write is needed.

        When the strips are filled *whole*, a RAM member lends its own memory.
        """
        size = self.strip_bytes * self.count
        queue = self.context.member_set.queues[role]
        if whole and queue is not None and self.context.member_set.sums is None:
            view = queue.writable_view(self.offset(role), size)
            if view is not None:
                self._strips[role] = np.frombuffer(view, dtype=np.uint8)
                return None
        return self._buffer(role, size)

    def _buffer(self, role: Role, size: int) -> memoryview:
        arena = self.context.arenas.get(size)
        self._arenas.append(arena)
        buffer, self._strips[role] = arena.take(0, size)
        return buffer

    def release(self) -> None:
        """Return the scratch memory to the pool. No array of these strips may be used then."""
        self._rows.clear()
        self._crcs.clear()
        self._strips.clear()
        for arena in self._arenas:
            self.context.arenas.put(arena)
        self._arenas.clear()
