"""What was done to each volume when, and what a cut may therefore leave of it.

A `History` is that of one volume: its sectors, and its size, which is 0 while there is no volume.
An array without a volume table is a pool of one volume, of its whole image. The histories of one
workload share a `Timeline`.

Every 512-byte sector of every write has unique content, a hash of sector and version. A sector that
is read back therefore identifies its write, and no XOR of sectors looks like another sector. Only
discards, which are writes of zeros here, are all alike.

A write is *covered* when a flush that began after its end has returned. After a cut a sector may
hold any write that had begun, unless a covered write came later: "flushed bytes intact, every other
sector old or new". The order of two concurrent writes is unknown until the sector is read
(`observe`). A change of the size is covered by its own end.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from raidx_fuse.format.log_record import RECORD_MAGIC
from raidx_fuse.format.pages import PAGE_MAGIC
from raidx_fuse.format.superblock import MAGIC as SUPERBLOCK_MAGIC
from raidx_fuse.lab.crash.state import ViolationError
from raidx_fuse.members.base import SECTOR_BYTES

_SHOWN = 4
SECTORS_OF_A_VOLUME = 1 << 16  # more than any has: sectors of two volumes have unlike content
ZEROS = bytes(SECTOR_BYTES)
# What a state is counted under, whatever else is done meanwhile.
JOBS = ("rebuild", "scrub", "grow", "restripe", "evacuate", "restore")
Contents = tuple[bytes, ...]


# What sectors begin with: users' content may look like metadata, of this program or of others.
_BEGINNINGS = (
    b"",
    SUPERBLOCK_MAGIC,
    PAGE_MAGIC.to_bytes(4, "little"),
    RECORD_MAGIC.to_bytes(4, "little"),
    b"EFI PART",  # found at the end of a disk as well
    b"\xfc\x4e\x2b\xa9",  # md
)


def fill(seed: int, sector: int, version: int) -> bytes:
    """Return the content of *sector* in *version*: 512 bytes that no other pair has."""
    content = hashlib.shake_128(struct.pack("<QQQ", seed, sector, version)).digest(SECTOR_BYTES)
    beginning = _BEGINNINGS[content[-1] % len(_BEGINNINGS)]
    return beginning + content[len(beginning) :]


@dataclass(slots=True, eq=False)
class Span:
    """An action of the workload: *verb*, from one event of the disks' record to another.

    Several spans can begin or end between two events; *begin_order* and *end_order* number all
    beginnings and ends. *is_job*: states count under it, whatever else is done meanwhile.
    """

    verb: str
    begin_event: int
    begin_order: int
    is_job: bool = False
    end_event: float = math.inf
    end_order: float = math.inf

    def end(self, event: int, order: int) -> None:
        self.end_event, self.end_order = event, order

    def begun(self, moment: int) -> bool:
        """Return whether the span can have had an effect before *moment*."""
        return self.begin_event < moment

    def ended(self, moment: int) -> bool:
        return self.end_event <= moment

    def runs(self, moment: int) -> bool:
        return self.begin_event <= moment < self.end_event


@dataclass(slots=True, eq=False)
class WriteSpan(Span):
    """A write.

    - *stripes*: those that it touches; *full*: those that it covers whole;
    - *sectors*: sector -> content;
    - *closes*: the sectors of the stripes that it completes (`Fronts` in hardware.py);
    - *loose*: those sectors among them that were uncovered when an earlier history was cut;
    - *refused*: the write ended in an error. It may have happened, or not, or may happen later;
    - *given_up*: sectors of lost members in its stripes, which it may have made unreadable so;
    - *size*: of the volume, in bytes, if the write changes it: then its end covers the write.
    """

    version: int = 0
    stripes: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()
    closes: frozenset[int] = frozenset()
    loose: frozenset[int] = frozenset()
    refused: bool = False
    given_up: frozenset[int] = frozenset()
    size: int | None = None
    sectors: dict[int, bytes] = field(default_factory=dict)

    def covered(self, moment: int, flushed: float) -> bool:
        """Return whether the write cannot be lost by a cut before event *moment*.

        The newest flush that had ended then began at *flushed*.
        """
        if self.refused:
            return False
        return self.end_order <= flushed or (self.size is not None and self.ended(moment))


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a cut at one moment may leave.

    - *sizes*: those that the volume may have, in bytes; 0: it may be missing;
    - *allowed*: the contents that each sector may have;
    - *in_flight*: stripes with an uncovered write;
    - *full_in_flight*: stripes with an uncovered write that covers the whole stripe;
    - *loose*: sectors with an uncovered write, in stripes that an uncovered write completed;
    - *given_up*: sectors that may be unreadable for ever, since a write was refused;
    - *plainest*: the first allowed content of every sector, for a fast comparison.
    """

    sizes: tuple[int, ...]
    allowed: tuple[Contents, ...]
    in_flight: frozenset[int]
    full_in_flight: frozenset[int]
    loose: frozenset[int]
    given_up: frozenset[int]
    plainest: list[bytes | None] = field(init=False)

    def __post_init__(self) -> None:
        first: list[bytes | None] = [next(iter(contents), b"") for contents in self.allowed]
        object.__setattr__(self, "plainest", first)


