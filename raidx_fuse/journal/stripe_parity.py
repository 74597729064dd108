"""The parity of stripes of which parts of the data are new: planned, read, computed.

Used where the parity of logged data follows: by the checkpoint, before a request that needs the
chains of such a stripe (unsettled.py), and by recovery (recovery.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, Role, Stripe
from raidx_fuse.layouts.planning.stripe_plan import (
    BandCells,
    BandPlan,
    Part,
    bands_of,
    cells_of,
    plan_around,
    proven_plan,
    unwritten_cells,
    write_plans,
)
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.store.buffers import Bytes, Scratch
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberLostError
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.sums import Covers, Sums
from raidx_fuse.store.written_map import WrittenMap
from raidx_fuse.store.xor import combine, terms_of

Plans = tuple[BandPlan | None, BandPlan | None]  # read-modify-write, reconstruct-write
# (byte offset, one buffer, size) of reads in order of their offsets, by role
Reads = dict[Role, list[tuple[int, list[memoryview], int]]]
Read = Callable[[Reads], Awaitable[None]]


_offset_of = itemgetter(0)


class Chooser(Protocol):
    """Chooses by which plan a parity is computed."""

    def fixed(self, plans: Plans) -> BandPlan | None:
        """Return the choice for all stripes, or None if `choose` is to be asked for each."""
        ...

    def choose(self, plans: Plans, stripe: Stripe) -> BandPlan:
        """Return the choice for *stripe*."""
        ...

    def count(self, plan: BandPlan, bands: int) -> None:
        """Count that *plan* is carried out for *bands*."""


class Bands(NamedTuple):
    """Ranges of one size at equal bytes of their cells: *stripes*, and the first byte of each."""

    stripes: NDArray[np.int64]
    lows: NDArray[np.int64]
    size_bytes: int


class Places(NamedTuple):
    """Where the ranges of one cell are: *roles*, byte *offsets* on the members."""

    roles: NDArray[np.int64]
    offsets: NDArray[np.int64]


# (cell, bands, their places) -> the new bytes of each
Content = Callable[[CellIndex, Bands, Places], Sequence[ReadBuffer]]


class ParityBlock(NamedTuple):
    """New content of one parity cell in some stripes: the ranges follow one another.

    *is_doubted*: some of it comes from pages of which nothing says that they are right.
    """

    places: Places
    size_bytes: int
    content: Bytes
    is_doubted: bool = False

    def pages(self) -> Iterator[tuple[Role, int]]:
        """Yield (role, byte offset) of its pages."""
        for role, offset in zip(*(numbers.tolist() for numbers in self.places), strict=True):
            for at in range(offset, offset + self.size_bytes, PAGE_BYTES):
                yield Role(role), at


class _HopelessError(Exception):
    """In a band of *stripe*, unreadable or lost *cells* (a mask) leave no way to its parity."""

    def __init__(self, stripe: Stripe, low: int, high: int, cells: int) -> None:
        super().__init__(stripe, low, high, cells)
        self.stripe, self.low, self.high, self.cells = stripe, low, high, cells


def _unrecoverable(stripe: Stripe) -> UnrecoverableError:
    return UnrecoverableError(
        f"the parity of stripe {stripe}, which the journal lacks, cannot be computed: "
        "too many members are lost",
        action="attach the missing members",
    )


class StripeParity:
    """Computes parities of the array of *member_set*."""

    def __init__(self, member_set: MemberSet, written: WrittenMap) -> None:
        self.member_set = member_set
        self.written = written
        self._scratch = Scratch()  # of the last call, whose blocks lie in it

    async def compute(
        self,
        stripes: Sequence[tuple[Stripe, Sequence[Part]]],
        content: Content,
        read: Read,
        chooser: Chooser | None = None,
        covers: Covers | None = None,
    ) -> list[ParityBlock]:
        """Return the parities of *stripes* after their parts got new *content*.

        *read* reads the cells as they are before. Without a *chooser* reconstruct-write is the plan
        where it is possible: it does not need the parity as it was. Bands with the same plan and
        size are computed together. The contents of the blocks are valid until the next call. Raises
        MemberError, or UnrecoverableError if the code cannot give back what a plan needs.

        With checksums, pages of which nothing says that they are right are read only if the other
        plan needs some, too: a parity of them would bless them. *covers*: what of the log lies over
        the home places that *read* reads; None: that does not matter.
        """
        given_up: BandCells = {}
        unproven: BandCells = {}
        while True:
            try:
                groups = self._group(stripes, chooser, given_up, unproven)
            except _HopelessError as error:
                await self._give_up(error, given_up)
                continue
            sums = self.member_set.sums
            if sums is not None and await self._find(sums, groups, covers, unproven):
                continue  # plan again without these
            scratch, self._scratch = self._scratch, Scratch()
            scratch.clear()
            reads: Reads = defaultdict(list)
            for group in groups:
                group.add_reads(reads, scratch)
            for of_role in reads.values():
                of_role.sort(key=_offset_of)
            try:
                await read(reads)
            except MemberLostError:
                continue  # plan again without that member, which may still fill its buffers
            self._scratch = scratch
            if chooser is not None:
                for group in groups:
                    chooser.count(group.plan, len(group.stripes))
            return [block for group in groups for block in group.parities(content)]

    def _group(
        self,
        wanted: Sequence[tuple[Stripe, Sequence[Part]]],
        chooser: Chooser | None,
        given_up: BandCells,
        unproven: BandCells,
    ) -> Collection[BandGroup]:
        """Plan the bands of the *wanted* stripes; return them by plan and size."""
        member_set = self.member_set
        code = member_set.layout.code
        kinds: dict[tuple[int, int, int, int], tuple[Plans, BandPlan | None]] = {}
        groups: dict[tuple[int, int, int, int], BandGroup] = {}
        all_written = self._all_written([stripe for stripe, _ in wanted])
        unreadable = bool(member_set.unreadable)
        plain_stripes = all_written and not member_set.lost and not unreadable and not unproven
        plain: dict[tuple[int, int], BandGroup] = {}  # of healthy stripes: (touched, size)
        lost = unwritten = 0
        for stripe, parts in wanted:
            if member_set.lost:
                lost = member_set.layout.lost_cells(stripe, member_set.lost_at(stripe))
            if not all_written:
                unwritten = self.written.unwritten_data(member_set.layout, stripe)
                if unwritten:
                    unwritten = unwritten_cells(code, unwritten)
            for low, high, touched in bands_of(parts):
                group = plain.get((touched, high - low))
                if group is not None:
                    group.stripes.append(stripe)
                    group.lows.append(low)
                    continue
                around = zeroed = 0
                zeros = unwritten & ~touched
                if unreadable:
                    around = member_set.lost_cells(stripe, low, high) & ~lost
                    if around:  # else a page can be read again
                        gone = given_up.get((stripe, low, high), 0) & (lost | around)
                        zeros, zeroed = zeros | gone, gone & around
                kind = touched, lost, zeros, around
                known = kinds.get(kind)
                if known is None and around:
                    found = plan_around(code, *kind)
                    if found is None:
                        raise _HopelessError(stripe, low, high, (lost | around) & ~touched)
                    known = kinds[kind] = (found, None), found
                if known is None:
                    try:
                        rmw, rcw = plans = write_plans(code, touched, lost, zeros)
                    except Unrecoverable as error:
                        raise _unrecoverable(stripe) from error
                    known = kinds[kind] = plans, chooser.fixed(plans) if chooser else rcw or rmw
                plan, doubted = known[1], unproven.get((stripe, low, high), 0)
                if doubted:
                    plan = proven_plan(*known[0], doubted)
                elif plan is None:
                    assert chooser is not None, "write_plans gives at least one plan"
                    plan = chooser.choose(known[0], stripe)
                if not plan.outputs:
                    continue
                key = id(plan), high - low, zeroed, doubted  # *kinds* keeps the plan
                group = groups.get(key)
                if group is None:
                    changes = plan.kind == "rmw" and not lost and not around
                    group = BandGroup(
                        member_set, plan, high - low, touched, changes, zeroed, doubted
                    )
                    groups[key] = group
                    if plain_stripes and known[1]:
                        plain[touched, high - low] = group
                group.stripes.append(stripe)
                group.lows.append(low)
        return groups.values()

    async def _find(
        self,
        sums: Sums,
        groups: Collection[BandGroup],
        covers: Covers | None,
        unproven: BandCells,
    ) -> bool:
        """Enter the cells that *groups* read and nothing proves; return if another plan is due."""
        read = [
            (group, cell)
            for group in groups
            for cell in group.plan.reads
            if not group.doubted >> cell & 1
        ]
        if not read or covers is None:
            return False
        ranges = [(*group.places(cell), group.size_bytes) for group, cell in read]
        pages = await sums.unproven(ranges, covers)
        if not pages:
            return False
        found = False
        for (group, cell), (roles, offsets, size) in zip(read, ranges, strict=True):
            places = zip(group.stripes, group.lows, roles.tolist(), offsets.tolist(), strict=True)
            for stripe, low, role, offset in places:
                if any((role, at) in pages for at in range(offset, offset + size, PAGE_BYTES)):
                    band = stripe, low, low + size
                    unproven[band] = unproven.get(band, 0) | 1 << cell
                    found = True
        return found

    async def _give_up(self, error: _HopelessError, given_up: BandCells) -> None:
        """List as lost what nothing gives back, so that the parity of the rest can be computed.

        It counts as zeros there, and becomes zeros with the record of the parity, as in
        engine/write/mend.py: else the chains would not hold if it can be read again. A start
        does so only if its user accepts the loss. Raises UnrecoverableError if nothing is given up.
        """
        mender, stripe = self.member_set.unreadable.mender, error.stripe
        cells = error.cells & self.member_set.layout.code.data_mask
        if mender is None:
            raise UnrecoverableError(
                f"content of stripe {stripe} cannot be read, and the log cannot be redone without",
                action="attach the missing members, or accept its loss with --start-degraded",
            ) from None
        if not cells:
            raise _unrecoverable(stripe) from None
        await mender.give_up(stripe, cells, error.low, error.high)
        band = stripe, error.low, error.high
        before = given_up.get(band, 0)
        if before | cells == before:
            raise _unrecoverable(stripe) from None
        given_up[band] = before | cells

    def _all_written(self, stripes: Sequence[Stripe]) -> bool:
        """Return whether all chunks of *stripes* were written; perhaps False if they were."""
        layout = self.member_set.layout
        if not layout.contiguous:
            return False
        count = layout.code.data_count
        chunks = np.array(stripes, np.int64)[:, None] * count + np.arange(count)
        return bool(self.written.is_written_many(chunks).all())


@dataclass(slots=True, eq=False)
class BandGroup:
    """Bands of *size_bytes* with one *plan*, which are computed together.

    *stripes* and *lows* (first bytes) have an item for each. *touched*: the cells with new content.
    *changes*: the change of each cell goes into each of its parities. *zeroed*: the cells that were
    given up, and are there to become zeros. *doubted*: those of which nothing says that they are
    right.
    """

    member_set: MemberSet
    plan: BandPlan
    size_bytes: int
    touched: int
    changes: bool
    zeroed: int
    doubted: int
    stripes: list[Stripe] = field(default_factory=list)
    lows: list[int] = field(default_factory=list)
    _bands: Bands | None = None
    _old: dict[CellIndex, Bytes] = field(default_factory=dict)
    _places: dict[CellIndex, Places] = field(default_factory=dict)

    @property
    def bands(self) -> Bands:
        """The bands; none must be added later."""
        if self._bands is None:
            stripes, lows = np.array(self.stripes, np.int64), np.array(self.lows, np.int64)
            self._bands = Bands(stripes, lows, self.size_bytes)
        return self._bands

    def places(self, cell: CellIndex) -> Places:
        """Return the places of *cell* in all bands."""
        places = self._places.get(cell)
        if places is None:
            member_set, bands = self.member_set, self.bands
            roles, chunks = member_set.layout.places(bands.stripes, cell)
            offsets = member_set.data_offset + chunks * member_set.layout.chunk_bytes + bands.lows
            places = self._places[cell] = Places(roles, offsets)
        return places

    def add_reads(self, reads: Reads, scratch: Scratch) -> None:
        """Add what the plan reads to *reads*, into memory of *scratch*."""
        size = self.size_bytes
        for cell in self.plan.reads:
            self._old[cell], slots = scratch.take(len(self.stripes), size)
            places = self.places(cell)
            for role, offset, slot in zip(
                places.roles.tolist(), places.offsets.tolist(), slots, strict=True
            ):
                reads[role].append((offset, slot, size))

    def parities(self, content: Content) -> Iterator[ParityBlock]:
        """Compute and yield the parities from what was read and the new *content*.

        Then the zeros of what was given up.
        """
        size, plan, old = self.size_bytes, self.plan, self._old
        new: dict[CellIndex, Bytes] = {}
        for cell in cells_of(self.touched):
            parts = content(cell, self.bands, self.places(cell))
            whole = parts[0] if len(parts) == 1 else b"".join(parts)
            new[cell] = np.frombuffer(whole, np.uint8)
        if self.changes:
            for cell, data in new.items():
                combine(old[cell], (old[cell], data))
        for output in plan.outputs:
            if self.changes:
                out = old[output.cell]
                combine(out, [out, *map(old.__getitem__, output.new)])
            else:
                out = np.empty(len(self.stripes) * size, np.uint8)
                combine(out, terms_of(output, old, new))
            is_doubted = bool(self.doubted) and not {*cells_of(self.doubted)}.isdisjoint(output.old)
            yield ParityBlock(self.places(output.cell), size, out, is_doubted)
        for cell in cells_of(self.zeroed):
            yield ParityBlock(self.places(cell), size, np.zeros(len(self.stripes) * size, np.uint8))
