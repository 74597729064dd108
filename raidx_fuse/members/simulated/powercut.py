"""Power cuts: the states in which a power failure can leave a disk.

Between two flushes a disk may keep, drop or tear each write, in any order. So a cut is a decision
about every write since the last flush: a bit mask of the 512-byte sectors that were stored; bit 0
is the first sector that the write touches.

    write of 3 sectors   0b000 dropped   0b111 kept   0b001, 0b100, 0b101 ... torn

Kept sectors are applied in the order of the writes. So a dropped write also stands for a write that
the disk stored before an older one, which then overwrote it.

`PowerCutMember.crash` returns the content that a cut at this moment would leave. The member appends
every write and flush to a `CutRecord`, which several members share. So one run of a workload is
enough for a whole campaign: `CutRecord.moments` visits every boundary of the run afterwards, with
the images and open writes of that moment, at the price of one memory copy for each state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Protocol

from raidx_fuse.members.base import SECTOR_BYTES, Member, ReadBuffer, WriteBuffer

_SHIFT = 12
_BYTES = 1 << _SHIFT
_MASK = _BYTES - 1
_ZEROS = bytes(_BYTES)


class SparseImage:
    """*size_bytes* of zeros, read and written like a bytearray by slices with begin and end.

    A copy costs one reference for each page of 4 KiB that was ever written. *blank* is the content
    of every other page: zeros, or what an old disk may hold.
    """

    __slots__ = ("_blank", "_pages", "_size_bytes")

    def __init__(
        self, size_bytes: int, pages: dict[int, bytes] | None = None, *, blank: bytes = _ZEROS
    ) -> None:
        assert len(blank) == _BYTES
        self._size_bytes = size_bytes
        self._pages = {} if pages is None else pages
        self._blank = blank

    def __len__(self) -> int:
        return self._size_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseImage) and self._pages == other._pages

    def __bytes__(self) -> bytes:
        return self[0 : self._size_bytes]

    def __getitem__(self, key: slice) -> bytes:
        start, end = key.start, key.stop
        page, inner = start >> _SHIFT, start & _MASK
        if inner + end - start <= _BYTES:
            return self._pages.get(page, self._blank)[inner : inner + end - start]
        found = [self._pages.get(at, self._blank) for at in range(page, (end + _MASK) >> _SHIFT)]
        return b"".join(found)[inner : inner + end - start]

    def __setitem__(self, key: slice, content: ReadBuffer) -> None:
        at, done = key.start, 0
        assert key.stop - at == len(content), "an image keeps its size"
        while done < len(content):
            page, inner = at >> _SHIFT, at & _MASK
            part = bytes(content[done : done + _BYTES - inner])
            if len(part) < _BYTES:
                old = self._pages.get(page, self._blank)
                part = b"".join((old[:inner], part, old[inner + len(part) :]))
            self._pages[page] = part
            at, done = page + 1 << _SHIFT, done + _BYTES - inner

    def extend(self, page: bytes, count: int) -> None:
        """Make it larger by *count* pages, each of which has the content *page*."""
        assert len(page) == _BYTES
        assert not self._size_bytes & _MASK
        first = self._size_bytes >> _SHIFT
        self._pages.update(dict.fromkeys(range(first, first + count), page))
        self._size_bytes += count * _BYTES

    def copy(self) -> SparseImage:
        return SparseImage(self._size_bytes, dict(self._pages), blank=self._blank)

    def __contains__(self, content: bytes) -> bool:
        """Return whether a page holds *content*; what crosses the end of a page is not found."""
        return content in self._blank or any(content in page for page in self._pages.values())

    def startswith(self, prefix: bytes, start: int = 0) -> bool:
        return self[start : start + len(prefix)] == prefix

    def is_hole(self, offset: int, length: int) -> bool:
        """Return whether a range reads as zeros because nothing was ever written there."""
        pages = range(offset >> _SHIFT, offset + length + _MASK >> _SHIFT)
        return self._blank is _ZEROS and not any(page in self._pages for page in pages)

    def extents(self, offset: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of the parts of a range in pages that were written, in order."""
        end = offset + length
        if self._blank is not _ZEROS:
            yield offset, length
            return
        begin = stop = offset
        within = range(offset >> _SHIFT, end + _MASK >> _SHIFT)
        for page in sorted(page for page in self._pages if page in within):
            low = max(page << _SHIFT, offset)
            if low != stop:
                if begin < stop:
                    yield begin, stop - begin
                begin = low
            stop = min(page + 1 << _SHIFT, end)
        if begin < stop:
            yield begin, stop - begin


