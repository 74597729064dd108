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
5. The ring keeps space for the parities of all unsettled stripes (`reserve_bytes`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.log_record import (
    ENTRY_BYTES,
    RECORD_HEADER_BYTES,
    SEQUENCE_MASK,
    SETTLED,
    entry_fields,
)
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.journal.ring import RecordsInFlight
from raidx_fuse.journal.stripe_parity import Choose, Part, StripeParity, reconstruct
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.store.member_io import MemberIO, MemberRead
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.written_map import WrittenMap

STRIPES_AT_ONCE = 64  # in one round of reads
RECORD_SHARE = 8  # a record of parities takes at most 1/RECORD_SHARE of the ring


class RecordLog(Protocol):
    """What settling needs of the log."""

    overlay: Overlay
    inflight: RecordsInFlight
    roles: tuple[Role, ...]

    async def mend(self) -> None:
        """Overwrite a withdrawn record."""

    async def append(
        self,
        stripes: Sequence[Stripe],
        fields: Sequence[int],
        parts: Sequence[ReadBuffer],
        total: int,
    ) -> tuple[int, bytes]:
        """Write a record; return its sequence number and its bytes."""
        ...

    async def wait_for_earlier(self, sequence: int) -> None:
        """Return when all records before *sequence* are written."""


@dataclass(slots=True)
class NewData:
    """The new data of one unsettled stripe: its *parts*, and the newest record with some of it."""

    sequence: int = 0
    parts: list[Part] = field(default_factory=list)
    reserve_bytes: int = 0

    def add(self, sequence: int, part: Part, space_bytes: int) -> int:
        """Note that record *sequence* has *part*, whose parities take *space_bytes* of the ring.

        Returns how much more space the stripe needs: none if it had this part already.
        """
        self.sequence = sequence
        if part in self.parts:
            return 0
        self.parts.append(part)
        self.reserve_bytes += space_bytes
        return space_bytes


NewLayer = dict[Stripe, NewData]


class Unsettled:
    """The unsettled stripes of a log: *current* and *frozen*, as the layers of the overlay.

    *with_parity*: the stripes that have parity in the current layer.
    *enabled*: the setting `journal.parity` is "checkpoint". *choose* is the parity policy.
    """

    def __init__(
        self, log: RecordLog, member_set: MemberSet, written: WrittenMap, capacity: int
    ) -> None:
        self.enabled = False
        self.current: NewLayer = {}
        self.frozen: NewLayer = {}
        self.choose: Choose = reconstruct
        self.parity = StripeParity(member_set, written)
        self._log = log
        self._member_set = member_set
        self.with_parity: set[int] = set()  # stripes that have parity in the current layer
        self._held_bytes = 0
        self._layout: Layout | None = None  # for which *_layout_fits* holds
        self._layout_fits = False
        self._record_bytes = capacity // RECORD_SHARE  # of data in one record of parities
        self.settling = trio.Lock()  # held while stripes are settled, and while layers change

    def __bool__(self) -> bool:
        return bool(self.current or self.frozen)

    def __contains__(self, stripe: Stripe) -> bool:
        return stripe in self.current or stripe in self.frozen

    @property
    def reserve_bytes(self) -> int:
        """The space of the ring that is kept for the parities of all unsettled stripes."""
        held = self._held_bytes
        return held + held // 16 + self._record_bytes + 4096 if held else 0

    def more_bytes(self, parts: Iterable[Part]) -> int:
        """Return by how much *parts* raise `reserve_bytes`, at most."""
        more = self.space_of(parts)
        return more + more // 8 + (0 if self._held_bytes else self._record_bytes + 4096)

    def admits(self, stripe: Stripe) -> bool:
        """Return whether data of *stripe* may be logged without its parity now."""
        return (
            self.enabled
            and (stripe in self.current or stripe not in self.with_parity)
            and self._fits()
        )

    def _fits(self) -> bool:
        """Return whether the code has parity to compute, and a record has space for a stripe's."""
        layout = self._member_set.layout
        if layout is not self._layout:
            code = layout.code
            parity_bytes = code.parity_count * (layout.chunk_bytes + 4 * ENTRY_BYTES)
            self._layout_fits = 0 < parity_bytes <= self._record_bytes and not code.is_copies
            self._layout = layout
        return self._layout_fits

    def space_of(self, parts: Iterable[Part]) -> int:
        """Return the space of the ring to keep for the parities of *parts*."""
        affects = self._member_set.layout.code.affects
        total = 0
        for cell, low, high in parts:
            total += _space_of(len(affects[cell]), high - low)
        return total

    def enable(self, enabled: bool) -> None:
        """Let parity follow its data from now on, or not."""
        self.enabled = enabled

    def choose_by(self, choose: Choose) -> None:
        """Let *choose* decide by which plan a parity is computed."""
        self.choose = choose

    def note(self, stripe: Stripe, sequence: int, parts: Iterable[Part]) -> None:
        """Note that record *sequence* has new data *parts* of *stripe*, now in the overlay."""
        new = self.current.get(stripe)
        if new is None:
            new = self.current[stripe] = NewData()
        affects = self._member_set.layout.code.affects
        for part in parts:
            more = _space_of(len(affects[part[0]]), part[2] - part[1])
            self._held_bytes += new.add(sequence, part, more)

    def note_parity(self, stripes: Iterable[Stripe]) -> None:
        """Note that the current layer gets content of *stripes* with its parity."""
        self.with_parity.update(stripes)

    def freeze(self) -> None:
        """Follow the overlay, whose current layer has become the frozen one."""
        assert not self.frozen, "the former frozen layer is settled"
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
                for at in range(0, len(mine), STRIPES_AT_ONCE):
                    await self._settle(layer, mine[at : at + STRIPES_AT_ONCE])

    async def settle_frozen(self) -> None:
        """Settle the frozen layer. Raises RaidxError."""
        while self.frozen:
            async with self.settling:
                await self._settle(self.frozen, sorted(self.frozen)[:STRIPES_AT_ONCE])
            await trio.lowlevel.checkpoint()

    async def _settle(self, layer: NewLayer, stripes: Sequence[Stripe]) -> None:
        """Settle *stripes* of *layer*; nothing else settles stripes or changes the layers."""
        overlay, is_frozen = self._log.overlay, layer is self.frozen
        pages = overlay.frozen if is_frozen else overlay.current
        member_set = self._member_set

        async def read(requests: Sequence[MemberRead]) -> None:
            await member_set.read_base(requests, frozen=not is_frozen)

        def content(stripe: Stripe, cell: CellIndex, low: int, size: int) -> Any:
            role, offset = self.parity.place(stripe, cell)
            return overlay.content(pages, role, offset + low, size)

        writes = await self.parity.compute(
            [(stripe, layer[stripe].parts) for stripe in stripes],
            content,
            read,
            self.choose,
        )
        group: list[Stripe] = []
        size = 0
        for stripe in stripes:
            more = sum(request[3] + ENTRY_BYTES for request in writes[stripe]) + ENTRY_BYTES
            if group and size + more > self._record_bytes:
                await self._commit(layer, group, writes)
                group, size = [], 0
            group.append(stripe)
            size += more
        if group:
            await self._commit(layer, group, writes)

    async def _commit(
        self, layer: NewLayer, stripes: Sequence[Stripe], writes: dict[Stripe, list[MemberIO]]
    ) -> None:
        """Log the parities of *stripes* and put them into the layer of their data."""
        log = self._log
        await log.mend()
        if not log.roles:
            raise RaidxError("the journal is lost: its records wait for the next mount")
        requests = [request for stripe in stripes for request in writes[stripe]]
        fields, parts, total = entry_fields(requests)
        fields += settled_fields((stripe, layer[stripe].sequence) for stripe in stripes)
        sequence, record = await log.append(stripes, fields, parts, total)
        try:
            await log.wait_for_earlier(sequence)
            put = log.overlay.put_frozen if layer is self.frozen else log.overlay.put
            view = memoryview(record)
            at = RECORD_HEADER_BYTES + len(fields) // 4 * ENTRY_BYTES
            for role, offset, _, size in requests:
                put(role, offset, view[at : at + size])
                at += size
            for stripe in stripes:
                self._held_bytes -= layer.pop(stripe).reserve_bytes
            if layer is self.current:
                self.with_parity.update(stripes)
        finally:
            log.inflight.end(sequence)


def _space_of(parities: int, size: int) -> int:
    return parities * (size + 2 * ENTRY_BYTES) + ENTRY_BYTES


def settled_fields(stripes: Iterable[tuple[int, int]]) -> list[int]:
    """Return the fields of entries that say: the record has the parity of these stripes.

    *stripes* are pairs: a stripe, and the sequence number of the last record whose data it covers.
    """
    fields: list[int] = []
    for stripe, sequence in stripes:
        fields += (SETTLED, 0, sequence & SEQUENCE_MASK, stripe)
    return fields
