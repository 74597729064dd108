"""The ring of the journal: space, sequence numbers, the tail, and which stripes may be replayed.

    | head page, two slots | ... free | tail: first record not in its place | ... | position: next |

The head page says where the tail is. Saving it frees nothing yet: the page may still be torn, and
an old tail needs its records. So space counts as free, and a stripe as beyond replay, only when a
flush has covered the page (`durable_tail`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

import trio

from raidx_fuse.format.configuration.config import uuid_bytes
from raidx_fuse.format.log_record import HEAD
from raidx_fuse.format.regions import PAGE_BYTES, PAGE_SLOTS
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.page_store import PageStore

# Records on their way: written, or about to be, and their effect not yet seen by readers.


class RecordsInFlight:
    """*open*: sequence number -> position of each. False when there are none."""

    __slots__ = ("_landed", "_moved", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self._landed: set[int] = set()  # those of them that are written
        self._moved = trio.Event()  # renewed whenever one lands or is over

    def __bool__(self) -> bool:
        return bool(self.open)

    def add(self, sequence: int, position: int) -> None:
        """Note that a record is on its way."""
        self.open[sequence] = position

    def position(self, sequence: int) -> int:
        """Return where a record on its way lies."""
        return self.open[sequence]

    def first(self) -> tuple[int, int]:
        """Return sequence number and position of the earliest."""
        return min(self.open.items())

    async def wait_for_earlier(self, sequence: int) -> None:
        """Note that a record is written, and wait until all before it are (journal.py, law 1)."""
        if len(self.open) == 1:
            return
        self._landed.add(sequence)
        self._notify()
        while any(s < sequence and s not in self._landed for s in self.open):
            await self._moved.wait()

    async def wait_for_all(self) -> None:
        """Return when none is on its way."""
        while self.open:
            await self._moved.wait()

    def end(self, sequence: int) -> None:
        """Note that the effect of a record is seen, or that it has none: it may be placed."""
        self._landed.discard(sequence)
        del self.open[sequence]
        self._notify()

    def _notify(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()


# What a journal knows of a restripe: the watermark that moves with its records, and nothing more.
#
# A record may carry a *mark*; the head page has the one that held at its tail. So wherever a replay
# ends, it has the watermark of exactly the records that it has redone (jobs/restripe/job.py).


class ReshapePosition:
    """The watermark *mark* of a journal, and its *mode*: what is logged; see journal.py.

    *forced*: everything, whatever the mode is. *on_mark* hears of every new watermark.
    """

    def __init__(self, mode: str) -> None:
        self.forced = False
        self.changing = trio.Lock()  # held while the mode changes, here and in the superblocks
        self.mark = 0
        self.on_mark: Callable[[int], None] = lambda _mark: None
        self._mode = mode

    @property
    def mode(self) -> str:
        """What is logged now."""
        return "full" if self.forced else self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode = mode

    def take_mark(self, mark: int) -> None:
        """Let *mark* be the watermark."""
        self.mark = mark
        self.on_mark(mark)


HEAD_BYTES = PAGE_BYTES * PAGE_SLOTS

NO_STRIPE = 1 << 63

Tail = tuple[int, int, int]  # sequence number and position of a record, watermark before it


class Ring:
    """The log region of *member_set*, its *head* page included.

    *offset* is where the records begin on the members. *next_sequence* and *position* are those of
    the next record, over all laps of this *epoch*; *open* has (sequence, position) of the records
    that are not yet in place, in order; *placed_tail* is behind those that are, and *noted_tail*
    is the one that the head page has.
    """

    def __init__(self, member_set: MemberSet, head: PageStore) -> None:
        region = member_set.config.regions.log
        self.array = uuid_bytes(member_set.config.array_uuid)
        self.capacity = region.length - HEAD_BYTES
        # Not placed: from here on it is not put off. What one placement frees is free after the
        # flush with which the next begins, so there is room for two, and for what comes meanwhile.
        self.hurry_bytes = self.capacity // 3
        self.epoch = 0
        self.next_sequence = 1
        self.position = 0
        self.open: deque[tuple[int, int]] = deque()
        self.durable_tail: Tail = (1, 0, 0)
        self.holders: list[bytes] = []  # who gets records: nobody else's will be believed
        self.stripes: dict[int, int] = {}  # stripe -> sequence of its newest record
        self.held_from = NO_STRIPE  # this one and all behind it count as having the record...
        self._held_by = 0  # ...of this sequence number
        self.offset = region.offset + HEAD_BYTES
        self._head = head
        self.noted_tail = self.placed_tail = self._flushing_tail = self.durable_tail
        self._saves = self._saved = self._saves_flushing = 0  # begun, the last one done, flushed
        member_set.flush_observers.append(self)

    async def begin(self, epoch: int, mark: int) -> None:
        """Be empty, in *epoch*; whatever an older one left never counts again once flushed."""
        self.epoch = epoch
        self.next_sequence, self.position = 1, 0
        tail = (1, 0, mark)
        self.durable_tail = self.noted_tail = self.placed_tail = self._flushing_tail = tail
        self.open.clear()
        self.stripes.clear()
        self.held_from = NO_STRIPE
        await self.save_head(tail)

    async def save_head(self, tail: Tail) -> None:
        """Write the head page with *tail* (not flushed)."""
        await self._save(tail, self.holders)

    async def _save(self, tail: Tail, holders: Collection[bytes]) -> None:
        HEAD.pack_into(self._head.payload, 0, self.epoch, *tail, self.epoch, len(holders))
        names = b"".join(sorted(holders))
        self._head.payload[HEAD.size : HEAD.size + len(names)] = names
        self._saves = number = self._saves + 1
        await self._head.save([0])
        self._saved = number

    async def believe_also(self, others: Iterable[bytes]) -> None:
        """Write the head page so that what *others* hold counts as well (not flushed).

        Before records go to other members than so far: either head must let a replay find them.
        The next one names the holders alone.
        """
        await self._save(self.noted_tail, {*self.holders, *others})

    async def save_mark(self, mark: int) -> None:
        """Write the head page with the watermark *mark* (not flushed)."""
        self.placed_tail = (*self.placed_tail[:2], mark)
        await self.save_tail()

    async def move_tail(self, tail: Tail) -> None:
        """Note that all records before *tail* are in their places, durably.

        If the head page cannot be written now, `save_tail` is to try again.
        """
        while self.open and self.open[0][0] < tail[0]:
            self.open.popleft()
        self.placed_tail = tail
        await self.save_tail()

    @property
    def is_behind(self) -> bool:
        """Whether the head page lacks the tail: it could not be written."""
        return self.noted_tail != self.placed_tail

    async def save_tail(self) -> None:
        """Write the head page if it lacks the tail (not flushed)."""
        if self.is_behind:
            tail = self.placed_tail
            await self.save_head(tail)
            self.noted_tail = tail

    # -- flush observer ------------------------------------------------------------------------

    def flush_begins(self) -> None:
        """The head page that was saved last becomes durable with this flush."""
        self._flushing_tail = self.noted_tail
        self._saves_flushing = self._saved

    def flush_ends(self) -> None:
        """Ring space before the durable tail is free, and its records are never replayed."""
        if self._saves != self._saves_flushing:
            return  # begun anew since, and torn if the power goes now: the next flush counts
        if self.durable_tail == self._flushing_tail:
            return
        self.durable_tail = self._flushing_tail
        sequence = self.durable_tail[0]
        if self.stripes:
            self.stripes = {s: n for s, n in self.stripes.items() if n >= sequence}
        if self._held_by < sequence:
            self.held_from = NO_STRIPE

    def hold_from(self, stripe: int) -> None:
        """Hold *stripe* and all behind it as long as any record of now may be replayed.

        They are new, in places that others have left: a record of those may still come there.
        """
        if self.durable_tail[0] != self.next_sequence:
            self.held_from, self._held_by = min(stripe, self.held_from), self.next_sequence - 1

    # -- space ---------------------------------------------------------------------------------

    def must_hurry(self) -> bool:
        """Say whether so much is not in its place that placing it is not to be put off."""
        return self.position - self.noted_tail[1] > self.hurry_bytes

    def has_room(self, size: int) -> bool:
        """Say whether *size* bytes, and the rest of a lap, are free."""
        return self.position + 2 * size - self.durable_tail[1] <= self.capacity

    def allocate(self, size: int, stripes: Iterable[int]) -> tuple[int, int, int]:
        """Take a sequence number and space for a record of *stripes*.

        Return the number, its position, and the byte offset on the members.
        """
        taken = self.take(size)
        for stripe in stripes:
            self.stripes[stripe] = taken[0]
        return taken

    def take(self, size: int) -> tuple[int, int, int]:
        """As `allocate`; the caller notes the stripes."""
        sequence, position = self.next_sequence, self.position
        lap = position % self.capacity
        if lap + size > self.capacity:  # records do not wrap: go on at the start of the next lap
            position += self.capacity - lap
            lap = 0
        self.next_sequence = sequence + 1
        self.position = position + size
        assert self.position - self.durable_tail[1] <= self.capacity, "a replay needs it"
        self.open.append((sequence, position))
        return sequence, position, self.offset + lap

    def take_back(self, sequence: int, position: int) -> bool:
        """Let the next record take the place of this one; False if others came after it.

        Its stripes stay held: half of it may lie on a member.
        """
        if self.next_sequence != sequence + 1:
            return False
        self.next_sequence, self.position = sequence, position
        self.open.remove((sequence, position))
        return True
