"""One workload while it runs: array, disks, story, and the steps that workloads are made of.

A life: make the array, unrecorded; perhaps live, lose power, begin again from what was left; then
mount, play the script, compare every sector, end cleanly, all of it recorded.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import trio

from raidx_fuse.array import Array, open_array
from raidx_fuse.layouts.raidx import BundleLayout
from raidx_fuse.layouts.registry import LAYOUTS
from raidx_fuse.layouts.restripe import RestripeLayout
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.powercut import CutRecord
from raidx_fuse.mover import Mover
from raidx_fuse.testing.campaign.disks import MOODY, SectorDisk, is_member
from raidx_fuse.testing.campaign.fronts import Fronts
from raidx_fuse.testing.campaign.hardware import CHUNK_BYTES, Hardware, Shape
from raidx_fuse.testing.campaign.history import History, Span, WriteSpan
from raidx_fuse.testing.campaign.recording import Recording
from raidx_fuse.testing.campaign.state import Cell, ViolationError
from raidx_fuse.testing.campaign.together import come_together, in_sectors

CACHE_BYTES = (0, 8 << 10, 256 << 10)  # of every third workload none, little, enough for all
STEPS: tuple[str, ...] = ("write", "again", "burst", "flush", "tidy", "policy")
STEP_WEIGHTS: tuple[int, ...] = (10, 3, 4, 4, 2, 1)
MOVES_WEIGHT = 8
DOOR_WEIGHT = 14
DOOR_SHARE = 0.35  # of the workloads: their small writes also come through the door
TIDY_S = 7.0  # longer than the dirty regions stay marked and the log keeps what it may place


class Player:
    """One workload while it runs; the steps are public, for scripts."""

    def __init__(self, cell: Cell, seed: int, shape: Shape | None = None) -> None:
        self.cell = cell
        self.seed = seed
        self.rng = rng = random.Random(f"{cell.layout}:{cell.journal} {seed}")
        # With a source of its own: the other workloads of a seed are what they always were.
        door = random.Random(f"{cell} {seed} door")
        by_chance = not cell.theme and cell.journal != "none" and shape is None
        self.has_door = cell.theme == "door" or (by_chance and door.random() < DOOR_SHARE)
        self.shape = shape or Shape.drawn(cell, rng)
        if self.has_door and shape is None and self.shape.pace != "inline":
            self.shape = replace(self.shape, pace=MOODY)
        self.hardware = Hardware(cell, self.shape, rng)
        self.width, self.stripes = self.shape.width, self.shape.stripes
        self.tolerance = LAYOUTS[cell.layout].tolerance(self.width)
        self.bundled = LAYOUTS[cell.layout].bundled
        self.record = CutRecord()
        self.disks: list[SectorDisk] = []
        self._stack = AsyncExitStack()
        self._fronts = Fronts()
        self.array: Array
        self.history: History
        self.recording: Recording

    # -- the whole -----------------------------------------------------------------------------

    async def play(self, script: Script, writes: int, former_life: bool) -> Recording:
        """Run *script* on an array with *writes* writes, after a crash of it if *former_life*."""
        await self._prepare(writes)
        try:
            if former_life:
                await self._live_and_crash()
            self.recording = Recording(
                *(self.cell, self.seed, self.record, self.history, self.layout, self.sectors),
                regions=self.regions,
                holders=[(0, role, role) for role in range(self.width)],
                zeroed=self.shape.zeroed,
            )
            await self.open()
            await self._observe_undecided()
            await script(self)
            await self.compare()
            self._check_holders()
            await self.close()
        finally:
            await self._stack.aclose()
        return self.recording

    def _check_holders(self) -> None:
        """Check the notes of who has which role: a judge who is wrong there loses too many."""
        for record in self.array.store.config.members:
            if record.role >= 0 and record.state == "active":
                disk = self.recording.holder(record.role, self.event)
                assert record.path_hint == f"disk{disk}", f"{record.path_hint} is not disk{disk}"

    async def _prepare(self, writes: int) -> None:
        """Make the array and give it its first content, unrecorded; then make recorded disks."""
        disks = await self.hardware.create()
        async with open_array(disks) as self.array:
            self.layout = self.array.core.layout
            self.regions = self.array.store.config.regions
            self.stripe_bytes = self.layout.code.data_count * CHUNK_BYTES
            self.sectors = self.stripes * self.stripe_bytes // SECTOR_BYTES
            self.history = History(self.seed, self.sectors)
            await self.array.set("journal", self.cell.journal)
            for _ in range(writes):
                await self.write(*self.place("many"))
            flush = self.history.begin_flush("prepare", self.event)
        self.history.end(flush, self.event)
        self._record_from([disk.cut.state.image for disk in disks])

    def _record_from(self, images: Sequence[bytearray]) -> None:
        self.record = CutRecord()
        self.disks = [
            self.hardware.disk(image, number, self.record) for number, image in enumerate(images)
        ]

    async def _live_and_crash(self) -> None:
        """Live a first life and lose power in it: the workload then begins with the recovery."""
        await self.open()
        for _ in range(self.rng.randint(1, 4)):
            await self.step()
        await self.close()
        moment = self.rng.randrange(len(self.record.events) + 1)
        for index, disks, _event in self.record.moments():
            if index == moment:
                cuts = [disk.sample(self.rng) for disk in disks]
                images = [disk.crash(cut) for disk, cut in zip(disks, cuts, strict=True)]
        self.history = self.history.after(moment)
        self._record_from(images)

    async def _observe_undecided(self) -> None:
        """Read what the recovery made of the sectors that could be one thing or another."""
        for sector in self.history.undecided():
            content = bytes(await self.array.read(sector * SECTOR_BYTES, SECTOR_BYTES))
            self.history.observe(sector, content)

    @property
    def event(self) -> int:
        """Number of the next event; -1 before the record begins."""
        return len(self.record.events) if self.disks else -1

    def new_disk(self, size_bytes: int = 0) -> int:
        """Make one more disk, not yet a member, as large as the others; return its number."""
        number = len(self.disks)
        image = self.hardware.blank(size_bytes or max(disk.size_bytes for disk in self.disks))
        self.disks.append(self.hardware.disk(image, number, self.record))
        return number

    async def open(self) -> None:
        """Mount the disks."""
        span = self.history.begin("mount", self.event)
        self._fronts = Fronts()  # a start begins with an empty log
        self.array = await self._stack.enter_async_context(
            open_array([d for d in self.disks if is_member(d.cut.state.image)], start_degraded=True)
        )
        self.array.core.use_cache(CACHE_BYTES[self.seed % len(CACHE_BYTES)])
        if self.cell.broken and self.cell.theme == "members" and self.array.reshape is not None:
            self.array.reshape.break_ordering = True  # that of table and superblocks
        elif self.cell.broken and self.cell.theme == "streams":
            self.array.core.journal.break_streams = True
        elif self.cell.broken:
            self.array.core.journal.break_ordering = True
        self.history.end(span, self.event)

    async def close(self) -> None:
        """End cleanly; all writes are durable then."""
        span = self._begin_flush("close")
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        self.history.end(span, self.event)

    def _begin_flush(self, verb: str) -> Span:
        if not self.array.core.dirty.pending_regions():
            self.history.settle(self.event)
        return self.history.begin_flush(verb, self.event)

    async def compare(self) -> None:
        """Read everything back: the newest content, while running."""
        size = self.sectors * SECTOR_BYTES
        content = bytes(await self.array.read(0, size))
        for sector in range(self.sectors):
            got = content[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
            if got != self.history.newest(sector):
                text = self.history.describe(sector, got, [self.history.newest(sector)])
                raise ViolationError(f"before any cut: {text}")

    # -- steps ---------------------------------------------------------------------------------

    async def step(self) -> None:
        """Do one thing, drawn."""
        kinds, weights = STEPS, STEP_WEIGHTS
        if self.bundled:
            kinds, weights = (*STEPS, "moves"), (*STEP_WEIGHTS, MOVES_WEIGHT)
        if self.has_door:
            kinds, weights = (*kinds, "door"), (*weights, DOOR_WEIGHT)
        kind = self.rng.choices(kinds, weights)[0]
        if kind == "moves":
            await self.moves()
        elif kind == "write":
            await self.write(*self.place())
        elif kind == "again":
            where = self.place()
            for _ in range(self.rng.randint(2, 3)):
                await self.write(*self.near(where))
        elif kind == "burst":
            await self.burst()
        elif kind == "door":
            await come_together(self)
        elif kind == "flush":
            await self.flush()
        elif kind == "tidy":
            await self.tidy()
        else:
            span = self.history.begin("setting", self.event)
            await self.array.set("parity.policy", self.rng.choice(("traditional", "rmw", "rcw")))
            self.history.end(span, self.event)

    async def moves(self) -> None:
        """Give some chunks of bundles other places, and perhaps write meanwhile."""
        layout = self.array.core.layout
        assert isinstance(layout, BundleLayout)
        mover = Mover(self.array.core, layout)
        span = self.history.begin("move", self.event)
        async with trio.open_nursery() as nursery:
            if self.rng.random() < 0.4:
                nursery.start_soon(self.write, *self.place())
            for _ in range(self.rng.randint(1, 4)):
                cell = self.rng.randrange(self.stripes * layout.length)
                role = self.rng.randrange(layout.width)
                moves = mover.exchange(cell, self.rng.randrange(layout.cells))
                if self.rng.random() < 0.5 and len(free := layout.free_chunks(role)):
                    moves = [(cell, role, int(self.rng.choice(free.tolist())))]
                if mover.problem(moves) is None:
                    await mover.move(moves)
        self.history.end(span, self.event)

    async def flush(self) -> None:
        """Flush, and note it."""
        span = self._begin_flush("flush")
        await self.array.flush()
        self.history.end(span, self.event)

    async def tidy(self) -> None:
        """Wait until the array has brought everything to its place and marked what is clean."""
        await trio.sleep(TIDY_S)

    async def burst(self) -> None:
        """Several writes at once, apart or over one another, and perhaps a flush among them."""
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

    async def observe_met(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read where writes at once, which are over now, met: one of them came last."""
        seen: set[int] = set()
        for offset, length in ranges:
            sectors = set(range(offset // SECTOR_BYTES, (offset + length) // SECTOR_BYTES))
            for sector in sorted(sectors & seen):
                content = bytes(await self.array.read(sector * SECTOR_BYTES, SECTOR_BYTES))
                self.history.observe(sector, content)
            seen |= sectors

    async def write(self, offset: int, length: int) -> None:
        """Write *length* bytes at *offset*, and note it."""
        span, data = self._begin_write(offset, length)
        unlogged = self.array.core.unlogged
        before = unlogged.count
        await self.array.write(offset, data)
        if unlogged.count == before:
            span.closes = frozenset()  # all of it went through the log
        self.history.end(span, self.event)

    def _begin_write(self, offset: int, length: int) -> tuple[WriteSpan, bytes]:
        end = offset + length
        stripes, full, closes = self._stripes_of(offset, end)
        verb = "write stripes" if len(full) == len(stripes) else "write part"
        if full and verb == "write part":
            verb = "write mixed"
        span: WriteSpan = self.history.begin_write(verb, self.event, stripes, full)
        span.closes = closes
        parts = []
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            low = max(offset - sector * SECTOR_BYTES, 0)
            high = min(end - sector * SECTOR_BYTES, SECTOR_BYTES)
            parts.append(self.history.add_sector(span, sector, low, high))
        return span, b"".join(parts)

    def _stripes_of(
        self, offset: int, end: int
    ) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """Return the stripes of a write, those that it covers, and the sectors of those it closes.

        See fronts.py for the last.
        """
        layout = self.array.core.layout
        if isinstance(layout, RestripeLayout):  # everything is logged meanwhile
            chunks = range(offset // CHUNK_BYTES, -(-end // CHUNK_BYTES))
            stripes = frozenset(layout.locate(chunk)[0] for chunk in chunks)
            return stripes, frozenset(), frozenset()
        stripe_bytes = self.stripe_bytes
        if layout.contiguous:
            stripe_bytes = layout.code.data_count * CHUNK_BYTES
        stripes = frozenset(range(offset // stripe_bytes, -(-end // stripe_bytes)))
        closes = frozenset[int]()
        if layout.contiguous:
            closes = self._fronts.note(offset, end, stripe_bytes)
        full = (s for s in stripes if offset <= s * stripe_bytes and (s + 1) * stripe_bytes <= end)
        return stripes, frozenset(full), closes

    # -- places --------------------------------------------------------------------------------

    def place(self, kind: str | None = None) -> tuple[int, int]:
        """Draw (offset, length) in bytes: all sizes and alignments, mostly small."""
        rng = self.rng
        total = self.sectors * SECTOR_BYTES
        stripe_bytes = self.stripe_bytes
        kinds = ("sector", "sectors", "bytes", "page", "chunks", "stripe", "stripes", "many")
        kind = kind or rng.choices(kinds, (3, 3, 2, 3, 2, 3, 1, 2))[0]
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
        """Draw a range that overlaps *where*, or lies right beside it."""
        offset, length = where
        total = self.sectors * SECTOR_BYTES
        size = max(1, min(length + self.rng.randint(-4, 4) * SECTOR_BYTES, 4 * length))
        start = offset + self.rng.randint(-2, 2) * SECTOR_BYTES
        start = max(0, min(start, total - 1))
        return start, max(1, min(size, total - start))


Script = Callable[[Player], Awaitable[None]]
