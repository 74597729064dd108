"""How fast members are (the raidx paper, section V.A: the size of a request over its time).

Reads and writes have separate speeds, random and sequential operations too: an operation is
sequential if it begins where the last one on its member ended. Two times are kept. The *latency* is
what one operation takes. The *busy* time is what it costs the member: its share of the time if the
member serves several at once. So three disks are known to do more together than the fastest one
alone, and an SSD more than one operation at a time. Latencies are of operations that were alone:
behind a network, or in a queue of its own, one of many waits for the others, and the model that
judges plans (`Demands`) adds that wait itself.

All are moving means. A sample counts as at most `OUTLIER` times the mean: an answer that took a
thousand times as long, because the host was busy, says nothing about the member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from raidx_fuse.layouts.numbers import Role

WEIGHT = 1 / 32  # of the newest operation in a moving mean
OUTLIER = 4.0
SAMPLES_MIN = 8  # of reads alone, else the member is probed; of writes, else they count like reads
SEEK_S = 1e-3  # only disks with heads take so long to position
PAID_BACK_S = 86400.0  # a move, made in idle time, must save its own cost within a day

Share = tuple[float, float]  # latency, busy time: seconds a second


@dataclass(slots=True)
class Mean:
    """A moving mean of *count* samples; the first ones weigh as in an ordinary mean."""

    value: float = 0.0
    count: int = 0

    def add(self, newest: float) -> None:
        """Take *newest* into account."""
        self.count += 1
        if self.count == 1:
            self.value = newest
        else:
            weight = max(WEIGHT, 1 / self.count)
            self.value += weight * (min(newest, OUTLIER * self.value) - self.value)


@dataclass(slots=True)
class Speed:
    """The speed of one member for reads, or for writes.

    *busy_s*, *bytes* of random operations; *latency_s*, *alone_bytes* of those that were alone;
    *byte_s*, the busy time for each byte, and *run_bytes* of sequential ones. *at_once_s* is the
    busy time of many operations at once: users may never have sent so many that the member shows
    what it can do.
    """

    latency_s: Mean = field(default_factory=Mean)
    busy_s: Mean = field(default_factory=Mean)
    bytes: Mean = field(default_factory=Mean)
    byte_s: Mean = field(default_factory=Mean)
    run_bytes: Mean = field(default_factory=Mean)
    at_once_s: Mean = field(default_factory=Mean)
    alone_bytes: Mean = field(default_factory=Mean)

    def note(self, size_bytes: int, taken_s: float, at_once: int, *, sequential: bool) -> None:
        """Note an operation that took *taken_s* while the member served *at_once* of them."""
        if sequential:
            self.byte_s.add(taken_s / at_once / size_bytes)
            self.run_bytes.add(size_bytes)
        else:
            if at_once == 1:
                self.latency_s.add(taken_s)
                self.alone_bytes.add(size_bytes)
            self.busy_s.add(taken_s / at_once)
            self.bytes.add(size_bytes)

    def copy(self) -> Speed:
        return Speed(*(replace(getattr(self, each.name)) for each in fields(self)))

    @property
    def run_mb_s(self) -> float | None:
        """The speed of sequential operations in 10^6 bytes a second; None if it is not known."""
        return 1e-6 / self.byte_s.value if self.byte_s.value else None

    @property
    def positioning_s(self) -> float:
        """The busy time of a random operation besides the transfer of its bytes."""
        return max(0.0, self.least_busy_s - self.bytes.value * self.byte_s.value)

    @property
    def least_busy_s(self) -> float:
        """The busy time of a random operation while the member serves as many as it can."""
        if not self.at_once_s.count:
            return self.busy_s.value
        return min(self.busy_s.value, self.at_once_s.value)


class ServiceMeter:
    """Speeds of a member, *read* and *write*, from its operations at *data_offset* and beyond.

    What lies below, the superblocks, maps and the log, is used in a way of its own.
    """

    def __init__(self, data_offset: int, depth: int) -> None:
        self.read, self.write = Speed(), Speed()
        self._from = data_offset
        self._depth = depth
        self._end = -1

    def note(
        self, offset: int, size_bytes: int, taken_s: float, outstanding: int, is_write: bool
    ) -> None:
        """Note a user's operation that ended; *outstanding*: those of the member, with this one."""
        if offset < self._from or taken_s <= 0 or not size_bytes:
            return
        speed = self.write if is_write else self.read
        at_once = max(1, min(outstanding, self._depth))
        speed.note(size_bytes, taken_s, at_once, sequential=offset == self._end)
        self._end = offset + size_bytes


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """Measurements of the member in *role*: speeds, arrival-instant queue, channels."""

    role: int
    read: Speed
    write: Speed
    queue: float
    depth: int


