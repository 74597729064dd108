"""Records on their way to the ring, on as many members as may be lost and one more.

A record is in the members' page cache when `append` returns, and the next one may begin before: the
journal (journal.py) waits for those before it. Its space and number come from the ring (ring.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.format.log_record import (
    DATA,
    ENTRY_BYTES,
    RECORD_HEADER_BYTES,
    encode_record,
    holder_of,
    record_bytes,
)
from raidx_fuse.journal.group_commit import CHANGE_BYTES_MAX, DATA_BYTES_MAX, CommitBatch
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.journal.ring import RecordsInFlight, ReshapePosition, Ring
from raidx_fuse.store.member_set import MemberIO, MemberSet
from raidx_fuse.store.page_store import PageStore

OVERLAY_BYTES_MAX = 32 << 20
NO_GAP = 1 << 64

log = logging.getLogger(__name__)


class LocksOfStripes(Protocol):
    """What the log needs of the array's stripe locks while a batch is late."""

    def take_free(self, stripes: Iterable[int]) -> list[int]:
        """Take the locks of those of *stripes* that are free, without waiting; return them."""

    def release_all(self, stripes: Iterable[int]) -> None:
        """Release every lock of *stripes*."""


class LogWriter(ReshapePosition):
    """Writes records to the ring of *member_set*; *roles* are those that hold it."""

    def __init__(self, member_set: MemberSet, head: PageStore, overlay: Overlay, mode: str) -> None:
        super().__init__(mode)
        self.member_set = member_set
        self.overlay = overlay
        self.ring = Ring(member_set, head)
        self.capacity = self.ring.capacity
        self.inflight = RecordsInFlight()
        self.unfinished: dict[int, Sequence[MemberIO]] = {}  # of them: what `finish` will show
        self.roles: tuple[int, ...] = ()
        self.leaving = -1  # a role that is about to be given up: no record shall be there alone
        self.locks: LocksOfStripes | None = None  # of the array
        self.batch: CommitBatch | None = (
            None  # changes that are not in the ring yet (group_commit.py)
        )
        self._gather_bytes = min(DATA_BYTES_MAX, self.capacity // 8)  # of one record
        self._change_bytes = min(CHANGE_BYTES_MAX, self._gather_bytes // 2)
        self._gap = NO_GAP  # sequence of a record that is on no member: a replay ends before it
        self.late: CommitBatch | None = None  # one whose record the members did not take at once
        self._wake = trio.Event()  # placing is not to be put off
        self.torn = False  # the next record's place has parts of one that was withdrawn
        self._mending = trio.Lock()
        self.commits = self.commit_bytes = 0

    @property
    def durable_mark(self) -> int:
        """The watermark that a start would find even without one record."""
        return self.ring.durable_tail[2]

    async def begin(self, epoch: int) -> None:
        """Start *epoch* with an empty ring; whatever an older one left never counts again."""
        self.choose_roles()
        await self.ring.begin(epoch, self.mark)
        self.torn = False
        await self.member_set.flush()

    async def move(self) -> None:
        """Let the members that are whole now hold the log; the ring is empty, nobody commits."""
        before = self.roles, self.ring.holders
        self.choose_roles()
        try:
            await self.ring.believe_also(before[1])
            await self.member_set.flush()
        except BaseException:
            self.roles, self.ring.holders = before
            raise

    async def believe_all(self) -> None:
        """Let whoever may be chosen next be believed, durably."""
        await self.ring.believe_also(
            holder_of(r.member_uuid) for r in self.member_set.config.members
        )
        await self.member_set.flush()

    def choose_roles(self) -> None:
        """Take the first members that are whole, one more than may be lost."""
        member_set = self.member_set
        self._gap = NO_GAP
        whole = [role for role, queue in enumerate(member_set.readable) if queue is not None]
        active = [role for role in whole if role != self.leaving]
        self.roles = tuple(active[: member_set.layout.code.tolerance + 1])
        records = [member_set.config.record(role) for role in self.roles]
        self.ring.holders = [holder_of(record.member_uuid) for record in records]

    def holds(self, stripe: int) -> bool:
        """Say whether a record of *stripe* may still be replayed (law 3)."""
        return stripe in self.ring.stripes or stripe >= self.ring.held_from

    async def append(
        self, stripes: Sequence[int], fields: Sequence[int], parts: Sequence[Any], total: int
    ) -> tuple[int, bytes]:
        """Write a record to the ring; it is in flight until its end. Raises what members raise."""
        ring = self.ring
        size = record_bytes(len(fields) // 4, total)
        self.write_batch()
        sequence, position, offset = ring.allocate(size, stripes)
        roles = [role for role in self.roles if self.member_set.queues[role] is not None]
        assert roles, "more log members than may be lost"
        record = encode_record(ring.epoch, sequence, position, ring.array, fields, parts, total)
        self.inflight.add(sequence, position)
        try:
            await self.member_set.write([(role, offset, [record], size) for role in roles])
        except BaseException as error:
            if isinstance(error, RaidxError):
                self.withdraw(sequence, position)
            self.inflight.end(sequence)
            raise
        self.commits += 1
        self.commit_bytes += size
        return sequence, record

    async def finish(self, sequence: int, left: Sequence[MemberIO]) -> None:
        """Write what `commit_now` has *left*; only then may the change be seen, and be placed."""
        writes = self.unfinished.pop(sequence)
        try:
            await self.member_set.write(left)
            for role, place, (buffer,), _ in writes:
                self.overlay.put(role, place, buffer)
        except RaidxError:
            self.withdraw(sequence, self.inflight.position(sequence))
            raise
        finally:
            self.inflight.end(sequence)

    def take_effect(self, record: bytes, entries: int, writes: Sequence[MemberIO]) -> None:
        """Show committed *writes* to readers; the overlay keeps the *record* itself."""
        overlay = self.overlay
        view = memoryview(record)
        at = RECORD_HEADER_BYTES + entries * ENTRY_BYTES
        for role, offset, _, size in writes:
            overlay.put(role, offset, view[at : at + size])
            at += size

    async def wait_for_earlier(self, sequence: int) -> None:
        """Return when all records before the one of *sequence* are written (journal.py, law 1).

        Raises RaidxError if one of them never will be.
        """
        await self.inflight.wait_for_earlier(sequence)
        if sequence > self._gap:
            raise RaidxError("the journal is lost: a change before this one could not be logged")

    def hurry(self) -> None:
        """Let the log be placed soon if much is not in its place."""
        if self.ring.must_hurry() or self.overlay.held_bytes > OVERLAY_BYTES_MAX:
            self._wake.set()

    # -- group commit (group_commit.py)
    # --------------------------------------------------------------

    def join_batch(
        self, stripe: int, writes: Sequence[MemberIO], reserve_bytes: int
    ) -> CommitBatch | None:
        """Show *writes* and add them to the next record; None if they are to have their own.

        So it is if they are large, or the ring has no room for a full gathering and
        *reserve_bytes*.
        """
        batch = self.batch
        if batch is None or batch.data_bytes > self._gather_bytes - self._change_bytes:
            self.write_batch()
            ring = self.ring
            if self.inflight.open or not ring.has_room(2 * self._gather_bytes + reserve_bytes):
                return None
            batch = CommitBatch(self.write_batch, ring.next_sequence)
        total = 0
        for _, _, _, length in writes:
            total += length
        if total > self._change_bytes:
            return None
        self.batch = batch
        batch.data_bytes += total
        fields, parts = batch.fields, batch.parts
        put = self.overlay.put
        for role, offset, (buffer,), length in writes:
            fields += (DATA, role, length, offset)
            parts.append(buffer)
            put(role, offset, buffer)
        batch.stripes.append(stripe)
        self.ring.stripes[stripe] = batch.sequence
        return batch

    def write_batch(self) -> None:
        """Write the record of what was gathered; what members do not take at once is *late*."""
        batch = self.batch
        if batch is None:
            return
        self.batch = None
        batch.written = True
        ring = self.ring
        fields, total = batch.fields, batch.data_bytes
        size = record_bytes(len(fields) >> 2, total)
        sequence, position, offset = ring.take(size)
        parts, batch.parts = batch.parts, []
        record = encode_record(ring.epoch, sequence, position, ring.array, fields, parts, total)
        left = self.write_now(offset, record)
        self.commits += len(batch.stripes)
        self.commit_bytes += size
        self.hurry()
        if left:
            self.be_late(batch, left, position)

    def be_late(self, batch: CommitBatch, left: Sequence[MemberIO], position: int) -> None:
        """Let nobody build on what is shown but not logged yet, save later records."""
        self.inflight.add(batch.sequence, position)
        batch.left = left
        batch.over = trio.Event()
        self.late = batch
        if self.locks is not None:
            batch.locked = self.locks.take_free(batch.stripes)

    async def finish_gathered(self, batch: CommitBatch) -> None:
        """Return when all of a gathering is written; each of its handlers waits for that.

        Raises what the members raise. The log ends then, and what it lacks is never placed.
        """
        assert batch.over is not None
        left, batch.left = batch.left, ()
        if not left:
            await batch.over.wait()
        else:
            try:
                await self.member_set.write(left)
                self.late = None
            except BaseException as error:
                batch.error = RaidxError("the journal is lost: a record could not be written")
                self._end_before(batch.sequence)
                if not isinstance(error, RaidxError):
                    raise
                batch.error = error
            finally:
                self.inflight.end(batch.sequence)
                if self.locks is not None:
                    self.locks.release_all(batch.locked)
                batch.over.set()
        if batch.error is not None:
            raise batch.error

    @property
    def is_late(self) -> bool:
        """Whether something is shown that the log lacks."""
        return self.late is not None

    async def finish_batches(self) -> None:
        """Return when nothing is shown that the log lacks. Raises RaidxError if it never will."""
        while self.late is not None:
            if self.late.error is not None:
                raise RaidxError("the journal is lost: its records wait for the next mount")
            assert self.late.over is not None
            await self.late.over.wait()

    def write_now(self, offset: int, record: bytes) -> list[MemberIO]:
        """Write *record* to the ring; return what the log members did not take at once."""
        size = len(record)
        buffers = [record]
        left: list[MemberIO] = []
        queues = self.member_set.queues
        for role in self.roles:
            queue = queues[role]
            try:
                if queue is None or queue.try_writev(offset, buffers, size):
                    continue
            except MemberError:
                pass  # tried once more with what is left, then failed
            left.append((role, offset, buffers, size))
        return left

    def withdraw(self, sequence: int, position: int) -> None:
        """Take back a record that could not be written: a record of nothing takes its place.

        Some members may have it, or get it yet. A replay would take it for the next one, if that
        began elsewhere, in the next lap or on other members. Later ones cannot be reached by a
        replay then, so with any the journal ends here.
        """
        if self.ring.take_back(sequence, position):
            self.torn = True
        else:
            self._end_before(sequence)

    async def mend(self) -> None:
        """Write a record of nothing over one that was withdrawn. Raises what members raise."""
        async with self._mending:
            if self.torn and self.roles:
                sequence, _ = await self.append((), (), (), 0)
                self.torn = False
                self.inflight.end(sequence)

    def _end_before(self, sequence: int) -> None:
        """End the journal before a record that could not be written and is not withdrawn."""
        log.critical("the journal cannot be written; no more changes are taken")
        self._gap = min(self._gap, sequence)
        self.roles = ()
