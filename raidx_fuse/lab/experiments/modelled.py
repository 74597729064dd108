"""Arrays on modelled disks for experiments: made, opened, and what happens to them meanwhile.

Disks fail and are replaced, members join, settings change. Times count from the start of the load.
An experiment ends when the jobs of its events have ended.

    Event(at_s=30, do="fail", disk=2)            the member is taken out
    Event(at_s=60, do="replace", disk=2)         a new member takes the role, a rebuild begins
    Event(at_s=60, do="spare", model="ssd")      a hot spare; a degraded array rebuilds onto it
    Event(at_s=60, do="add", count=2)            the array grows onto two new members
    Event(at_s=60, do="add", value="piggyback")  the same with a parity method of the McPod paper
    Event(at_s=60, do="restripe", value="raid5") everything moves to raid5 with *count* new members
    Event(at_s=90, do="lose", disk=1, for_s=40)  its server answers nothing for 40 s; if the disk
                                                 was given up meanwhile, it is caught up then
    Event(at_s=90, do="set", key="journal", value="none")
    Event(at_s=90, do="scrub")
    Event(at_s=90, do="tune")                    hot chunks of a raidx layout move now
"""

from __future__ import annotations

import random
import uuid
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, Required, TypedDict

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.growth_position import SURROGATE
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.format.configuration.volumes import Extent
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import Region
from raidx_fuse.lab.loads.drive import Figures, Target, digits
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.registry import PARITY_WAYS
from raidx_fuse.members.base import Member, ReadBuffer, WriteBuffer
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.network import Link, NetworkMember, NetworkModel
from raidx_fuse.members.simulated.service import make_model
from raidx_fuse.members.simulated.virtual_time import sleep, sleep_until
from raidx_fuse.members.spec import parse_spec
from raidx_fuse.store.buffers import ZEROS
from raidx_fuse.store.queue import MemberQueue
from raidx_fuse.store.stripe_locks import StripeLocks

MEMBER_BYTES = 8 << 30
REBUILD_BEGINS_S = 5.0
SETTLED_EACH_S = 0.1
DEEDS = ("fail", "replace", "spare", "add", "restripe", "scrub", "tune", "set", "lose")
# Of a controller's cache:
PAGE_BYTES = 4096
RANGE_BYTES = 256 << 10  # of adjacent pages that are written together
WRITERS = 16
HIT_S = 50e-6


