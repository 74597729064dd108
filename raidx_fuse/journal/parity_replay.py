"""Parity replay: deferred parity (deferred_parity.py) is computed while records are redone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raidx_fuse.errors import AssemblyError, MemberError, UnrecoverableError
from raidx_fuse.format.log_record import Record
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.journal.stripe_parity import Bands, Part, Reads, Reconstruct, StripeParity
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Offset, Role, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of, unwritten_cells, write_plans
from raidx_fuse.members.prompt_read import read_promptly
from raidx_fuse.store.buffers import Bytes
from raidx_fuse.store.member_io import MemberIO, MemberLostError, MemberRead
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.written_map import WrittenMap
from raidx_fuse.store.xor import sources, xor_into


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
        # Stripe whose parity was computed from its home places -> (role, offset) of the parities.
        self._unfinished: dict[Stripe, set[tuple[Role, int]]] = {}
        self._waiting: dict[Stripe, Waiting] = {}
        # Stripe -> the last record whose data its parity, computed here, covers.
        self._settled: dict[Stripe, int] = {}
        self._settled_parities: dict[Stripe, list[MemberIO]] = {}

    async def redo(self, record: Record) -> None:
        """Put the data of *record* into the overlay, then the parity that follows from it.

        Raises MemberError, or UnrecoverableError if more is lost than the code tolerates.
        """
        overlay = self.overlay
        for stripe, last in record.settled:
            self._release(stripe, last)
        later: set[int] = set()
        for stripe, first, count in record.unsettled:
            waiting = self._waiting.setdefault(stripe, Waiting())
            for index in range(first, first + count):
                waiting.data.append((record.sequence, *record.data[index]))
                later.add(index)
        parities: list[MemberIO] = []
        for stripe, complete in record.parity:
            if not complete:  # needs the home places, before the overlay hides them
                parities += await self._parity_of(stripe, dict(self._cells(record, stripe)))
        for index, (role, offset, data) in enumerate(record.data):
            if index not in later:
                overlay.put(role, offset, data)
                self._note_logged(role, offset, len(data))
        for stripe, complete in record.parity:
            if complete:
                parities += await self._parity_of(stripe, self._known_cells(stripe))
                self._unfinished.pop(stripe, None)
        for role, at, (buffer,), _ in parities:
            overlay.put(role, at, buffer)
        for stripe, complete in record.parity:
            if not complete:
                mine = {r[:2] for r in parities if self._stripe_at(*r[:2]) == stripe}
                self._unfinished.setdefault(stripe, set()).update(mine)

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
        for stripe, waiting in sorted(self._waiting.items()):
            newest = Overlay()  # keyed by cell: who lost a member need not know its chunks
            parts: dict[Part, None] = {}
            for _, role, offset, data in waiting.data:
                cell, low, high = self._part(stripe, role, offset, len(data))
                newest.put(Role(cell), low, data)
                parts[cell, low, high] = None

            def content(
                cell: CellIndex, bands: Bands, _places: Any, newest: Overlay = newest
            ) -> Sequence[Any]:
                roles = np.full_like(bands.lows, cell)
                return newest.contents(newest.current, roles, bands.lows, bands.size_bytes)

            blocks = await self._parity.compute(
                [(stripe, list(parts))], content, self._read, Reconstruct()
            )
            for _, role, offset, data in waiting.data:
                self.overlay.put(role, offset, data)
            writes = self._settled_parities[stripe] = [
                (role, offset, [part.tobytes()], block.size_bytes)
                for block in blocks
                for role, offset, part in zip(
                    *(numbers.tolist() for numbers in block.places),
                    block.content.reshape(-1, block.size_bytes),
                    strict=True,
                )
            ]
            for role, offset, (buffer,), _ in writes:
                self.overlay.put(role, offset, buffer)
            self._settled[stripe] = waiting.data[-1][0]
        self._waiting.clear()

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

    def settled(self, size: int) -> Iterator[tuple[list[MemberIO], list[tuple[Stripe, int]]]]:
        """Yield the parities that `settle` computed, at most *size* bytes (or one stripe) at once.

        With them come the stripes and the last record that they cover (`settled_entries`).
        """
        parities: list[MemberIO] = []
        stripes: list[tuple[Stripe, int]] = []
        for stripe, last in self._settled.items():
            more = self._settled_parities[stripe]
            if stripes and sum(request[3] for request in (*parities, *more)) > size:
                yield parities, stripes
                parities, stripes = [], []
            parities = [*parities, *more]
            stripes.append((stripe, last))
        if stripes:
            yield parities, stripes

    def _note_logged(self, role: Role, offset: int, length: int) -> None:
        """Forget a parity that the log has, so that an interrupted recovery logs it only once."""
        if self._unfinished and length == self._size:
            stripe = self._stripe_at(role, offset)
            places = self._unfinished.get(stripe) if stripe is not None else None
            if places is not None:
                places.discard((role, offset))

    async def forget_placed(self) -> None:
        """Forget the stripes whose home places already have their final content.

        Usually these were completed past the log (engine/write/sequential.py); no ring space is
        reserved for their parities.
        """
        for stripe in list(self._unfinished):
            if await self._is_placed(stripe):
                del self._unfinished[stripe]

    def forget_oldest(self) -> None:
        """Forget the stripe that was begun first: the ring has no space for its parities."""
        del self._unfinished[next(iter(self._unfinished))]

    async def _is_placed(self, stripe: Stripe) -> bool:
        member_set = self.member_set
        new, old = bytearray(self._size), bytearray(self._size)
        for cell in cells_of(member_set.layout.code.all_mask):
            role, offset = self._place(stripe, cell)
            queue = member_set.queues[role]
            if queue is None:
                continue  # nothing is written there
            try:
                await read_promptly(queue.member, offset, [old])
            except MemberError:
                return False
            new[:] = old
            self.overlay.patch(role, offset, [new])
            if new != old:
                return False
        return True

    def parities(self) -> list[MemberIO]:
        """Return the parities that must be logged before any home place is written."""
        requests: list[MemberIO] = []
        for places in self._unfinished.values():
            for role, offset in sorted(places):
                buffer = bytearray(self._size)
                known = self.overlay.read(role, offset, buffer)
                assert known, "what was computed is in the overlay"
                requests.append((role, offset, [buffer], self._size))
        return requests

    def _place(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, Offset]:
        role, chunk = self.member_set.layout.place(stripe, cell)
        return role, Offset(self.member_set.data_offset + chunk * self._size)

    def _stripe_at(self, role: Role, offset: int) -> Stripe | None:
        chunk = (offset - self.member_set.data_offset) // self._size
        found = self.member_set.layout.inverse(role, MemberChunk(chunk))
        return found[0] if found else None

    def _cells(self, record: Record, stripe: Stripe) -> Iterator[tuple[CellIndex, Bytes]]:
        """Yield the data cells of *stripe* that *record* holds whole, with their content."""
        layout = self.member_set.layout
        content = {(role, offset): data for role, offset, data in record.data}
        for cell in cell_range(0, layout.code.data_count):
            data = content.get(self._place(stripe, cell))
            if data is not None and len(data) == self._size:
                yield cell, np.frombuffer(data, np.uint8)

    def _known_cells(self, stripe: Stripe) -> dict[CellIndex, Bytes]:
        """Return the data cells of *stripe* that the records alone determine, with content."""
        known: dict[CellIndex, Bytes] = {}
        for cell in cell_range(0, self.member_set.layout.code.data_count):
            content = np.empty(self._size, np.uint8)
            if self.overlay.read(*self._place(stripe, cell), content.data):
                known[cell] = content
        return known

    async def _parity_of(self, stripe: Stripe, new: dict[CellIndex, Bytes]) -> list[MemberIO]:
        """Return writes of the parities of *stripe* after its cells in *new* got that content.

        Raises MemberError, or UnrecoverableError if too many members are lost.
        """
        member_set, code = self.member_set, self.member_set.layout.code
        unwritten = unwritten_cells(code, self.written.unwritten_data(member_set.layout, stripe))
        while True:
            lost = member_set.layout.lost_cells(stripe, member_set.lost_at(stripe))
            try:
                rmw, rcw = write_plans(code, _mask(new), lost, unwritten & ~_mask(new))
            except Unrecoverable as error:
                raise UnrecoverableError(
                    f"the parity of stripe {stripe}, which the journal lacks, cannot be computed: "
                    "too many members are lost",
                    action="attach the missing members",
                ) from error
            plan = rcw or rmw
            assert plan is not None, "one of them is possible, or Unrecoverable is raised"
            old = {cell: np.empty(self._size, np.uint8) for cell in plan.reads}
            reads: list[MemberRead] = [
                (*self._place(stripe, cell), [old[cell].data], self._size) for cell in plan.reads
            ]
            try:
                await member_set.read(reads)
            except MemberLostError:
                continue  # plan again without that member
            requests: list[MemberIO] = []
            for output in plan.outputs:
                out = np.empty(self._size, np.uint8)
                xor_into(out, sources(output, old, new))
                role, offset = self._place(stripe, output.cell)
                requests.append((role, offset, [out.data], self._size))
            return requests


def _mask(cells: dict[CellIndex, Bytes]) -> int:
    return sum(1 << cell for cell in cells)
