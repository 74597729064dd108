"""One workload on two arrays while it runs: what is done, on which disks, and what it promises."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.errors import BusyError, NoSpaceError, UsageError
from raidx_fuse.format.create import create_array
from raidx_fuse.format.shapes import layout_of
from raidx_fuse.lab.crash.broken import break_order
from raidx_fuse.lab.crash.disks import PACES, SectorDisk
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, MEMBER_BYTES_MIN, MEMBER_UNIT_BYTES, WIDTHS
from raidx_fuse.lab.crash.history import History, Span, Timeline, WriteSpan
from raidx_fuse.lab.crash.pool.recording import PoolRecording
from raidx_fuse.lab.crash.state import Cell, ViolationError
from raidx_fuse.layouts.registry import allowed_widths, find_layout
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.sparse import Image
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.grouping import check_names
from raidx_fuse.pool.move import open_pool, start_move, start_swap
from raidx_fuse.pool.move_job import MoveVolumes
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import ArrayVolumes, open_volumes

PAGE = 4096
NAMES = ("here", "there")
OTHERS = ("raid1", "raid5", "raid0", "raid4")
STRIPES = 14
PAGES_MAX = 14
VOLUMES_MAX = 4
FULL_SHARE = 0.25  # of the workloads begin with full arrays
FREE_PAGES_MAX = 8
WRITE_SECTORS = 7  # at most: a write that fills a stripe promises less without its log
SLOW_BYTES = (8192, 32768, 131072)  # a second: a move lasts for several steps
MOVE_LIMIT_S, POLL_S = 3600.0, 1.0
STEPS = {"write": 8, "flush": 4, "wait": 3, "create": 3, "move": 6, "swap": 2, "resize": 3}
STEPS |= {"delete": 2, "remount": 1, "cancel": 1, "pause": 1}
WITHOUT_A_VOLUME = ("create", "remount", "cancel", "pause")


@asynccontextmanager
async def mounted(arrays: Sequence[Sequence[Member]], cell: Cell) -> AsyncIterator[Pool]:
    """Mount *arrays* as one pool, as the daemon does; unmount it cleanly."""
    async with AsyncExitStack() as stack:
        opened = []
        for members in arrays:
            array = await stack.enter_async_context(open_array(members))
            if cell.broken:
                break_order(array, "")
            opened.append(await stack.enter_async_context(open_volumes(array)))
        pool = await stack.enter_async_context(open_pool(opened))
        check_names(pool.arrays)
        yield pool


def moves_of(pool: Pool) -> list[MoveVolumes]:
    """Return the running moves and swaps."""
    jobs = [job for volumes in pool.arrays for job in volumes.array.jobs.running()]
    return [job for job in jobs if isinstance(job, MoveVolumes)]


class PoolPlayer:
    """One workload on two arrays while it runs."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.seed = seed
        self.rng = random.Random(f"{cell.layout}:{cell.journal}:pool {seed}")
        self.record = CutRecord()
        self.disks: list[SectorDisk] = []
        self.timeline = Timeline()
        self.recording = PoolRecording(cell, seed, self.record, self.timeline, [], [], [], [])
        self.uuids: dict[int, str] = {}  # of the volumes, by number
        self._stack = AsyncExitStack()
        self._running: list[tuple[MoveVolumes, Span]] = []
        self.pool: Pool

    @property
    def event(self) -> int:
        """Number of the next event of the record."""
        return len(self.record.events)

    # -- the whole workload --------------------------------------------------------------------

    async def play(self) -> PoolRecording:
        """Run it; return what happened. Raises ViolationError if a read is wrong meanwhile."""
        layouts = [self.cell.layout, self.rng.choice(OTHERS)]
        if self.rng.random() < 0.5:
            layouts.reverse()
        images = [await self._create(number, name) for number, name in enumerate(layouts)]
        for number, several in enumerate(images):
            for image in several:
                self._add_disk(number, image)
        await self._open()
        try:
            if self.rng.random() < FULL_SHARE:
                await self.fill()
            else:
                for _ in range(self.rng.randint(1, 2)):
                    await self.create()
            for _ in range(self.rng.randint(6, 14)):
                await self.step()
            await self.compare()
            if self.rng.random() < 0.8:
                await self.settle()
                await self.compare()
        finally:
            await self._stack.aclose()
        return self.recording

    async def _create(self, number: int, layout: str) -> list[Image]:
        """Make an array on the smallest members that hold its stripes; return their images."""
        widths = WIDTHS.get(layout) or allowed_widths(layout)[:2]
        width = self.rng.choice(widths)
        self.recording.tolerances.append(find_layout(layout).tolerance(width))
        for size in range(MEMBER_BYTES_MIN, 8 << 20, MEMBER_UNIT_BYTES):
            blank = [
                SectorDisk(bytearray(size), self.rng, name=f"{NAMES[number]}{role}")
                for role in range(width)
            ]
            with suppress(UsageError):  # too small for the metadata
                config = await create_array(
                    blank,
                    layout,
                    chunk_bytes=CHUNK_BYTES << self.rng.randrange(2) * number,
                    name=NAMES[number],
                    now_s=0,
                    with_volume=False,
                )
                if layout_of(config).stripes >= STRIPES:
                    return [disk.cut.state.image for disk in blank]
        raise AssertionError(f"{layout} over {width} members needs larger members")

    def _add_disk(self, array: int, image: Image) -> None:
        pace = PACES[self.seed % len(PACES)]
        name = f"disk{len(self.disks)}"
        disk = SectorDisk(image, self.rng, name=name, record=self.record, pace=pace)
        self.disks.append(disk)
        self.recording.array_of.append(array)

    async def _open(self) -> None:
        arrays: list[list[Member]] = [[], []]
        for disk, array in zip(self.disks, self.recording.array_of, strict=True):
            arrays[array].append(disk)
        self.pool = await self._stack.enter_async_context(mounted(arrays, self.cell))
        for volumes in self.pool.arrays:
            if volumes.array.get("journal") != self.cell.journal:
                await volumes.array.set("journal", self.cell.journal)
        self._running = []
        for job in moves_of(self.pool):
            self._watch(job, self._begin_move("move"))

    def _begin_move(self, verb: str) -> Span:
        return self.timeline.begin(verb, self.event, is_job=True)

    # -- steps ---------------------------------------------------------------------------------

    async def step(self) -> None:
        """Do one random step."""
        kind = self.rng.choices(list(STEPS), list(STEPS.values()))[0]
        self._reap()
        if kind == "create" and len(self._present()) >= VOLUMES_MAX:
            kind = "move"
        if kind == "wait":
            await trio.sleep(self.rng.choice((0.02, 0.2, 1.0, 5.0)))
        elif kind in WITHOUT_A_VOLUME:
            await getattr(self, kind)()
        elif self._present():
            await getattr(self, kind)(self.rng.choice(self._present()))
        self._reap()

    def _present(self) -> list[History]:
        return [history for history in self.recording.volumes if history.size]

    def _volume(self, history: History) -> Volume:
        return self.pool.find(self.uuids[history.number])[1]

    async def fill(self) -> None:
        """Fill both arrays but for a few pages, and let two volumes change places."""
        size = self.rng.randint(2, PAGES_MAX) * PAGE
        for volumes in self.pool.arrays:
            await self.create(size, volumes)
        for volumes in self.pool.arrays:
            free = volumes.free_in(volumes.table())[-1].length // PAGE
            await self.create((free - self.rng.randint(1, FREE_PAGES_MAX)) * PAGE, volumes)
        first, second = self._present()[:2]
        await self._start(
            "swap", start_swap(self.pool, self.uuids[first.number], self.uuids[second.number])
        )

    async def create(self, size: int = 0, volumes: ArrayVolumes | None = None) -> None:
        """Create a volume of *size*, 0: any, on an array, and write most of it."""
        number = len(self.recording.volumes)
        size = size or self.rng.randint(1, PAGES_MAX) * PAGE
        history = History(self.seed, 0, self.timeline, number=number, name=f"v{number}")
        span = history.begin_size("create", self.event, size)
        self.recording.volumes.append(history)
        try:
            volumes = volumes or self.rng.choice(self.pool.arrays)
            volume = await volumes.create(history.volume, size)
        except (BusyError, NoSpaceError):
            self.recording.volumes.remove(history)
            history.end(span, self.event)
            return
        self.uuids[number] = volume.uuid
        history.end(span, self.event)
        if self.rng.random() < 0.8:
            low = self.rng.randrange(2) * self.rng.randrange(size // PAGE) * PAGE
            self.recording.filling.append((self.event, float("inf")))
            begin = self.event
            await self._write(history, low // SECTOR_BYTES, (size - low) // SECTOR_BYTES)
            await self.flush(history)
            self.recording.filling[-1] = begin, self.event

    async def write(self, history: History) -> None:
        """Write some sectors, perhaps in several places at the same time."""
        sectors = history.size // SECTOR_BYTES
        starts = sorted(self.rng.sample(range(0, sectors, 8), min(sectors // 8, 3)))
        async with trio.open_nursery() as nursery:
            for start in starts[: self.rng.randint(1, 3)]:
                count = self.rng.randint(1, WRITE_SECTORS)
                first = start + self.rng.randint(0, 8 - count)
                nursery.start_soon(self._write, history, first, count)

    async def _write(self, history: History, first: int, count: int) -> None:
        span = history.begin_write("write", self.event, frozenset(), frozenset())
        sectors = range(first, first + count)
        data = b"".join(history.add_sector(span, s, 0, SECTOR_BYTES) for s in sectors)
        await self._volume(history).write(first * SECTOR_BYTES, data)
        history.end(span, self.event)

    async def flush(self, history: History) -> None:
        """Flush a volume: what was written is sure then."""
        span = history.begin_flush("flush", self.event)
        await self._volume(history).flush()
        history.end(span, self.event)

    async def resize(self, history: History) -> None:
        """Make a volume larger or smaller."""
        size = self.rng.randint(1, PAGES_MAX) * PAGE
        await self.flush(history)  # what it loses is lost for good
        volumes, volume = self.pool.find(self.uuids[history.number])
        span = history.begin_size("resize", self.event, size)
        # Refused: it is on its way, or there is no room.
        await self._unless_refused(history, span, volumes.resize(volume, size, lose_data=True))

    async def delete(self, history: History) -> None:
        """Delete a volume."""
        volumes, volume = self.pool.find(self.uuids[history.number])
        span = history.begin_size("delete", self.event, 0)
        # Refused: it is on its way, or there already.
        await self._unless_refused(history, span, volumes.delete(volume, lose_data=True))

    async def _unless_refused(
        self, history: History, span: WriteSpan, change: Awaitable[object]
    ) -> None:
        try:
            await change
        except (BusyError, NoSpaceError, UsageError):
            history.forget(span, self.event)
        else:
            history.end(span, self.event)

    async def move(self, history: History) -> None:
        """Start to move a volume to the other array."""
        uuid = self.uuids[history.number]
        volumes, _ = self.pool.find(uuid)
        other = next(one for one in self.pool.arrays if one is not volumes)
        await self._start("move", start_move(self.pool, uuid, other.array.name))

    async def swap(self, history: History) -> None:
        """Start to swap a volume for another one."""
        other = self.rng.choice(self._present())
        uuids = self.uuids[history.number], self.uuids[other.number]
        await self._start("swap", start_swap(self.pool, *uuids))

    async def _start(self, verb: str, starting: Awaitable[int]) -> None:
        span = self._begin_move(verb)
        try:
            await starting
        except (BusyError, NoSpaceError, UsageError):
            self.timeline.end(span, self.event)
            return
        known = [job for job, _ in self._running]
        (job,) = [job for job in moves_of(self.pool) if job not in known]
        self._watch(job, span)

    def _watch(self, job: MoveVolumes, span: Span) -> None:
        job.limit(0, self.rng.choice(SLOW_BYTES))
        job.set_window(1)
        self._running.append((job, span))

    def _reap(self) -> None:
        """Note which moves have ended."""
        for job, span in list(self._running):
            if job.finished.is_set():
                if job.state == "failed":
                    raise ViolationError(f"a move ended as {job.state}: {job.error}")
                self._running.remove((job, span))
                self.timeline.end(span, self.event)

    async def cancel(self) -> None:
        """Cancel a move."""
        if self._running:
            self.rng.choice(self._running)[0].cancel()

    async def pause(self) -> None:
        """Pause a move, or resume it."""
        if self._running:
            job = self.rng.choice(self._running)[0]
            if job.state == "paused":
                job.resume()
            else:
                job.pause()

    async def remount(self) -> None:
        """Unmount and mount again: moves go on."""
        span = self.timeline.begin("remount", self.event)
        flushes = [(one, one.begin_flush("remount", self.event)) for one in self._present()]
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        for _, running in self._running:
            self.timeline.end(running, self.event)
        await self._open()
        self.timeline.end(span, self.event)
        for history, flush in flushes:
            history.end(flush, self.event)

    async def settle(self) -> None:
        """Wait until all moves have ended and all is wiped."""
        for job, _ in self._running:
            job.resume()
            job.limit(0, 0)
        with trio.fail_after(MOVE_LIMIT_S):
            for job, _ in self._running:
                while not job.finished.is_set():
                    if job.error is not None:  # a swap without room for its next leg
                        job.cancel()
                    with trio.move_on_after(POLL_S):
                        await job.finished.wait()
            for volumes in self.pool.arrays:
                await volumes.wiped()
        self._reap()

    async def compare(self) -> None:
        """Read every volume, and compare it with its newest content."""
        for history in self._present():
            volume = self._volume(history)
            if bytes(await volume.read(0, volume.size_bytes)) != history.content():
                raise ViolationError(f"before any cut: volume {history.volume} is wrong")


def record_pool(cell: Cell, seed: int) -> PoolRecording:
    """Run workload *seed* on *cell*. Raises ViolationError, and whatever the arrays raise."""
    return run(PoolPlayer(cell, seed).play, seed=seed)


def has_pool(layout: str) -> bool:
    """Return whether the theme can be had on *layout*: an array that has free space."""
    return find_layout(layout).build is not None
