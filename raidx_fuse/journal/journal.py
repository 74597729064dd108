"""The journal: a redo log that makes every change of a stripe all or nothing.

    commit: record -> ring on (losses tolerated + 1) members -> overlay -> acknowledged
    place:  freeze the overlay -> flush (the records are durable) -> write the places, the map
            -> flush (the places are durable) -> move the tail in the head page

A commit is in the members' page cache when it is acknowledged, so a killed process loses nothing;
it is durable after the next flush, and only then goes to its place. Nothing in its place is ever
half-written without a durable record to redo it: a power cut, with as many lost members as the code
tolerates, leaves every sector old or new. Replay (recovery.py) redoes everything from the tail on.

Laws:
 1. Sequence numbers have no gap: a commit is acknowledged after all before it are written, and
    replay stops at the first record that is missing on all members.
 2. Ring space is used again only after the head page that frees it is durable (ring.py).
 3. A write that bypasses the journal must not touch a stripe whose record may still be replayed
    (`holds`): an old record would undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raidx_fuse.format.log_record import encode_record, entry_fields, map_fields, record_bytes
from raidx_fuse.journal.checkpoint import Checkpoint
from raidx_fuse.journal.deferred_parity import Filling
from raidx_fuse.journal.group_commit import DEFERRAL, CommitBatch
from raidx_fuse.store.chunk_table import Move
from raidx_fuse.store.member_set import MemberIO

MODES = ("partial", "full", "none")


class Journal(Checkpoint):
    """The redo log of one array. *mode* is what goes through it; see MODES and
    engine/write/write.py.
    """

    # -- committing ----------------------------------------------------------------------------

    async def commit(
        self,
        stripes: Sequence[int],
        writes: Sequence[MemberIO],
        fresh: Sequence[int],
        still_valid: Callable[[], bool] = lambda: True,
        moves: Sequence[Move] = (),
        unwritten: Sequence[int] = (),
        mark: int | None = None,
    ) -> bool:
        """Log *writes*, chunks *fresh* that come alive and *unwritten* ones: one change of
        *stripes*.

        *moves* gives cells of bundles new places (what lies there then is in *writes*), *mark* is
        a new watermark. The locks are held; the buffers may be reused afterwards. *still_valid*
        is asked before the record is written (another member may have taken a role while we waited
        for room: what was planned for the old one must never reach it) and afterwards (a rebuild
        may have passed). If it says no, nothing takes effect and False is returned: the caller
        plans and commits again; a replay would redo both, in order. Raises what the members raise.
        """
        # What the log lacks of the stripes comes first: the writes may change a part of it.
        writes = [*self.deferred.parities(stripes, writes), *writes]
        fields, parts, total = entry_fields(writes)
        fields += map_fields(fresh, unwritten, moves, mark)
        await self._make_room(record_bytes(len(fields) // 4, total))
        if not still_valid():
            return False
        self.deferred.note_others(stripes)
        sequence, record = await self.append(stripes, fields, parts, total)
        try:
            await self.wait_for_earlier(sequence)
            if not still_valid():
                return False
            self.take_effect(record, len(fields) // 4, writes)
            self.deferred.finish(stripes)
            self.written.set_bits(fresh)
            self.written.clear_bits(unwritten)
            if moves:
                self.chunk_table.apply(moves)
            if mark is not None:
                self.take_mark(mark)
        finally:
            self.inflight.end(sequence)
        return True

    async def commit_filled(
        self, filled: Sequence[Filling], still_valid: Callable[[], bool]
    ) -> bool:
        """Log the data of stripes that are filled from the front; their parity follows from it.

        As `commit`, but *still_valid* is asked only before: the members all had their roles when
        this was planned, so it is right for whoever takes one. False, too, if the log was placed
        meanwhile and lacks now what the stripes began with. The caller has reserved room for their
        parities, and releases it (deferred_parity.py).
        """
        writes = [request for filling in filled for request in filling.data]
        stripes = [filling.stripe for filling in filled]
        fields, parts, total = entry_fields(writes)
        fields += self.deferred.entries(filled)
        await self._make_room(record_bytes(len(fields) // 4, total))
        if not still_valid() or not self.deferred.fit(filled):
            return False
        self.deferred.begin(filled, self.ring.stripes)
        sequence, record = await self.append(stripes, fields, parts, total)
        try:
            await self.wait_for_earlier(sequence)
            self.take_effect(record, len(fields) // 4, writes)
            self.deferred.take_effect(filled)
        finally:
            self.inflight.end(sequence)
        return True

    def commit_filled_now(self, filling: Filling) -> bool:
        """As `commit_filled` of one stripe, without suspending; False if that cannot be.

        No member has anything of it then, and the caller commits the same as a later record. What
        only some take at once is late (group_commit.py): were it taken back, a replay that lacks
        the next record might find this in its place, and go on behind a gap.
        """
        ring, deferred = self.ring, self.deferred
        if self._gate is not None or not self.roles or self.torn or not deferred.fit((filling,)):
            return False
        self.write_batch()
        if self.inflight.open:
            return False
        fields, parts, total = entry_fields(filling.data)
        fields += deferred.entries((filling,))
        size = record_bytes(len(fields) // 4, total)
        if not ring.has_room(size + deferred.reserve_bytes):
            return False
        deferred.begin((filling,), ring.stripes)
        sequence, position, offset = ring.allocate(size, (filling.stripe,))
        record = encode_record(ring.epoch, sequence, position, ring.array, fields, parts, total)
        left = self.write_now(offset, record)
        if len(left) == len(self.roles):
            ring.take_back(sequence, position)
            return False
        self.commits += 1
        self.commit_bytes += size
        self.take_effect(record, len(fields) // 4, filling.data)
        deferred.take_effect((filling,))
        self.hurry()
        if left:
            late = CommitBatch(self.write_batch, sequence)
            late.written = True
            late.stripes.append(filling.stripe)
            self.be_late(late, left, position)
        return True

    def commit_now(
        self, stripe: int, writes: Sequence[MemberIO]
    ) -> tuple[int, list[MemberIO] | CommitBatch] | None:
        """Log *writes* of one stripe without suspending; None if that cannot be: nothing was done.

        The one buffer of each belongs to the journal from now on. Returns the sequence number and
        what could not be written at once: if any, the caller takes the stripe's lock and awaits
        `finish`. A handler that may be held gets the gathering instead: it awaits `held`, then
        `finish_gathered`.
        """
        deferred = self.deferred
        if self._gate is not None or self.inflight.open or not self.roles or self.torn:
            return None
        if stripe in deferred.unfinished:
            return None
        ring, overlay = self.ring, self.overlay
        if DEFERRAL.holds and (batch := self.join_batch(stripe, writes, deferred.reserve_bytes)):
            if deferred.held_cells:
                deferred.note_others((stripe,))
            return batch.sequence, batch
        self.write_batch()
        if self.inflight.open:
            return None
        fields, parts, total = entry_fields(writes)
        size = record_bytes(len(writes), total)
        if not ring.has_room(size + deferred.reserve_bytes):
            return None
        sequence, position, offset = ring.take(size)
        ring.stripes[stripe] = sequence
        self.hurry()
        if deferred.held_cells:
            deferred.note_others((stripe,))
        # In one piece: that is copied once more, but each member then takes one buffer, not four.
        record = encode_record(ring.epoch, sequence, position, ring.array, fields, parts, total)
        left = self.write_now(offset, record)
        if left:
            self.inflight.add(sequence, position)
            self.unfinished[sequence] = writes
        else:
            put = overlay.put
            for role, place, (buffer,), _ in writes:
                put(role, place, buffer)
        self.commits += 1
        self.commit_bytes += size
        return sequence, left
