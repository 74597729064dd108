"""Volumes of two arrays that are created, resized, deleted, moved and swapped: the theme "pool"."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial

import trio

from raidx_fuse.errors import BusyError, NoSpaceError, UsageError
from raidx_fuse.lab.crash.hardware import POOL_NAMES
from raidx_fuse.lab.crash.history import History, Span
from raidx_fuse.lab.crash.mounting import moves_of
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.lab.crash.themes.members import give_fault
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.move import MoveVolumes, start_move, start_swap

PAGE = 4096
PAGES_MAX = 14
VOLUMES_MAX = 4
FULL_SHARE = 0.25  # of the workloads begin with full arrays
FREE_PAGES_MAX = 8
ERRORS_SHARE = 0.4  # of the workloads: members fail inside operations, one after the other
FAULT_SHARE = 0.3  # of their steps: one begins to
MOVED_SHARE = 0.4  # of the large writes and discards: a move of the volume begins meanwhile
WRITE_SECTORS = 7  # at most: a write that fills a stripe promises less without its log
SLOW_BYTES = (8192, 32768, 131072)  # a second: a move lasts for several steps
MOVE_LIMIT_S, POLL_S = 3600.0, 1.0
STEPS = {"write": 8, "flush": 4, "wait": 3, "create": 3, "move": 6, "swap": 2, "resize": 3}
STEPS |= {"delete": 2, "remount": 1, "cancel": 1, "pause": 1, "discard": 3, "stretch": 2}
WITHOUT_A_VOLUME = ("create", "remount", "cancel", "pause")


async def theme_pool(player: Player) -> None:
    """Let volumes come, change, move and go among writes."""
    steps = _PoolSteps(player)
    rng = player.rng
    if not player.is_scattered and rng.random() < FULL_SHARE:
        await steps.fill()
    else:
        for _ in range(rng.randint(1, 2)):
            await steps.create()
    errors = random.Random(f"{player.cell} {player.seed} errors")  # apart from the other choices
    has_errors = errors.random() < ERRORS_SHARE
    for _ in range(rng.randint(6, 14)):
        if has_errors and errors.random() < FAULT_SHARE:
            steps.give_fault(errors)
        await steps.step()
    await player.compare()
    if rng.random() < 0.8:
        await steps.settle()
        await player.compare()


class _PoolSteps:
    """Does random steps on the volumes of *player*'s pool."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._rng = player.rng
        self._running: list[tuple[MoveVolumes, Span]] = []
        self._faulty: set[int] = set()  # arrays with a member that fails
        self._much: dict[int, int] = {}  # volume -> event from which on it may lack whole stripes

    async def step(self) -> None:
        kind = self._rng.choices(list(STEPS), list(STEPS.values()))[0]
        self._reap()
        present = self._player.present()
        if kind == "create" and len(present) >= VOLUMES_MAX:
            kind = "move"
        if kind == "wait":
            await trio.sleep(self._rng.choice((0.02, 0.2, 1.0, 5.0)))
        elif kind in WITHOUT_A_VOLUME:
            await getattr(self, kind)()
        elif present:
            await getattr(self, kind)(self._rng.choice(present))
        self._reap()

    async def fill(self) -> None:
        """Fill both arrays but for a few pages, and let two volumes change places."""
        pool, uuids = self._player.pool, self._player.uuids
        size = self._rng.randint(2, PAGES_MAX) * PAGE
        for volumes in pool.arrays:
            await self.create(size, volumes)
        for volumes in pool.arrays:
            free = volumes.free_in(volumes.table())
            if free:  # else the first volume fills the array
                pages = free[-1].length // PAGE - self._rng.randint(1, FREE_PAGES_MAX)
                await self.create(max(1, pages) * PAGE, volumes)
        await self._start("swap", start_swap(pool, uuids["v0"], uuids["v1"]))

    async def create(self, size: int = 0, volumes: ArrayVolumes | None = None) -> None:
        """Create a volume of *size*, 0: any, on an array, and write most of it."""
        player, rng = self._player, self._rng
        size = size or rng.randint(1, PAGES_MAX) * PAGE
        try:
            history = await player.new_volume(volumes or rng.choice(player.pool.arrays), size)
        except (BusyError, NoSpaceError):
            return
        if rng.random() < 0.8:
            low = rng.randrange(2) * rng.randrange(size // PAGE) * PAGE
            await self._write_much(history, low, size - low)
            await self.flush(history)

    async def _write_much(
        self, history: History, offset: int, length: int, *, discard: bool = False
    ) -> None:
        """Write or *discard* whole stripes, perhaps: no member may be lost before a flush."""
        self._much.setdefault(history.number, self._player.event)
        self._note_filling(history.number, math.inf)
        write = partial(self._player.write_volume, history, offset, length, discard=discard)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            if self._rng.random() < MOVED_SHARE:
                await trio.sleep(self._rng.choice((0.0, 0.0, 0.002, 0.01, 0.05)))
                await self.move(history)

    def _note_filling(self, volume: int, end: float) -> None:
        filling, begin = self._player.recording.filling, self._much[volume]
        filling[:] = [span for span in filling if span != (begin, math.inf)] + [(begin, end)]

    async def write(self, history: History) -> None:
        """Write some sectors, perhaps in several places at the same time."""
        rng, sectors = self._rng, history.size // SECTOR_BYTES
        starts = sorted(rng.sample(range(0, sectors, 8), min(sectors // 8, 3)))
        async with trio.open_nursery() as nursery:
            for start in starts[: rng.randint(1, 3)]:
                count = rng.randint(1, WRITE_SECTORS)
                first = start + rng.randint(0, 8 - count)
                where = first * SECTOR_BYTES, count * SECTOR_BYTES
                nursery.start_soon(self._player.write_volume, history, *where)

    async def discard(self, history: History) -> None:
        """Discard a range of any alignment, and perhaps write a part of it again."""
        rng = self._rng
        low, high = sorted(rng.randrange(history.size + 1) for _ in range(2))
        if rng.random() < 0.7:
            low, high = low // PAGE * PAGE, -(-high // PAGE) * PAGE
        if low < high:
            await self._write_much(history, low, high - low, discard=True)
            if rng.random() < 0.5:
                await self._player.write_volume(history, low, min(high - low, 3000))
            if rng.random() < 0.5:
                await self.flush(history)

    async def stretch(self, history: History) -> None:
        """Write all of a volume or a large part, over many extents."""
        low = self._rng.randrange(2) * self._rng.randrange(history.size // SECTOR_BYTES)
        low *= SECTOR_BYTES
        await self._write_much(history, low, history.size - low)
        if self._rng.random() < 0.5:
            await self.flush(history)

    async def flush(self, history: History) -> None:
        await self._player.flush_volume(history)
        self._end_filling(history)

    def _end_filling(self, history: History) -> None:
        if history.number in self._much:
            self._note_filling(history.number, self._player.event)
            del self._much[history.number]

    async def resize(self, history: History) -> None:
        size = self._rng.randint(1, PAGES_MAX) * PAGE
        await self.flush(history)  # what it loses is lost for good
        with suppress(BusyError, NoSpaceError, UsageError):  # it is on its way, or has no room
            await self._player.resize_volume(history, size)

    async def delete(self, history: History) -> None:
        with suppress(BusyError, UsageError):  # it is on its way, or there already
            await self._player.resize_volume(history, 0)
            self._end_filling(history)

    async def move(self, history: History) -> None:
        pool, uuid = self._player.pool, self._player.uuids[history.volume]
        volumes, _ = pool.find(uuid)
        other = next(one for one in pool.arrays if one is not volumes)
        await self._start("move", start_move(pool, uuid, other.array.name))

    async def swap(self, history: History) -> None:
        other = self._rng.choice(self._player.present())
        uuids = (self._player.uuids[one.volume] for one in (history, other))
        await self._start("swap", start_swap(self._player.pool, *uuids))

    async def _start(self, verb: str, starting: Awaitable[int]) -> None:
        span = self._player.timeline.begin(verb, self._player.event, is_job=True)
        try:
            await starting
        except (BusyError, NoSpaceError, UsageError):
            self._player.timeline.end(span, self._player.event)
            return
        known = [job for job, _ in self._running]
        (job,) = [job for job in moves_of(self._player.pool) if job not in known]
        self._watch(job, span)

    def _watch(self, job: MoveVolumes, span: Span) -> None:
        job.limit(0, self._rng.choice(SLOW_BYTES))
        job.set_window(1)
        self._running.append((job, span))

    def _reap(self) -> None:
        for job, span in list(self._running):
            if job.finished.is_set():
                if job.state == "failed":
                    raise ViolationError(f"a move ended as {job.state}: {job.error}")
                self._running.remove((job, span))
                self._player.timeline.end(span, self._player.event)

    def give_fault(self, rng: random.Random) -> None:
        """Let operations of a member fail, if its array can spare it: moves go on beside that."""
        volumes = rng.choice(self._player.pool.arrays)
        number = POOL_NAMES.index(volumes.array.name)
        if number in self._faulty:  # one that has not struck yet counts as spare elsewhere
            return
        self._faulty.add(number)
        give_fault(self._player, volumes.array, self._player.recording.arrays[number], rng=rng)

    async def cancel(self) -> None:
        if self._running:
            self._rng.choice(self._running)[0].cancel()

    async def pause(self) -> None:
        if self._running:
            job = self._rng.choice(self._running)[0]
            if job.state == "paused":
                job.resume()
            else:
                job.pause()

    async def remount(self) -> None:
        """Unmount and mount again: moves go on."""
        player = self._player
        for history in player.present():
            await self.flush(history)
        with player.doing("remount"):
            await player.close()
            for _, span in self._running:
                player.timeline.end(span, player.event)
            await player.open()
            self._running = []
            for job in moves_of(player.pool):
                self._watch(job, player.timeline.begin("move", player.event, is_job=True))

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
            for volumes in self._player.pool.arrays:
                await volumes.wiped()
        self._reap()
