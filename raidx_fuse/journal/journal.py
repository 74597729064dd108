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

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.log_record import encode_record, entry_fields, map_fields, record_bytes
from raidx_fuse.journal.append import LogWriter
from raidx_fuse.journal.deferred_parity import Filling, Streams
from raidx_fuse.journal.group_commit import DOOR, Gathering
from raidx_fuse.journal.ring import Tail
from raidx_fuse.store.chunk_table import Move, Shares
from raidx_fuse.store.member_set import Request, Store
from raidx_fuse.store.page_store import PageStore
from raidx_fuse.store.written_map import WrittenMap

log = logging.getLogger(__name__)

MODES = ("partial", "full", "none")
PLACE_AFTER_S = 1.0


class Journal(LogWriter):
    """The redo log of one array. *mode* is what goes through it; see MODES and writer.py."""

    def __init__(self, store: Store, written: WrittenMap, head: PageStore, shares: Shares) -> None:
        super().__init__(store, head, "partial")
        self.shares = shares
        self.written = written
        # Tests only, to show that the campaign notices.
        self.break_ordering = self.break_streams = False
        self.placements = 0
        self.streams = Streams(store, self.capacity)
        self._gate: trio.Event | None = None  # closed while the ring is being emptied
        self.placing = trio.Lock()
        self._to_form = self._gives_up = False
        self._gives_up_from_s = 0.0  # not more often than it is placed anyway

    async def save_mark(self, mark: int) -> None:
        """Make the watermark at which a restripe begins durable."""
        async with self.placing:
            self.mark = mark
            await self.ring.save_mark(mark)
        await self.store.flush()

    # -- committing ----------------------------------------------------------------------------

    async def commit(
        self,
        stripes: Sequence[int],
        writes: Sequence[Request],
        fresh: Sequence[int],
        still_valid: Callable[[], bool] = lambda: True,
        moves: Sequence[Move] = (),
        dead: Sequence[int] = (),
        mark: int | None = None,
    ) -> bool:
        """Log *writes*, chunks *fresh* that come alive and *dead* ones: one change of *stripes*.

        *moves* gives cells of bundles new places (what lies there then is in *writes*), *mark* is
        a new watermark. The locks are held; the buffers may be reused afterwards. *still_valid*
        is asked before the record is written (another member may have taken a role while we waited
        for room: what was planned for the old one must never reach it) and afterwards (a rebuild
        may have passed). If it says no, nothing takes effect and False is returned: the caller
        plans and commits again; a replay would redo both, in order. Raises what the members raise.
        """
        # What the log lacks of the stripes comes first: the writes may change a part of it.
        writes = [*self.streams.parities(stripes, writes), *writes]
        fields, parts, total = entry_fields(writes)
        fields += map_fields(fresh, dead, moves, mark)
        await self._make_room(record_bytes(len(fields) // 4, total))
        if not still_valid():
            return False
        self.streams.note_others(stripes)
        sequence, record = await self.append(stripes, fields, parts, total)
        try:
            await self.wait_for_earlier(sequence)
            if not still_valid():
                return False
            self.take_effect(record, len(fields) // 4, writes)
            self.streams.finish(stripes)
            self.written.set_bits(fresh)
            self.written.clear_bits(dead)
            if moves:
                self.shares.apply(moves)
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
        fields += self.streams.entries(filled)
        await self._make_room(record_bytes(len(fields) // 4, total))
        if not still_valid() or not self.streams.fit(filled):
            return False
        self.streams.begin(filled, self.ring.stripes)
        sequence, record = await self.append(stripes, fields, parts, total)
        try:
            await self.wait_for_earlier(sequence)
            self.take_effect(record, len(fields) // 4, writes)
            self.streams.take_effect(filled)
        finally:
            self.inflight.end(sequence)
        return True

    def commit_filled_now(self, filling: Filling) -> bool:
        """As `commit_filled` of one stripe, without suspending; False if that cannot be.

        No member has anything of it then, and the caller commits the same as a later record. What
        only some take at once is late (group_commit.py): were it taken back, a replay that lacks
        the next record might find this in its place, and go on behind a gap.
        """
        ring, streams = self.ring, self.streams
        if self._gate is not None or not self.roles or self.torn or not streams.fit((filling,)):
            return False
        self.write_gathered()
        if self.inflight.open:
            return False
        fields, parts, total = entry_fields(filling.data)
        fields += streams.entries((filling,))
        size = record_bytes(len(fields) // 4, total)
        if not ring.has_room(size + streams.reserve_bytes):
            return False
        streams.begin((filling,), ring.stripes)
        sequence, position, offset = ring.allocate(size, (filling.stripe,))
        record = encode_record(ring.epoch, sequence, position, ring.array, fields, parts, total)
        left = self.write_now(offset, record)
        if len(left) == len(self.roles):
            ring.take_back(sequence, position)
            return False
        self.commits += 1
        self.commit_bytes += size
        self.take_effect(record, len(fields) // 4, filling.data)
        streams.take_effect((filling,))
        self.hurry()
        if left:
            late = Gathering(self.write_gathered, sequence)
            late.written = True
            late.stripes.append(filling.stripe)
            self.be_late(late, left, position)
        return True

    def commit_now(
        self, stripe: int, writes: Sequence[Request]
    ) -> tuple[int, list[Request] | Gathering] | None:
        """Log *writes* of one stripe without suspending; None if that cannot be: nothing was done.

        The one buffer of each belongs to the journal from now on. Returns the sequence number and
        what could not be written at once: if any, the caller takes the stripe's lock and awaits
        `finish`. A handler that may be held gets the gathering instead: it awaits `held`, then
        `finish_gathered`.
        """
        streams = self.streams
        if self._gate is not None or self.inflight.open or not self.roles or self.torn:
            return None
        if stripe in streams.unfinished:
            return None
        ring, overlay = self.ring, self.overlay
        if DOOR.holds and (gathering := self.gather(stripe, writes, streams.reserve_bytes)):
            if streams.held_cells:
                streams.note_others((stripe,))
            return gathering.sequence, gathering
        self.write_gathered()
        if self.inflight.open:
            return None
        fields, parts, total = entry_fields(writes)
        size = record_bytes(len(writes), total)
        if not ring.has_room(size + streams.reserve_bytes):
            return None
        sequence, position, offset = ring.take(size)
        ring.stripes[stripe] = sequence
        self.hurry()
        if streams.held_cells:
            streams.note_others((stripe,))
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

    async def _make_room(self, size: int) -> None:
        """Wait until *size* bytes, and the rest of a lap, are free and the gate is open.

        Raises RaidxError.
        """
        if 2 * size > self.capacity:
            raise RaidxError(
                f"a change of {size} bytes does not fit in the journal of {self.capacity}"
            )
        ring, streams = self.ring, self.streams
        while True:
            while self._gate is not None:
                await self._gate.wait()
            self.write_gathered()  # its room is not taken yet
            if not self.roles:
                raise RaidxError("the journal is lost: the array takes no more writes")
            if self.torn:
                await self.mend()
                continue
            if ring.has_room(size + streams.reserve_bytes):
                break
            await self.place()
            if not ring.has_room(size + streams.reserve_bytes):
                await self.store.flush()  # makes the head page durable that frees the space
        self.hurry()

    # -- placing -------------------------------------------------------------------------------

    async def place(self) -> None:
        """Bring everything committed so far to its place and move the tail behind it."""
        async with self.placing:
            ring = self.ring
            self.write_gathered()
            if not ring.open:
                await ring.save_tail()
                return
            while self.is_late or self.streams.unfinished:  # none may come of the other's wait
                await self.settle_gathered()
                await self._finish_streams()
            tail: Tail = ring.next_sequence, ring.position, self.mark
            if self.inflight:
                tail = *self.inflight.first(), self.mark
            self.overlay.freeze()
            pages = self.written.take_unsaved()  # as they are now: later bits are not durable yet
            shares = self.shares.take_unsaved()
            try:
                if not self.break_ordering:
                    await self.store.flush()
                await self._write_frozen()
                await self.written.pages.save_as(pages)
                await self.shares.save_as(shares)
                if not self.break_ordering:
                    await self.store.flush()
            except BaseException:
                self.overlay.thaw()
                self.written.put_back(pages)
                self.shares.put_back(shares)
                raise
            self.overlay.drop_frozen()
            self.store.place_epoch += 1
            await ring.move_tail(tail)
            self.placements += 1

    async def _finish_streams(self) -> None:
        """Log the parities that the log lacks, while nobody commits."""
        gate = None
        if self._gate is None:
            gate = self._gate = trio.Event()
        try:
            streams = self.streams
            while streams.unfinished:
                await self.inflight.wait_for_all()
                lacking = dict(streams.unfinished)
                if lacking and not self.roles:
                    raise RaidxError("the journal is lost: its records wait for the next mount")
                if lacking and not self.break_streams:
                    await self.mend()
                    fields, parts, total = entry_fields(streams.parities(lacking))
                    streams.note_others(lacking)
                    self.inflight.end((await self.append([*lacking], fields, parts, total))[0])
                # Should the gate have opened (a drain that was given up), it may have gone on.
                streams.finish(
                    [s for s, was in lacking.items() if streams.unfinished.get(s) is was]
                )
        finally:
            if gate is not None:
                self._gate = None
                gate.set()

    async def _write_frozen(self) -> None:
        """Write the frozen layer to its places; others get their turn now and then."""
        store = self.store
        queues = {role: queue for role, queue in enumerate(store.queues) if queue is not None}
        for role, writes in self.overlay.frozen_writes(queues):
            if store.queues[role] is not queues[role]:
                continue  # failed since; whoever took the role gets the content otherwise
            done = queues[role].try_writes(writes)
            if done < len(writes):
                left = [(role, *write) for write in writes[done:]]
                await store.write(left, background=True)
            await trio.lowlevel.checkpoint()

    async def drain(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """Place everything and make the empty tail durable: nothing would be replayed now.

        Commits wait meanwhile, and until *then* is done; the caller must not hold a stripe's lock.
        """
        while self._gate is not None:
            await self._gate.wait()
        self._gate = trio.Event()
        try:
            await self.inflight.wait_for_all()
            await self.mend()
            while self.ring.open or self.ring.durable_tail[0] != self.ring.next_sequence:
                await self.place()
                await self.store.flush()
            if then is not None:
                await then()
        finally:
            gate, self._gate = self._gate, None
            gate.set()

    async def reform(self) -> None:
        """After a member became whole: keep the log on it too, from an empty ring on.

        Raises what members raise; then `tend` tries again.
        """
        self._to_form = True
        await self.drain(self.move)
        self._to_form = False

    @property
    def is_gated(self) -> bool:
        """Whether nobody may commit just now: parities are being logged, or the ring emptied."""
        return self._gate is not None

    def give_up_soon(self) -> None:
        """Place soon, and let the log give up what is placed: it stands in the way of others."""
        if not self._gives_up and self.store.clock() >= self._gives_up_from_s:
            self._gives_up = True
            self._wake.set()

    async def tend(self) -> None:
        """Place lazily: a second after the last placement, or when space runs short."""
        while True:
            with trio.move_on_after(PLACE_AFTER_S):
                await self._wake.wait()
            if self.ring.open or self.ring.is_behind or self._to_form:
                try:
                    await self.place()
                    if self._to_form:
                        await self.reform()
                    if self._gives_up:
                        await self.store.flush()  # of the head page
                        self._gives_up_from_s = self.store.clock() + PLACE_AFTER_S
                        self._gives_up = False
                except RaidxError as error:
                    log.error("committed changes cannot reach their places: %s", error)
            self._wake = trio.Event()  # what hurried us is in its place, or the next commit hurries
