"""The journal: a redo log (write-ahead log) that makes every change of a stripe atomic.

    commit: record -> ring on (losses tolerated + 1) members -> overlay -> acknowledged
    place:  freeze the overlay -> flush (the records are durable) -> write the places, the map
            -> flush (the places are durable) -> move the tail in the head page

A commit is in the members' page cache when it is acknowledged, so a killed process loses nothing.
The commit is durable after the next flush, and only then is it written to its home place (the
checkpoint). No home place is ever half-written without a durable record to redo it. A power cut,
together with as many lost members as the code tolerates, therefore leaves every sector old or new:
the log closes the write hole. Recovery (recovery.py) redoes every record from the tail on.

Laws:
 1. Sequence numbers have no gap: a commit is acknowledged only after all earlier records are
    written. Replay stops at the first record that is missing on all members.
 2. Ring space is reused only after the head page that frees it is durable (ring.py).
 3. A write that bypasses the log must not touch a stripe whose record may still be replayed
    (`holds`): the replay of an old record would undo it.
 4. A record that was planned without a member is written only when the superblocks exclude that
    member: replay would leave a member that counts as whole with old content.

The record of a commit has its space and its sequence number from the ring (ring.py), the same place
on each of its log members, and is in their page cache when `append` returns. The next record may
begin before that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import trio

from raidx_fuse.errors import MemberError, RaidxError, Reason
from raidx_fuse.format.log_record import (
    ENTRY_BYTES,
    RECORD_HEADER_BYTES,
    RecordBody,
    encode_record,
    holder_of,
)
from raidx_fuse.format.regions import SECTOR_BYTES, Region
from raidx_fuse.journal.group_commit import (
    BATCH_BYTES_MAX,
    CHANGE_BYTES_MAX,
    CommitBatch,
    Deferral,
)
from raidx_fuse.journal.ring import LogMembers, RecordsInFlight, Ring, Tail
from raidx_fuse.journal.stripe_parity import Chooser
from raidx_fuse.journal.unsettled import Unsettled
from raidx_fuse.laws import Law, LawError
from raidx_fuse.layouts.numbers import Chunk, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import Part
from raidx_fuse.loop.tasks import tick_after
from raidx_fuse.store.cells import Cells
from raidx_fuse.store.chunk_table import ChunkTable, Move, Page, Place
from raidx_fuse.store.io_tuples import MemberIO
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.page_store import PageStore
from raidx_fuse.store.written_map import WrittenMap

log = logging.getLogger(__name__)

PLACE_AFTER_S = 1.0
OVERLAY_BYTES_MAX = 32 << 20

# The new tail of the log, the pages of the written map and of the chunk table to save, and places
# that moves have left without content.
Begun = tuple[Tail, set[int], dict[Page, bytes], set[Place]]


class Journal:
    """The redo log of one array; *mode* says which writes go through it (engine/write/route.py).

    Attributes:

    * *forced*: every write is logged, whatever the mode is; *log_members*: who gets the records;
      *to_form*: they are to be chosen anew; *locks*: of the array's stripes;
    * *batch*: the commit batch that is being collected; *late*: a batch whose record some log
      members did not take synchronously; *deferral*: whether replies may be deferred
      (group_commit.py); *torn*: why a record could not be written, no other one is begun before
      `mend`;
    * *placing*: held during a checkpoint; *placements*: the number of checkpoints;
      *waits_for_room*: how often a commit found the log full.

    All that the log knows of a restripe is its watermark *mark* (chunks), which moves with the
    records: a record may carry one, and the head page has the one that was valid at its tail.
    Wherever a replay ends, its watermark therefore matches the records that it has redone
    (jobs/restripe/job.py). *on_mark* is called with every new one.
    """

    def __init__(
        self,
        cells: Cells,
        written: WrittenMap,
        head: PageStore,
        chunk_table: ChunkTable,
        overlay: Overlay,
    ) -> None:
        self.cells = cells
        self.member_set = member_set = cells.member_set
        self.written = written
        self.chunk_table = chunk_table
        chunk_table.connect(written)
        self.overlay = overlay
        self.locks = cells.locks
        self.forced = False
        self._mode = self.mode = "partial"
        self.mark = 0
        self.on_mark: Callable[[int], None] = lambda _mark: None
        self.ring = Ring(member_set, head)
        self.inflight = RecordsInFlight()
        self.unsettled = Unsettled(self, member_set, written, self.ring.capacity)
        self.log_members = LogMembers(member_set)
        self.to_form = False
        self.deferral = Deferral()
        self.batch: CommitBatch | None = None  # changes that are not in the ring yet
        self._take_capacity()
        self.late: CommitBatch | None = None
        self.torn: RaidxError | None = None
        # What mends the log: the rest of a batch whose changes readers see, and byte offset and
        # first sector of each record that was taken back.
        self._owed: Sequence[MemberIO] = ()
        self._taken_back: list[tuple[int, bytes]] = []
        self._mending = trio.Lock()
        self.placements = 0
        self.waits_for_room = 0
        self._begun: Begun | None = None  # a checkpoint that has begun; one that failed goes on
        self.gate: trio.Event | None = None  # commits wait for it while the ring is emptied
        self.placing = trio.Lock()
        self.freezing = False  # a checkpoint begins: no further batch may be late
        self._wake = trio.Event()  # set when the checkpoint must not be delayed
        self._gives_up = False
        self._gives_up_from_s = 0.0  # limits extra checkpoints to the normal rate

    def _take_capacity(self) -> None:
        self.capacity = capacity = self.ring.capacity
        self.unsettled.take_capacity(capacity)
        most_bytes = min(BATCH_BYTES_MAX, capacity // 8)
        self._change_bytes = min(CHANGE_BYTES_MAX, most_bytes // 2)
        # Of a batch that takes one more write, and of a full one with its header.
        self._gather_bytes = most_bytes - self._change_bytes
        self._batch_bytes = most_bytes + 4096

    def share(self, deferral: Deferral) -> None:
        """Let *deferral*, of who steps the handlers, say whether replies may be deferred."""
        self.deferral = deferral

    def connect(
        self,
        on_mark: Callable[[int], None],
        before_parity: Callable[[Iterable[Stripe]], None],
        chooser: Chooser,
    ) -> None:
        """Call *on_mark* with every new watermark of a restripe, the others as follows.

        *before_parity* is called with the stripes whose parity is about to be planned by *chooser*,
        and logged (unsettled.py).
        """
        self.on_mark = on_mark
        self.unsettled.before_parity, self.unsettled.chooser = before_parity, chooser

    def set_mode(self, mode: str) -> None:
        self._mode = mode
        self.force(self.forced)

    def force(self, everything: bool) -> None:
        """Log *everything* from now on, whatever the mode is; or what the mode says again."""
        self.forced = everything
        self.mode = "full" if everything else self._mode

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

    # -- commit --------------------------------------------------------------------------------

    async def commit(
        self,
        stripes: Sequence[Stripe],
        writes: Sequence[MemberIO],
        fresh: Sequence[Chunk],
        still_valid: Callable[[], bool] = lambda: True,
        moves: Sequence[Move] = (),
        unwritten: Sequence[Chunk] = (),
        mark: int | None = None,
        unverified: Sequence[tuple[Role, int]] = (),
    ) -> bool:
        """Commit one atomic change of *stripes*, whose locks the caller holds; return True.

        * *writes*: the new content; the caller may reuse the buffers afterwards;
        * *fresh*, *unwritten*: chunks that become written, and chunks that become unwritten;
        * *moves*: new places of cells of bundles (*writes* has the content for them);
        * *mark*: a new watermark of a restripe;
        * *unverified*: (role, byte offset) of the pages that get no sum when they are placed, or
          are redone.

        *still_valid* is called before the record is written: another member may have taken a role
        while the commit waited for space, and must not get what was planned for the old one. If it
        returns False, nothing is done and False is returned; the caller plans again. A record that
        is written takes effect in any case, as recovery redoes it. It stays valid: roles change
        hands only with no record in flight, and a rebuild passes no stripe whose lock is held
        (jobs/rebuild.py). Raises what the members raise.
        """
        self.locks.require_held(stripes)
        for stripe in stripes:
            if stripe in self.unsettled:
                raise self.member_set.laws.broken(Law.SETTLED, f"a record of stripe {stripe}")
        body = RecordBody()
        body.add_data(writes)
        body.add_maps(fresh, unwritten, moves, mark)
        if unverified:
            body.add_unverified(unverified)
        body.add_settled(*await self.unsettled.end_closed(stripes))
        if self.member_set.unpublished:
            await self.member_set.published()  # law 4
        await self._make_room(body.size_bytes)
        role_epoch = self.member_set.role_epoch
        if not still_valid():
            return False
        if moves:
            self.chunk_table.require_free(moves)
        self.unsettled.whole_cells.note_others(stripes)
        sequence, record = await self.append(stripes, body, role_epoch)
        try:
            self.take_effect(record, body, writes)
            self.overlay.doubt(unverified)  # in the same step: the layer may be frozen in the next
            self.unsettled.with_parity.update(stripes)
            self.unsettled.drop_closed(stripes)
            self.written.set_bits(fresh)
            self.written.clear_bits(unwritten)
            if moves:
                self.chunk_table.apply(moves)
            if mark is not None:
                self.take_mark(mark)
        finally:
            self.inflight.end(sequence)
        return True

    async def commit_data(
        self, changes: Sequence[tuple[Stripe, Sequence[Part], Sequence[MemberIO]]]
    ) -> bool:
        """Commit data of stripes without its parity (unsettled.py); the caller holds their locks.

        Each change is a stripe, the parts of its cells, and their writes. The record is right for
        whatever members have the roles when it is redone. Returns False, with nothing done, if the
        layout is about to change or the ring is too small. Raises what the members raise.
        """
        writes = [request for _, _, requests in changes for request in requests]
        stripes = [stripe for stripe, _, _ in changes]
        self.locks.require_held(stripes)
        body = RecordBody()
        unsettled = self.unsettled
        spaces = [unsettled.space_of(data_parts) for _, data_parts, _ in changes]
        if not all(map(unsettled.has_space, stripes, spaces)):
            return False
        for stripe, _, requests in changes:
            body.add_data(requests, stripe)
        space_bytes = sum(spaces)
        size = body.size_bytes
        # Beside it there may be parities that others have reserved space for.
        if 2 * size + space_bytes + 2 * unsettled.waste_bytes > self.capacity:
            return False
        await self._make_room(size, space_bytes)
        if not self.parity_may_follow:
            return False
        unsettled.expect(space_bytes)
        for stripe, data_parts, _ in changes:
            unsettled.whole_cells.note_parts(stripe, data_parts, self.ring.stripes)
        try:
            sequence, record = await self.append(stripes, body)
        except BaseException:
            unsettled.forget(space_bytes)
            raise
        try:
            self.take_effect(record, body, writes)
            for (stripe, data_parts, _), space in zip(changes, spaces, strict=True):
                unsettled.note(stripe, sequence, data_parts, space)
        finally:
            self.inflight.end(sequence)
        return True

    @property
    def parity_may_follow(self) -> bool:
        """Whether data may be logged without its parity: not before the layout changes."""
        return not self.unsettled.paused and not self.forced

    async def settle(self, stripes: Collection[Stripe]) -> None:
        """Make the chains of *stripes* hold for what readers see; their locks are held.

        Raises RaidxError.
        """
        if self.unsettled:
            self.locks.require_held(stripes)
            await self.unsettled.settle(stripes)

    def commit_now(
        self, stripe: Stripe, writes: Sequence[MemberIO], data_parts: Sequence[Part] = ()
    ) -> CommitBatch | tuple[()] | None:
        """Commit *writes* of one stripe without suspending, and show them to readers.

        Each write has one buffer, which belongs to the log from now on. *data_parts*: the writes
        are these parts of data cells, whose parity follows (unsettled.py); empty if parity or
        copies are among the writes, or the layout has none. Returns one of:

        * None: impossible, nothing was done;
        * (): it is done;
        * a commit batch that is not written yet, if the reply may be deferred, or is late: the
          handler awaits `held` and `finish_gathered` (engine/write/pending.py).
        """
        unsettled = self.unsettled
        if self.gate is not None or self.inflight.open or self.torn is not None or self.freezing:
            return None
        space_bytes = 0
        if data_parts:
            space_bytes = unsettled.space_of(data_parts)
            if not unsettled.has_space(stripe, space_bytes):
                return None
        elif (unsettled and stripe in unsettled) or stripe in unsettled.closed:
            return None
        if self.deferral.holds:
            batch = self.join_batch(stripe, writes, data_parts, space_bytes)
            if batch is not None:
                return batch
        self.write_batch()
        if self.inflight.open:
            return None
        body = RecordBody()
        body.add_data(writes, stripe if data_parts else None)
        kept_bytes = 0
        if space_bytes or unsettled.held_bytes:
            kept_bytes = self.kept_bytes(space_bytes)
        if not self.ring.has_room(body.size_bytes, kept_bytes):
            return None
        sequence, position, _record, left = self.append_now(body)
        put = self.overlay.put
        for role, place, (buffer,), _ in writes:
            put(role, place, buffer)
        self.note_data(stripe, sequence, data_parts, space_bytes)
        if not left:
            return ()
        batch = CommitBatch(self.write_batch, sequence, 0)
        batch.stripes.append(stripe)
        batch.written = True
        self.be_late(batch, left, position)
        return batch

    def kept_bytes(self, space_bytes: int = 0) -> int:
        """Return the space of the ring that is kept for parities that follow their data.

        *space_bytes*: the `Unsettled.space_of` of data that is about to be logged.
        """
        unsettled, kept = self.unsettled, self.unsettled.reserve_bytes
        return kept + unsettled.more_bytes(space_bytes) if space_bytes else kept

    async def _make_room(self, size: int, space_bytes: int = 0) -> None:
        """Wait until the ring has space for a record of *size* bytes and commits may go on.

        *space_bytes* as for `kept_bytes`.

        Raises RaidxError if the record can never fit or the log is lost.
        """
        if 2 * size > self.capacity:
            raise RaidxError(
                f"a change of {size} bytes does not fit in the journal of {self.capacity}",
                reason=Reason.METADATA_FULL,
            )
        ring = self.ring
        while True:
            while self.gate is not None:
                await self.gate.wait()
            self.write_batch()  # the batch has no space allocated yet
            if self.torn is not None:
                await self.mend()
                continue
            if ring.has_room(size, self.kept_bytes(space_bytes)):
                break
            self.waits_for_room += 1
            await self.place(since=self.placements)
            if not ring.has_room(size, self.kept_bytes(space_bytes)):
                await self.member_set.flush()  # the durable head page frees the space
                self.unsettled.forget_closed(ring.durable_tail[0])
            if not ring.has_room(size, self.kept_bytes(space_bytes)):
                await self.inflight.wait_for_first()  # the tail cannot pass it
        self.hurry()

    # -- writing records -----------------------------------------------------------------------

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
        batch.left, batch.over = left, trio.Event()
        batch.locked = self.locks.take_free(batch.stripes)

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

    # -- checkpoint ----------------------------------------------------------------------------

    async def save_mark(self, mark: int) -> None:
        """Make *mark*, the watermark (chunks) at which a restripe begins, durable."""
        async with self.placing:
            self.mark = mark
            await self.ring.save_mark(mark)
        await self.member_set.flush()

    async def place(self, since: int | None = None) -> None:
        """Write everything committed so far to its home place and move the tail behind it.

        *since*, the number of checkpoints so far, makes one that ends while this one waits for its
        turn count for both. Raises what the members raise; then the content stays in the overlay
        and the log.
        """
        async with self.placing:
            if since is not None and self.placements != since:
                return
            ring = self.ring
            self.write_batch()
            if self._begun is None:
                if not ring.open:
                    await ring.save_tail()
                    return
                await self._freeze()
            assert self._begun is not None
            await self.cells.absences.before_places()
            tail, pages, chunk_table, left = self._begun
            tail = self._behind(tail, await self.unsettled.settle_frozen())
            await self._barrier()  # the records are durable
            self.unsettled.forget_closed(ring.durable_tail[0])
            if self.unsettled.frozen:
                stripes = f"{len(self.unsettled.frozen)} stripes were to be placed"
                raise self.member_set.laws.broken(Law.PARITY, stripes)
            await self.place_frozen(pages, chunk_table, left)
            await self._barrier()  # the home places are durable
            if unreadable := self.member_set.unreadable:  # they may be readable now
                has_frozen = self.overlay.has_frozen
                unreadable.stir([page for page in unreadable if has_frozen(Role(page[0]), page[1])])
            self.overlay.drop_frozen()
            self._begun = None
            self.member_set.note_placed()
            await ring.move_tail(tail)
            self.placements += 1

    async def place_frozen(
        self, pages: Iterable[int], chunk_table: Mapping[Page, bytes], left: Collection[Place]
    ) -> None:
        """Write the frozen layer home, with its sums and the *pages* of both maps; not flushed.

        Places that moves have *left* have no sums, durably, before a page of the table says so.
        Raises what the members raise.
        """
        await self.cells.write_frozen()
        await self.written.save_taken(pages)
        if left:
            await self.chunk_table.forget_sums(left)
        await self.cells.save_sums()
        if left and self.member_set.sums is not None:
            await self._barrier()
        await self.chunk_table.save_as(chunk_table)

    async def place_before(self, sequence: int) -> None:
        """Return when every record before *sequence* is in its place or was taken back.

        Raises what the members raise.
        """
        ring = self.ring
        while ring.placed_tail[0] < min(sequence, ring.next_sequence):
            await self.place()
            if ring.placed_tail[0] < min(sequence, ring.next_sequence):
                await self.inflight.wait_for_first()  # the tail cannot pass it

    def _behind(self, tail: Tail, sequences: Sequence[int]) -> Tail:
        """Return the tail behind those of the records *sequences* that follow *tail* at once.

        They have the parities of the frozen layer: once that is in its places, so are they.
        """
        sequence, position, mark = tail
        for number in sequences:
            if number == sequence:
                sequence += 1
        if sequence == self.ring.next_sequence:
            position = self.ring.position
        elif sequence != tail[0]:
            position = next(at for number, at in self.ring.open if number == sequence)
        return sequence, position, mark

    async def _freeze(self) -> None:
        """Begin a checkpoint: what is committed so far is to be placed, nothing that comes later.

        Raises RaidxError.
        """
        self.freezing = True  # else one writer after the other could be late
        try:
            while True:
                while self.is_late:
                    await self.finish_batches()
                async with self.unsettled.settling:
                    if self.is_late:
                        continue
                    self._freeze_now()
                    return
        finally:
            self.freezing = False

    def _freeze_now(self) -> None:
        """Freeze the layers; the tail will be behind what has had its effect. Raises LawError."""
        laws, unsettled = self.member_set.laws, self.unsettled
        if self.overlay.frozen or unsettled.frozen:
            raise laws.broken(Law.FROZEN, "a second checkpoint")
        if not 0 <= unsettled.closed_bytes <= unsettled.held_bytes:
            kept = f"{unsettled.closed_bytes} of {unsettled.held_bytes} bytes"
            raise laws.broken(Law.KEPT, kept)
        first = self.ring.next_sequence, self.ring.position
        if self.inflight.open:  # perhaps behind one that was taken back
            first = min(first, *self.inflight.open.items())
        tail: Tail = *first, self.mark
        self.overlay.freeze()
        self.unsettled.freeze()
        self.log_members.prefer_fast()
        pages = self.written.take_unsaved()  # copies: later bits have no durable record yet
        table = self.chunk_table
        self._begun = tail, pages, table.take_unsaved(), table.take_left()

    async def _barrier(self) -> None:
        """Make the earlier steps of the checkpoint durable before the next one begins."""
        await self.member_set.flush()

    async def drain(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """Checkpoint everything and make the tail of the empty log durable.

        A crash after that has nothing to replay. Commits wait meanwhile, and until *then* is done.
        The caller must not hold a stripe's lock. Raises what the members raise.
        """
        while self.gate is not None:
            await self.gate.wait()
        self.gate = trio.Event()
        try:
            await self.inflight.wait_for_all()
            await self.mend()
            while self.ring.open or self.ring.durable_tail[0] != self.ring.next_sequence:
                await self.place()
                await self.member_set.flush()
            if then is not None:
                await then()
        finally:
            gate, self.gate = self.gate, None
            gate.set()

    async def relocate(self, region: Region, publish: Callable[[], Awaitable[None]]) -> None:
        """Have the log, which `drain` has emptied, in *region*, by what *publish* tells members.

        No commit may come before it returns. The region has only zeros, but for what it shares with
        the one of before if it begins at the same place: there the new epoch, in which no record
        follows its first head page, makes either size a right one. Elsewhere that epoch also begins
        in the former place, where a configuration of before must find that it is none of now.

        Raises what the members raise, with nothing changed; from *publish* on the region is taken.
        """
        ring, laws = self.ring, self.member_set.laws
        if ring.open or self.inflight.open or self.batch is not None:
            raise laws.broken(Law.EMPTY, f"{len(ring.open)} records")
        async with self.placing:
            await ring.begin(ring.epoch + 1, self.mark, ring.next_sequence)
            await self.member_set.flush()
            if region.offset != ring.region.offset:
                await ring.move_head(region)
                await self.member_set.flush()
            ring.take_region(region)
            self._take_capacity()
            await publish()

    async def reform(self) -> None:
        """Drain the log and choose the log members anew, after a member became readable.

        Raises what the members raise; then `tend` tries again.
        """
        self.to_form = True
        await self.drain(self.move)

    def give_up_soon(self) -> None:
        """Request a checkpoint and a flush that ends the holds of its records on stripes.

        Writes that could bypass the log must be logged while a stripe is held (law 3).
        """
        if not self._gives_up and self.member_set.clock() >= self._gives_up_from_s:
            self._gives_up = True
            self._wake.set()

    @property
    def _is_due(self) -> bool:
        """Whether there is something to place, to save or to mend."""
        ring = self.ring
        return bool(ring.open or ring.is_behind or self.to_form or self.torn is not None)

    async def tend(self) -> None:
        """Checkpoint PLACE_AFTER_S after the last one, or when space is low (background task)."""
        while True:
            due = self._is_due
            at_s = trio.current_time() + PLACE_AFTER_S if due else tick_after(PLACE_AFTER_S)
            with trio.move_on_at(at_s):
                await self._wake.wait()
            if self._is_due:
                try:
                    await self.place()
                    await self.mend()
                    if self.to_form:
                        await self.reform()
                    if self._gives_up:
                        await self.member_set.flush()  # of the head page
                        self._gives_up_from_s = self.member_set.clock() + PLACE_AFTER_S
                        self._gives_up = False
                except RaidxError as error:
                    log.error("committed changes cannot reach their places: %s", error)
            self._wake = trio.Event()  # if space is still low, the next commit sets it again
