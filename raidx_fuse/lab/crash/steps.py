"""The steps that every workload is made of: which ranges are written, and what overlaps in time.

- Places: ranges of all sizes and alignments, mostly small.
- Writes alone, again and in bursts; flushes, pauses, settings.
- Staggered requests: writes and flushes that begin while a flush is under way. A flush covers every
  write that ended before it began, even if an earlier flush is still running. Writes that came just
  too late for the earlier flush are the hard case. So there are many flushes here; on disks with
  slow flushes (disks.py) they overlap.
- Batches: requests that come together and run as the session loop runs them (held_handlers.py).
  Most are small writes, which share log records (group commit). Some go to the same range, some are
  flushed before they are answered. A few are large writes, flushes or checkpoints.
- Discards of whole stripes, of chunks, of any range; and what is written there around that time. A
  place that was discarded counts as zero. So the hard case is a first write to a part of it, which
  relies on that, and a power cut before or after its old content is gone for good.
- Moves of chunks of bundles (a rebundle), perhaps while a write runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import RaidxError
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES
from raidx_fuse.lab.crash.held_handlers import Handler, through_door
from raidx_fuse.lab.crash.history import Timeline
from raidx_fuse.lab.crash.parts import in_sectors
from raidx_fuse.layouts.numbers import MemberChunk, Role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.base import SECTOR_BYTES

STEPS = {"write": 9, "again": 3, "burst": 4, "stagger": 3, "flush": 5, "tidy": 3, "policy": 1}
MOVES_WEIGHT = 8
DOOR_WEIGHT = 14
DISCARD_WEIGHT = 7
# After either pause the log is checkpointed; after the longer one, quiet dirty regions are clean.
TIDY_S = (3.0, 12.0)
STAGGERED_MAX = 6
APART_S = 0.015  # mean distance; about as long as a flush of slow disks takes
TOGETHER_MAX = 8
DISCARD_SIZES = ("stripe", "stripe", "stripes", "chunks", "many", "sectors", "bytes")
KINDS = ("sector", "sectors", "bytes", "page", "chunks", "stripe", "stripes", "many")
KIND_WEIGHTS = (3, 3, 2, 3, 2, 3, 1, 2)


class Steps:
    """Does random steps on *array*, drawn from *rng*, and notes them in the history.

    - *sectors*, *stripes*: what it works on, in stripes of *stripe_bytes*;
    - *refusals*: requests may end in errors;
    - *bundled*: chunks can move; *has_door*: some requests share commit batches; *discards*: some
      ranges are discarded.
    """

    rng: random.Random
    array: Array
    timeline: Timeline
    sectors: int
    stripes: int
    stripe_bytes: int
    bundled: bool
    has_door: bool
    discards: bool
    refusals: bool

    # -- what a player brings ------------------------------------------------------------------

    @property
    def event(self) -> int:
        """Number of the next event of the record."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Flush the array, and note it in the history."""
        raise NotImplementedError

    async def write(self, offset: int, length: int, *, discard: bool = False) -> None:
        """Write *length* bytes at *offset*, and note the write; a *discard* writes zeros."""
        raise NotImplementedError

    async def observe(self, sector: int) -> None:
        """Read *sector*, and note which of several writes to it came last."""
        raise NotImplementedError

    @contextmanager
    def doing(self, verb: str) -> Iterator[None]:
        """Note that what the block does is *verb*."""
        span = self.timeline.begin(verb, self.event)
        yield
        self.timeline.end(span, self.event)

    # -- places --------------------------------------------------------------------------------

    def place(self, kind: str | None = None) -> tuple[int, int]:
        """Draw (offset, length) in bytes: all sizes and alignments, mostly small.

        *kind* fixes the size class; None draws one.
        """
        rng = self.rng
        total = self.sectors * SECTOR_BYTES
        stripe_bytes = self.stripe_bytes
        kind = kind or rng.choices(KINDS, KIND_WEIGHTS)[0]
        unit, length = SECTOR_BYTES, SECTOR_BYTES
        if kind == "sectors":
            length = rng.randint(2, 11) * SECTOR_BYTES
        elif kind == "bytes":
            unit, length = 1, rng.randint(1, 6000)
        elif kind == "page":
            unit = length = 4096
        elif kind == "chunks":
            unit, length = CHUNK_BYTES, rng.randint(1, 3) * CHUNK_BYTES
        elif kind == "stripe":
            unit = length = stripe_bytes
        elif kind == "stripes":
            unit, length = stripe_bytes, rng.randint(2, 3) * stripe_bytes
        elif kind == "many":
            length = rng.randint(stripe_bytes // 512, 3 * stripe_bytes // 512) * 512
        length = min(length, total)
        return rng.randrange((total - length) // unit + 1) * unit, length

    def near(self, where: tuple[int, int]) -> tuple[int, int]:
        """Draw a range that overlaps *where* or is adjacent to it."""
        offset, length = where
        total = self.sectors * SECTOR_BYTES
        size = max(1, min(length + self.rng.randint(-4, 4) * SECTOR_BYTES, 4 * length))
        start = offset + self.rng.randint(-2, 2) * SECTOR_BYTES
        start = max(0, min(start, total - 1))
        return start, max(1, min(size, total - start))

    def small(self) -> tuple[int, int]:
        """Draw (offset, length) in bytes of a few sectors inside one chunk."""
        sectors = CHUNK_BYTES // SECTOR_BYTES
        count = self.rng.randint(1, 3)
        first = self.rng.randrange(self.sectors // sectors) * sectors
        first += self.rng.randint(0, sectors - count)
        return first * SECTOR_BYTES, count * SECTOR_BYTES

    # -- steps ---------------------------------------------------------------------------------

    async def step(self) -> None:
        """Do one random step."""
        kinds = dict(STEPS)
        if self.bundled:
            kinds["moves"] = MOVES_WEIGHT
        if self.has_door:
            kinds["door"] = DOOR_WEIGHT
        if self.discards:
            kinds["discard"] = DISCARD_WEIGHT
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        if kind == "moves":
            await self.move_some()
        elif kind == "write":
            await self.write(*self.place())
        elif kind == "again":
            where = self.place()
            for _ in range(self.rng.randint(2, 3)):
                await self.write(*self.near(where))
        elif kind == "burst":
            await self.burst()
        elif kind == "door":
            await self.come_together()
        elif kind == "discard":
            await self.discard_some()
        elif kind == "stagger":
            await self.stagger()
        elif kind == "flush":
            await self.flush()
        elif kind == "tidy":
            await self.tidy()
        else:
            policy = self.rng.choice(("traditional", "rmw", "rcw"))
            with self.doing("setting"):
                try:
                    await self.array.set("parity.policy", policy)
                except RaidxError:
                    if not self.refusals:
                        raise

    async def tidy(self) -> None:
        """Wait until the log is checkpointed, and perhaps until quiet dirty regions are clean."""
        await trio.sleep(self.rng.choice(TIDY_S))

    async def write_and_flush(self, offset: int, length: int, flush: bool) -> None:
        """Write *length* bytes at *offset*; if *flush*, flush afterwards."""
        await self.write(offset, length)
        if flush:
            await self.flush()

    async def burst(self) -> None:
        """Run several writes concurrently, apart or overlapping, and perhaps a flush."""
        where = self.place()
        together = self.rng.random() < 0.5
        ranges = []
        for _ in range(self.rng.randint(2, 4)):
            offset, length = self.near(where) if together else self.place()
            ranges.append(in_sectors(offset, length))
        async with trio.open_nursery() as nursery:
            for offset, length in ranges:
                nursery.start_soon(self.write, offset, length)
            if self.rng.random() < 0.5:
                nursery.start_soon(self.flush)
        await self.observe_met(ranges)

    async def stagger(self) -> None:
        """Begin a flush, then one write after the other while it runs; some writes are flushed."""
        rng = self.rng
        where = self.place("sectors")
        ranges: list[tuple[int, int]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flush)
            for _ in range(rng.randint(2, STAGGERED_MAX)):
                await trio.sleep(rng.expovariate(1 / APART_S))
                place = self.near(where) if rng.random() < 0.5 else self.place("sectors")
                ranges.append(in_sectors(*place))
                nursery.start_soon(self.write_and_flush, *ranges[-1], rng.random() < 0.6)
        await self.observe_met(ranges)

    async def come_together(self) -> None:
        """Run one random batch of requests."""
        rng, journal = self.rng, self.array.context.journal
        if rng.random() < 0.5:  # a log without free space holds no handler, and this log is small
            await journal.drain()
        where = self.small()
        ranges: list[tuple[int, int]] = []
        handlers: list[Handler] = []
        for _ in range(rng.randint(2, TOGETHER_MAX)):
            draw = rng.random()
            if draw < 0.05:
                handlers.append(self.flush())
                continue
            if draw < 0.1:
                handlers.append(journal.place())
                continue
            if ranges and draw < 0.25:  # an earlier range again
                offset, length = rng.choice(ranges)
            elif draw < 0.33:
                offset, length = self.place(rng.choice(("stripe", "chunks", "page")))
            elif draw < 0.6:
                offset, length = self.near(where)
            else:
                offset, length = self.small()
            ranges.append(in_sectors(offset, length))
            handlers.append(self.write_and_flush(*ranges[-1], rng.random() < 0.25))
        await through_door(handlers, journal.deferral)
        await self.observe_met(ranges)

    async def discard_some(self) -> None:
        """Discard a range, alone or beside other requests, and perhaps write to it again."""
        rng = self.rng
        where = self.place(rng.choice(DISCARD_SIZES))
        if rng.random() < 0.6:
            await self.write(*where, discard=True)
        else:
            ranges = [in_sectors(*where)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(self.write, discard=True), *ranges[0])
                for _ in range(rng.randint(1, 3)):
                    await trio.sleep(rng.choice((0.0, 0.0, 0.002, 0.02)))
                    place = self.near(where) if rng.random() < 0.7 else self.place()
                    ranges.append(in_sectors(*place))
                    discard = rng.random() < 0.3
                    nursery.start_soon(partial(self.write, discard=discard), *ranges[-1])
                if rng.random() < 0.4:
                    nursery.start_soon(self.flush)
            await self.observe_met(ranges)
        draw = rng.random()
        if draw < 0.2:
            await self.flush()
        if draw < 0.5:
            await self.write(*self.near(where))
        elif draw < 0.9:  # a part of a sector at each end: the rest comes from the place itself
            await self.write(where[0] + rng.randrange(where[1]), rng.randint(1, 3000))

    async def move_some(self) -> None:
        """Move some chunks of bundles, perhaps while a write runs."""
        rng, layout = self.rng, self.array.context.layout
        assert isinstance(layout, BundleLayout)
        mover = ChunkMover(self.array.context, layout)
        with self.doing("move"):
            async with trio.open_nursery() as nursery:
                if rng.random() < 0.4:
                    nursery.start_soon(self.write, *self.place())
                for _ in range(rng.randint(1, 4)):
                    cell = rng.randrange(self.stripes * layout.length)
                    role = Role(rng.randrange(layout.width))
                    moves = mover.exchange(cell, rng.randrange(layout.cells))
                    if rng.random() < 0.5 and len(free := layout.free_chunks(role)):
                        moves = [(cell, role, MemberChunk(int(rng.choice(free.tolist()))))]
                    if mover.problem(moves) is not None:
                        continue
                    try:
                        await mover.move(moves)
                    except RaidxError:
                        if not self.refusals:
                            raise

    async def observe_met(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read the sectors where *ranges*, written concurrently, overlap: which write was last?"""
        seen: set[int] = set()
        for offset, length in ranges:
            sectors = set(range(offset // SECTOR_BYTES, (offset + length) // SECTOR_BYTES))
            for sector in sorted(sectors & seen):
                await self.observe(sector)
            seen |= sectors
