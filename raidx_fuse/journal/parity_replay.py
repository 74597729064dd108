"""Parity replay: redo the data of records, and compute the parity that the log lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raidx_fuse.errors import AssemblyError
from raidx_fuse.format.log_record import Record
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.journal.stripe_parity import Bands, Part, Reads, Reconstruct, StripeParity
from raidx_fuse.layouts.numbers import CellIndex, Offset, Role, Stripe, cell_range
from raidx_fuse.store.member_io import MemberIO
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.written_map import WrittenMap


@dataclass(slots=True)
class Waiting:
    """Data of an unsettled stripe: sequence, role, offset, bytes, in the order of the records."""

    data: list[tuple[int, Role, int, bytes]] = field(default_factory=list)

    def take(self, last: int) -> list[tuple[int, Role, int, bytes]]:
        """Remove and return the data of the records up to *last*."""
        taken = [entry for entry in self.data if entry[0] <= last]
        self.data = [entry for entry in self.data if entry[0] > last]
        return taken


class ParityReplay:
    """Redoes the data of records into *overlay*, and the parity that follows from the data.

    Data of unsettled stripes (unsettled.py) waits until a record has its parity, or until the end
    of the log: until then the overlay, with the home places under it, is the base of the stripe.
    """

    def __init__(self, member_set: MemberSet, overlay: Overlay, written: WrittenMap) -> None:
        self.member_set = member_set
        self.overlay = overlay
        self.written = written
        self._size = member_set.layout.chunk_bytes
        self._parity = StripeParity(member_set, written)
        self._waiting: dict[Stripe, Waiting] = {}
        # Stripe -> the last record whose data its parity, computed here, covers.
        self._settled: dict[Stripe, int] = {}
        # Stripe -> (role, offset, size) of its parities, which are in the overlay.
        self._parities: dict[Stripe, list[tuple[Role, int, int]]] = {}

    def redo(self, record: Record) -> None:
        """Put the data of *record* into the overlay, but for data that waits for its parity."""
        for stripe, last in record.settled:
            self._release(stripe, last)
        later: set[int] = set()
        for stripe, first, count in record.unsettled:
            waiting = self._waiting.setdefault(stripe, Waiting())
            for index in range(first, first + count):
                waiting.data.append((record.sequence, *record.data[index]))
                later.add(index)
        for index, (role, offset, data) in enumerate(record.data):
            if index not in later:
                self.overlay.put(role, offset, data)

    def _release(self, stripe: Stripe, last: int) -> None:
        """Put the waiting data of *stripe* up to record *last* into the overlay."""
        waiting = self._waiting.get(stripe)
        if waiting is None:
            return
        for _, role, offset, data in waiting.take(last):
            self.overlay.put(role, offset, data)
        if not waiting.data:
            del self._waiting[stripe]

    async def settle(self) -> None:
        """Settle the stripes that the log leaves unsettled; their home places are untouched.

        Raises MemberError, or UnrecoverableError if more is lost than the code tolerates.
        """
        for stripe in sorted(self._waiting):
            await self._settle(stripe)

    async def _settle(self, stripe: Stripe) -> None:
        """Compute the parity of the data of *stripe* that waits, and put both into the overlay."""
        waiting = self._waiting.pop(stripe)
        newest = Overlay()  # keyed by cell: who lost a member need not know its chunks
        parts: dict[Part, None] = {}
        for _, role, offset, data in waiting.data:
            cell, low, high = self._part(stripe, role, offset, len(data))
            newest.put(Role(cell), low, data)
            parts[cell, low, high] = None

        def content(cell: CellIndex, bands: Bands, _places: Any) -> Sequence[Any]:
            roles = np.full_like(bands.lows, cell)
            return newest.contents(newest.current, roles, bands.lows, bands.size_bytes)

        blocks = await self._parity.compute(
            [(stripe, list(parts))], content, self._read, Reconstruct()
        )
        for _, role, offset, data in waiting.data:
            self.overlay.put(role, offset, data)
        places = self._parities.setdefault(stripe, [])
        for block in blocks:
            for role, offset, part in zip(
                *(numbers.tolist() for numbers in block.places),
                block.content.reshape(-1, block.size_bytes),
                strict=True,
            ):
                self.overlay.put(role, offset, part.tobytes())
                places.append((role, offset, block.size_bytes))
        self._settled[stripe] = waiting.data[-1][0]

    async def _read(self, reads: Reads) -> None:
        await self.member_set.read(
            [(role, *read) for role, of_role in reads.items() for read in of_role]
        )

    def _part(self, stripe: Stripe, role: Role, offset: int, length: int) -> Part:
        """Return which range of a data cell of *stripe* a place is. Raises AssemblyError.

        The chunk of a bundle on a member that is lost may be unknown: then the role tells the cell.
        """
        layout = self.member_set.layout
        low = (offset - self.member_set.data_offset) % self._size
        places = {cell: self._place(stripe, cell) for cell in cell_range(0, layout.code.data_count)}
        found = [cell for cell, place in places.items() if place == (role, offset - low)]
        if not found and role in self.member_set.lost:
            found = [cell for cell, place in places.items() if place[0] == role]
        if len(found) == 1 and low + length <= self._size:
            return found[0], low, low + length
        raise AssemblyError(
            f"the journal has data of stripe {stripe} at {offset} of role {role}, "
            "where no data cell of that stripe is"
        )

    def settled(self, size_bytes: int) -> Iterator[tuple[list[MemberIO], list[tuple[Stripe, int]]]]:
        """Yield the parities that were computed, at most *size_bytes* (or one stripe) at once.

        With them come the stripes and the last record that they cover (`RecordBody.add_settled`).
        """
        parities: list[MemberIO] = []
        stripes: list[tuple[Stripe, int]] = []
        total = 0
        for stripe, last in self._settled.items():
            more = sum(size for _, _, size in self._parities[stripe])
            if stripes and total + more > size_bytes:
                yield parities, stripes
                parities, stripes, total = [], [], 0
            for role, offset, size in self._parities[stripe]:
                buffer = bytearray(size)
                self.overlay.patch(role, offset, [buffer])
                parities.append((role, offset, [buffer], size))
            stripes.append((stripe, last))
            total += more
        if stripes:
            yield parities, stripes

    def _place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, Offset]:
        role, chunk = self.member_set.layout.place(stripe, cell)
        return role, Offset(self.member_set.data_offset + chunk * self._size)
