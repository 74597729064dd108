"""Drive a load against anything with ``read`` and ``write``: an array, a mounted image.

    recorder = Recorder()
    await drive(array, load, recorder)               # open loop: each request when it is due
    await drive(array, load, recorder, depth=16)     # as fast as possible, 16 at a time
    recorder.summary()["response_ms"]["mean"]

The papers replay traces in an open loop ("all traces are re-played according to their time stamps",
UPC section 4.2): arrivals do not wait for answers, so a slow array shows its queues. Time is trio's
clock: virtual for modelled members, real for a mount. With a `Content`, writes carry content that
later reads are compared with; `read_back` compares everything once more.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import trio
from numpy.typing import NDArray

from raidx_fuse.errors import RaidxError, SignatureFoundError
from raidx_fuse.format.signature import describe, find_signatures
from raidx_fuse.lab.loads.request import SECTOR_BYTES, Bools, Floats, Load, Request, requests_of
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.local import LocalMember
from raidx_fuse.members.simulated.virtual_time import sleep_until
from raidx_fuse.store.buffers import ZERO_BYTES, ZEROS

PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}
ERRORS_KEPT = 20
OUTSTANDING_MAX = 20_000
READ_BACK_BYTES = 256 << 10
THREADS = 64  # of an image
SHORTEST_S = 1e-6  # of the classes of a distribution


Figures = dict[str, Any]
"""What an experiment has measured, by name: JSON values, as `raidx schema simulate` has them."""


class Recorder:
    """Collects requests as they end. Times are seconds from the start of the load.

    A response time runs from the moment a request was due (open loop) or sent (with a depth) to its
    end. *failed* counts the requests that failed; *errors* holds the first of their messages;
    *held_back* counts those that were sent late, because too many were under way.
    """

    def __init__(self) -> None:
        self._at_s = array("d")
        self._response_s = array("d")
        self._length = array("q")
        self._is_write = array("b")
        self.failed = 0
        self.errors: list[str] = []
        self.held_back = 0
        self.end_s = 0.0

    def add(self, at_s: float, response_s: float, is_write: bool, length_bytes: int) -> None:
        self._at_s.append(at_s)
        self._response_s.append(response_s)
        self._length.append(length_bytes)
        self._is_write.append(is_write)
        if at_s + response_s > self.end_s:
            self.end_s = at_s + response_s

    def count_held_back(self) -> None:
        self.held_back += 1

    def fail(self, message: str) -> None:
        self.failed += 1
        if len(self.errors) < ERRORS_KEPT:
            self.errors.append(message)

    def __len__(self) -> int:
        return len(self._at_s)

    def times(self) -> tuple[Floats, Floats, Bools]:
        """Return (arrival, response, is_write) of every request, in the order of their ends."""
        return (
            np.array(self._at_s),
            np.array(self._response_s),
            np.array(self._is_write, dtype=np.bool_),
        )

    def records(self) -> dict[str, Sequence[float]]:
        """Return every request, in the order of their ends, as columns."""
        return {
            "at_s": self._at_s.tolist(),
            "response_s": self._response_s.tolist(),
            "is_write": [bool(each) for each in self._is_write],
            "length_bytes": self._length.tolist(),
        }

    def distribution(self) -> dict[str, Sequence[float]]:
        """Return how many reads and writes took how long, in ten classes for each power of ten.

        Class i is of responses from *edges_ms* [i] to [i + 1]; the first one has shorter ones, too.
        """
        _at_s, response_s, is_write = self.times()
        if not len(response_s):
            return {"edges_ms": [], "reads": [], "writes": []}
        classes = np.floor(10 * np.log10(np.maximum(response_s, SHORTEST_S) * 1e3)).astype(int)
        first, count = int(classes.min()), int(np.ptp(classes)) + 1
        edges = 10 ** (np.arange(first, first + count + 1) / 10)
        return {
            "edges_ms": [digits(float(edge)) for edge in edges],
            **{
                name: np.bincount(classes[which] - first, minlength=count).tolist()
                for name, which in (("reads", ~is_write), ("writes", is_write))
            },
        }

    def summary(self, from_s: float = 0.0, to_s: float = float("inf")) -> Figures:
        """Return counts, rates and response times (ms) of the requests that arrived in a span."""
        at_s, response_s, is_write = self.times()
        inside = (at_s >= from_s) & (at_s < to_s)
        length = np.array(self._length, dtype=np.int64)[inside]
        response_s, is_write = response_s[inside], is_write[inside]
        last_s = min(to_s, self.end_s)
        seconds = max(last_s - from_s, 1e-9)
        return {
            "requests": len(response_s),
            "reads": int((~is_write).sum()),
            "writes": int(is_write.sum()),
            "read_bytes": int(length[~is_write].sum()),
            "write_bytes": int(length[is_write].sum()),
            "seconds": digits(seconds),
            "rate": digits(len(response_s) / seconds),
            "response_ms": spread(response_s),
            "read_ms": spread(response_s[~is_write]),
            "write_ms": spread(response_s[is_write]),
        }

    def figures(self, from_s: float = 0.0) -> Figures:
        """Return the summary of what arrived after *from_s*, and what failed or was late at all."""
        failed: Figures = {"failed": self.failed, "errors": self.errors}
        return {**self.summary(from_s), **failed, "held_back": self.held_back}

    def sections(self, section_s: float) -> list[Figures]:
        """Return a summary of each *section_s* seconds of arrivals, with where it begins."""
        at_s = self.times()[0]
        if not len(at_s) or section_s <= 0:
            return []
        count = int(at_s.max() // section_s) + 1
        return [
            {"from_s": digits(n * section_s), **self.summary(n * section_s, (n + 1) * section_s)}
            for n in range(count)
        ]


def spread(response_s: Floats) -> dict[str, float]:
    if not len(response_s):
        return dict.fromkeys(("mean", *PERCENTILES, "max"), 0.0)
    values = np.percentile(response_s, list(PERCENTILES.values())) * 1e3
    return {
        "mean": digits(float(response_s.mean()) * 1e3),
        **{name: digits(float(v)) for name, v in zip(PERCENTILES, values, strict=True)},
        "max": digits(float(response_s.max()) * 1e3),
    }


def digits(value: float) -> float:
    """Return *value* to nine digits: a printed figure, not a memory image."""
    return float(f"{value:.9g}")


_WORDS = SECTOR_BYTES // 8
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request under way: its sectors *first* to *end* - 1, and what was known when it began.

    A write has its *version* and, as *floor*, the oldest version that it may race with. A read has
    *oldest*: for each sector, the oldest version that it may return.
    """

    first: int
    end: int
    version: int = 0
    floor: int = 0
    oldest: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))


