"""The ring of the log: its members, space, sequence numbers, the tail, which stripes are replayed.

    | head page, two slots | ... free | tail: first record not in its place | ... | position: next |

The head page says where the tail is. Saving the page does not free space yet: it may still be torn
by a power cut, and then recovery starts at the old tail and needs its records. Space counts as
free, and a stripe as no longer replayed, only after a flush has covered the page (`durable_tail`).

A record is on one member more than the code tolerates to lose. The members take turns, so that none
does more work than the others: the records of each span of `TURN_BYTES` of the ring go to the next
members. Slow members have no turn where others suffice. A record has the same place on each of its
members, and recovery finds it on any of them: the head page names all that may have a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.config import uuid_bytes
from raidx_fuse.format.log_record import HEAD, holder_of
from raidx_fuse.format.regions import PAGE_BYTES, PAGE_SLOTS, SECTOR_BYTES, Region
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import Offset, Role, Stripe, by_role
from raidx_fuse.store.io_tuples import MemberLostError
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.page_store import PageStore

HEAD_BYTES = PAGE_BYTES * PAGE_SLOTS
NO_STRIPE = 1 << 63
SLOW_TIMES = 4  # the service time of a write, as long as that of the slowest that is needed
TURN_BYTES = 64 << 10  # of the ring: long enough for a rotating disk

Tail = tuple[int, int, int]  # sequence number and position of a record, watermark before it


class LogMembers:
    """The log members among those of *member_set*.

    Attributes: *roles* (all that may have a turn; none before the start); *turns* (those that get
    the records of one span, and then of each of the next ones).
    """

    def __init__(self, member_set: MemberSet) -> None:
        self._member_set = member_set
        self.roles: tuple[Role, ...] = ()
        self._copies = 0
        self.turns: tuple[tuple[Role, ...], ...] = ((),)

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
        self.take(tuple(whole))

    def take(self, roles: tuple[Role, ...]) -> None:
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


class RecordsInFlight:
    """The records that are being written, or whose effect readers do not see yet.

    *open* maps sequence number -> position.
    """

    __slots__ = ("_landed", "_moved", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self._landed: set[int] = set()  # records in flight that are written
        self._moved = trio.Event()  # set and replaced whenever a record is written or ends

    async def wait_for_earlier(self, sequence: int) -> None:
        """Note that *sequence* is written; wait for all earlier records (journal.py, law 1).

        Not cancellable: recovery redoes the record, so it must take effect here, too. Later records
        of its stripes are planned from what the array has.
        """
        if len(self.open) == 1:
            return
        self._landed.add(sequence)
        self._notify()
        with trio.CancelScope(shield=True):  # they wait for members only, which have a timeout
            while any(s < sequence and s not in self._landed for s in self.open):
                await self._moved.wait()

    async def wait_for_all(self) -> None:
        while self.open:
            await self._moved.wait()

    async def wait_for_first(self) -> None:
        """Return when the earliest record in flight has ended, at once if there is none."""
        first = min(self.open, default=None)
        while first in self.open:
            await self._moved.wait()

    def end(self, sequence: int) -> None:
        """Note that readers see the record's effect, or it has none: it may be checkpointed."""
        self._landed.discard(sequence)
        del self.open[sequence]
        self._notify()

    def _notify(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()


class Ring:
    """The log region of *member_set*, including its *head* page; sizes and positions are in bytes.

    Attributes:

    * *region*, *capacity*: of all, and for records; *offset*: byte offset of the first record;
    * *next_sequence*, *position*: of the next record, counted over all laps of this *epoch*;
    * *open*: (sequence, position) of the records that are not checkpointed, in order;
    * *placed_tail*: behind the checkpointed records; *noted_tail*: as saved in the head page;
      *durable_tail*: as flushed in the head page.
    """

    def __init__(self, member_set: MemberSet, head: PageStore) -> None:
        self._laws = member_set.laws
        self.array = uuid_bytes(member_set.config.array_uuid)
        self.take_region(member_set.config.regions.log)
        self.epoch = 0
        self.next_sequence = 1
        self.position = 0
        self.open: deque[tuple[int, int]] = deque()
        self.durable_tail: Tail = (1, 0, 0)
        # Identities of the log members, for the next head page: recovery reads no others.
        self.holders: list[bytes] = []
        self.stripes: dict[Stripe, int] = {}  # stripe -> sequence of its newest record
        self.held_from = NO_STRIPE  # this stripe and all behind it count as having the record...
        self._held_by = 0  # ...of this sequence number
        self.stale_end = 0  # behind the numbers that were taken back and are not wiped yet
        self._head = head
        self.noted_tail = self.placed_tail = self._flushing_tail = self.durable_tail
        self._saves = self._saved = self._saves_flushing = 0  # head saves begun, done, flushed
        member_set.flush_observers.append(self)

    def take_region(self, region: Region) -> None:
        """Have the records in *region*, which has none of this epoch."""
        self.region = region
        self.offset = Offset(region.offset + HEAD_BYTES)
        self.capacity = region.length - HEAD_BYTES
        # With more than this in the ring, a checkpoint is urgent. The space that a checkpoint frees
        # is usable after the first flush of the next one. The ring therefore holds the records of
        # two checkpoints, and those that are committed meanwhile.
        self.hurry_bytes = self.capacity // 3

    async def move_head(self, region: Region) -> None:
        """Write the head page to the front of *region* from now on, and now (not flushed).

        What is there are zeros. If it cannot be written, it stays where it is.
        """
        former = self._head.region.offset
        self._head.move_to(region.offset)
        try:
            await self.save_head(self.noted_tail)
        except BaseException:
            self._head.move_to(former)
            raise

    async def begin(self, epoch: int, mark: int, sequence: int = 1) -> None:
        """Start *epoch* with an empty ring; after a flush, older records are invalid for ever.

        The next record is *sequence*. Its position is one that it can have in a ring of any size.
        """
        position = (sequence - 1) * SECTOR_BYTES
        tail = (sequence, position, mark)
        self.go_on(epoch, tail, sequence, position)
        self.open.clear()
        self.stripes.clear()
        self.held_from = NO_STRIPE
        await self.save_head(tail)

    def go_on(self, epoch: int, tail: Tail, sequence: int, position: int) -> None:
        """Go on behind the records that a start has found, from *tail* on; nothing is saved."""
        self.epoch, self.next_sequence, self.position = epoch, sequence, position
        self.durable_tail = self.noted_tail = self.placed_tail = self._flushing_tail = tail

    async def save_head(self, tail: Tail, others: Iterable[bytes] = ()) -> None:
        """Write the head page with *tail*; *others* are valid holders, too (not flushed)."""
        holders = {*self.holders, *others}
        HEAD.pack_into(self._head.payload, 0, self.epoch, *tail, self.epoch, len(holders))
        names = b"".join(sorted(holders))
        self._head.payload[HEAD.size : HEAD.size + len(names)] = names
        self._saves = number = self._saves + 1
        await self._head.save([0])
        self._saved = number

    async def believe_also(self, others: Iterable[bytes]) -> None:
        """Write the head page with *others* as valid holders, too (not flushed).

        This must be durable before records go to other members than before, because recovery must
        find the records with either copy of the head page. The next save names only the holders.
        """
        await self.save_head(self.noted_tail, others)

    async def save_mark(self, mark: int) -> None:
        """Write the head page with the watermark *mark* (not flushed)."""
        sequence, position, _ = self.placed_tail
        self.placed_tail = sequence, position, mark
        await self.save_tail()

    async def move_tail(self, tail: Tail) -> None:
        """Note that all records before *tail* are durable in their home places; save the head page.

        If the head page cannot be written now, `save_tail` tries again later. Raises LawError for a
        tail that is none.
        """
        low, high = self.placed_tail[:2], (self.next_sequence, self.position)
        if not (low[0] <= tail[0] <= high[0] and low[1] <= tail[1] <= high[1]):
            raise self._laws.broken(Law.TAIL, f"the tail {tail[:2]} between {low} and {high}")
        while self.open and self.open[0][0] < tail[0]:
            self.open.popleft()
        self.placed_tail = tail
        await self.save_tail()

    @property
    def is_behind(self) -> bool:
        """Whether the head page lacks the current tail, because it could not be written."""
        return self.noted_tail != self.placed_tail

    async def save_tail(self) -> None:
        """Write the head page if it lacks the current tail (not flushed)."""
        if self.is_behind:
            tail = self.placed_tail
            await self.save_head(tail)
            self.noted_tail = tail

    # -- flush observer ------------------------------------------------------------------------

    def flush_begins(self) -> None:
        """Note which head page the flush that begins now covers: the last one saved."""
        self._flushing_tail = self.noted_tail
        self._saves_flushing = self._saved

    def flush_ends(self) -> None:
        """Free the ring space before the tail that is durable now: it is never replayed again."""
        if self._saves != self._saves_flushing:
            return  # saved again since, and a power cut may tear it: the next flush counts
        if self.durable_tail == self._flushing_tail:
            return
        self.durable_tail = self._flushing_tail
        sequence = self.durable_tail[0]
        if self.stripes:
            self.stripes = {s: n for s, n in self.stripes.items() if n >= sequence}
        if self._held_by < sequence:
            self.held_from = NO_STRIPE

    def hold_from(self, stripe: Stripe) -> None:
        """Hold *stripe* and all stripes behind it while any present record may be replayed.

        They are new stripes in places that other stripes have left. The replay of a record of those
        may still write to these places.
        """
        end = max(self.next_sequence, self.stale_end)
        if self.durable_tail[0] != end:
            self.held_from, self._held_by = min(stripe, self.held_from), end - 1

    # -- space ---------------------------------------------------------------------------------

    def room_beside(self, size: int) -> int:
        """Return how many bytes are free beside a record of *size* bytes; negative: it has no room.

        It may have to skip the end of a lap.
        """
        end = self.position + size
        rest = -self.position % self.capacity
        if rest < size:  # it starts the next lap
            end += rest
        return self.capacity - (end - self.durable_tail[1])

    def has_room(self, size: int, kept: int = 0) -> bool:
        """Return whether a record of *size* bytes fits; *kept* bytes must be free besides."""
        return self.room_beside(size) >= kept

    def hold(self, stripes: Iterable[Stripe], sequence: int) -> None:
        for stripe in stripes:
            self.stripes[stripe] = sequence

    def next_place(self, size: int) -> tuple[int, Offset]:
        """Return the position of the next record, of *size* bytes, and its byte offset."""
        position = self.position
        lap = position % self.capacity
        if lap + size > self.capacity:  # records do not wrap: this one starts the next lap
            position += self.capacity - lap
            lap = 0
        return position, self.offset + lap  # type: ignore[return-value]

    def take(self, size: int) -> tuple[int, int, Offset]:
        """Allocate a sequence number and *size* bytes for a record.

        Returns the sequence number, the position and the byte offset on the members. Raises
        LawError, with nothing allocated, if there is no room (`has_room`).
        """
        sequence = self.next_sequence
        position, offset = self.next_place(size)
        if position + size - self.durable_tail[1] > self.capacity:
            raise self._laws.broken(Law.ROOM, f"record {sequence} of {size} bytes")
        self.next_sequence = sequence + 1
        self.position = position + size
        self.open.append((sequence, position))
        return sequence, position, offset

    def take_back(self, sequence: int, position: int) -> None:
        """Let the next record take the place of the record *sequence* at *position*.

        Its stripes and those of the records behind it stay held: parts of them may lie on a member.
        """
        self.stale_end = max(self.stale_end, sequence + 1)
        if sequence < self.next_sequence:
            self.next_sequence, self.position = sequence, position
        while self.open and self.open[-1][0] >= sequence:
            self.open.pop()
