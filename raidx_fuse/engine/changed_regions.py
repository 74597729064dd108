"""The regions that change while a member is absent, so that only these are rebuilt when it returns.

A member that leaves the array (it fails, or is missing at a start) holds what it held then. The
array then keeps a map of the regions of stripes that may differ, in the superblocks of the others
(format/configuration/absence.py). If the member returns, its role is rebuilt like that of any new
member, but the rebuild visits only these regions (jobs/rebuild.py).

Laws:

 1. When a member becomes absent, all that it may lack is in the map: the stripes that were written
    past the log since their region was marked in the dirty bitmap, finished or not (a bit is
    cleared after a flush; of a region marked before the start, all stripes), and the stripes of
    every record that the log may still redo (their home places are flushed before the tail moves).
    The superblocks that exclude the member have them.
 2. A write or a parity that lacks a member notes its stripes, in memory, before it is planned: a
    rebuild never passes such a stripe without a visit. A write does so under the stripe's lock, so
    a rebuild that has waited for the lock knows by the map whether the stripe is to be rebuilt.
    That a lock is held says nothing: what the member has may be the only copy.
 3. The note is durable before a byte of a home place changes: before a write past the log begins,
    before an unreadable page that is given up is written, before a checkpoint places what the log
    holds, and before a rebuild writes what the log holds to the member that is caught up. A crash
    in between finds the record, and the start notes the stripes of all records that it redoes, and
    those that await their resync.
 4. Notes are dropped only when no member is absent, or none can be caught up any more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.format.configuration.absence import (
    KEY,
    REGIONS_MAX,
    AbsenceMap,
    absence_map_of,
    catches_up,
    tended,
    with_absence_map,
)
from raidx_fuse.format.configuration.config import ACTIVE, ArrayConfig
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import Member
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.page_store import PageStore

REGION_BYTES = 1 << 20  # of the image, unless there were fewer than REGIONS_MIN, or too many
REGIONS_MIN = 64


class ChangedRegions:
    """The map of what changed while members were absent, in memory and in the superblocks.

    *logged* returns the stripes whose records the log may still redo.
    """

    def __init__(
        self,
        member_set: MemberSet,
        layout: Layout,
        dirty: DirtyBitmap,
        logged: Callable[[], Iterable[Stripe]],
    ) -> None:
        self.member_set = member_set
        self._dirty = dirty
        self._logged = logged
        stripe_bytes = layout.initial_data_count * layout.chunk_bytes
        self._stripes_min = max(
            1,
            min(REGION_BYTES // stripe_bytes, layout.initial_stripes // REGIONS_MIN),
            -(-layout.stripes // REGIONS_MAX),
        )
        self._map = absence_map_of(member_set.config) or AbsenceMap(self._stripes_min)
        self._sorted: list[int] = []
        self._sorted_of: set[int] | None = None
        self._unsaved: set[int] = set()
        self._being_saved: tuple[int, set[int]] = 1, set()  # stripes of a region; regions
        self._redone: frozenset[Stripe] | None = frozenset()  # None: not known
        # UUID -> the generations of pages that a member has at least which left since the start
        self._pages: dict[str, list[tuple[PageStore, dict[int, int]]]] = {}
        self._saving = trio.Lock()

    @property
    def active(self) -> bool:
        """Whether an absent member can be caught up, or one is being caught up."""
        return KEY in self.member_set.config.jobs

    # -- members leave -------------------------------------------------------------------------

    def begin(
        self, config: ArrayConfig, left_from: int, stripes: Iterable[Stripe] | None
    ) -> ArrayConfig:
        """Return *config*, that of a start, with what its absent members lack.

        *left_from* is the lowest event counter that a member in use could have before; *stripes*
        are those of the records that are redone, None if they are not known.
        """
        before = self.member_set.config
        kept = absence_map_of(before)
        gone = [
            record
            for record in before.members
            if record.role >= 0
            and config.excludes(record.member_uuid)
            and (record.state == ACTIVE or (kept is not None and catches_up(before, record)))
        ]
        self._redone = None if stripes is None else frozenset(stripes)
        if self._redone is None or (kept is None and not gone):
            return config.without_job(KEY)
        self._map = kept or AbsenceMap(self._stripes_min)
        for record in gone:
            self._map.left[record.member_uuid] = left_from, before.events
            self._note_pages(record.member_uuid)
        self._note_dirty()
        self._add(self._redone)
        self._unsaved.clear()
        return tended(with_absence_map(config, self._map))

    def note_redone(self) -> None:
        """Note that what the log held at the start is durable at its home places."""
        self._redone = frozenset()

    def note_leaving(self, role: Role) -> None:
        """Note that the member in *role* is about to be excluded; its superblock stays behind."""
        member_set = self.member_set
        config = member_set.config
        record = config.record(role)
        if member_set.read_only or (
            role in member_set.watermarks and not (self.active and catches_up(config, record))
        ):
            return  # it has never been whole
        if self._redone is None:  # nor what this one may lack
            member_set.change(lambda config: config.without_job(KEY))
            return
        if not self._follow(config):
            self._map = AbsenceMap(self._stripes_min)
            self._unsaved.clear()
        self._map.left[record.member_uuid] = member_set.published_events, config.events
        self._note_pages(record.member_uuid)
        self._note_dirty()
        self._add(self._logged())
        self._add(self._redone)
        size = self._map.stripes
        member_set.change(lambda config: with_absence_map(config, self._map))
        if self._unsaved and size != self._map.stripes:  # regions have other numbers
            self._unsaved = set(self._map.regions)

    def _note_pages(self, member_uuid: str) -> None:
        self._pages[member_uuid] = [
            (pages, pages.durable_generations())
            for pages in self.member_set.page_stores
            if isinstance(pages, PageStore)
        ]

    def _note_dirty(self) -> None:
        for stripes in self._dirty.stripes_on_disk():
            if stripes:
                size = self._map.stripes
                self._map.regions.update(range(stripes[0] // size, stripes[-1] // size + 1))

    def _add(self, stripes: Iterable[Stripe]) -> None:
        size = self._map.stripes
        self._map.regions.update({stripe // size for stripe in stripes})

    # -- writes --------------------------------------------------------------------------------

    def note(self, stripes: Iterable[Stripe]) -> None:
        """Note, in memory, that *stripes* change while a member of theirs is absent."""
        if not self.active:
            return
        regions, size = self._map.regions, self._map.stripes
        for stripe in stripes:
            if stripe // size not in regions:
                regions.add(stripe // size)
                self._unsaved.add(stripe // size)

    def note_degraded(self, stripes: Iterable[Stripe]) -> None:
        """Note those of *stripes* that are about to change while a member of theirs is lost."""
        if self.member_set.lost and self.active:
            self.note(self._degraded(stripes))

    def _degraded(self, stripes: Iterable[Stripe]) -> list[Stripe]:
        lost_cells, lost_at = self.member_set.layout.lost_cells, self.member_set.lost_at
        return [stripe for stripe in stripes if lost_cells(stripe, lost_at(stripe))]

    async def before_write(self, stripes: Sequence[Stripe]) -> None:
        """Note, durably, those of *stripes* whose cells are about to change past the log (law 3).

        Raises ArrayFailedError, FormatError.
        """
        if self.active:
            degraded = self._degraded(stripes)
            self.note(degraded)
            await self.save()
            self.require_noted(degraded)

    async def save(self) -> None:
        """Make everything noted so far durable. Raises ArrayFailedError, FormatError."""
        if not self._unsaved and not self._saving.locked():
            return  # without a pass through the scheduler
        async with self._saving:  # another save under way may have what the caller noted
            if not (self._unsaved and self.active):
                return
            size, unsaved = self._being_saved = self._map.stripes, self._unsaved
            self._unsaved = set()
            try:
                await self.member_set.update(
                    lambda config: (
                        with_absence_map(config, self._map) if self._follow(config) else config
                    )
                )
            except BaseException:
                same_size = self._map.stripes == size  # else regions have other numbers
                self._unsaved |= unsaved if same_size else self._map.regions
                raise
            finally:
                self._being_saved = 1, set()

    def has(self, stripe: Stripe) -> bool:
        """Return whether *stripe* may have changed while a member was absent."""
        return stripe // self._map.stripes in self._map.regions

    def is_noted(self, stripe: Stripe) -> bool:
        """Return whether home places of *stripe* may change (law 3)."""
        if not self.active:
            return True
        region, (size, being_saved) = stripe // self._map.stripes, self._being_saved
        saved = region not in self._unsaved and stripe // size not in being_saved
        return saved and region in self._map.regions

    def require_noted(self, stripes: Iterable[Stripe]) -> None:
        """Raise LawError unless home places of *stripes* may change: a writer has a bug."""
        for stripe in stripes:
            if not self.is_noted(stripe):
                raise self.member_set.laws.broken(Law.NOTED, f"stripe {stripe} was to change")

    def _follow(self, config: ArrayConfig) -> bool:
        """Take over which members still wait by *config*; return whether it has a map."""
        if KEY not in config.jobs:
            return False
        self._map.keep(config.jobs[KEY]["left"])
        return True

    async def before_places(self) -> None:
        """Make durable what the log holds, before a checkpoint writes it to its home places."""
        if self.active:
            stripes = set(self._logged())
            self.note(stripes)
            await self.save()
            self.require_noted(stripes.intersection(self._logged()))

    # -- members return ------------------------------------------------------------------------

    def left(self, member_uuid: str) -> tuple[int, int] | None:
        """Return between which event counters a member left, None if it cannot be caught up."""
        return self._map.left.get(member_uuid) if self.active else None

    async def is_behind(self, member_uuid: str, member: Member) -> bool:
        """Return whether *member* has older pages than the one that left: it is an old copy of it.

        Pages that cannot be read are ignored: they are written anew. Of a member that left before
        the last start only the event counter is compared.
        """
        for pages, least in self._pages.get(member_uuid, ()):
            with suppress(MemberError):
                if await pages.is_behind(member, least):
                    return True
        return False

    def rename(self, member_uuid: str, new_uuid: str) -> None:
        """Let a member that is caught up have *new_uuid*, like any member that joins."""
        left = self._map.left
        left[new_uuid] = left.pop(member_uuid)
        self.member_set.change(lambda config: with_absence_map(config, self._map))

    def catches_up(self, role: Role) -> bool:
        """Return whether *role* is rebuilt by what changed, and by nothing else."""
        config = self.member_set.config
        return self.active and catches_up(config, config.record(role))

    def ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of stripes, within *start* .. *end* - 1, that changed; ascending."""
        size, regions = self._map.stripes, self._map.regions
        if regions is not self._sorted_of or len(regions) != len(self._sorted):  # regions only come
            self._sorted, self._sorted_of = sorted(regions), regions
        low = high = -1
        for number in range(bisect_left(self._sorted, start // size), len(self._sorted)):
            region = self._sorted[number]
            if region == high:
                high += 1
                continue
            if region * size >= end:
                break
            yield from _within(low * size, high * size, start, end)
            low, high = region, region + 1
        yield from _within(low * size, high * size, start, end)


def _within(low: int, high: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    low, high = max(low, start), min(high, end)
    if low < high:
        yield low, high
