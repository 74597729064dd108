"""Reading cells: those of lost members are solved by their chains (degraded read).

Every reader of single stripes uses this: foreground reads, moves of chunks, growth, restripe and
scrub. A rebuild solves long runs of stripes at once instead (jobs/rebuild.py). What a read that
fails with EIO does to its member is in `MemberSet.read` (store/member_set.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raidx_fuse.engine.chunk_cache import address_of
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.contradictions import solve_otherwise
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import cells_of, read_plan
from raidx_fuse.members.unreadable import PAGE_BYTES, pages_in
from raidx_fuse.store.buffers import Arena, Bytes
from raidx_fuse.store.io_tuples import MemberRead, join
from raidx_fuse.store.sums import Sums
from raidx_fuse.store.xor import combine


def hopeless_cells(
    context: ArrayContext, stripe: Stripe, at: int, without: frozenset[Role] = frozenset()
) -> int:
    """Return the mask of the written cells whose page from byte *at* on nothing gives back.

    *without*: if these roles were lost, too.
    """
    lost = context.member_set.lost_cells(stripe, at, at + PAGE_BYTES)
    lost |= context.layout.lost_cells(stripe, without)
    unwritten = context.unwritten_cells(stripe)
    hopeless = 0
    for cell in cells_of(lost & ~unwritten):
        try:
            read_plan(context.code, 1 << cell, lost, unwritten)
        except Unrecoverable:
            hopeless |= 1 << cell
    return hopeless


class CellReader:
    """Reads cells of any stripes in one round, without or with priority (*background*).

    The caller holds the locks of stripes of which cells are lost: chains hold only while no write
    to the stripe is under way. What is solved of a page that its member has, but cannot read, must
    fit the page's sum, if *compares*. If nothing does, *lists* has it listed as lost, and lets it
    be what the chains have, so that they hold where it goes; else it is an error.
    """

    def __init__(
        self,
        context: ArrayContext,
        *,
        background: bool = True,
        compares: bool = True,
        lists: bool = False,
    ) -> None:
        self.context = context
        self._lists = lists
        self._background = background
        self._compares = compares
        self._wide: list[tuple[Any, memoryview]] = []
        self._solved: list[tuple[Stripe, CellIndex, int, Any]] = []
        self._requests: list[MemberRead] = []
        self._xors: list[tuple[Bytes, list[Bytes]]] = []
        self._arenas: list[Arena] = []

    def add(
        self,
        stripe: Stripe,
        into: Mapping[CellIndex, Any],
        low: int = 0,
        size: int = 0,
        known: int = 0,
    ) -> int:
        """Let `run` fill the buffers *into* (by cell): *size* bytes from byte *low* of each cell.

        *size* 0 stands for whole cells. The cells in the mask *known* are taken from the cache.
        Returns how many cells are solved. Raises UnrecoverableError if a cell is lost and no chain
        gives it back.
        """
        context, member_set = self.context, self.context.member_set
        size = size or context.chunk_bytes
        lost = wanted = 0
        if member_set.lost or member_set.unreadable:
            lost = member_set.lost_cells(stripe, low, low + size) & ~known
            wanted = lost & sum(1 << cell for cell in into)
        if not wanted:
            for cell, view in into.items():
                self._read(stripe, cell, low, view, size, known)
            return 0
        is_part = member_set.sums is not None and (low | size) % PAGE_BYTES
        if low // PAGE_BYTES != (low + size - 1) // PAGE_BYTES:
            if member_set.unreadable or is_part:
                return self._add_pages(stripe, into, low, size, known)
        elif is_part:
            return self._add_wide(stripe, into, low, known)
        try:
            plan = read_plan(context.code, wanted, lost, context.unwritten_cells(stripe))
        except Unrecoverable as error:
            raise context.lost_error(stripe, cells_of(error.cells)) from None
        arena = context.arenas.get(max(1, len(plan.reads)) * size)
        self._arenas.append(arena)
        values: dict[CellIndex, Bytes] = {}
        for cell, (view, array) in zip(
            plan.reads, arena.slots(size, len(plan.reads)), strict=False
        ):
            values[cell] = array
            if cell in into:
                view = into[cell]
                values[cell] = np.frombuffer(view, dtype=np.uint8)
            self._read(stripe, cell, low, view, size, known)
        for cell, view in into.items():
            if not lost >> cell & 1 and cell not in values:
                self._read(stripe, cell, low, view, size, known)
        for output in plan.outputs:
            target = np.frombuffer(into[output.cell], dtype=np.uint8)
            self._xors.append((target, [values[cell] for cell in output.old]))
            self._solved.append((stripe, output.cell, low, into[output.cell]))
        return len(plan.outputs)

    def _add_wide(self, stripe: Stripe, into: Mapping[CellIndex, Any], low: int, known: int) -> int:
        """Do as `add` for parts of one page, by the whole page: only that has a sum."""
        begin = low - low % PAGE_BYTES
        wide = {}
        for cell, view in into.items():
            wide[cell] = memoryview(bytearray(PAGE_BYTES))
            self._wide.append((view, wide[cell][low - begin :][: len(view)]))
        return self.add(stripe, wide, begin, PAGE_BYTES, known)

    def _add_pages(
        self, stripe: Stripe, into: Mapping[CellIndex, Any], low: int, size: int, known: int
    ) -> int:
        """Do as `add`, page by page: each page has unreadable cells, and sums, of its own."""
        solved = 0
        for page in pages_in(low, low + size):
            begin = max(low, page * PAGE_BYTES)
            end = min(low + size, (page + 1) * PAGE_BYTES)
            part = {cell: view[begin - low : end - low] for cell, view in into.items()}
            solved = max(solved, self.add(stripe, part, begin, end - begin, known))
        return solved

    def _read(
        self, stripe: Stripe, cell: CellIndex, low: int, view: Any, size: int, known: int
    ) -> None:
        context = self.context
        if known >> cell & 1 and context.cache is not None:
            context.cache.fill(address_of(context.layout, stripe, cell) + low, view)
            return
        role, position = context.position(stripe, cell)
        self._requests.append((role, position + low, [view], size))

    async def run(self) -> None:
        """Read and solve all cells that were added.

        Raises MemberLostError, MemberError, and UnrecoverableError if what is solved does not fit.
        """
        context = self.context
        if self._requests:
            await context.member_set.read(join(self._requests), background=self._background)
        for out, terms in self._xors:
            combine(out, terms)
        if self._solved and self._compares and context.member_set.sums is not None:
            await self._compare(context.member_set.sums)
        for view, wide in self._wide:
            view[:] = wide
        for arena in self._arenas:  # after an error a member may still write into them
            context.arenas.put(arena)
        self._requests, self._xors, self._arenas = [], [], []
        self._wide, self._solved = [], []

    async def _compare(self, sums: Sums) -> None:
        """Solve otherwise what does not fit the sum of its page. Raises UnrecoverableError."""
        context, member_set = self.context, self.context.member_set
        for stripe, cell, low, view in self._solved:
            role, begin = context.position(stripe, cell)
            is_absent = role in member_set.lost_at(stripe)
            await sums.load([(role, begin + low, (), len(view))])
            wrong = sums.wrong_pages(role, begin + low, view)
            sums.accept(role, begin + low, len(view), wrong)
            for inner in wrong:
                at = begin + low + inner
                if is_absent and not context.says_what_is_lost(stripe, cell, low + inner):
                    continue
                if member_set.overlay.covers(role, at, at + PAGE_BYTES):  # newer than the sum
                    continue
                sums.note_contradiction(role, at)
                content = await solve_otherwise(context, sums, stripe, cell, low + inner)
                if content is not None:
                    view[inner : inner + PAGE_BYTES] = content.data
                    sums.accept(role, at, PAGE_BYTES)
                    continue
                mender, begun = member_set.unreadable.mender, low + inner
                if not self._lists or mender is None or cell >= context.code.data_count:
                    if is_absent:
                        await sums.load([(role, at, (), PAGE_BYTES)])
                        sums.note_refused(role, at)
                    raise context.lost_error(stripe, (cell,))
                await mender.give_up(stripe, 1 << cell, begun, begun + PAGE_BYTES)
