"""Parity at the checkpoint: a write logs its data only, and the parity of its stripe follows.

A stripe with such data in the log is *unsettled*. Home places and, in the overlay, older layers
still hold its *base*: content whose chains hold. The new data lies in one layer above the base:

    overlay, current     data of unsettled stripes; data and parity of the others
    overlay, frozen      the same, of the checkpoint under way; it settles them all first
    home places          base of the stripes that are unsettled in the frozen layer

To *settle* a stripe means: compute its parities from the base and the new data, log them in a
record that names the stripe and the last record whose data they cover, and put them into the layer
of the data. Then everything is as if each write had logged its parity. Laws:

1. Until a stripe is settled durably, none of its home places is written.
2. In one layer a stripe is first unsettled, then settled, never unsettled again: content with
   parity would be mixed with content without it. Such a write logs its parity (`admits`).
3. Whoever needs the chains of a stripe settles it first, under its lock: degraded reads, writes
   with parity, moves, all jobs. While the lock is held no data without parity is logged.
4. The written bits of an unsettled stripe do not change.
5. The ring keeps space for the parities of all unsettled stripes (`reserve_bytes`): for a record of
   each stripe alone, so that they may be settled in any batches, and for what the end of a lap
   wastes. It is counted before the record with the data is written (`expect`).

A stripe whose data was logged from the front, in whole cells, may be completed past the log: then
all of it, with its parity, goes to its home places (engine/write/full_stripe.py). It is *closed*
until its records leave the log. Recovery takes it for unsettled, and computes its parity once more,
so law 5 holds for it, too. Home places are not durable when it is closed, but the next record with
parity of the stripe says that what precedes it is settled. So a flush precedes such a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from raidx_fuse.format.log_record import (
    ENTRY_BYTES,
    RECORD_HEADER_BYTES,
    RecordBody,
)
from raidx_fuse.format.regions import SECTOR_BYTES
from raidx_fuse.journal.ring import RecordsInFlight
from raidx_fuse.journal.stripe_parity import (
    Bands,
    Chooser,
    Places,
    Reads,
    StripeParity,
)
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import Part
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.sums import no_cover
from raidx_fuse.store.written_map import WrittenMap

STRIPES_AT_ONCE = 256
RECORD_SHARE = 8  # parities take at most 1/RECORD_SHARE of the ring in a record
PARTS_MAX = 64  # of a stripe, which a record of its parities has twice as many entries for
ALONE_BYTES = RECORD_HEADER_BYTES + SECTOR_BYTES + 2 * ENTRY_BYTES  # of a stripe's own record
HEADER_BYTES_MAX = 4096  # of a record of the largest size
BATCH_BYTES_MAX = 4 << 20  # of parities, and about as much of each cell that is read for them
KNOWN_MIN = 64  # stripes kept in `WholeCells.cells` beyond those that the ring holds


class RecordLog(Protocol):
    """What settling needs of the log."""

    overlay: Overlay
    inflight: RecordsInFlight

    async def mend(self) -> None:
        """Let the log go on after records that could not be written."""

    async def append(self, stripes: Sequence[Stripe], body: RecordBody) -> tuple[int, bytes]:
        """Write a record of *stripes*; return its sequence number and its bytes."""
        ...


@dataclass(slots=True, eq=False)
class NewData:
    """The new data of one unsettled stripe.

    *sequence*: the newest record with some of it. *parts*: where it is. *reserve_bytes*: the space
    of the ring that is kept for their parities.
    """

    sequence: int
    parts: Sequence[Part]
    reserve_bytes: int

    def add(self, sequence: int, parts: Sequence[Part], reserve_bytes: int) -> int:
        """Note that record *sequence* has *parts*, too, whose parities take *reserve_bytes*.

        Returns how much more space the stripe needs: none if it had all of them already.
        """
        self.sequence = sequence
        reserve_bytes -= ALONE_BYTES
        more = [part for part in parts if part not in self.parts]
        if not more:
            return 0
        self.parts = (*self.parts, *more)
        self.reserve_bytes += reserve_bytes
        return reserve_bytes


class WholeCells:
    """Which cells the log has of stripes that are written in whole cells, without their parity.

    *cells*: stripe -> mask, of stripes with no other records in the log. So recovery writes to
    these cells of the stripe only, and to its parity.
    """

    def __init__(self, member_set: MemberSet) -> None:
        self.cells: dict[Stripe, int] = {}
        self._member_set = member_set

    def note_parts(self, stripe: Stripe, parts: Sequence[Part], held: Collection[Stripe]) -> None:
        """Note that the log gets data *parts* of *stripe*, before the ring holds the record.

        No parts: a record of another kind.
        """
        chunk_bytes = self._member_set.layout.chunk_bytes
        if not self.cells and (not parts or parts[0][2] - parts[0][1] != chunk_bytes):
            return  # the usual case
        if parts and all(high - low == chunk_bytes for _, low, high in parts):
            self.note(stripe, sum([1 << cell for cell, _, _ in parts]), held)
        else:
            self.note_others((stripe,))

    def note(self, stripe: Stripe, mask: int, held: Collection[Stripe]) -> None:
        """Note that the log gets the cells in *mask* of *stripe*; it has records of *held*."""
        cells = self.cells
        if len(cells) > 2 * len(held) + KNOWN_MIN:  # the log holds most of them no longer
            cells = self.cells = {s: cells[s] for s in held if s in cells}
        if stripe not in held:
            cells[stripe] = mask
        elif stripe in cells:
            cells[stripe] |= mask

    def note_others(self, stripes: Iterable[Stripe]) -> None:
        """Note that the log gets other records of *stripes*."""
        if self.cells:
            for stripe in stripes:
                self.cells.pop(stripe, None)

    def is_all_of(self, stripe: Stripe, mask: int) -> bool:
        """Return whether recovery may write only the cells in *mask* of *stripe*, and parity."""
        return not self.cells.get(stripe, -1) & ~mask


NewLayer = dict[Stripe, NewData]


class Unsettled:
    """The unsettled stripes: *current* and *frozen*, as the layers of the overlay.

    *held_bytes*: of the parities of all of them, and of the *closed* ones, at most. *batch_bytes*:
    of parities in one record, unless one stripe has more. *with_parity*: the stripes that have
    parity in the current layer. *chooser* asks the parity policy. *paused*: all data is logged with
    its parity, because the layout is about to change, and records name its stripes.
    """

    def __init__(
        self, log: RecordLog, member_set: MemberSet, written: WrittenMap, capacity: int
    ) -> None:
        self.current: NewLayer = {}
        self.frozen: NewLayer = {}
        self.chooser: Chooser | None = None
        self.before_parity: Callable[[Iterable[Stripe]], None] = lambda _stripes: None
        self.parity = StripeParity(member_set, written)
        self._log = log
        self._member_set = member_set
        self.with_parity: set[int] = set()  # stripes that have parity in the current layer
        self.whole_cells = WholeCells(member_set)
        self.closed: dict[Stripe, NewData] = {}  # with data in the log that is home already
        self.closed_bytes = 0  # of *held_bytes*
        self.paused = False
        self.held_bytes = 0
        self._layout: Layout | None = None  # for which the next three hold
        self._entry_bytes = ENTRY_BYTES  # of each block of parity, in a record
        self._has_parity = False
        self._whole_fits = False  # one record can hold all parities of a stripe
        self._parities = 0  # that a data cell affects, at most
        self._code_bytes = self._code_entries_bytes = 0  # of all parities of a stripe, in a record
        self.take_capacity(capacity)
        self.settling = trio.Lock()  # held while stripes are settled, and while layers change

    def take_capacity(self, capacity: int) -> None:
        """Have a log of *capacity* bytes for records, which has no parity of the layers yet."""
        self._record_bytes = capacity // RECORD_SHARE  # the most that parities may take in a record
        self.batch_bytes = min(self._record_bytes, BATCH_BYTES_MAX)
        self._layout = None  # what depends on it is computed anew

    def __bool__(self) -> bool:
        return bool(self.current or self.frozen)

    def __contains__(self, stripe: Stripe) -> bool:
        return stripe in self.current or stripe in self.frozen

    def pause(self, paused: bool) -> None:
        """Admit no data without parity from now on, or admit it again."""
        self.paused = paused

    @property
    def reserve_bytes(self) -> int:
        """The space of the ring that is kept for the parities of all unsettled stripes."""
        return self.held_bytes + self.waste_bytes if self.held_bytes else 0

    @property
    def waste_bytes(self) -> int:
        """The most that the end of a lap may waste; a recovery settles all layers at once."""
        return (1 if self._whole_fits else 3) * self._record_bytes + HEADER_BYTES_MAX

    def more_bytes(self, space_bytes: int) -> int:
        """Return by how much data rises `reserve_bytes`, at most, if its `space_of` is given."""
        return space_bytes if self.held_bytes else space_bytes + self.waste_bytes

    def expect(self, space_bytes: int) -> None:
        """Keep *space_bytes*, the `space_of` of data to be logged, until `note` or `forget`."""
        self.held_bytes += space_bytes

    def forget(self, space_bytes: int) -> None:
        """Keep *space_bytes*, of data that was expected, no longer."""
        self.held_bytes -= space_bytes

    def admits(self, stripe: Stripe) -> bool:
        """Return whether data of *stripe* may come without its parity, if it `has_space`."""
        if stripe in self.with_parity and stripe not in self.current:
            return False
        if self._member_set.layout is not self._layout:
            self.take_layout()
        return self._has_parity

    def has_space(self, stripe: Stripe, space_bytes: int) -> bool:
        """Return whether one record can hold the parities of *stripe* with this new data, too.

        *space_bytes* is its `space_of`; `admits` has been asked.
        """
        new = self.current.get(stripe)
        if self._whole_fits:
            return new is None or len(new.parts) < PARTS_MAX
        if new is not None:
            space_bytes += new.reserve_bytes - ALONE_BYTES
        return space_bytes <= self._record_bytes

    def take_layout(self) -> None:
        """Note whether the code has parity to compute, if it fits into a record, and how many.

        With checksums each block may have an entry more (`RecordBody.add_unverified_blocks`).
        """
        self._entry_bytes = ENTRY_BYTES * (1 if self._member_set.sums is None else 2)
        layout = self._layout = self._member_set.layout
        code = layout.code
        parity_bytes = code.parity_count * (layout.chunk_bytes + 2 * PARTS_MAX * self._entry_bytes)
        self._has_parity = parity_bytes > 0 and not code.is_copies
        self._whole_fits = parity_bytes <= self._record_bytes
        self._parities = max(map(len, code.affects), default=0)
        self._code_bytes = parity_bytes
        self._code_entries_bytes = code.parity_count * self._entry_bytes

    def space_of(self, parts: Sequence[Part]) -> int:
        """Return the space of the ring to keep for the parities of *parts*, new data at once."""
        total = 0
        for _, low, high in parts:
            total += self._parities * (high - low + 2 * self._entry_bytes) + ENTRY_BYTES
        if len(parts) > 1:  # cells of one write share their parities
            total = min(total, self._code_bytes + 2 * len(parts) * self._code_entries_bytes)
        return total + ALONE_BYTES

    def note(self, stripe: Stripe, sequence: int, parts: Sequence[Part], space_bytes: int) -> None:
        """Note that record *sequence* has new data *parts* of *stripe*, now in the overlay.

        *space_bytes* is their `space_of`, which was expected.
        """
        new = self.current.get(stripe)
        if new is None:
            self.current[stripe] = NewData(sequence, parts, space_bytes)
        else:
            self.held_bytes += new.add(sequence, parts, space_bytes) - space_bytes

    def close(self, stripe: Stripe, with_parity: bool) -> None:
        """Note that all of *stripe* is home; *with_parity*: the current layer has its parity."""
        new, before = self.current.pop(stripe), self.closed.get(stripe)
        self.closed_bytes += new.reserve_bytes
        if before is not None:  # its older data is in the log, too
            new = NewData(new.sequence, new.parts, new.reserve_bytes + before.reserve_bytes)
        self.closed[stripe] = new
        if with_parity:
            self.with_parity.add(stripe)

    def forget_closed(self, tail: int) -> None:
        """Forget the closed stripes all of whose records are before the durable *tail*."""
        self.drop_closed([s for s, new in self.closed.items() if new.sequence < tail])

    async def end_closed(self, stripes: Collection[Stripe]) -> tuple[list[Stripe], list[int]]:
        """Make the home places of those of *stripes* that are closed durable.

        Returns them, and the last record whose data is home for each: the next record with parity
        of them names both (`RecordBody.add_settled`), and `drop_closed` is called. Raises what the
        members raise.
        """
        if not self.closed or not any(stripe in self.closed for stripe in stripes):
            return [], []
        await self._member_set.flush()
        closed = [stripe for stripe in stripes if stripe in self.closed]
        return closed, [self.closed[stripe].sequence for stripe in closed]

    def drop_closed(self, stripes: Iterable[Stripe]) -> None:
        """Note that the log says of *stripes* that they are settled, or has them no longer."""
        for stripe in stripes if self.closed else ():
            if stripe in self.closed:
                size_bytes = self.closed.pop(stripe).reserve_bytes
                self.held_bytes -= size_bytes
                self.closed_bytes -= size_bytes

    def freeze(self) -> None:
        """Follow the overlay, whose current layer has become the frozen one."""
        self.frozen, self.current = self.current, {}
        self.with_parity = set()

    # -- settling ------------------------------------------------------------------------------

    async def settle(self, stripes: Collection[Stripe]) -> None:
        """Settle those of *stripes* that are unsettled; their locks are held.

        Raises RaidxError; then they stay unsettled.
        """
        if not self or not any(stripe in self for stripe in stripes):
            return
        async with self.settling:
            for layer in (self.frozen, self.current):
                mine = sorted(stripe for stripe in stripes if stripe in layer)
                for batch in self._batches(layer, mine):
                    await self._settle(layer, batch)

    async def settle_frozen(self) -> list[int]:
        """Settle the frozen layer; return the sequence numbers of the records. Raises RaidxError.

        If nothing has to be waited for, no other task runs before STRIPES_AT_ONCE are settled.
        """
        sequences: list[int] = []
        while self.frozen:
            try:
                self.settling.acquire_nowait()
            except trio.WouldBlock:
                await self.settling.acquire()
            settled = 0
            try:
                for batch in self._batches(self.frozen, sorted(self.frozen)):
                    sequences.append(await self._settle(self.frozen, batch))
                    settled += len(batch)
                    if settled >= STRIPES_AT_ONCE:
                        break
            finally:
                self.settling.release()
            await trio.lowlevel.checkpoint()
        return sequences

    def _batches(self, layer: NewLayer, stripes: Sequence[Stripe]) -> Iterator[list[Stripe]]:
        """Yield *stripes* of *layer* in batches whose parities fit into one record.

        A single stripe always fits (`has_space`).
        """
        together: list[Stripe] = []
        size = 0
        for stripe in stripes:
            more = layer[stripe].reserve_bytes
            if together and (size + more > self.batch_bytes or len(together) == STRIPES_AT_ONCE):
                yield together
                together, size = [], 0
            together.append(stripe)
            size += more
        if together:
            yield together

    async def _settle(self, layer: NewLayer, stripes: Sequence[Stripe]) -> int:
        """Settle *stripes* of *layer* by one record; return its sequence number.

        Nothing else settles stripes or changes the layers meanwhile.
        """
        overlay, is_frozen = self._log.overlay, layer is self.frozen
        self.before_parity(stripes)
        pages = overlay.frozen if is_frozen else overlay.current
        member_set = self._member_set

        async def read(reads: Reads) -> None:
            await member_set.read_base(reads, frozen=not is_frozen)

        def content(_cell: CellIndex, bands: Bands, places: Places) -> Sequence[ReadBuffer]:
            return overlay.contents(pages, *places, bands.size_bytes)

        wanted = [(stripe, layer[stripe].parts) for stripe in stripes]
        covers = no_cover if is_frozen else overlay.covers_frozen
        blocks = await self.parity.compute(wanted, content, read, self.chooser, covers)
        await self.end_closed(stripes)  # the record counts as the parity of that, too
        if member_set.unpublished:
            await member_set.published()  # law 4 of journal.py
        log = self._log
        await log.mend()
        body = RecordBody()
        for block in blocks:
            places = block.places
            body.add_blocks(places.roles, block.size_bytes, places.offsets, block.content.data)
            if block.is_doubted:
                body.add_unverified_blocks(places.roles, block.size_bytes, places.offsets)
        body.add_settled(stripes, [layer[stripe].sequence for stripe in stripes])
        self.whole_cells.note_others(stripes)
        sequence, record = await log.append(stripes, body)
        try:
            view = memoryview(record)
            at = RECORD_HEADER_BYTES + ENTRY_BYTES * body.entries
            for block in blocks:
                end = at + len(block.content)
                overlay.put_places(pages, *block.places, block.size_bytes, view[at:end])
                at = end
                if block.is_doubted:
                    overlay.doubt_in(is_frozen, block.pages())
            for stripe in stripes:
                self.held_bytes -= layer.pop(stripe).reserve_bytes
            self.drop_closed(stripes)
            if layer is self.current:
                self.with_parity.update(stripes)
        finally:
            log.inflight.end(sequence)
        return sequence
