"""The dirty bitmap (md: write-intent bitmap): regions of stripes that may have writes in flight.

A region's bit is durable on the members before a write to the region changes its first byte. The
bit is cleared lazily, when the region has had no write for a while. After a crash a resync visits
only the marked regions (jobs/resync.py).

A write that ended in an error may have reached some members of a stripe and not others: the stripe
is *torn*. Its region keeps its bit until a scrub has repaired the stripe, or else until the resync
of the next start, also after a clean end.

Without a log, the bitmap is the only protection against stale parity after a crash. It cannot
close the write hole (a crash together with a lost member). A dirty array that is also degraded is
therefore started only if the user asks for it explicitly.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import trio

from raidx_fuse.errors import BusyError, RaidxError, Reason
from raidx_fuse.laws import Law
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.loop.tasks import rest
from raidx_fuse.store.page_store import PageStore, put_bit, set_bits_in

Finish = Callable[[Stripe], Awaitable[None]]

log = logging.getLogger(__name__)

REGION_BYTES = 16 << 20  # of the image, unless there were fewer than REGIONS_MIN or too many bits
REGIONS_MIN = 16
QUIET_S = 5.0


def region_stripes(stripes: int, stripe_bytes: int, bits: int) -> int:
    """Return the number of stripes that share one bit, so that *stripes* fit in *bits* bits."""
    wanted = max(1, REGION_BYTES // stripe_bytes)
    wanted = min(wanted, max(1, stripes // REGIONS_MIN))
    return max(wanted, -(-stripes // bits))


async def _nothing() -> bool:
    """Save nothing."""
    return False


class DirtyBitmap:
    """The regions with writes in flight; *flush* makes all earlier writes to the members durable.

    The number of stripes per bit follows from *initial_stripes* and does not change when the
    array grows to more *stripes*.

    Attributes: *unlogged* (the array ran without a journal when it crashed); *guarded* (stripes
    await their resync; a request that needs one of them calls `finish` first).
    """

    def __init__(
        self,
        stripes: int,
        stripe_bytes: int,
        pages: PageStore,
        flush: Callable[[], Awaitable[None]],
        initial_stripes: int | None = None,
        *,
        unlogged: bool = False,
    ) -> None:
        self.save_sums: Callable[[], Awaitable[bool]] = _nothing
        self.unlogged = unlogged
        self.guarded = False
        self.pages = pages
        self.stripes = stripes
        bits = len(pages.payload) * 8
        self.per_region = region_stripes(initial_stripes or stripes, stripe_bytes, bits)
        self._flush = flush
        self._marked: set[int] = set()  # durable on the members
        self._inflight: dict[int, int] = {}
        self._touched: set[int] = set()
        # The stripes written since a region's bit was set; a region without an entry: any of them.
        self._written: dict[int, set[Stripe]] = {}
        self._resync = set(self._set_bits())
        self.resynced_below = 0  # the first stripe that the ascending resync has not visited yet
        self._finished: set[int] = set()  # stripes made consistent ahead of the resync
        self._torn: set[Stripe] = set()
        self._finish: Finish | None = None
        self._marking = trio.Lock()
        self._cleaning = trio.Lock()
        self._wanted: set[int] = set()

    def connect(self, save_sums: Callable[[], Awaitable[bool]]) -> None:
        """Have *save_sums* write the sums of what was written before its bits are cleared.

        It returns whether there were any.
        """
        self.save_sums = save_sums

    def _set_bits(self) -> list[int]:
        payload = self.pages.payload
        found: list[int] = set_bits_in(payload, 0, len(payload) * 8).tolist()
        return found

    def has_room_for(self, stripes: int) -> bool:
        """Return whether the bitmap has a bit for each region of an array of *stripes* stripes."""
        return stripes <= self.per_region * len(self.pages.payload) * 8

    def stripes_of(self, region: int) -> range:
        start = region * self.per_region
        return range(start, min(start + self.per_region, self.stripes))

    def stripes_on_disk(self) -> Iterator[range]:
        """Yield the stripes that may have been written since their region's bit was set.

        Writes to all other stripes are durable, on every member: a bit is cleared after a flush.
        """
        for region in self._set_bits():
            written = self._written.get(region)
            if written is None:
                yield self.stripes_of(region)
            else:
                yield from (range(stripe, stripe + 1) for stripe in written)

    # -- write intent: around every write --------------------------------------------------------

    def enter_now(self, stripes: Sequence[Stripe]) -> bool:
        """Register a write to *stripes* if all their regions are marked, without suspending.

        Returns False, with nothing registered, if one of the regions is not marked.
        """
        per_region, marked, inflight = self.per_region, self._marked, self._inflight
        for stripe in stripes:
            if stripe // per_region not in marked:
                return False
        written = self._written
        for stripe in stripes:
            region = stripe // per_region
            inflight[region] = inflight.get(region, 0) + 1
            if region in written:
                written[region].add(stripe)
        return True

    def touch(self, stripe: Stripe) -> bool:
        """Register a write to *stripe* that begins and ends without suspending.

        Returns False, with nothing registered, if the region is not marked.
        """
        region = stripe // self.per_region
        if region not in self._marked:
            return False
        self._touched.add(region)
        if region in self._written:
            self._written[region].add(stripe)
        return True

    def is_marked(self, stripe: Stripe) -> bool:
        """Return whether the region of *stripe* is marked durably."""
        return stripe // self.per_region in self._marked

    async def enter(self, stripes: Sequence[Stripe]) -> None:
        """Mark the regions of *stripes* durably (write intent), then register the write.

        Raises what the flush raises; then nothing is registered.
        """
        while not self.enter_now(stripes):
            self._wanted.update(stripe // self.per_region for stripe in stripes)
            async with self._marking:
                wanted = self._wanted - self._marked
                self._wanted = set()
                if wanted:
                    # A bit that stands still stands for older writes, too: of a region that is
                    # being cleaned or awaits its resync, or whose last save has failed.
                    begun = wanted.difference(self._set_bits())
                    self._written |= {region: set() for region in begun}
                    self._put(wanted, True)
                    await self._save(wanted)
                    await self._flush()
                    self._marked |= wanted
                    self._touched |= wanted

    def leave(self, stripes: Sequence[Stripe]) -> None:
        """Register the end of a write to *stripes*."""
        inflight, touched, per_region = self._inflight, self._touched, self.per_region
        for stripe in stripes:
            region = stripe // per_region
            left = inflight[region] - 1
            if left:
                inflight[region] = left
            else:
                del inflight[region]
            touched.add(region)

    # -- lazy clearing ---------------------------------------------------------------------------

    async def clean_quiet(self, *, all_regions: bool = False) -> None:
        """Clear the bits of regions that had no write since the last call.

        With *all_regions*, clear the bits of all regions without a write in flight. The bits of
        torn stripes stay. Raises what the flush raises; then all bits stay.
        """
        # What one call cleans may be written and be taken by the next one before the first has
        # ended: its flush would not cover that write, but its end would clear the bit.
        async with self._cleaning:
            await self._clean_quiet(all_regions)

    async def _clean_quiet(self, all_regions: bool) -> None:
        torn = {stripe // self.per_region for stripe in self._torn}
        quiet = {
            region
            for region in self._marked - torn
            if region not in self._inflight and (all_regions or region not in self._touched)
        }
        self._touched.clear()
        if not quiet:
            # After a crash, rot in a region is healed by the sums that were saved, also beside
            # stripes that are written all the time.
            if self._marked and await self.save_sums():
                await self._flush()
            return
        self._marked -= quiet  # from here on a new write must mark again
        try:
            await self.save_sums()
            await self._flush()  # the writes that the bits stood for are durable now
        except BaseException:
            self._marked |= quiet  # the writes are not durable: the bits stay
            raise
        async with self._marking:
            clear = quiet - self._marked - self._resync
            if not clear.isdisjoint(self._inflight):
                regions = f"regions {sorted(clear.intersection(self._inflight))}"
                raise self.pages.member_set.laws.broken(Law.MARKED, regions)
            for region in clear:
                self._written.pop(region, None)
            self._put(clear, False)
            await self._save(clear)

    async def tend(self) -> None:
        """Clear the bits of quiet regions every QUIET_S seconds (a background task)."""
        while True:
            await rest(QUIET_S)
            try:
                await self.clean_quiet()
            except RaidxError as error:  # writers get the error too; this task continues
                log.warning("dirty regions stay marked: %s", error)

    # -- torn stripes ----------------------------------------------------------------------------

    @property
    def torn(self) -> frozenset[Stripe]:
        """The stripes in marked regions of which a write past the log has ended in an error."""
        return frozenset(self._torn)

    def note_torn(self, stripes: Iterable[Stripe]) -> None:
        """Note that a write to *stripes* ended in an error; those in marked regions are torn."""
        self._torn.update(stripe for stripe in stripes if self.is_marked(stripe))

    def require_whole(self) -> None:
        """Raise BusyError if a stripe is torn: its bit must not come to mean anything else."""
        if self._torn:
            raise BusyError(
                "stripes are torn by writes that have failed",
                action="repair them: `raidx scrub ARRAY --repair`, with all members",
                reason=Reason.TORN,
            )

    def note_repaired(self, stripes: Iterable[Stripe]) -> None:
        if self._torn:
            self._torn.difference_update(stripes)

    # -- when the layout changes -----------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no region is marked, in flight or awaiting its resync."""
        return not (self._marked or self._inflight or self._resync)

    def require_idle(self) -> None:
        """Raise LawError if a bit is set: it would stand for other stripes after `reshape`."""
        if not self.idle:
            raise self.pages.member_set.laws.broken(Law.UNMARKED, "another layout")

    def reshape(self, stripes: int, stripe_bytes: int) -> None:
        """Use the bitmap for a new layout of *stripes* stripes; no bit is set (`require_idle`)."""
        self.stripes = stripes
        self.per_region = region_stripes(stripes, stripe_bytes, len(self.pages.payload) * 8)
        self._touched.clear()
        self._written.clear()
        self.resynced_below = 0

    def forget_torn(self) -> None:
        """Forget the torn stripes: all content has been moved to stripes of another layout."""
        self._torn.clear()

    def extend(self, stripes: int) -> None:
        """Work for *stripes* from now on, of which the first ones are those of before."""
        self.stripes = stripes

    # -- after a crash ---------------------------------------------------------------------------

    def pending_regions(self) -> int:
        return len(self._resync)

    def awaits_resync(self, stripe: Stripe) -> bool:
        """Return whether the parity of *stripe* cannot be trusted yet."""
        return (
            stripe >= self.resynced_below
            and stripe // self.per_region in self._resync
            and stripe not in self._finished
        )

    def guard(self, finish: Finish) -> None:
        """Set *finish*, which makes one stripe consistent when it is needed before its resync."""
        self._finish = finish
        self.guarded = bool(self._resync)

    async def finish(self, stripes: Iterable[Stripe]) -> None:
        """Resync those of *stripes* that await it. The caller holds their locks.

        Raises what the members raise.
        """
        assert self._finish is not None
        for stripe in stripes:
            if self.awaits_resync(stripe):
                await self._finish(stripe)
                self._finished.add(stripe)

    def note_resynced(self, below: int) -> None:
        """Note that the resync has seen all stripes below *below*."""
        self.resynced_below = below

    def regions_to_resync(self) -> list[int]:
        """Return the regions that were in flight at the last crash, in ascending order."""
        return sorted(self._resync)

    def stripes_to_resync(self) -> Iterator[range]:
        """Yield ranges of stripes whose parity cannot be trusted yet, in ascending order."""
        for region in self.regions_to_resync():
            stripes = self.stripes_of(region)
            if stripes.stop > self.resynced_below:
                yield range(max(stripes.start, self.resynced_below), stripes.stop)

    async def forget_resynced(self) -> None:
        """Clear the bits of the regions that are resynced to their end and have no newer mark.

        The caller has made the repaired parity durable before.
        """
        async with self._marking:
            done = {r for r in self._resync if self.stripes_of(r).stop <= self.resynced_below}
            clear = done - self._marked
            self._resync -= done
            if not self._resync:
                self._finished.clear()
                self.guarded = False
            self._put(clear, False)
            await self._save(clear)

    def _put(self, regions: set[int], value: bool) -> None:
        for region in regions:
            put_bit(self.pages.payload, region, value)

    async def _save(self, regions: set[int]) -> None:
        page_bits = self.pages.payload_bytes * 8
        await self.pages.save(sorted({region // page_bits for region in regions}))
