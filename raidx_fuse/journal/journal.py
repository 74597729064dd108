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
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

import trio

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.format.log_record import RecordBody
from raidx_fuse.journal.append import LogWriter
from raidx_fuse.journal.group_commit import CommitBatch, Deferral, LocksOfStripes
from raidx_fuse.journal.ring import Tail
from raidx_fuse.journal.stripe_parity import Part
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import Chunk, Stripe, by_role
from raidx_fuse.loop.tasks import tick_after
from raidx_fuse.store.chunk_table import ChunkTable, Move, Page
from raidx_fuse.store.io_tuples import MemberIO
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.page_store import PageStore
from raidx_fuse.store.written_map import WrittenMap

log = logging.getLogger(__name__)

MODES = ("partial", "full", "none")
PLACE_AFTER_S = 1.0

# The new tail of the log, and the pages of the written map and of the chunk table to save.
Begun = tuple[Tail, set[int], dict[Page, bytes]]


class Journal(LogWriter):
    """The redo log of one array; *mode* says which writes go through it (engine/write/route.py).

    Attributes: *deferral* (whether replies may be deferred: group_commit.py); *placing* (held
    during a checkpoint); *before_places* (awaited before one writes to home places); *placements*
    (the number of checkpoints); *waits_for_room* (how often a commit found the log full).
    """

    def __init__(
        self,
        member_set: MemberSet,
        written: WrittenMap,
        head: PageStore,
        chunk_table: ChunkTable,
        overlay: Overlay,
    ) -> None:
        super().__init__(member_set, written, head, overlay)
        self.chunk_table = chunk_table
        self.written = written
        self.placements = 0
        self.waits_for_room = 0
        self.before_places: Callable[[], Awaitable[None]] | None = None
        self._begun: Begun | None = None  # a checkpoint that has begun; one that failed goes on
        self._gate: trio.Event | None = None  # commits wait for it while the ring is emptied
        self.placing = trio.Lock()
        self.freezing = False  # a checkpoint begins: no further batch may be late
        self._gives_up = False
        self._gives_up_from_s = 0.0  # limits extra checkpoints to the normal rate
        self.deferral = Deferral()

    def share(self, deferral: Deferral) -> None:
        """Let *deferral*, of who steps the handlers, say whether replies may be deferred."""
        self.deferral = deferral

    def connect(
        self,
        locks: LocksOfStripes,
        on_mark: Callable[[int], None],
        before_places: Callable[[], Awaitable[None]],
        before_parity: Callable[[Iterable[Stripe]], None],
    ) -> None:
        """Use *locks* for late batches; call *on_mark* with every new watermark of a restripe.

        *before_places* is awaited before a checkpoint writes to home places; *before_parity* is
        called with the stripes whose parity is about to be planned and logged (unsettled.py).
        """
        self.locks, self.on_mark, self.before_places = locks, on_mark, before_places
        self.unsettled.before_parity = before_parity

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
    ) -> bool:
        """Commit one atomic change of *stripes*, whose locks the caller holds; return True.

        * *writes*: the new content; the caller may reuse the buffers afterwards;
        * *fresh*, *unwritten*: chunks that become written, and chunks that become unwritten;
        * *moves*: new places of cells of bundles (*writes* has the content for them);
        * *mark*: a new watermark of a restripe.

        *still_valid* is called before the record is written: another member may have taken a role
        while the commit waited for space, and must not get what was planned for the old one. If it
        returns False, nothing is done and False is returned; the caller plans again. A record that
        is written takes effect in any case, as recovery redoes it. It stays valid: roles change
        hands only with no record in flight, and a rebuild passes no stripe whose lock is held
        (jobs/rebuild.py). Raises what the members raise.
        """
        self._require_locked(stripes)
        for stripe in stripes:
            if stripe in self.unsettled:
                raise self.member_set.laws.broken(Law.SETTLED, f"a record of stripe {stripe}")
        body = RecordBody()
        body.add_data(writes)
        body.add_maps(fresh, unwritten, moves, mark)
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
        self._require_locked(stripes)
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
            self.unsettled.whole_cells.note_parts(stripe, data_parts, self.ring.stripes)
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
            self._require_locked(stripes)
            await self.unsettled.settle(stripes)

    def _require_locked(self, stripes: Collection[Stripe]) -> None:
        if self.locks is not None:
            self.locks.require_held(stripes)

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
        if self._gate is not None or self.inflight.open or self.torn is not None or self.freezing:
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
            while self._gate is not None:
                await self._gate.wait()
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
            if self.before_places is not None:
                await self.before_places()
            tail, pages, chunk_table = self._begun
            tail = self._behind(tail, await self.unsettled.settle_frozen())
            await self._barrier()  # the records are durable
            self.unsettled.forget_closed(ring.durable_tail[0])
            await self._write_frozen()
            await self.written.save_taken(pages)
            await self.chunk_table.save_as(chunk_table)
            await self._barrier()  # the home places are durable
            self.overlay.drop_frozen()
            self._begun = None
            self.member_set.note_placed()
            if self.member_set.unreadable:
                self.member_set.unreadable.stir()  # a page may have been written anew
            await ring.move_tail(tail)
            self.placements += 1

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
        self._begun = tail, pages, self.chunk_table.take_unsaved()

    async def _barrier(self) -> None:
        """Make the earlier steps of the checkpoint durable before the next one begins."""
        await self.member_set.flush()

    async def _write_frozen(self) -> None:
        """Write the frozen layer to its home places, on all members at once.

        Other tasks run after what a member takes synchronously. Raises LawError if a parity is not
        logged yet.
        """
        member_set = self.member_set
        if self.unsettled.frozen:
            stripes = f"{len(self.unsettled.frozen)} stripes were to be placed"
            raise member_set.laws.broken(Law.PARITY, stripes)
        queues = {role: queue for role, queue in by_role(member_set.queues) if queue is not None}
        for portions in self.overlay.frozen_writes(queues):
            left: list[MemberIO] = []
            for role, writes in portions.items():
                if member_set.queues[role] is queues[role]:
                    done = queues[role].try_writes(writes)
                    left += [(role, *write) for write in writes[done:]]
                await trio.lowlevel.checkpoint()
            # A member that failed since is left out: a new one gets the content by its rebuild.
            same = [write for write in left if member_set.queues[write[0]] is queues[write[0]]]
            if same:
                await member_set.write(same, background=True)

    async def drain(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """Checkpoint everything and make the tail of the empty log durable.

        A crash after that has nothing to replay. Commits wait meanwhile, and until *then* is done.
        The caller must not hold a stripe's lock. Raises what the members raise.
        """
        while self._gate is not None:
            await self._gate.wait()
        self._gate = trio.Event()
        try:
            await self.inflight.wait_for_all()
            await self.mend()
            while self.ring.open or self.ring.durable_tail[0] != self.ring.next_sequence:
                await self.place()
                await self.member_set.flush()
            if then is not None:
                await then()
        finally:
            gate, self._gate = self._gate, None
            gate.set()

    async def reform(self) -> None:
        """Drain the log and choose the log members anew, after a member became readable.

        Raises what the members raise; then `tend` tries again.
        """
        self.to_form = True
        await self.drain(self.move)

    @property
    def is_gated(self) -> bool:
        """Whether commits wait, because the ring is being emptied."""
        return self._gate is not None

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