@dataclass(frozen=True, slots=True)
class Use:
    """What users ask for: the fraction of writes, and the mean bytes of random and run accesses."""

    write_share: float
    random_bytes: float
    run_bytes: float

    def with_writes(self, share: float) -> Use:
        """Return the same use with another fraction of writes."""
        return replace(self, write_share=share)


@dataclass(frozen=True, slots=True)
class Costs:
    """What one access costs a member, in seconds.

    *latency_s* and *busy_s* of a random one; *run_s* of one in a run that lies in order on the
    member; *seek_s*, to find the beginning of a run.
    """

    latency_s: float
    busy_s: float
    run_s: float
    seek_s: float


def mean_costs(costs: Sequence[Costs]) -> Costs:
    """Return the means of *costs*, which must not be empty."""
    sums = [0.0, 0.0, 0.0, 0.0]
    for cost in costs:
        for at, value in enumerate((cost.latency_s, cost.busy_s, cost.run_s, cost.seek_s)):
            sums[at] += value / len(costs)
    return Costs(*sums)


def use_of(loads: Sequence[MemberLoad], write_share: float, chunk_bytes: int) -> Use:
    """Return the use that *loads* show, of all members together; an access is within a chunk."""

    def mean(pairs: list[Mean]) -> float:
        count = sum(each.count for each in pairs)
        bytes_ = sum(each.value * each.count for each in pairs) / count if count else 0.0
        return min(bytes_, chunk_bytes)

    speeds = [speed for load in loads for speed in (load.read, load.write)]
    return Use(
        write_share,
        mean([speed.bytes for speed in speeds]),
        mean([speed.run_bytes for speed in speeds]),
    )


def costs_of(load: MemberLoad, use: Use) -> Costs:
    """Return what an access of *use* costs the member of *load*.

    Writes count like reads where few were seen.
    """
    read = load.read
    write = load.write if load.write.busy_s.count >= SAMPLES_MIN else read
    write_run = load.write if load.write.byte_s.count >= SAMPLES_MIN else read
    if write.latency_s.count and write is not read and read.at_once_s.count:  # they overlap alike
        write = write.copy()
        gain = min(1.0, read.least_busy_s / (read.latency_s.value or 1.0))
        write.at_once_s.add(write.latency_s.value * gain)
    parts = ((1 - use.write_share, read, read), (use.write_share, write, write_run))
    latency_s = busy_s = run_s = seek_s = 0.0
    for share, single, run in parts:
        transfer_s = run.byte_s.value
        more_s = (use.random_bytes - single.bytes.value) * transfer_s
        alone = single if single.latency_s.count else read  # which is probed
        alone_s = alone.latency_s.value + (use.random_bytes - alone.alone_bytes.value) * transfer_s
        latency_s += share * max(alone_s, single.positioning_s)
        busy_s += share * max(single.least_busy_s + more_s, single.positioning_s)
        run_s += share * use.run_bytes * transfer_s
        seek_s += share * single.positioning_s
    return Costs(latency_s, busy_s, run_s, seek_s)


@dataclass(slots=True)
class Demands:
    """The model: seconds of service per second: *busy_s* by role; *latency_s* of all.

    *others* = N - 1, the requests that are under way besides one.
    """

    busy_s: dict[Role, float]
    latency_s: float
    others: float

    def time_s(self) -> float:
        """Return the expected time of all accesses of a second."""
        total = sum(self.busy_s.values())
        squares = sum(busy * busy for busy in self.busy_s.values())
        return self.latency_s + (self.others * squares / total if total > 0 else 0.0)

    def moved(self, source: Role, target: Role, less: Share, more: Share) -> Demands:
        """Return the demands when *source* has *less* and *target* *more* to do."""
        busy_s = dict(self.busy_s)
        busy_s[source] = max(0.0, busy_s[source] - less[1])
        busy_s[target] += more[1]
        return Demands(busy_s, self.latency_s - less[0] + more[0], self.others)