def _first_writes(sector: int, contents: Contents) -> list[WriteSpan]:
    """Return one write for each of *contents*, before all others and in unknown order."""
    writes = []
    for content in dict.fromkeys(contents):
        write = WriteSpan("", -1, -2, end_event=-1, end_order=-1)
        write.sectors = {sector: content}
        writes.append(write)
    return writes


def _loose(open_writes: Sequence[WriteSpan]) -> frozenset[int]:
    closes = frozenset().union(*(write.closes for write in open_writes))
    loose = frozenset().union(*(write.loose for write in open_writes))
    if closes:
        loose |= closes.intersection(*[set().union(*(write.sectors for write in open_writes))])
    return loose


def _possible(
    writes: Sequence[WriteSpan],
    later: set[tuple[WriteSpan, WriteSpan]],
    moment: int,
    flushed: float,
) -> list[WriteSpan]:
    """Return those of *writes* to one place that a cut before event *moment* may leave there.

    *later*: (later, earlier) of those whose order a read has shown; *flushed* as in `covered`.
    """
    begun = [write for write in writes if write.begun(moment)]
    covered = [write for write in begun if write.covered(moment, flushed)]
    return [
        write
        for write in begun
        if not any(
            write.end_order < other.begin_order or (other, write) in later for other in covered
        )
    ]


class Timeline:
    """The spans of one workload in the order in which they began, whatever volume they are of.

    *known*: content -> the write that it comes from.
    """

    def __init__(self, known: Mapping[bytes, str] = MappingProxyType({})) -> None:
        self.spans: list[Span] = []
        self.known = dict(known)
        self._order = 0

    def tick(self) -> int:
        self._order += 1
        return self._order

    def begin(self, verb: str, event: int, *, is_job: bool = False) -> Span:
        span = Span(verb, event, self.tick(), is_job or verb in JOBS)
        self.spans.append(span)
        return span

    def end(self, span: Span, event: int) -> None:
        span.end(event, self.tick())

    def verb_at(self, moment: int) -> str:
        """Return the verb of the background job at *moment*, else of the latest action begun."""
        running = [span for span in self.spans if span.runs(moment)]
        verb = next((span.verb for span in running if span.is_job), "")
        return verb or (running[-1].verb if running else "idle")

    def name(self, content: bytes | None) -> str:
        """Return a text that says which write *content* comes from; None: it cannot be read."""
        if content is None:
            return "nothing that can be read"
        if content == ZEROS:
            return "zeros"
        return self.known.get(content, f"content that nobody wrote ({content[:8].hex()}...)")


