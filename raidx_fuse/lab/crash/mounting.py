"""The arrays of a workload or of a state, mounted as the daemon mounts them, and what they owe.

`VolumePlayer` sends requests to the volumes of a mounted pool. A broken law (`DiskLaws`,
`acknowledged`) is a violation at once, whether or not a cut at that moment would cost anything.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.documents import JobDetail
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import BusyError, NoSpaceError, RaidxError, UsageError
from raidx_fuse.jobs.job import Job
from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.hardware import read_volume
from raidx_fuse.lab.crash.history import History, WriteSpan
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.layouts.numbers import MemberChunk, Role, by_role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.virtual_time import sleep
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.move import MoveVolumes, open_pool
from raidx_fuse.pool.pool import Pool, check_names
from raidx_fuse.pool.volume import Volume
from raidx_fuse.store.chunk_table import Move

PATIENCE_S = 120.0  # more than what fails for a while
POLL_S, RETRY_S, RETRIES = 0.25, 2.0, 40
Stripes = frozenset[int]
UNDONE = (BusyError, NoSpaceError, UsageError)  # what a change of a table is refused with


@asynccontextmanager
async def mounted(
    arrays: Sequence[Sequence[Member]], *, start_degraded: bool = False
) -> AsyncIterator[Pool]:
    """Mount *arrays* as one pool; unmount it cleanly."""
    async with AsyncExitStack() as stack:
        opened = []
        for members in arrays:
            opening = open_array(members, start_degraded=start_degraded)
            array: Array = await stack.enter_async_context(opening)
            opened.append(await stack.enter_async_context(open_volumes(array)))
        pool = await stack.enter_async_context(open_pool(opened))
        check_names(pool.arrays)
        yield pool


def moves_of(pool: Pool) -> list[MoveVolumes]:
    jobs = [job for volumes in pool.arrays for job in volumes.array.jobs.running()]
    return [job for job in jobs if isinstance(job, MoveVolumes)]


def drawn_moves(
    mover: ChunkMover, layout: BundleLayout, rng: random.Random, cells: int
) -> list[Move]:
    """Draw moves of one of the first *cells* chunks: two change places, or one gets a free one."""
    cell = rng.randrange(cells)
    role = Role(rng.randrange(layout.width))
    moves = mover.exchange(cell, rng.randrange(layout.cells))
    if rng.random() < 0.5 and len(free := layout.free_chunks(role)):
        moves = [(cell, role, MemberChunk(int(rng.choice(free.tolist()))))]
    return moves


def waits(job: JobDetail) -> bool:
    return job.get("waits_for_role") is not None


class Attendant:
    """Does what a user would with jobs of *pool* that an error has paused.

    They are resumed; where content is lost, one that stays paused for PATIENCE_S is cancelled.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._paused_s: dict[Job, float] = {}

    def attend(self, job: Job) -> None:
        """Resume or cancel *job*, if it is paused."""
        if job.state != "paused":
            return
        now = trio.current_time()
        arrays = [volumes.array for volumes in self.pool.arrays]
        lost = any(a.member_set.unreadable or a.context.bad_chunks for a in arrays)
        if lost and now - self._paused_s.setdefault(job, now) > PATIENCE_S:
            job.cancel()
        else:
            job.resume()


async def wait_for_jobs(pool: Pool) -> None:
    """Wait until all jobs of *pool* have ended or wait for a member, and nothing is to be wiped.

    A rebuild that superblocks have ended begins again by itself.
    """
    idle, attendant = 0, Attendant(pool)
    while idle < 2:  # the end of a job may start the next one, in another task
        running = [
            job
            for volumes in pool.arrays
            for job in volumes.array.jobs.running()
            if not waits(job.status())
        ]
        halted = any(volumes.array.member_set.watermarks for volumes in pool.arrays)
        if any(volumes.table().wiping for volumes in pool.arrays) or running or halted:
            idle = 0
        else:
            idle += 1
        for job in running:
            attendant.attend(job)
            job.limit(0, 0)
        await sleep(POLL_S)