class BlankMember(RamMember):
    """A member that keeps its metadata and drops its data: to measure only time.

    Writes to the region *forgotten* are dropped, and it reads as zeros. Zeros are consistent under
    every code (the XOR of zeros is zero), so rebuild and scrub find nothing wrong. An array of any
    size takes a few megabytes of memory, whatever a load writes.
    """

    forgotten = Region(0, 0)

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        if not self.forgotten.offset <= offset_bytes < self.forgotten.end:
            return super().try_readv(offset_bytes, buffers)
        self.check_range("read", offset_bytes, sum(map(len, buffers)))
        for buffer in buffers:
            for at in range(0, len(buffer), len(ZEROS)):
                part = memoryview(buffer)[at : at + len(ZEROS)]
                part[:] = ZEROS[: len(part)]
        return True

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        if not self.forgotten.offset <= offset_bytes < self.forgotten.end:
            return super().try_writev(offset_bytes, buffers)
        self.check_range("write", offset_bytes, sum(map(len, buffers)))
        return True

    def writable_view(self, offset_bytes: int, length_bytes: int) -> memoryview | None:
        return None

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        self.check_range("map", offset_bytes, length_bytes)
        if length_bytes:
            yield offset_bytes, length_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The members of an array and how it is created.

    *members*: models, perhaps with own numbers, as behind ``model=`` in a member's spec: "hdd",
    "ssd,read_mb_s=445,write_mb_s=135". *size_bytes*: of the image, None: all that fits.
    *log_bytes*: of the log on each member, None: as `raidx create` makes it. *sums*: it has
    checksums, which need loads of zeros unless the content is kept. *with_volume*: it has one
    volume, the whole image. *seed*: of the first member's rotation; those of the others follow.
    *settings*: those of `raidx set`.
    """

    layout: str
    members: Sequence[str]
    name: str = "lab"
    member_bytes: int = MEMBER_BYTES
    chunk_bytes: int = 64 << 10
    params: Mapping[str, object] = field(default_factory=dict)
    size_bytes: int | None = None
    log_bytes: int | None = None
    sums: bool = False
    with_volume: bool = True
    keeps_content: bool = False
    seed: int = 0
    network: NetworkModel | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class Modelled:
    """The modelled members of an array on *hardware*, and those that join it later.

    *link* is the network that they share, if there is one.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.link = Link(hardware.network, hardware.seed) if hardware.network else None
        self._forgotten = Region(0, 0)
        self._memories: list[RamMember] = []

    def member(self, model: str = "") -> Member:
        """Return a new member; *model* "": that of its number. Raises UsageError."""
        hardware, number = self.hardware, len(self._memories)
        memory: RamMember = (RamMember if hardware.keeps_content else BlankMember)(
            hardware.member_bytes, name=f"disk{number}"
        )
        text = model or hardware.members[number % len(hardware.members)]
        spec = parse_spec(f"ram:1MiB,model={text}")
        assert spec.model is not None
        self._memories.append(memory)
        if isinstance(memory, BlankMember):
            memory.forgotten = self._forgotten
        disk = ModelMember(
            memory, make_model(spec.model, **spec.numbers), seed=hardware.seed + number
        )
        return disk if self.link is None else NetworkMember(disk, self.link)

    def forget(self, region: Region) -> None:
        """Drop what is written to *region* of any member, unless the content is needed."""
        self._forgotten = region
        for memory in self._memories:
            if isinstance(memory, BlankMember):
                memory.forgotten = region


@asynccontextmanager
async def modelled_array(
    hardware: Hardware, chance: random.Random
) -> AsyncIterator[tuple[Array, Modelled]]:
    """Yield a new array on *hardware*, and its members. Raises RaidxError.

    *chance* is the source of UUIDs.
    """
    modelled = Modelled(hardware)
    members = [modelled.member() for _ in hardware.members]
    config = await create_array(
        members,
        hardware.layout,
        chunk_bytes=hardware.chunk_bytes,
        params=hardware.params,
        name=hardware.name,
        now_s=0,
        size_bytes=hardware.size_bytes,
        log_bytes=hardware.log_bytes,
        sums=hardware.sums,
        with_volume=hardware.with_volume,
        both_ends=False,  # no front is lost here, and places are those of all published figures
        uuid_source=lambda: str(uuid.UUID(int=chance.getrandbits(128), version=4)),
    )
    modelled.forget(config.regions.data)
    async with open_array(members) as array:
        yield array, modelled


class NoLocks(StripeLocks):
    """Stripe locks that lock nothing: two writes of one stripe may both begin from the old parity.

    For experiments on members that keep no data, to see what taking turns on a stripe costs.
    """

    __slots__ = ()

    async def acquire(self, stripe: Stripe) -> None:
        pass

    def take_free(self, stripes: Iterable[Stripe]) -> list[Stripe]:
        return list(dict.fromkeys(stripes))

    def require_held(self, stripes: Iterable[Stripe]) -> None:
        pass

    async def acquire_all(self, stripes: Iterable[Stripe]) -> list[Stripe]:
        return list(stripes)

    def release(self, stripe: Stripe) -> None:
        pass


