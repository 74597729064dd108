"""Parity replay: deferred parity (deferred_parity.py) is computed while records are redone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raidx_fuse.errors import MemberError, UnrecoverableError
from raidx_fuse.format.log_record import Record
from raidx_fuse.journal.overlay import Overlay
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Offset, Role, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import cells_of, unwritten_cells, write_plans
from raidx_fuse.members.prompt_read import read_promptly
from raidx_fuse.store.buffers import Bytes
from raidx_fuse.store.member_io import MemberIO, MemberLostError, MemberRead
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.written_map import WrittenMap
from raidx_fuse.store.xor import sources, xor_into


class ParityReplay:
    """Redoes the data of records into *overlay*, and the parity that follows from the data."""

    def __init__(self, member_set: MemberSet, overlay: Overlay, written: WrittenMap) -> None:
        self.member_set = member_set
        self.overlay = overlay
        self.written = written
        self._size = member_set.layout.chunk_bytes
        # Stripe whose parity was computed from its home places -> (role, offset) of the parities.
        self._unfinished: dict[Stripe, set[tuple[Role, int]]] = {}

    async def redo(self, record: Record) -> None:
        """Put the data of *record* into the overlay, then the parity that follows from it.

        Raises MemberError, or UnrecoverableError if more is lost than the code tolerates.
        """
        overlay = self.overlay
        parities: list[MemberIO] = []
        for stripe, complete in record.parity:
            if not complete:  # needs the home places, before the overlay hides them
                parities += await self._parity_of(stripe, dict(self._cells(record, stripe)))
        for role, offset, data in record.data:
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