async def take_back(array: Array, disk: Member) -> None:
    """Take *disk* back; again while a job runs, or a write to any disk of *array* is overdue.

    While it is, a page that the array saves for the member may be refused there. The role that
    *disk* had may have another number in the end, or be gone.
    """
    member_set = array.member_set
    for left in reversed(range(RETRIES + 1)):
        record = member_set.config.record
        roles = [role for role in member_set.lost if record(role).path_hint == disk.path]
        if not roles:
            return
        if left and not all(
            queue is None or queue.member.is_settled() for queue in member_set.queues
        ):
            await sleep(RETRY_S)
            continue
        try:
            await array.replace_disk(roles[0], disk)
        except BusyError:
            if not left:
                raise
            await sleep(RETRY_S)
        else:
            return


async def check_parity(array: Array, excused: Callable[[int], bool] = lambda stripe: False) -> None:
    """Scrub *array*, unless it lacks a member. Raises ViolationError.

    Parity has to be right in all stripes but those that are *excused*.
    """
    if array.member_set.lost:
        return
    result = await array.jobs.wait(await array.start_scrub(repair=False))
    if result["state"] != "done":
        raise ViolationError(f"scrub ended as {result['state']}: {result['error']}")
    if wrong := [found for found in result["findings"] if not excused(found["stripe"])]:
        raise ViolationError(f"parity is not consistent: {wrong[:2]}")


@contextmanager
def acknowledged(arrays: Iterable[Array]) -> Iterator[None]:
    """Judge the request inside, which *arrays* acknowledge at its end. Raises AssertionError.

    Nothing is acknowledged on an unpublished configuration: every member that stays must have the
    one with which the request began, or a newer (law 3 of store/member_set.py).
    """
    before = [(array, array.member_set.config.events) for array in arrays]
    yield
    for array, events in before:
        assert array.member_set.reaches(events), (
            f"array {array.name} acknowledges a request on an unpublished configuration"
        )


def arrays_of(pool: Pool, volume: Volume) -> list[Array]:
    """Return the arrays that have bytes of *volume*: two while it moves.

    A move that is over has still to take the volume out of the table of the array that it has left:
    what was written there is durable on the other one, and no request waits for that table.
    """
    transfer = pool.transfers.get(volume.uuid)
    if transfer is not None and not transfer.is_over:
        return [transfer.source.array, transfer.target.array]
    return [pool.find(volume.uuid)[0].array]


def writer_of(pool: Pool, volume: Volume) -> list[Array]:
    """Return the array that acknowledges a write to *volume*; none while it moves.

    Then it is the one that has these bytes when the write has waited for the window.
    """
    arrays = arrays_of(pool, volume)
    return arrays if len(arrays) == 1 else []


class DiskLaws:
    """Judges the writes to the members of *arrays*. Raises AssertionError.

    1. No write goes beyond the size of a member.
    2. While somebody is away, no home write goes to a stripe of theirs that is not noted as changed
       (engine/changed_regions.py): whoever it comes from, for it is judged by its place. Exempt are
       zeros at unwritten places, which do not count, and what a rebuild gives its own member.
    3. The array has refused nothing because of a law of its own (raidx_fuse/laws.py).
    """

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._arrays = list(arrays)

    def judge(self, disk: Member, offset_bytes: int, data: bytes) -> None:
        assert 0 <= offset_bytes <= disk.size_bytes - len(data), (
            f"{disk.path}: a write of {len(data)} bytes at {offset_bytes} goes beyond its end"
        )
        for array in self._arrays:
            said = array.member_set.laws.said
            assert not said, said[0]
            context = array.context
            if offset_bytes < context.member_set.data_offset or not context.changes.active:
                continue
            for role, queue in by_role(array.member_set.queues):
                if queue is not None and queue.member.path == disk.path:  # perhaps wrapped
                    self._judge_home(array, role, offset_bytes, data)

    def _judge_home(self, array: Array, role: Role, offset_bytes: int, data: bytes) -> None:
        context, member_set = array.context, array.member_set
        first = (offset_bytes - member_set.data_offset) // context.chunk_bytes
        end = (offset_bytes + len(data) - 1 - member_set.data_offset) // context.chunk_bytes
        layout = context.layout
        end = min(end, layout.chunks_of(role) - 1)  # behind the chunks may lie a look-up table
        for chunk in range(first, end + 1):
            found = layout.inverse(role, MemberChunk(chunk))
            if found is None:
                continue
            stripe, cell = found
            assert (
                context.changes.is_noted(stripe)
                # Whoever is away has nothing of it, or the rebuild of this role has not come there.
                or not layout.lost_cells(stripe, member_set.lost_at(stripe))
                or stripe >= member_set.watermarks.get(role, layout.stripes)
                or (not any(data) and context.unwritten_cells(stripe) >> cell & 1)
            ), f"role {role}: stripe {stripe} changes, and is not noted while a member is away"