Image = bytearray | SparseImage
"""The content of a disk in memory."""


PUNCHED_BYTES_MAX = 64 << 10  # of a sparse image in one go


class Writable(Protocol):
    """What takes content by slices with begin and end, as an image does."""

    def __setitem__(self, key: slice, content: bytes, /) -> None: ...


@dataclass(slots=True)
class OpenWrite:
    """A write that no flush has covered yet. *before* is the content that it overwrote."""

    offset_bytes: int
    data: bytes
    before: bytes

    @property
    def sectors(self) -> int:
        """How many sectors the write touches, partly touched ones included."""
        end = self.offset_bytes + len(self.data)
        return -(-end // SECTOR_BYTES) - self.offset_bytes // SECTOR_BYTES

    @property
    def kept(self) -> int:
        """The decision "all sectors were stored"; 0 is "none was"."""
        return (1 << self.sectors) - 1

    def apply(self, image: Writable, decision: int) -> None:
        """Write the sectors of *decision* into *image*."""
        begin, end = self.offset_bytes, self.offset_bytes + len(self.data)
        if decision == self.kept:
            image[begin:end] = self.data
            return
        base = begin // SECTOR_BYTES
        while decision:
            first = (decision & -decision).bit_length() - 1
            run = ((decision >> first) + 1 & ~(decision >> first)).bit_length() - 1
            low = max(begin, (base + first) * SECTOR_BYTES)
            high = min(end, (base + first + run) * SECTOR_BYTES)
            image[low:high] = self.data[low - begin : high - begin]
            decision &= ~((1 << run) - 1 << first)


def cut_writes(image: Writable, writes: Sequence[OpenWrite], decisions: Sequence[int]) -> None:
    """Take *writes* back from *image*, and store the sectors of each that *decisions* keep."""
    for write in reversed(writes):
        image[write.offset_bytes : write.offset_bytes + len(write.data)] = write.before
    for write, decision in zip(writes, decisions, strict=True):
        if decision:
            write.apply(image, decision)


class DiskState:
    """The content of a disk as its host sees it, and the writes that a cut may still undo."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.open_writes: list[OpenWrite] = []

    def write(self, offset_bytes: int, data: bytes) -> None:
        """Write *data*, not durably."""
        end = offset_bytes + len(data)
        self.open_writes.append(OpenWrite(offset_bytes, data, bytes(self.image[offset_bytes:end])))
        self.image[offset_bytes:end] = data

    def flush(self, covered: int | None = None) -> None:
        """Make the first *covered* open writes durable (all of them if None)."""
        del self.open_writes[:covered]

    def crash(self, decisions: Sequence[int] | None = None, *, into: Image | None = None) -> Image:
        """Return the content after a cut; without *decisions*, every open write is lost.

        The image is a new one, or *into* (of the same size). *into* saves the page faults of new
        memory, which are half of the time. A sparse image is always new.
        """
        image: Image
        if isinstance(into, bytearray) and isinstance(self.image, bytearray):
            image = into
            image[:] = self.image
        else:
            image = self.image.copy()
        if decisions is None:
            decisions = [0] * len(self.open_writes)
        cut_writes(image, self.open_writes, decisions)
        return image

    def sample(self, generator: random.Random) -> list[int]:
        """Draw a random cut: each open write is kept, dropped, cut after a sector, or has holes."""
        return [draw_cut(write, generator) for write in self.open_writes]

    def tear(self, generator: random.Random) -> list[int]:
        """Draw a random cut that tears every open write of more than one sector.

        With most other cuts, content that was written to several disks is complete on one of them.
        """
        return [
            _draw(write, generator.randrange(0 if write.sectors == 1 else 6, 8), generator)
            for write in self.open_writes
        ]


def draw_cut(write: OpenWrite, generator: random.Random) -> int:
    """Draw a random decision about *write*: kept, dropped, cut after a sector, or with holes."""
    return _draw(write, generator.randrange(8), generator)


def _draw(write: OpenWrite, kind: int, generator: random.Random) -> int:
    if kind < 3:
        return 0
    if kind < 6 or write.sectors == 1:
        return write.kept
    cut = generator.randrange(1, write.sectors)
    if kind == 6:  # a prefix or a suffix of the write
        return (1 << cut) - 1 if generator.random() < 0.5 else write.kept & ~((1 << cut) - 1)
    return generator.getrandbits(write.sectors)


def sample_copies(disks: Sequence[DiskState], generator: random.Random) -> list[list[int]]:
    """Draw a random cut in which most copies of one content, on several disks, share their fate.

    Independent draws seldom take all copies of one write and keep those of a later one.
    """
    fates: dict[tuple[int, bytes], int] = {}
    decided = []
    for disk in disks:
        decisions = []
        for write in disk.open_writes:
            fate = fates.setdefault((write.offset_bytes, write.data), generator.randrange(8))
            together = 0 if fate < 3 else write.kept
            decisions.append(together if fate < 7 else draw_cut(write, generator))
        decided.append(decisions)
    return decided


def keep_last(disks: Sequence[DiskState], count: int) -> list[list[int]]:
    """Return the cut that drops all but the copies of the last *count* contents of any disk.

    That is what caches leave that store what came last first.
    """
    last = {
        (write.offset_bytes, write.data) for disk in disks for write in disk.open_writes[-count:]
    }
    return [
        [
            write.kept if (write.offset_bytes, write.data) in last else 0
            for write in disk.open_writes
        ]
        for disk in disks
    ]


def choices(write: OpenWrite, *, torn: bool = True) -> Iterator[int]:
    """Yield the decisions worth enumerating: dropped, kept, and (if *torn*) every prefix."""
    yield 0
    yield write.kept
    if torn:
        yield from ((1 << cut) - 1 for cut in range(1, write.sectors))


def enumerate_cuts(disks: Sequence[DiskState], *, torn: bool = True) -> Iterator[list[list[int]]]:
    """Yield every combination of `choices` for all open writes of all *disks*, lazily.

    Their number is the product (`count_cuts`); use `DiskState.sample` if it is large.
    """
    writes = [write for disk in disks for write in disk.open_writes]
    options = [list(choices(write, torn=torn)) for write in writes]
    for combination in product(*reversed(options)):  # the first write changes most often
        decided = reversed(combination)
        yield [[next(decided) for _ in disk.open_writes] for disk in disks]


def count_cuts(disks: Sequence[DiskState], *, torn: bool = True) -> int:
    """Return how many combinations `enumerate_cuts` yields, without enumerating them."""
    writes = [write for disk in disks for write in disk.open_writes]
    return prod(1 + write.sectors if torn else 2 for write in writes)


@dataclass(frozen=True, slots=True)
class Event:
    """One boundary of a run: a write, a flush, or a note of the workload.

    *member* is the index of the member in the record, -1 for notes. *covered* is the number of open
    writes that a flush makes durable. *note* is what the workload states at that moment ("flush 7
    returned"), for the oracle that judges the state.
    """

    member: int
    operation: str
    offset_bytes: int = 0
    data: bytes = b""
    covered: int = 0
    note: object = None


@dataclass
class CutRecord:
    """The events of several members in order; *starts* are their initial images."""

    starts: list[Image] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def note(self, note: object) -> None:
        self.events.append(Event(-1, "note", note=note))

    def moments(self) -> Iterator[tuple[int, list[DiskState], Event | None]]:
        """Yield (index, disks, next event) before every event, and once after the last.

        The disks belong to the iteration: call `crash` on them, but do not change or keep them. The
        same index gives the same disks in every iteration. So index, decisions and losses identify
        a state.
        """
        disks = [DiskState(start.copy()) for start in self.starts]
        for index, event in enumerate(self.events):
            yield index, disks, event
            if event.operation == "write":
                disks[event.member].write(event.offset_bytes, event.data)
            elif event.operation == "flush":
                disks[event.member].flush(event.covered)
        yield len(self.events), disks, None


class PowerCutMember(Member):
    """A member in memory whose power can be cut at any moment.

    * *image*: its content, which belongs to the member from now on.
    * *record*: gets the initial image and every event; this costs a copy of each.
    * *before_event*: called with every Event before it takes effect; may raise to stop the run.
    """

    kind = "powercut"

    def __init__(
        self, image: Image, *, name: str = "powercut", record: CutRecord | None = None
    ) -> None:
        self.path = name
        self.size_bytes = len(image)
        self.state = DiskState(image)
        self.before_event: Callable[[Event], None] | None = None
        self._record = record
        self.writes = self._durable = 0  # writes so far, and those that a flush has covered
        self._number = -1
        if record is not None:
            self._number = len(record.starts)
            record.starts.append(image.copy())

    def tell(self, before_event: Callable[[Event], None]) -> None:
        """Call *before_event* from now on with every event before it takes effect."""
        self.before_event = before_event

    @property
    def event(self) -> int:
        """Number of the next event of the record."""
        return 0 if self._record is None else len(self._record.events)

    def crash(self, decisions: Sequence[int] | None = None) -> Image:
        """Return the content after a cut at this moment; see `DiskState.crash`."""
        return self.state.crash(decisions)

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        self.refuse("read", offset_bytes, sum(map(len, buffers)))
        image = self.state.image
        for buffer in buffers:
            end = offset_bytes + len(buffer)
            buffer[:] = image[offset_bytes:end]
            offset_bytes = end
        return True

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        data = b"".join(buffers)
        self.refuse("write", offset_bytes, len(data))
        if data:
            self._tell(Event(self._number, "write", offset_bytes, data))
            self.writes += 1
            self.state.write(offset_bytes, data)
        return True

    async def flush(self) -> None:
        self.make_durable(self.writes)

    def make_durable(self, writes: int) -> None:
        """Make the first *writes* of all writes durable: the least that a flush must cover."""
        self.refuse("flush", -1, 0)
        covered = max(0, writes - self._durable)
        self._tell(Event(self._number, "flush", covered=covered))
        self.state.flush(covered)
        self._durable += covered

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        """Write zeros, because a cut treats a punched hole like any other write.

        A hole of a sparse image stays one. Returns False for a larger range of it, in which the
        zeros would take memory.
        """
        if isinstance(image := self.state.image, SparseImage):
            self.refuse("punch", offset_bytes, length_bytes)
            if image.is_hole(offset_bytes, length_bytes):
                return True
            if length_bytes > PUNCHED_BYTES_MAX:
                return False
        return self.try_writev(offset_bytes, [bytes(length_bytes)])

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        if not isinstance(self.state.image, SparseImage):
            return super().data_extents(offset_bytes, length_bytes)
        self.check_range("map", offset_bytes, length_bytes)
        return self.state.image.extents(offset_bytes, length_bytes)

    def close(self) -> None:
        """Refuse further operations; the state can still be examined."""
        self.closed = True

    def _tell(self, event: Event) -> None:
        if self.before_event is not None:
            self.before_event(event)
        if self._record is not None:
            self._record.events.append(event)
