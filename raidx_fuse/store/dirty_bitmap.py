"""The dirty-stripe bitmap: which regions of stripes may be in flight if the power goes now.

A region's bit is durable on the members before the first byte of a write to it changes, and is
cleared lazily when the region has been quiet for a while. After a crash a resync visits the marked
regions only (jobs/resync.py). Without a log this is all that stands between a crash and stale
parity; what it cannot close is the write hole (a crash and a lost member at once), so a dirty array
that is also degraded is only started when the user says so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import numpy as np
import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.store.page_store import PageStore

Finish = Callable[[int], Awaitable[None]]

log = logging.getLogger(__name__)

REGION_BYTES = 16 << 20  # of the image, unless that makes fewer than REGIONS_MIN or too many
REGIONS_MIN = 16
QUIET_S = 5.0


def region_stripes(stripes: int, stripe_bytes: int, bits: int) -> int:
    """Return how many stripes share one bit, so that all *stripes* fit in *bits*."""
    wanted = max(1, REGION_BYTES // stripe_bytes)
    wanted = min(wanted, max(1, stripes // REGIONS_MIN))
    return max(wanted, -(-stripes // bits))


class DirtyBitmap:
    """Regions in flight. *flush* makes all members durable.

    What a bit stands for follows from *founding_stripes*, and stays as it is when *stripes* grow.
    *unlogged*: the array ran without a journal when it crashed. *guarded*: stripes await their
    resync, and whoever wants one has it finished first.
    """

    def __init__(
        self,
        stripes: int,
        stripe_bytes: int,
        pages: PageStore,
        flush: Callable[[], Awaitable[None]],
        founding_stripes: int | None = None,
    ) -> None:
        self.unlogged = False
        self.guarded = False
        self.pages = pages
        self.stripes = stripes
        bits = len(pages.payload) * 8
        self.per_region = region_stripes(founding_stripes or stripes, stripe_bytes, bits)
        self._flush = flush
        self._marked: set[int] = set()  # durable on the members
        self._inflight: dict[int, int] = {}
        self._touched: set[int] = set()
        self._resync = set(self._set_bits())
        self.resynced_below = 0  # the first stripe that the resync, which ascends, has yet to see
        self._finished: set[int] = set()  # stripes that were finished before it came by
        self._finish: Finish | None = None
        self._marking = trio.Lock()
        self._wanted: set[int] = set()

    def _set_bits(self) -> list[int]:
        packed = np.frombuffer(self.pages.payload, np.uint8)
        occupied = np.flatnonzero(packed)  # almost all of a map is zero: look no closer
        bits = np.flatnonzero(np.unpackbits(packed[occupied], bitorder="little"))
        found: list[int] = ((occupied[bits >> 3] << 3) + (bits & 7)).tolist()
        return found

    def has_room_for(self, stripes: int) -> bool:
        """Say whether there is a bit for each region of *stripes*."""
        return stripes <= self.per_region * len(self.pages.payload) * 8

    def stripes_of(self, region: int) -> range:
        """Return the stripes of *region*."""
        start = region * self.per_region
        return range(start, min(start + self.per_region, self.stripes))

    # -- around every write ----------------------------------------------------------------------

    def enter_now(self, stripes: Sequence[int]) -> bool:
        """Count a write to *stripes* in if their regions are marked; else False, nothing done."""
        per_region, marked, inflight = self.per_region, self._marked, self._inflight
        for stripe in stripes:
            if stripe // per_region not in marked:
                return False
        for stripe in stripes:
            region = stripe // per_region
            inflight[region] = inflight.get(region, 0) + 1
        return True

    def touch(self, stripe: int) -> bool:
        """Count a write to *stripe* in and out, as it ends before anything else runs.

        False, and nothing done, if its region is not marked.
        """
        region = stripe // self.per_region
        if region not in self._marked:
            return False
        self._touched.add(region)
        return True

    async def enter(self, stripes: Sequence[int]) -> None:
        """Mark the regions of *stripes* durably, then count the write in.

        Raises what the flush raises; nothing is counted then.
        """
        while not self.enter_now(stripes):
            self._wanted.update(stripe // self.per_region for stripe in stripes)
            async with self._marking:
                wanted = self._wanted - self._marked
                self._wanted = set()
                if wanted:
                    self._put(wanted, True)
                    await self._save(wanted)
                    await self._flush()
                    self._marked |= wanted
                    self._touched |= wanted

    def leave(self, stripes: Sequence[int]) -> None:
        """Count the write to *stripes* out."""
        inflight, touched, per_region = self._inflight, self._touched, self.per_region
        for stripe in stripes:
            region = stripe // per_region
            left = inflight[region] - 1
            if left:
                inflight[region] = left
            else:
                del inflight[region]
            touched.add(region)

    # -- lazily ----------------------------------------------------------------------------------

    async def clean_quiet(self, *, all_regions: bool = False) -> None:
        """Clear the bits of regions without a write since the last call (or of all idle ones)."""
        quiet = {
            region
            for region in self._marked
            if region not in self._inflight and (all_regions or region not in self._touched)
        }
        self._touched.clear()
        if not quiet:
            return
        self._marked -= quiet  # from here on a new write must mark again
        try:
            await self._flush()  # the writes that the bits stood for are durable now
        except BaseException:
            self._marked |= quiet  # they are not: the bits stay
            raise
        async with self._marking:
            clear = quiet - self._marked - self._resync
            self._put(clear, False)
            await self._save(clear)

    async def tend(self) -> None:
        """Clear quiet regions for ever (a background task)."""
        while True:
            await trio.sleep(QUIET_S)
            try:
                await self.clean_quiet()
            except RaidxError as error:  # a flush that fails is its callers' business, not the end
                log.warning("dirty regions stay marked: %s", error)

    # -- when the layout changes -----------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no region is marked."""
        return not (self._marked or self._inflight or self._resync)

    def reshape(self, stripes: int, stripe_bytes: int) -> None:
        """Work for *stripes* other stripes from now on, as the constructor does."""
        assert self.idle, "bits would speak of other stripes"
        self.stripes = stripes
        self.per_region = region_stripes(stripes, stripe_bytes, len(self.pages.payload) * 8)
        self._touched.clear()
        self.resynced_below = 0

    # -- after a crash ---------------------------------------------------------------------------

    def pending_regions(self) -> int:
        """Return how many regions still wait for their resync."""
        return len(self._resync)

    def awaits_resync(self, stripe: int) -> bool:
        """Say whether the parity of *stripe* cannot be trusted yet."""
        return (
            stripe >= self.resynced_below
            and stripe // self.per_region in self._resync
            and stripe not in self._finished
        )

    def guard(self, finish: Finish) -> None:
        """Let *finish* make a stripe consistent for whoever wants it before the resync comes by."""
        self._finish = finish
        self.guarded = bool(self._resync)

    async def finish(self, stripes: Iterable[int]) -> None:
        """Return when none of *stripes*, whose locks are held, awaits the resync any more.

        Raises what the members raise.
        """
        assert self._finish is not None
        for stripe in stripes:
            if self.awaits_resync(stripe):
                await self._finish(stripe)
                self._finished.add(stripe)

    def regions_to_resync(self) -> list[int]:
        """Return the regions that were in flight at the last crash, ascending."""
        return sorted(self._resync)

    def stripes_to_resync(self) -> Iterator[range]:
        """Yield the stripes whose parity cannot be trusted yet, ascending."""
        for region in self.regions_to_resync():
            stripes = self.stripes_of(region)
            if stripes.stop > self.resynced_below:
                yield range(max(stripes.start, self.resynced_below), stripes.stop)

    async def forget_resynced(self) -> None:
        """Clear the bits of all resynced regions that no write holds; their repairs are durable."""
        async with self._marking:
            clear = self._resync - self._marked
            self._resync = set()
            self._finished.clear()
            self.guarded = False
            self._put(clear, False)
            await self._save(clear)

    def _put(self, regions: set[int], value: bool) -> None:
        payload = self.pages.payload
        for region in regions:
            if value:
                payload[region >> 3] |= 1 << (region & 7)
            else:
                payload[region >> 3] &= ~(1 << (region & 7)) & 0xFF

    async def _save(self, regions: set[int]) -> None:
        page_bits = self.pages.payload_bytes * 8
        await self.pages.save(sorted({region // page_bits for region in regions}))
