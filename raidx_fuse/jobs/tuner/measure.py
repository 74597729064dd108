"""The tuner's measurements: speeds of the members, from users' requests and from reads of its own.

A member is read at random places among its chunks, and once in order, until users have shown how
fast it is. The paper: a more accurate measurement spares most of the moves that are undone later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from raidx_fuse.engine.access_stats import AccessCounter
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.jobs.tuner.speeds import SAMPLES_MIN, MemberLoad, ServiceMeter
from raidx_fuse.layouts.numbers import Role, by_role
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.store.io_tuples import MemberLostError, MemberRead
from raidx_fuse.store.queue import MemberQueue

PROBE_READS = 32  # of each unmeasured member
PROBE_BYTES = 4096
RUN_READS = 16  # one behind the other, twice: the first ones find the place
RUN_BYTES = 65536
MEASURE_AGAIN_S = 60.0


class Measurements:
    """Measures the members of *layout*; *is_wanted* says whether users wait for the array."""

    def __init__(
        self,
        context: ArrayContext,
        layout: Layout,
        access: AccessCounter,
        is_wanted: Callable[[], bool],
    ) -> None:
        self.context = context
        self.layout = layout
        self.access = access
        self._is_wanted = is_wanted
        self._meters: dict[Role, tuple[MemberQueue, ServiceMeter]] = {}
        self._random = random.Random(0)
        self._measured_s = 0.0
        self._reads_seen: dict[int, int] = {}  # by role, when it was measured
        self.loads()  # begins to measure

    def meter(self, role: Role, queue: MemberQueue) -> ServiceMeter:
        """Return the meter of *role*, a new one if it has a new member."""
        known = self._meters.get(role)
        if known is None or known[0] is not queue:
            known = (
                queue,
                ServiceMeter(self.context.member_set.data_offset, max(1, queue.member.depth)),
            )
            self._meters[role] = known
            queue.measure_by(known[1].note)
        return known[1]

    def loads(self) -> list[MemberLoad]:
        """Return the measurements of the members."""
        found = []
        for role, queue in by_role(self.context.member_set.readable):
            if queue is None:
                continue
            meter = self.meter(role, queue)
            if not queue.reads:
                continue
            read, write = meter.read.copy(), meter.write.copy()
            if not read.latency_s.count:  # from memory, or many at once and not measured yet
                read.note(PROBE_BYTES, queue.read_service_s, 1, sequential=False)
                if queue.writes:
                    write.note(PROBE_BYTES, queue.write_service_s, 1, sequential=False)
            depth = max(1, queue.member.depth)
            found.append(MemberLoad(role, read, write, self.access.queue_means[role], depth))
        return found

    async def measure(self, *, patiently: bool = False) -> None:
        """Read a little of every member with few reads, for a first estimate of its speed.

        Members without a read for a minute are measured again: a disk that was busy may be idle
        now, and a copy that once answered late gets no more reads. Ends early when a request comes,
        unless *patiently*.
        """
        context = self.context
        now_s = context.member_set.clock()
        again = now_s - self._measured_s >= MEASURE_AGAIN_S
        if again:
            self._measured_s = now_s
        for role, queue in by_role(context.member_set.readable):
            if queue is None:
                continue
            meter = self.meter(role, queue)
            enough = PROBE_READS
            if again and queue.reads == self._reads_seen.get(role):
                enough = queue.reads + PROBE_READS
            room = self._room_chunks(role) * context.chunk_bytes - PROBE_BYTES
            while queue.reads < enough or meter.read.latency_s.count < SAMPLES_MIN:
                if self._is_wanted() and not patiently:
                    return
                place = self._random.randrange(room // PROBE_BYTES + 1) * PROBE_BYTES
                taken_s = await self._probe(role, [place], PROBE_BYTES)
                if taken_s is None:
                    break
                meter.read.note(PROBE_BYTES, taken_s, 1, sequential=False)
            if not meter.read.at_once_s.count:
                places = [
                    self._random.randrange(room // PROBE_BYTES + 1) * PROBE_BYTES
                    for _ in range(RUN_READS)
                ]
                taken_s = await self._probe(role, places, PROBE_BYTES)
                if taken_s is None:
                    continue
                meter.read.at_once_s.add(taken_s / RUN_READS)
            if not meter.read.byte_s.count and room > 2 * RUN_READS * RUN_BYTES:
                for begins in (True, False):
                    first = 0 if begins else RUN_READS
                    places = [(first + number) * RUN_BYTES for number in range(RUN_READS)]
                    taken_s = await self._probe(role, places, RUN_BYTES)
                    if taken_s is None:
                        break
                    if not begins and taken_s > 0:
                        each_s = taken_s / RUN_READS
                        meter.read.note(RUN_BYTES, each_s, 1, sequential=True)
            if again:
                self._reads_seen[role] = queue.reads

    def _room_chunks(self, role: Role) -> int:
        """Return how far chunks lie on *role*: a disk seeks less far there than over all of it."""
        layout = self.layout
        return min(max(layout.used_chunks()[role], PROBE_READS), layout.chunks_of(role))

    async def _probe(self, role: Role, places: Sequence[int], size: int) -> float | None:
        """Return the seconds for reads of *size* at *places*, all at once; None if one fails.

        None also if the member is known not to read one of them: it would be failed for that.
        """
        member_set, offset = self.context.member_set, self.context.member_set.data_offset
        began_s = member_set.clock()
        requests: list[MemberRead] = []
        for place in places:
            at = offset + place
            if member_set.unreadable.pages(role, at, at + size):
                return None
            requests.append((role, at, [memoryview(bytearray(size))], size))
        try:
            await member_set.read(requests, background=True)
        except MemberLostError:
            return None
        return member_set.clock() - began_s