class Content:
    """Makes the content of writes and checks that of reads. Ranges must be whole sectors.

    Each sector of 512 bytes holds words of 8 bytes: its number and its version, both XORed with a
    key from the seed, then a hash of the two. A sector that is read back is right if it is one
    whole version of itself, and this version is

    - not older than the newest version that was acknowledged when the read began;
    - not newer than the newest version that was sent when the read ended.

    Concurrent writes may take effect in either order, so the older of them stays possible. Sectors
    that were never written are not checked.
    """

    def __init__(self, size_bytes: int, seed: int = 0) -> None:
        sectors = size_bytes // SECTOR_BYTES
        self._sent = np.zeros(sectors, dtype=np.uint32)  # only pages that are used take memory
        self._floor = np.zeros(sectors, dtype=np.uint32)
        self._key = np.uint64(seed * 2 + 1)
        self._version = 0
        self._writing: dict[int, Ticket] = {}
        self.checked_bytes = 0
        self.wrong: list[str] = []

    def write(self, offset_bytes: int, length_bytes: int) -> tuple[Ticket, bytes]:
        """Begin a write; return its ticket and its content."""
        first, end = offset_bytes // SECTOR_BYTES, (offset_bytes + length_bytes) // SECTOR_BYTES
        self._version += 1
        version = self._version
        racing = (t.version for t in self._writing.values() if t.first < end and first < t.end)
        ticket = Ticket(first, end, version, min(racing, default=version))
        self._writing[version] = ticket
        self._sent[first:end] = version
        return ticket, self._pattern(first, np.full(end - first, version, np.uint64)).tobytes()

    def written(self, ticket: Ticket, acknowledged: bool = True) -> None:
        """End a write. After a write that was not *acknowledged* its sectors are not checked."""
        del self._writing[ticket.version]
        if acknowledged:
            floor = self._floor[ticket.first : ticket.end]
            np.maximum(floor, ticket.floor, out=floor)
        else:  # a part may be written, or be written later: these sectors are unknown from now on
            self._sent[ticket.first : ticket.end] = self._floor[ticket.first : ticket.end] = 0

    def read(self, offset_bytes: int, length_bytes: int) -> Ticket:
        first, end = offset_bytes // SECTOR_BYTES, (offset_bytes + length_bytes) // SECTOR_BYTES
        return Ticket(first, end, oldest=self._floor[first:end].copy())

    def judge(self, ticket: Ticket, data: ReadBuffer) -> bool:
        """End a read that returned *data*; return whether it is right, and note it if not."""
        words: Words = np.frombuffer(data, dtype="<u8").reshape(-1, _WORDS)
        known = ticket.oldest > 0
        if not known.any():
            return True
        version = words[:, 1] ^ self._key
        newest = self._sent[ticket.first : ticket.end]
        good = (version >= ticket.oldest) & (version <= newest)
        good &= (words == self._pattern(ticket.first, version)).all(axis=1)
        # A write that failed meanwhile has made its sectors unknown.
        good |= ~known | (newest == 0)
        self.checked_bytes += int(known.sum()) * SECTOR_BYTES
        if good.all():
            return True
        at = int(np.flatnonzero(~good)[0])
        self.wrong.append(
            f"image offset {(ticket.first + at) * SECTOR_BYTES}: expected write "
            f"{ticket.oldest[at]} to {newest[at]}, found {self._what(ticket.first + at, words[at])}"
        )
        return False

    def ranges_written(self) -> list[tuple[int, int]]:
        """Return (offset, length), in bytes, of every run of acknowledged sectors."""
        known = np.flatnonzero(self._floor)
        if not len(known):
            return []
        breaks = np.flatnonzero(np.diff(known) > 1) + 1
        return [
            (int(run[0]) * SECTOR_BYTES, len(run) * SECTOR_BYTES) for run in np.split(known, breaks)
        ]

    def _pattern(self, first: int, version: Words) -> Words:
        sector = np.arange(first, first + len(version), dtype=np.uint64)
        number = np.arange(_WORDS, dtype=np.uint64) * _STEP
        seed = (sector * _MIX[0] ^ version * _MIX[1]) + self._key
        words: Words = seed[:, None] + number[None, :]
        words = (words ^ (words >> _SHIFTS[0])) * _MIX[0]
        words = (words ^ (words >> _SHIFTS[1])) * _MIX[1]
        words ^= words >> _SHIFTS[2]
        words[:, 0] = sector ^ self._key
        words[:, 1] = version ^ self._key
        return words

    def _what(self, sector: int, words: Words) -> str:
        version = int(words[1] ^ self._key)
        if not words.any():
            return "zeros"
        if int(words[0] ^ self._key) != sector:
            return "something else"
        torn = not (words == self._pattern(sector, np.array([version], np.uint64))[0]).all()
        return f"{'a torn ' if torn else ''}write {version}"


