"""Append records to the write-ahead log, on one member more than the code tolerates to lose.

The members take turns, so that none does more work than the others: the records of each span of
`TURN_BYTES` of the ring go to the next members. Slow members have no turn where others suffice. A
record has the same place on each of its members, and recovery finds it on any of them: the head
page names all that may have a turn (ring.py).

A record is in the page cache of the log members when `append` returns. The next record may begin
before that; the journal (journal.py) waits for earlier records before it acknowledges a later one.
The ring (ring.py) gives a record its space and its sequence number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.format.log_record import (
    ENTRY_BYTES,
    RECORD_HEADER_BYTES,
    RecordBody,
    encode_record,
    holder_of,
)
from raidx_fuse.format.regions import SECTOR_BYTES
from raidx_fuse.journal.group_commit import (
    BATCH_BYTES_MAX,
    CHANGE_BYTES_MAX,
    CommitBatch,
    LocksOfStripes,
)
from raidx_fuse.journal.ring import RecordsInFlight, Ring
from raidx_fuse.journal.stripe_parity import Part
from raidx_fuse.journal.unsettled import Unsettled
from raidx_fuse.laws import Law, LawError
from raidx_fuse.layouts.numbers import Role, Stripe, by_role
from raidx_fuse.store.io_tuples import MemberIO, MemberLostError
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.page_store import PageStore
from raidx_fuse.store.written_map import WrittenMap

OVERLAY_BYTES_MAX = 32 << 20
SLOW_TIMES = 4  # the service time of a write, as long as that of the slowest that is needed
TURN_BYTES = 64 << 10  # of the ring: long enough for a rotating disk

log = logging.getLogger(__name__)


class LogMembers:
    """The log members among those of *member_set*.

    Attributes: *roles* (all that may have a turn; none before the start); *turns* (those that get
    the records of one span, and then of each of the next ones).
    """

    def __init__(self, member_set: MemberSet) -> None:
        self._member_set = member_set
        self._leaving = -1  # a role about to be released: it gets no more records
        self.roles: tuple[Role, ...] = ()
        self._copies = 0
        self.turns: tuple[tuple[Role, ...], ...] = ((),)

    def avoid(self, role: Role | None) -> None:
        """Let no log member be chosen from *role*, which is about to be given up; None: any may."""
        self._leaving = -1 if role is None else role

    def choose(self) -> None:
        """Choose all readable members, and those whose rebuild has passed all stripes.

        The latter count as whole only when the log is on them: from then on any other may be lost.
        """
        member_set = self._member_set
        rebuilt = {
            role
            for role, mark in member_set.watermarks.items()
            if mark >= member_set.layout.stripes and member_set.queues[role] is not None
        }
        whole = [
            role
            for role, queue in by_role(member_set.readable)
            if queue is not None or role in rebuilt
        ]
        self.take(tuple([role for role in whole if role != self._leaving]))

    def take(self, roles: tuple[Role, ...]) -> None:
        """Let the records go to *roles*, in turns."""
        self._copies = min(self._member_set.layout.code.tolerance + 1, len(roles))
        self.roles = roles
        self._take_turns(roles)

    def prefer_fast(self) -> None:
        """Give no turn to members that failed, or that need far longer for a write than others."""
        waits = {
            role: queue.write_service_s
            for role in self.roles
            if (queue := self._member_set.queues[role]) is not None
        }
        if len(waits) >= self._copies > 0:
            limit_s = SLOW_TIMES * sorted(waits.values())[self._copies - 1]
            self._take_turns(tuple([role for role, wait_s in waits.items() if wait_s <= limit_s]))

    def _take_turns(self, roles: tuple[Role, ...]) -> None:
        first = range(len(roles))
        self.turns = tuple([(roles * 2)[n : n + self._copies] for n in first]) or ((),)

    def at(self, offset: int) -> tuple[Role, ...]:
        """Return the roles that get the record at byte *offset* of the members."""
        return self.turns[offset // TURN_BYTES % len(self.turns)]

    async def may_have(self, role: Role, offset: int, head: bytes) -> bool:
        """Return whether the record that begins with *head* at byte *offset* may lie on *role*."""
        if self._member_set.queues[role] is None:
            return False  # it is excluded: nobody reads its log
        found = memoryview(bytearray(len(head)))
        try:
            await self._member_set.read([(role, offset, [found], len(head))])
        except (RaidxError, MemberLostError):
            return True
        return found == head

    def holders(self) -> list[bytes]:
        """Return what the head page says of the members: `holder_of` each."""
        config = self._member_set.config
        return [holder_of(config.record(role).member_uuid) for role in self.roles]


class LogWriter:
    """Writes records to the ring of *member_set*.

    Attributes: *log_members*; *batch* (the commit batch that is being collected); *late* (a batch
    whose record some log members did not take synchronously); *torn* (why a record could not be
    written: no other one is begun before `mend`); *to_form* (the log members are to be chosen
    anew); *mode* (which writes are logged, see journal.py); *forced* (log every write, whatever the
    mode is).

    All that the log knows of a restripe is its watermark *mark* (chunks), which moves with the
    records: a record may carry one, and the head page has the one that was valid at its tail.
    Wherever a replay ends, its watermark therefore matches the records that it has redone
    (jobs/restripe/job.py). *on_mark* is called with every new one.
    """

    def __init__(
        self,
        member_set: MemberSet,
        written: WrittenMap,
        head: PageStore,
        overlay: Overlay,
    ) -> None:
        self.forced = False
        self.mark = 0
        self.on_mark: Callable[[int], None] = lambda _mark: None
        self._mode = self.mode = "partial"
        self.member_set = member_set
        self.overlay = overlay
        self.ring = Ring(member_set, head)
        self.capacity = self.ring.capacity
        self.inflight = RecordsInFlight()
        self.unsettled = Unsettled(self, member_set, written, self.capacity)
        self.log_members = LogMembers(member_set)
        self.locks: LocksOfStripes | None = None  # of the array
        self.batch: CommitBatch | None = None  # changes that are not in the ring yet
        most_bytes = min(BATCH_BYTES_MAX, self.capacity // 8)
        self._change_bytes = min(CHANGE_BYTES_MAX, most_bytes // 2)
        # Of a batch that takes one more write, and of a full one with its header.
        self._gather_bytes = most_bytes - self._change_bytes
        self._batch_bytes = most_bytes + 4096
        self.late: CommitBatch | None = None
        self._wake = trio.Event()  # set when the checkpoint must not be delayed
        self.to_form = False
        self.torn: RaidxError | None = None
        # What mends the log: the rest of a batch whose changes readers see, and byte offset and
        # first sector of each record that was taken back.
        self._owed: Sequence[MemberIO] = ()
        self._taken_back: list[tuple[int, bytes]] = []
        self._mending = trio.Lock()

    def set_mode(self, mode: str) -> None:
        """Log the writes that *mode* says from now on."""
        self._mode = mode
        self._decide()

    def force(self, everything: bool) -> None:
        """Log *everything* from now on, whatever the mode is; or what the mode says again."""
        self.forced = everything
        self._decide()

    def _decide(self) -> None:
        self.mode = "full" if self.forced else self._mode

    def take_mark(self, mark: int) -> None:
        self.mark = mark
        self.on_mark(mark)

    @property
    def durable_mark(self) -> int:
        """The watermark that recovery would find if the log had no record (chunks)."""
        return self.ring.durable_tail[2]

    async def begin(self, epoch: int) -> None:
        """Start *epoch* with an empty ring; records of older epochs are invalid from then on.

        Raises what the members raise.
        """
        self.choose_roles()
        await self.ring.begin(epoch, self.mark)
        await self.member_set.flush()

    async def move(self) -> None:
        """Choose the log members anew among the readable ones.

        The ring must be empty and no commit may run. Raises what the members raise; then the former
        log members stay, until `Journal.tend` has tried again.
        """
        if self.ring.open or self.inflight.open:
            raise self.member_set.laws.broken(Law.EMPTY, f"{len(self.ring.open)} records")
        roles, holders = self.log_members.roles, self.ring.holders
        self.to_form = True
        self.choose_roles()
        try:
            await self.ring.believe_also(holders)
            await self.member_set.flush()
        except BaseException:
            self.log_members.take(roles)
            self.ring.holders = holders
            raise
        self.to_form = False

    async def believe_all(self) -> None:
        """Durably record every member as a valid holder of the log.

        Records on any member that may be chosen next will then be found by recovery.
        """
        members = self.member_set.config.members
        await self.ring.believe_also(holder_of(record.member_uuid) for record in members)
        await self.member_set.flush()

    def choose_roles(self) -> None:
        self.log_members.choose()
        self.ring.holders = self.log_members.holders()

    def holds(self, stripe: Stripe) -> bool:
        """Return whether a record of *stripe* may still be replayed (journal.py, law 3)."""
        return stripe in self.ring.stripes or stripe >= self.ring.held_from

    async def append(
        self, stripes: Sequence[Stripe], body: RecordBody, role_epoch: int | None = None
    ) -> tuple[int, bytes]:
        """Write a record of *stripes* to the ring; return its sequence number and its bytes.

        Returns when all records before it are written, too (journal.py, law 1). The record is in
        flight until the caller ends it (`inflight.end`). *role_epoch*: it was planned for the
        members of then. Raises RaidxError if it or an earlier one could not be written, or if a
        role was taken meanwhile; then it is taken back.
        """
        self.write_batch()
        sequence, position, record, left = self.append_now(body)
        self.ring.hold(stripes, sequence)
        self.inflight.open[sequence] = position
        try:
            if left:
                await self.member_set.write(left)
                if role_epoch not in (None, self.member_set.role_epoch):
                    raise self.member_set.laws.broken(Law.ROLES, f"record {sequence}")
            await self.inflight.wait_for_earlier(sequence)
            if self.torn is not None and (self._owed or sequence >= self.ring.next_sequence):
                raise self.torn
        except BaseException as error:
            self._take_back(sequence, record, error)
            self.inflight.end(sequence)
            raise
        return sequence, record

    def append_now(self, body: RecordBody) -> tuple[int, int, bytes, list[MemberIO]]:
        """Write a record to the ring, which has room for it, without suspending.

        Returns its sequence number, position and bytes, and the requests that did not complete.
        """
        ring = self.ring
        sequence, position, offset = ring.take(body.size_bytes)
        # One contiguous record costs a copy, but each member takes one buffer instead of four.
        record = encode_record(ring.epoch, sequence, position, ring.array, body)
        self.hurry()
        return sequence, position, record, self.write_now(offset, record)

    def take_effect(self, record: bytes, body: RecordBody, writes: Sequence[MemberIO]) -> None:
        """Put committed *writes* into the overlay, which keeps views of the *record*'s bytes."""
        overlay = self.overlay
        view = memoryview(record)
        at = RECORD_HEADER_BYTES + body.entries * ENTRY_BYTES
        for role, offset, _, size in writes:
            overlay.put(role, offset, view[at : at + size])
            at += size

    def hurry(self) -> None:
        """Wake the checkpoint if the ring or the overlay is filling up."""
        if self.is_filling or self.overlay.held_bytes > OVERLAY_BYTES_MAX:
            self._wake.set()

    @property
    def is_filling(self) -> bool:
        """Whether the ring holds so much that a checkpoint is urgent."""
        ring, unsettled = self.ring, self.unsettled
        kept = unsettled.held_bytes - unsettled.closed_bytes  # as good as taken
        return ring.position + kept - ring.noted_tail[1] > ring.hurry_bytes

    # -- group commit (group_commit.py) --------------------------------------------------------

    def join_batch(
        self,
        stripe: Stripe,
        writes: Sequence[MemberIO],
        data_parts: Sequence[Part],
        space_bytes: int,
    ) -> CommitBatch | None:
        """Add *writes* to the commit batch, show them to readers and return the batch.

        *data_parts* as in `Journal.commit_now`; *space_bytes* is their `Unsettled.space_of`.
        Returns None if the writes need a record of their own: they are large, a record is in
        flight, or the ring has no space for a full batch and the parities that follow.
        """
        batch, unsettled = self.batch, self.unsettled
        total = 0
        for write in writes:
            total += write[3]
        if total > self._change_bytes:
            return None
        if batch is None or batch.body_bytes > self._gather_bytes:
            self.write_batch()
            if self.inflight.open:
                return None
            room = self.ring.room_beside(self._batch_bytes) - unsettled.reserve_bytes
            batch = CommitBatch(self._write_held, self.ring.next_sequence, room)
        kept = space_bytes
        if space_bytes and not unsettled.held_bytes:
            kept = unsettled.more_bytes(space_bytes)
        if kept > batch.room_bytes:
            return None
        self.batch = batch
        batch.add(stripe, writes, bool(data_parts), kept, self.overlay)
        self.note_data(stripe, batch.sequence, data_parts, space_bytes)
        return batch

    def note_data(
        self, stripe: Stripe, sequence: int, data_parts: Sequence[Part], space_bytes: int
    ) -> None:
        """Note that the record *sequence* has content of *stripe*, which readers see.

        *data_parts*, *space_bytes* as for `join_batch`.
        """
        unsettled, stripes = self.unsettled, self.ring.stripes
        unsettled.whole_cells.note_parts(stripe, data_parts, stripes)
        stripes[stripe] = sequence
        if data_parts:
            unsettled.expect(space_bytes)
            unsettled.note(stripe, sequence, data_parts, space_bytes)
        else:
            unsettled.with_parity.add(stripe)

    def write_batch(self) -> None:
        """Write the record of the commit batch, if there is one, without suspending.

        If a log member does not take the record synchronously, the batch becomes *late*. Raises
        LawError if there is no room for it; then it stays the batch that is collected.
        """
        batch = self.batch
        if batch is None:
            return
        _, position, _, left = self.append_now(batch.body)
        self.batch = None
        batch.written, batch.body = True, RecordBody()  # perhaps not by all log members yet
        if left:
            self.be_late(batch, left, position)

    def _write_held(self) -> None:
        """Do so for whoever steps the handlers, which are told if the record is refused."""
        batch = self.batch
        try:
            self.write_batch()
        except LawError as error:
            assert batch is not None
            batch.error, batch.over = error, trio.Event()  # the changes may be written later
            batch.over.set()

    def be_late(self, batch: CommitBatch, left: Sequence[MemberIO], position: int) -> None:
        """Make *batch* late: its requests *left* are still to be written.

        Readers see its changes already, so its stripes are locked until the record is written.
        Later records may build on it, because replay stops before a missing record.
        """
        self.inflight.open[batch.sequence] = position
        self.late = batch
        locks = self.locks
        batch.left, batch.over = left, trio.Event()
        batch.locked = locks.take_free(batch.stripes) if locks is not None else ()

    async def finish_gathered(self, batch: CommitBatch) -> None:
        """Return when the record of *batch* is on all log members; each of its handlers waits.

        Raises what the members raise. Readers see the changes nevertheless: `mend` writes the
        record again before anything follows it, in the log or in home places.
        """
        assert batch.over is not None
        left, batch.left = batch.left, ()
        if not left:
            await batch.over.wait()
        else:
            try:
                await self.member_set.write(left)
            except BaseException as error:
                self._owed = left
                batch.error = self._tear(error)
                if not isinstance(error, RaidxError):
                    raise
            finally:
                self.late = None
                self.inflight.end(batch.sequence)
                if self.locks is not None:
                    self.locks.release_all(batch.locked)
                batch.over.set()
        if batch.error is not None:
            raise batch.error

    @property
    def is_late(self) -> bool:
        """Whether readers see a change whose record is not completely written."""
        return self.late is not None or bool(self._owed)

    async def mend_seen(self) -> None:
        """Write what readers see to the log, if a record of it has failed.

        A flush does so first: what was read before it must not change afterwards. Raises what the
        members raise.
        """
        if self._owed:
            await self.mend()

    async def finish_batches(self) -> None:
        """Return when no batch is late. Raises RaidxError if a record cannot be written."""
        while self.late is not None:
            assert self.late.over is not None
            await self.late.over.wait()
        await self.mend()

    def write_now(self, offset: int, record: bytes) -> list[MemberIO]:
        """Write *record* to the ring; return the requests that did not complete synchronously."""
        size = len(record)
        buffers = [record]
        left: list[MemberIO] = []
        queues = self.member_set.queues
        for role in self.log_members.at(offset):
            queue = queues[role]
            try:
                if queue is None or queue.try_writev(offset, buffers, size):
                    continue
            except MemberError:
                pass  # the queue tries once more, then the member is failed
            left.append((role, offset, buffers, size))
        return left

    def _take_back(self, sequence: int, record: bytes, error: BaseException) -> None:
        """Take back the record *sequence*, which could not be written, and all that follow it.

        They have no effect: their owners wait for it, and take them back, too. Readers see a
        commit batch before it is written, but no batch is begun while another record is in flight.
        Some members may have the record or may still get it, so its stripes stay held.
        """
        ring = self.ring
        position = self.inflight.open[sequence]
        ring.take_back(sequence, position)
        offset = ring.offset + position % self.capacity
        self._taken_back.append((offset, record[:SECTOR_BYTES]))
        self._tear(error)

    def _tear(self, error: BaseException) -> RaidxError:
        """Let no record be begun before `mend`, because of *error*; return what to raise."""
        if not isinstance(error, RaidxError):
            error = RaidxError("a record of the journal was not written")
        self.torn = self.torn or error
        return error

    async def mend(self) -> None:
        """Let the log go on after records that could not be written. Raises what the members raise.

        Zeros replace what was taken back, where it lies (a member that takes no write any more may
        not have it): replay would take such a record for the next one. They are durable before the
        next one is written: else, of two with one number, a cut could leave the older one.
        """
        if self.torn is None:
            return
        async with self._mending:
            if self.torn is None:
                return
            await self.inflight.wait_for_all()
            zeros = bytes(SECTOR_BYTES)
            wiped: list[MemberIO] = [
                (role, offset, [zeros], SECTOR_BYTES)
                for offset, head in self._taken_back
                for role in self.log_members.roles
                if await self.log_members.may_have(role, offset, head)
            ]
            await self.member_set.write([*self._owed, *wiped])
            await self.member_set.flush()
            self._owed, self._taken_back, self.torn = (), [], None
            self.ring.stale_end = 0
            log.warning("the journal is written again")
