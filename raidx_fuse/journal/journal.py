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

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from raidx_fuse.format.log_record import RecordBody
from raidx_fuse.journal.checkpoint import Checkpoint
from raidx_fuse.journal.group_commit import CommitBatch, Deferral, LocksOfStripes
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.journal.stripe_parity import Part
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import Chunk, Stripe
from raidx_fuse.store.chunk_table import ChunkTable, Move
from raidx_fuse.store.member_io import MemberIO
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.page_store import PageStore
from raidx_fuse.store.written_map import WrittenMap

MODES = ("partial", "full", "none")


class Journal(Checkpoint):
    """The redo log of one array; *mode* says which writes go through it (engine/write/route.py).

    *deferral* says whether replies may be deferred (group_commit.py).
    """

    def __init__(
        self,
        member_set: MemberSet,
        written: WrittenMap,
        head: PageStore,
        chunk_table: ChunkTable,
        overlay: Overlay,
    ) -> None:
        super().__init__(member_set, written, head, chunk_table, overlay)
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