Perform = Callable[[Request, float], Awaitable[None]]


class Target(Protocol):
    """The target of a load. Both functions raise RaidxError; ranges lie inside the target."""

    def read(self, offset_bytes: int, length_bytes: int, /) -> Awaitable[ReadBuffer]:
        """Return the bytes, valid until the next await."""

    def write(self, offset_bytes: int, data: ReadBuffer, /) -> Awaitable[None]: ...


async def drive(
    target: Target,
    load: Load,
    recorder: Recorder,
    *,
    depth: int | None = None,
    outstanding_max: int = OUTSTANDING_MAX,
    content: Content | None = None,
) -> None:
    """Send every request of *load* to *target* and return when all have ended.

    With *depth*, so many requests are under way at a time, as fast as they are answered. Without
    it, each request is sent at its time, with at most *outstanding_max* under way: later requests
    are held back and counted in *recorder.held_back*, and their response times include the wait.
    Requests that fail are counted, not raised.
    """
    start_s = trio.current_time()
    perform = partial(_perform, target, recorder, content, start_s)
    if depth is not None:
        waiting = requests_of(load)
        async with trio.open_nursery() as nursery:
            for _ in range(depth):
                nursery.start_soon(_serve, perform, waiting)
        return
    room = trio.Semaphore(outstanding_max)

    async def one(request: Request, due_s: float) -> None:
        await perform(request, due_s)
        room.release()

    async with trio.open_nursery() as nursery:
        for request in requests_of(load):
            due_s = start_s + request.at_s
            if due_s > trio.current_time():
                await sleep_until(due_s)
            try:
                room.acquire_nowait()
            except trio.WouldBlock:
                recorder.count_held_back()
                await room.acquire()
            nursery.start_soon(one, request, due_s)