def assume_written(array: Array, extents: Sequence[Extent] | None = None) -> None:
    """Make every chunk of a fresh array, or of *extents* of it, count as written.

    The members read as zero, and zeros are consistent. Only the map in memory changes, so the array
    must not outlive its members.
    """
    written, size = array.context.written, array.context.layout.chunk_bytes
    for extent in extents or [Extent(0, written.chunks * size)]:
        first, end = extent.offset // size, -(-extent.end // size)
        whole_from, whole_to = -(-first // 8), end // 8
        ends = range(first, min(8 * whole_from, end)), range(max(first, 8 * whole_to), end)
        for chunk in chain(*ends):
            written.bits[chunk // 8] |= 1 << chunk % 8
        if whole_from < whole_to:
            written.bits[whole_from:whole_to] = b"\xff" * (whole_to - whole_from)


NewMember = Callable[[str], Member]  # takes a model's name, returns a new member at its speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. *disk*: a role; *model*: of the *count* new members ("": the others' model).

    *array*: the name of the array, in an experiment with several (`PoolExperiment`).
    """

    at_s: float
    do: str
    disk: int = -1
    model: str = ""
    count: int = 1
    key: str = ""
    value: str = ""
    for_s: float = 0.0
    array: str = ""

    def check(self) -> None:
        if self.do not in DEEDS:
            raise UsageError(f"no event {self.do!r}", action=f"choose {', '.join(DEEDS)}")
        if not 0 <= self.at_s < 1e9:
            raise UsageError(f"an event cannot be at {self.at_s} s")
        if self.do == "lose" and not 0 < self.for_s < 1e9:
            raise UsageError("the event 'lose' needs seconds, more than 0")
        if self.do in ("fail", "replace", "lose") and self.disk < 0:
            raise UsageError(f"the event {self.do!r} needs a disk")
        if not 1 <= self.count <= 255:
            raise UsageError(f"an event cannot bring {self.count} disks")
        if self.do == "add" and self.value and self.value not in PARITY_WAYS:
            known = ", ".join(PARITY_WAYS)
            raise UsageError(f"parity cannot follow as {self.value!r}", action=f"choose {known}")
        if self.do == "set" and not self.key:
            raise UsageError("the event 'set' needs a key and a value")


class EventReport(TypedDict, total=False):
    """What became of an event; *during*: the summary of the requests until its job had ended."""

    array: str
    at_s: Required[float]
    do: Required[str]
    disk: int
    set: str
    refused: str
    given_up: bool
    job: str
    job_state: str
    job_ended_s: float
    during: Figures


async def _perform(
    array: Array, event: Event, new: NewMember
) -> int | NetworkMember | Literal["spare"] | None:
    """Perform *event*; return its job, the member that is lost, or "spare". Raises RaidxError."""
    match event.do:
        case "fail":
            await array.fail_disk(event.disk)
            return None
        case "replace":
            return (await array.replace_disk(event.disk, new(event.model)))["job"]
        case "spare":
            await array.add_spare(new(event.model))
            return "spare"
        case "scrub":
            return await array.start_scrub(repair=False)
        case "tune":
            return array.start_tuning()
        case "set":
            await array.set(event.key, event.value)
            return None
        case "lose":
            queues = array.member_set.queues
            queue = queues[event.disk] if event.disk < len(queues) else None
            if queue is None or not isinstance(queue.member, NetworkMember):
                raise UsageError(f"disk {event.disk} is behind no network, or is lost already")
            queue.member.lose(trio.current_time() + event.for_s)
            return queue.member
    members = [new(event.model) for _ in range(event.count)]
    if event.do == "restripe":
        return (await array.restripe(members, event.value or None, {}))["job"]
    if event.value == SURROGATE:
        return (await array.grow(members, surrogate=new(event.model))).get("job")
    return (await array.grow(members, event.value or None)).get("job")


async def play(array: Array, events: Sequence[Event], new: NewMember) -> list[EventReport]:
    """Perform *events* at their times; return a report of each when all jobs have ended.

    If the array refuses an event, its report has the error message, and the experiment goes on.
    """
    start_s = trio.current_time()
    reports: list[EventReport] = []
    async with trio.open_nursery() as nursery:
        for event in sorted(events, key=lambda event: event.at_s):
            await sleep_until(start_s + event.at_s)
            report: EventReport = {"at_s": event.at_s, "do": event.do}
            if event.disk >= 0:
                report["disk"] = event.disk
            if event.key:
                report["set"] = f"{event.key}={event.value}"
            reports.append(report)
            try:
                outcome = await _perform(array, event, new)
            except RaidxError as error:
                report["refused"] = str(error)
                continue
            if isinstance(outcome, int):
                nursery.start_soon(_follow, array, outcome, report, start_s)
            elif isinstance(outcome, NetworkMember):
                back_s = trio.current_time() + event.for_s
                following = array, event.disk, outcome, back_s, report, start_s
                nursery.start_soon(_follow_return, *following)
            elif outcome == "spare":
                nursery.start_soon(_follow_rebuild, array, report, start_s)
    return reports


async def _follow_rebuild(array: Array, report: EventReport, start_s: float) -> None:
    """Report the rebuild that a hot spare starts automatically, if one begins soon."""
    deadline_s = trio.current_time() + REBUILD_BEGINS_S
    while trio.current_time() < deadline_s and array.member_set.lost:
        for job in array.jobs.running():
            if job.kind == "rebuild":
                await _follow(array, job.job_id, report, start_s)
                return
        await sleep(REBUILD_BEGINS_S / 100)


async def _follow_return(
    array: Array,
    role: int,
    member: NetworkMember,
    back_s: float,
    report: EventReport,
    start_s: float,
) -> None:
    """Report whether a lost server's disk was given up, and have it caught up then."""
    await sleep_until(back_s)
    report["given_up"] = array.member_set.queues[role] is None
    if not report["given_up"]:
        return
    while not member.is_settled():  # what it was sent is carried out
        await sleep(SETTLED_EACH_S)
    try:
        begun = await array.replace_disk(role, member)
    except RaidxError as error:
        report["refused"] = str(error)
        return
    await _follow(array, begun["job"], report, start_s)


async def _follow(array: Array, job_id: int, report: EventReport, start_s: float) -> None:
    status = await array.jobs.wait(job_id)
    report["job"] = status["kind"]
    report["job_state"] = status["state"]
    report["job_ended_s"] = digits(trio.current_time() - start_s)


class Samples:
    """Samples the member queues of *array* every *section_s* seconds (0: never)."""

    def __init__(self, array: Array, section_s: float) -> None:
        self._array = array
        self._section_s = section_s
        self.rows: list[dict[str, list[float]]] = []
        self._last: dict[MemberQueue, tuple[int, float]] = {}
        self._last_s = trio.current_time()
        if section_s > 0:
            self._look()
            self.rows.clear()

    async def take(self) -> None:
        """Take a sample at the end of each section, until cancelled (a background task)."""
        if self._section_s <= 0:
            return
        start_s = trio.current_time()
        for number in range(1, 1 << 62):
            await sleep_until(start_s + number * self._section_s)
            self._look()

    def finish(self) -> None:
        if self._section_s > 0 and trio.current_time() > self._last_s:
            self._look()

    def _look(self) -> None:
        elapsed_s = max(trio.current_time() - self._last_s, 1e-9)
        self._last_s = trio.current_time()
        operations: list[float] = []
        queues: list[float] = []
        for queue in self._array.member_set.queues:
            if queue is None:
                operations.append(0)
                queues.append(0.0)
                continue
            before = self._last.get(queue, (0, 0.0))
            now = (queue.reads + queue.writes, queue.queue_area)
            self._last[queue] = now
            operations.append(now[0] - before[0])
            queues.append(float(f"{(now[1] - before[1]) / elapsed_s:.6g}"))
        self.rows.append({"member_operations": operations, "member_queues": queues})


def beside(sections: list[Figures], samples: Sequence[Samples]) -> list[Figures]:
    """Return *sections* (of arrivals), each with the *samples* of all arrays at the same time."""
    for number, section in enumerate(sections):
        for one in samples:
            for key, values in (one.rows[number] if number < len(one.rows) else {}).items():
                section.setdefault(key, []).extend(values)
    return sections


class ControllerCache:
    """A write-back cache of *size_bytes* in front of *array*; `serve` must run beside it.

    It is that of a RAID controller, for experiments: it holds times, no content. Such controllers
    have some hundred megabytes of memory with a battery. A write ends when it is in the cache; what
    it changed goes to the array in the background, *WRITERS* ranges at a time, upwards in
    addresses, adjacent pages together. A read is served from the cache if all of its pages are
    there; a page is there once a part of it is. Clean pages leave the cache in the order of their
    last use. A write waits while nothing but pages that the array does not have yet fill the cache.
    Reads return zeros. *hits* counts reads that the array did not see. If the array refuses what
    the cache holds, later writes raise its error.
    """

    def __init__(self, array: Target, size_bytes: int) -> None:
        self._array = array
        self._pages_max = max(1, size_bytes // PAGE_BYTES)
        self._clean: OrderedDict[int, None] = OrderedDict()
        self._dirty: dict[int, tuple[int, int]] = {}  # page -> the bytes of it that are newer
        self._order: list[int] = []  # the dirty pages, sorted
        self._at = 0
        self._changed = trio.Event()
        self._under_way = 0
        self._leaving = 0  # pages that are under way to the array
        self._error: RaidxError | None = None
        self.hits = 0

    async def read(self, offset_bytes: int, length_bytes: int) -> memoryview:
        pages = _pages(offset_bytes, length_bytes)
        if all(page in self._clean or page in self._dirty for page in pages):
            self.hits += 1
            await sleep(HIT_S)
        else:
            await self._array.read(offset_bytes, length_bytes)
        self._keep(pages)
        return memoryview(ZEROS)[:0]

    async def write(self, offset_bytes: int, data: ReadBuffer) -> None:
        end = offset_bytes + len(data)
        for page in _pages(offset_bytes, len(data)):
            # Pages that the array does not have yet fill the cache:
            while page not in self._dirty and (len(self._dirty) + self._leaving >= self._pages_max):
                await self._changed.wait()
            if self._error is not None:
                raise self._error
            start = page * PAGE_BYTES
            low, high = max(offset_bytes, start), min(end, start + PAGE_BYTES)
            if page in self._dirty:
                before = self._dirty[page]
                low, high = min(low, before[0]), max(high, before[1])
            else:
                insort(self._order, page)
            self._dirty[page] = low, high
            self._clean.pop(page, None)
        self._keep(range(0))
        self._tell()
        await sleep(HIT_S)

    async def serve(self) -> None:
        """Write dirty pages to the array, until cancelled (a background task)."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._dirty or self._under_way >= WRITERS:
                    await self._changed.wait()
                low, high = self._take()
                pages = _pages(low, high - low)
                self._under_way += 1
                self._leaving += len(pages)
                self._keep(pages)
                nursery.start_soon(self._write_back, low, high)
                await trio.lowlevel.checkpoint()

    async def written(self) -> None:
        while self._dirty or self._under_way:
            await self._changed.wait()

    async def _write_back(self, low: int, high: int) -> None:
        try:
            await self._array.write(low, ZEROS[: high - low])
        except RaidxError as error:
            self._error = error
        self._under_way -= 1
        self._leaving -= len(_pages(low, high - low))
        self._tell()

    def _take(self) -> tuple[int, int]:
        """Return the next dirty range upwards of the last one, which is not dirty any more."""
        at = bisect_left(self._order, self._at)
        at = 0 if at == len(self._order) else at
        first = end = at
        low, high = self._dirty.pop(self._order[at])
        for page in self._order[at + 1 :]:
            end += 1
            if self._dirty[page][0] != high or self._dirty[page][1] - low > RANGE_BYTES:
                end -= 1
                break
            high = self._dirty.pop(page)[1]
        del self._order[first : end + 1]
        self._at = -(-high // PAGE_BYTES)
        return low, high

    def _keep(self, pages: range) -> None:
        for page in pages:
            if page not in self._dirty:
                self._clean[page] = None
                self._clean.move_to_end(page)
        while self._clean and len(self._clean) + len(self._dirty) > self._pages_max:
            self._clean.popitem(last=False)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _pages(offset_bytes: int, length_bytes: int) -> range:
    return range(offset_bytes // PAGE_BYTES, -(-(offset_bytes + length_bytes) // PAGE_BYTES))