class VolumePlayer:
    """Sends requests to the volumes of *pool*, whose UUIDs are known by name."""

    pool: Pool
    recording: Recording
    record: CutRecord
    uuids: dict[str, str]
    most_bytes = 1 << 20  # of one read

    @property
    def event(self) -> int:
        return len(self.record.events)

    def volume(self, history: History) -> Volume:
        """Return the volume that *history* is about. Raises UsageError if it is not there."""
        return self.pool.find(self.uuids[history.volume])[1]

    def hold_to_laws(self, disks: Iterable[SectorDisk]) -> None:
        laws = DiskLaws(volumes.array for volumes in self.pool.arrays)
        for disk in disks:
            disk.judge = laws.judge

    async def create_volume(self, history: History, volumes: ArrayVolumes, size: int) -> None:
        """Create the volume of *history*, of *size* bytes. Raises RaidxError."""
        span = history.begin_size("create", self.event, size)
        with self._changing(history, span):
            self.uuids[history.volume] = (await volumes.create(history.volume, size)).uuid

    async def resize_volume(self, history: History, size: int) -> None:
        """Give a volume another size in bytes, 0: delete it. Raises RaidxError."""
        volumes, volume = self.pool.find(self.uuids[history.volume])
        span = history.begin_size("resize" if size else "delete", self.event, size)
        with self._changing(history, span):
            if size:
                await volumes.resize(volume, size, lose_data=True)
            else:
                await volumes.delete(volume, lose_data=True)

    @contextmanager
    def _changing(self, history: History, span: WriteSpan) -> Iterator[None]:
        try:
            yield
        except UNDONE:
            history.forget(span, self.event)
            raise
        except RaidxError:
            history.refuse(span, self.event)
            raise
        history.end(span, self.event)

    def excused(self) -> bool:
        return False

    def stripes_of(self, history: History, offset: int, length: int) -> tuple[Stripes, Stripes]:
        """Return the stripes that a write touches, and those that it may tear past the log."""
        return frozenset(), frozenset()

    def refuse(self, history: History, span: WriteSpan) -> None:
        history.refuse(span, self.event)

    def is_excused(self, history: History, sector: int, content: bytes | None) -> bool:
        return False

    async def compare_volumes(self, when: str) -> None:
        """Read all volumes, and compare them with what was written; nothing may be under way."""
        shown = {one.uuid: one for volumes in self.pool.arrays for one in volumes.volumes}
        for history in self.recording.volumes:
            if history.volume not in self.uuids:
                continue  # it could not be created
            volume = shown.get(self.uuids[history.volume])
            size = volume.size_bytes if volume is not None else 0
            sizes = history.at(self.event + 1).sizes
            if size not in sizes:
                raise ViolationError(
                    f"{when}: volume {history.volume} has {size} bytes, allowed: {sizes}"
                )
            found = [] if volume is None else await read_volume(volume, self.most_bytes)
            for sector, content in enumerate(found):
                newest = history.newest(sector)
                if content != newest and not self.is_excused(history, sector, content):
                    history.check(sector, content, when)

    async def write_volume(
        self, history: History, offset: int, length: int, *, discard: bool = False
    ) -> None:
        """Write or *discard* *length* bytes at *offset* of a volume, and note that."""
        volume, before = self.volume(history), history.size
        stripes = self.stripes_of(history, offset, length)
        span = history.begin_write("discard" if discard else "write", self.event, *stripes)
        data = history.add_bytes(span, offset, length, zeros=discard)
        try:
            with acknowledged(writer_of(self.pool, volume)):
                if discard:
                    await volume.discard(offset, length)
                else:
                    await volume.write(offset, data)
        except RaidxError:
            if not self.excused() and history.size >= before:
                raise
            self.refuse(history, span)
            return
        history.end(span, self.event)

    async def flush_volume(self, history: History) -> None:
        flush = history.begin_flush("flush", self.event)
        try:
            volume = self.volume(history)
            with acknowledged(arrays_of(self.pool, volume)):
                await volume.flush()
        except RaidxError:
            if not self.excused() and history.size:
                raise
            history.fail_flush(flush, self.event)
            return
        history.end(flush, self.event)