class History:
    """The writes and flushes of one volume of *sectors* sectors, zeros at first.

    Volume *number* of the workload has the *name*; 0 sectors: it is not there yet.
    """

    def __init__(
        self,
        seed: int,
        sectors: int,
        timeline: Timeline | None = None,
        *,
        number: int = 0,
        name: str = "",
    ) -> None:
        self.seed = seed
        self.timeline = timeline or Timeline()
        self.number = number
        self.volume = name
        self.writes: list[WriteSpan] = []
        self.flushes: list[Span] = []
        self.before: WriteSpan | None = None  # what was in flight when an earlier history was cut
        self._versions = 0
        self._later: dict[int, set[tuple[WriteSpan, WriteSpan]]] = {}  # sector -> (later, earlier)
        self._cached: tuple[tuple[int, float, int], Expectation] | None = None
        self._by_sector = [_first_writes(sector, (ZEROS,)) for sector in range(sectors)]
        first = WriteSpan("", -1, -2, end_event=-1, end_order=-1, size=sectors * SECTOR_BYTES)
        self._sizes = [first]

    @property
    def sectors(self) -> int:
        """How many sectors it has had at most."""
        return len(self._by_sector)

    @property
    def size(self) -> int:
        """The newest size of the volume in bytes, 0 if there is none."""
        size = self._sizes[-1].size
        assert size is not None
        return size

    def after(self, moment: int, timeline: Timeline | None = None) -> History:
        """Return a new history that begins with what a cut at *moment* may leave.

        The first read of a sector decides which of its allowed contents it has (`undecided`,
        `observe`). *timeline*: that of the new workload, which knows what this one has written.
        """
        expected = self.at(moment)
        timeline = timeline or Timeline(self.timeline.known)
        new = History(self.seed, self.sectors, timeline, number=self.number, name=self.volume)
        new._versions = self._versions
        new._by_sector = [_first_writes(s, c) for s, c in enumerate(expected.allowed)]
        earlier = WriteSpan("", -1, -2)  # in flight until the resync has ended
        earlier.stripes, earlier.full = expected.in_flight, expected.full_in_flight
        earlier.loose, earlier.given_up = expected.loose, expected.given_up
        new.writes.append(earlier)
        new.before = earlier
        return new

    def resync_ended(self, event: int) -> None:
        """Note that the resync after the cut that preceded this history has ended."""
        if self.before is not None:
            self.end(self.before, event)
            self.before = None

    def undecided(self) -> list[int]:
        """Return the sectors that may have one of several contents."""
        return [s for s, writes in enumerate(self._by_sector) if len(writes) > 1]

    # -- what the workload notes ---------------------------------------------------------------

    def begin_flush(self, verb: str, event: int) -> Span:
        span = self.timeline.begin(verb, event)
        self.flushes.append(span)
        return span

    def begin_write(
        self, verb: str, event: int, stripes: frozenset[int], full: frozenset[int]
    ) -> WriteSpan:
        """Note the beginning of a write; `add_sector` gives it content."""
        self._versions += 1
        span = WriteSpan(verb, event, self.timeline.tick(), version=self._versions)
        span.stripes, span.full = stripes, full
        self.timeline.spans.append(span)
        self.writes.append(span)
        return span

    def begin_size(self, verb: str, event: int, size: int) -> WriteSpan:
        """Note the beginning of a change of the size, to *size* bytes; 0: the volume goes.

        The volume loses the sectors behind its new end: where it grows again, they read as zeros.
        """
        span = self.begin_write(verb, event, frozenset(), frozenset())
        span.size = size
        self._sizes.append(span)
        count = size // SECTOR_BYTES
        self._by_sector += [_first_writes(s, (ZEROS,)) for s in range(self.sectors, count)]
        for sector in range(count, self.sectors):
            self.add_sector(span, sector, 0, SECTOR_BYTES, zeros=True)
        return span

    def forget(self, span: WriteSpan, event: int) -> None:
        """Note that *span* ended before event number *event* and was refused without any effect."""
        self.end(span, event)
        self.writes.remove(span)
        for writes in (self._sizes, *(self._by_sector[sector] for sector in span.sectors)):
            if span in writes:
                writes.remove(span)

    def add_sector(
        self, span: WriteSpan, sector: int, first: int, end: int, *, zeros: bool = False
    ) -> bytes:
        """Let *span* write the bytes *first* to *end* of *sector*; return those bytes.

        They are unique, or *zeros*. The rest of the sector keeps what the newest write gave it.
        """
        place = self.number * SECTORS_OF_A_VOLUME + sector
        content = ZEROS if zeros else fill(self.seed, place, span.version)
        data = content[first:end]
        if len(data) < SECTOR_BYTES:
            before = self.newest(sector)
            content = before[:first] + data + before[end:]
        span.sectors[sector] = content
        self._by_sector[sector].append(span)
        if not zeros:
            volume = f" of volume {self.volume}" if self.volume else ""
            self.timeline.known[content] = f"write {span.version} of sector {sector}{volume}"
        return data

    def add_bytes(self, span: WriteSpan, offset: int, length: int, *, zeros: bool = False) -> bytes:
        """Let *span* write *length* bytes at *offset*; return them, as of `add_sector`."""
        parts = []
        end = offset + length
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            low = max(offset - sector * SECTOR_BYTES, 0)
            high = min(end - sector * SECTOR_BYTES, SECTOR_BYTES)
            parts.append(self.add_sector(span, sector, low, high, zeros=zeros))
        return b"".join(parts)

    def end(self, span: Span, event: int) -> None:
        self.timeline.end(span, event)

    def refuse(self, span: WriteSpan, event: int, given_up: frozenset[int] = frozenset()) -> None:
        """Note that *span* ended in an error: it promises only that later writes are kept.

        *given_up*: the sectors that the array may have given up because of it.
        """
        span.refused, span.given_up = True, given_up
        self.end(span, event)

    def doubt(self, event: int) -> None:
        """Note that a disk that cannot be spared has lost its cache before event number *event*.

        Of what no flush has covered, each sector may be lost, whatever is flushed later.
        """
        flushed = max((f.begin_order for f in self.flushes if f.ended(event)), default=-math.inf)
        lost = [w for w in self.writes if w.begun(event) and not w.covered(event, flushed)]
        for span in lost:
            span.refused = True
        for sector, known in self._later.items():  # what came before such a write may be back
            self._later[sector] = {pair for pair in known if pair[0] not in lost}
        self._cached = None

    def fail_flush(self, span: Span, event: int) -> None:
        self.flushes.remove(span)
        self.end(span, event)

    def newest(self, sector: int) -> bytes:
        """Return the newest content of *sector*; meaningless while several writes run."""
        ranks = self._later.get(sector, set())
        for write in reversed(self._by_sector[sector]):
            if not any(earlier is write for _, earlier in ranks):
                return write.sectors[sector]
        raise AssertionError("the order of writes has no end")

    def observe(self, sector: int, content: bytes) -> None:
        """Note the *content* that a read found: it decides which concurrent write came last.

        No write may be under way. Raises ViolationError for content that no candidate has.
        """
        writes = self._by_sector[sector]
        known = self._later.setdefault(sector, set())
        winners = [w for w in self._rivals(sector) if w.sectors[sector] == content]
        if not winners:
            raise ViolationError(f"read back while running: {self.describe(sector, content)}")
        # The winner came after all other writes, not only its rivals: a write that it overlapped
        # may have ended before the last one began. A refused write is left out: it may still
        # happen later. Of discards, which are alike, the one that ended last is covered last.
        winner = max(winners, key=lambda write: write.end_order)
        known.update((winner, w) for w in writes if w is not winner and not w.refused)
        self._cached = None

    def check(self, sector: int, content: bytes | None, when: str = "before any cut") -> None:
        """Raise ViolationError unless *sector* may read as *content*; no write is under way."""
        allowed = [write.sectors[sector] for write in self._rivals(sector)]
        if content not in allowed:
            raise ViolationError(f"{when}: {self.describe(sector, content, allowed)}")

    def _rivals(self, sector: int) -> list[WriteSpan]:
        """Return the writes of *sector* that may have been the last one."""
        writes = self._by_sector[sector]
        started = max((w.begin_order for w in writes if not w.refused), default=-math.inf)
        earlier = {id(write) for _, write in self._later.get(sector, ())}
        return [w for w in writes if w.end_order > started and id(w) not in earlier]

    # -- what a cut may leave ------------------------------------------------------------------

    def at(self, moment: int) -> Expectation:
        begun = sum(1 for write in self.writes if write.begun(moment))
        flushed = max((f.begin_order for f in self.flushes if f.ended(moment)), default=-math.inf)
        changed = sum(1 for write in self._sizes if write.ended(moment))
        key = begun, flushed, changed
        if self._cached is not None and self._cached[0] == key:
            return self._cached[1]
        open_writes = [w for w in self.writes if w.begun(moment) and not w.covered(moment, flushed)]
        sizes = _possible(self._sizes, set(), moment, flushed)
        expectation = Expectation(
            tuple(write.size for write in sizes if write.size is not None),
            tuple(self._allowed(sector, moment, flushed) for sector in range(self.sectors)),
            frozenset().union(*(write.stripes for write in open_writes)),
            frozenset().union(*(write.full for write in open_writes)),
            _loose(open_writes),
            frozenset().union(*(write.given_up for write in self.writes if write.begun(moment))),
        )
        self._cached = key, expectation
        return expectation

    def _allowed(self, sector: int, moment: int, flushed: float) -> Contents:
        writes = self._by_sector[sector]
        if len(writes) == 1:
            return (writes[0].sectors[sector],)
        possible = _possible(writes, self._later.get(sector, set()), moment, flushed)
        return tuple(write.sectors[sector] for write in possible)

    # -- texts ---------------------------------------------------------------------------------

    def describe(self, sector: int, content: bytes | None, allowed: Iterable[bytes] = ()) -> str:
        """Return a text that says what *sector* holds, and what it may hold.

        Without *content* it cannot be read.
        """
        volume = f"volume {self.volume}, " if self.volume else ""
        if content is None:
            return f"{volume}sector {sector} cannot be read"
        names = sorted({self.timeline.name(one) for one in allowed})
        text = f"{volume}sector {sector} holds {self.timeline.name(content)}"
        return f"{text}, allowed: {', '.join(names[:_SHOWN])}" if names else text
