"""One window of a restripe: read its cells, assemble the target stripes, compute all their parity.

Nothing here writes. The writes are returned as requests, in two groups: those that may go straight
to their places and those that must go through the log (layouts/planning/restripe_schedule.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.contradictions import UnprovenPages, unproven_pages
from raidx_fuse.engine.read_cells import CellReader
from raidx_fuse.layouts.numbers import CellIndex, Offset, Role, Stripe, cell_range
from raidx_fuse.layouts.placements.views import View
from raidx_fuse.layouts.planning.restripe_schedule import Window
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.store.buffers import ZEROS, Arena, Bytes
from raidx_fuse.store.io_tuples import MemberIO, join
from raidx_fuse.store.xor import encoder

Slot = tuple[memoryview, Bytes]


@dataclass
class Prepared:
    """What one window writes: *direct* and *logged* requests.

    *stripes* are the target stripes, *touched* those of them that go through the log; *places* are
    the whole chunks (role, byte offset) that become written; *moved* counts the chunks. The
    *unverified* pages (role, byte offset) get no sums: they, or data in them, are lost.
    """

    direct: list[MemberIO] = field(default_factory=list)
    logged: list[MemberIO] = field(default_factory=list)
    stripes: list[Stripe] = field(default_factory=list)
    touched: list[Stripe] = field(default_factory=list)
    places: list[tuple[Role, int]] = field(default_factory=list)
    moved: int = 0
    unverified: list[tuple[Role, int]] = field(default_factory=list)

    @property
    def logged_chunks(self) -> int:
        """The number of chunks that go through the log."""
        return sum(len(buffers) for _, _, buffers, _ in self.logged)


class Copier:
    """Reads and computes windows of the restripe of *context* onto *target*.

    The buffers are kept from window to window.
    """

    def __init__(self, context: ArrayContext, target: View) -> None:
        assert context.restripe is not None
        self.context = context
        self.layout = context.restripe
        self.target = target
        self._encode = encoder(target.code).run
        self._zeros: Bytes = np.frombuffer(ZEROS, dtype=np.uint8)[: context.chunk_bytes]
        self._arena = Arena(context.chunk_bytes)
        self._unproven: UnprovenPages = {}  # of the window
        self._used = 0

    async def prepare(self, window: Window) -> Prepared:
        """Read the chunks that move in *window* and assemble their target stripes, under locks.

        The requests are valid until the next call. Raises MemberLostError, RaidxError.
        """
        live = self._live(window)
        stripes = self._stripes(window, live)
        wanted: dict[Stripe, int] = {}  # stripe -> bit mask of cells
        for chunk in live:
            stripe, cell = self.layout.locate_index(chunk)
            wanted[stripe] = wanted.get(stripe, 0) | 1 << cell
        count = sum(cells.bit_count() for cells in wanted.values())
        self._reserve(count + len(stripes) * self.target.code.parity_count)
        self._unproven = await unproven_pages(
            self.context, [(s, cell) for s, cells in wanted.items() for cell in cells_of(cells)]
        )
        values = await self._read(wanted)
        return self._make(window, live, stripes, values)

    def _live(self, window: Window) -> list[int]:
        """Return the indexes of the written chunks of the target stripes.

        Those are chunks that move, and chunks that are there already.
        """
        first = self.target.first_of(window.targets.start)
        end = min(self.target.first_of(window.targets.stop), self.layout.image_chunks)
        if self.layout.watermark == window.end:  # the stripe at the top is filled from its end
            first = window.first
        else:
            end = min(end, window.end)
        chunks = np.arange(first, end, dtype=np.int64)
        written = self.context.written.is_written_many(self.layout.chunks_at(chunks))
        live: list[int] = chunks[written].tolist()
        return live

    def _stripes(self, window: Window, live: Sequence[int]) -> list[Stripe]:
        """Return the target stripes that receive a chunk."""
        stripe_at = self.target.stripe_at
        moving = (chunk for chunk in live if window.first <= chunk < window.end)
        return [*map(Stripe, dict.fromkeys(map(stripe_at, moving)))]

    # -- reading -------------------------------------------------------------------------------

    def _reserve(self, slots: int) -> None:
        size = slots * self.context.chunk_bytes
        if size > self._arena.size_bytes:
            self._arena = Arena(size)
        self._used = 0

    def _slots(self, count: int) -> list[Slot]:
        first = self._used
        self._used += count
        return self._arena.slots(self.context.chunk_bytes, self._used)[first : self._used]

    async def _read(self, wanted: dict[Stripe, int]) -> dict[int, Slot]:
        """Return the content of cells by index; lost ones are solved by their chains."""
        reader = CellReader(self.context, lists=True)
        values: dict[int, Slot] = {}
        for stripe, cells in wanted.items():
            numbers = cells_of(cells)
            slots = dict(zip(numbers, self._slots(len(numbers)), strict=True))
            reader.add(stripe, {cell: view for cell, (view, _) in slots.items()})
            for cell, slot in slots.items():
                values[self.layout.index(stripe, cell)] = slot
        await reader.run()
        return values

    # -- assembling ----------------------------------------------------------------------------

    def _make(
        self,
        window: Window,
        live: Sequence[int],
        stripes: Sequence[Stripe],
        values: dict[int, Slot],
    ) -> Prepared:
        prepared = Prepared()
        written: dict[int, dict[CellIndex, int]] = {}  # stripe -> cell -> chunk
        for chunk in live:
            stripe, cell = self.target.locate(chunk)
            written.setdefault(stripe, {})[cell] = chunk
        for stripe in stripes:
            moving = 0
            for cell, chunk in written[stripe].items():
                if window.first <= chunk < window.end:
                    moving |= 1 << cell
            writes = self._stripe(stripe, written[stripe], moving, values)
            prepared.unverified += self._unverified(stripe, written[stripe], moving)
            prepared.moved += moving.bit_count()
            prepared.places += [(role, offset) for role, offset, _, _ in writes]
            number = self.layout.stripe_of(self.target, stripe)
            prepared.stripes.append(number)
            if stripe in window.direct:
                prepared.direct += writes
            else:
                prepared.logged += writes
                prepared.touched.append(number)
        prepared.direct = join(prepared.direct)
        prepared.logged = join(prepared.logged)
        return prepared

    def _stripe(
        self, stripe: Stripe, chunks: dict[CellIndex, int], moving: int, values: dict[int, Slot]
    ) -> list[MemberIO]:
        """Return the writes of one target stripe: the cells that move to it and all its parity."""
        context, code = self.context, self.target.code
        size, written = context.chunk_bytes, sum(1 << cell for cell in chunks)
        writes: list[MemberIO] = []
        arrays: list[Bytes] = []
        for cell in cell_range(0, code.data_count):
            if cell not in chunks:
                arrays.append(self._zeros)
                continue
            view, array = values[chunks[cell]]
            arrays.append(array)
            if moving >> cell & 1:
                writes.append((*self._position(stripe, cell), [view], size))
        slots = self._slots(code.parity_count)
        if slots:
            self._encode(arrays + [array for _, array in slots])
        for parity, (view, _) in enumerate(slots):
            if code.support[parity] & written:  # else it is unwritten, as its cells are
                place = self._position(stripe, CellIndex(code.data_count + parity))
                writes.append((*place, [view], size))
        return writes

    def _unverified(
        self, stripe: Stripe, chunks: dict[CellIndex, int], moving: int
    ) -> list[tuple[Role, int]]:
        """Return the pages of one target stripe that get no sums."""
        context, code = self.context, self.target.code
        found: list[tuple[Role, int]] = []
        for cell, chunk in chunks.items() if context.bad_chunks or self._unproven else ():
            places = [self._position(stripe, cell)] if moving >> cell & 1 else []
            for parity, support in enumerate(code.support):
                if support >> cell & 1:
                    places.append(self._position(stripe, CellIndex(code.data_count + parity)))
            source = self.layout.locate_index(chunk)
            found += context.copied_unverified(*source, places, self._unproven.get(source, ()))
        return found

    def _position(self, stripe: Stripe, cell: CellIndex) -> tuple[Role, Offset]:
        role, chunk = self.target.place(stripe, cell)
        return role, Offset(self.context.member_set.data_offset + chunk * self.context.chunk_bytes)
