"""Records on their way to the ring, on as many members as may be lost and one more.

A record is in the members' page cache when `append` returns, and the next one may begin before: the
journal (journal.py) waits for those before it. Its space and number come from the ring (ring.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.journal import encode_record, record_bytes
from raidx_fuse.inflight import InFlight
from raidx_fuse.marked import Marked
from raidx_fuse.pagestore import PageStore
from raidx_fuse.ring import Ring
from raidx_fuse.store import Store

log = logging.getLogger(__name__)


class LogWriter(Marked):
    """Writes records to the ring of *store*; *roles* are those that hold it."""

    def __init__(self, store: Store, head: PageStore, mode: str) -> None:
        super().__init__(mode)
        self.store = store
        self.ring = Ring(store, head)
        self.capacity = self.ring.capacity
        self.inflight = InFlight()
        self.roles: tuple[int, ...] = ()
        self.leaving = -1  # a role that is about to be given up: no record shall be there alone
        self.commits = self.commit_bytes = 0

    @property
    def durable_mark(self) -> int:
        """The watermark that a start would find even without one record."""
        return self.ring.durable_tail[2]

    async def begin(self, epoch: int) -> None:
        """Start *epoch* with an empty ring; whatever an older one left never counts again."""
        await self.ring.begin(epoch, self.mark)
        await self.store.flush()
        self.choose_roles()

    def choose_roles(self) -> None:
        """Take the first members that are whole, one more than may be lost."""
        store = self.store
        whole = [role for role, queue in enumerate(store.readable) if queue is not None]
        active = [role for role in whole if role != self.leaving]
        self.roles = tuple(active[: store.layout.code.tolerance + 1])

    def holds(self, stripe: int) -> bool:
        """Say whether a record of *stripe* may still be replayed (law 3)."""
        return stripe in self.ring.stripes or stripe >= self.ring.held_from

    async def append(
        self, stripes: Sequence[int], fields: Sequence[int], parts: Sequence[Any], total: int
    ) -> tuple[int, bytes]:
        """Write a record to the ring; it is in flight until its end. Raises what members raise."""
        ring = self.ring
        size = record_bytes(len(fields) // 4, total)
        sequence, position, offset = ring.allocate(size, stripes)
        roles = [role for role in self.roles if self.store.queues[role] is not None]
        assert roles, "more log members than may be lost"
        record = encode_record(ring.epoch, sequence, position, ring.array, fields, parts, total)
        self.inflight.add(sequence, position)
        try:
            await self.store.write([(role, offset, [record], size) for role in roles])
        except BaseException as error:
            if isinstance(error, RaidxError):
                self.withdraw(sequence, position)
            self.inflight.end(sequence)
            raise
        self.commits += 1
        self.commit_bytes += size
        return sequence, record

    def withdraw(self, sequence: int, position: int) -> None:
        """Take back a record that could not be written: the next one takes its place.

        Later ones cannot be reached by a replay then, so with any the journal ends here.
        """
        if not self.ring.take_back(sequence, position):
            log.critical("the journal cannot be written; no more changes are taken")
            self.roles = ()