async def _serve(perform: Perform, waiting: Iterator[Request]) -> None:
    for request in waiting:
        await perform(request, trio.current_time())


async def _perform(
    target: Target,
    recorder: Recorder,
    content: Content | None,
    start_s: float,
    request: Request,
    due_s: float,
) -> None:
    _, is_write, offset, length = request
    try:
        if content is not None:
            await _checked(target, content, request)
        elif is_write:
            data = ZEROS[:length] if length <= ZERO_BYTES else bytes(length)
            await target.write(offset, data)
        else:
            await target.read(offset, length)
    except RaidxError as error:
        recorder.fail(str(error))
        return
    recorder.add(due_s - start_s, trio.current_time() - due_s, is_write, length)


async def _checked(target: Target, content: Content, request: Request) -> None:
    """Perform *request* with content that can be checked. Raises what *target* raises."""
    _, is_write, offset, length = request
    if not is_write:
        ticket = content.read(offset, length)
        content.judge(ticket, await target.read(offset, length))
        return
    ticket, data = content.write(offset, length)
    acknowledged = False
    try:
        await target.write(offset, data)
        acknowledged = True
    finally:
        content.written(ticket, acknowledged)


async def read_back(target: Target, content: Content) -> None:
    """Read and check all acknowledged writes of *content*. Raises what *target* raises."""
    for start, size in content.ranges_written():
        for at in range(start, start + size, READ_BACK_BYTES):
            length = min(READ_BACK_BYTES, start + size - at)
            await _checked(target, content, Request(0.0, False, at, length))


class Image:
    """The file or device at *path*, for `drive`.

    At most *threads* requests are under way at a time; further requests wait, and the wait counts
    in their response time. All methods raise MemberError, the first one BusyError.
    """

    def __init__(self, path: str, *, threads: int = THREADS) -> None:
        self._file = LocalMember(path, lock=False, depth=threads)
        self.path = path
        self.size_bytes = self._file.size_bytes

    async def read(self, offset_bytes: int, length_bytes: int) -> bytearray:
        data = bytearray(length_bytes)
        await self._file.readv(offset_bytes, [data])
        return data

    async def write(self, offset_bytes: int, data: ReadBuffer) -> None:
        await self._file.writev(offset_bytes, [data])

    async def flush(self) -> None:
        await self._file.flush()

    async def check_unused(self) -> None:
        """Raise SignatureFoundError if it carries a file system or another known signature."""
        found = await find_signatures(self._file)
        if found:
            raise SignatureFoundError(
                f"{self.path} carries {describe(found)}",
                action="add --overwrite-signature if the load may destroy it",
            )

    def close(self) -> None:
        self._file.close()
