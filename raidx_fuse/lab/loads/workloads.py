"""Loads like the papers' traces: generated from published statistics, seeded, as streams.

    for block in generate("financial1", seed=1, requests=100_000):
        block.at_s, block.is_write, block.offset_bytes, block.length_bytes

`request.requests_of` turns blocks into single `Request`s. `variant` changes a workload's numbers:

    generate(variant("uniform", read_share=0.0, span_bytes=array.size_bytes, rate_s=500))

`raidx_fuse.lab.loads.request` fits any load to an array, a length and a speed. No load depends on a
layout. The model, whose numbers are in published.py:

- arrivals: batches, and a hyperexponential distribution of two branches between them; in batches
  pairs, one request to each of two devices;
- directions: a Markov chain of two states;
- sizes: a weighted mix;
- addresses: Zipf's law or a hot spot over scattered slots, and sequential runs, in which a request
  begins where the last one on its device ended; a log and fixed places among the writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.loads.published import WORKLOADS, Sizes, Workload
from raidx_fuse.lab.loads.request import (
    BLOCK_REQUESTS,
    FITS,
    Block,
    Bools,
    Floats,
    Ints,
    after,
    faster,
    first,
    fit,
    mean_rate_s,
    times,
)
from raidx_fuse.lab.loads.traces import JOINED, Trace, check_asus

RECENT = 8  # writes, of which one may be repeated


def workload_named(name: str) -> Workload:
    """Return the published workload *name*. Raises UsageError with the most similar name."""
    if name not in WORKLOADS:
        near = get_close_matches(name, WORKLOADS, 1)
        raise UsageError(
            f"no generated load {name!r}",
            action=f"did you mean {near[0]}?" if near else f"choose from {', '.join(WORKLOADS)}",
        )
    return WORKLOADS[name]


def variant(name: str | Workload, **numbers: Any) -> Workload:
    """Return a workload with some of its *numbers* changed (the fields of `Workload`).

    *length_bytes* sets the size of reads and writes. A new *span_bytes* without *slots* keeps the
    distance between slots. Raises UsageError for an unknown name or an impossible number.
    """
    base = workload_named(name) if isinstance(name, str) else name
    length = numbers.pop("length_bytes", None)
    if length is not None:
        numbers["read_sizes"] = numbers["write_sizes"] = ((int(length), 1.0),)
    known = {field.name for field in fields(Workload)}
    for key in numbers:
        if key not in known:
            near = get_close_matches(key, [*known, "length_bytes"], 1)
            raise UsageError(
                f"{base.name}: no number {key!r}",
                action=f"did you mean {near[0]}?" if near else f"choose from {sorted(known)}",
            )
    if "span_bytes" in numbers and "slots" not in numbers:
        stride = max(base.align_bytes, base.span_bytes // base.slots)
        numbers["slots"] = max(1, int(numbers["span_bytes"]) // stride)
    made = replace(base, **numbers)
    _check(made)
    return made


def _check(work: Workload) -> None:
    shares = [work.read_share, work.batch_share, work.op_memory, work.sequential, work.hot_share]
    shares += [work.log_share, work.fixed_share, work.pair_share, work.batch_mixed, work.log_batch]
    shares += [work.write_sequential or 0.0, work.rewrite_share]
    together = work.pair_share / 2 + (1 - work.read_share) * work.log_share * work.log_batch
    wrong = (
        "a share is outside 0 to 1"
        if not all(0 <= share <= 1 for share in shares)
        else "rate_s, cv, slots and span_bytes are above 0"
        if min(work.rate_s, work.cv, work.slots, work.span_bytes) <= 0
        else "not more than a share of 0.99 arrives together"
        if work.batch_share > 0.99
        else "a request is not empty, and not longer than the span"
        if not all(0 < size <= work.span_bytes for size, _ in work.read_sizes + work.write_sizes)
        else "batch_share includes the second requests of pairs and what comes with the log"
        if together > work.batch_share
        else "pair_share needs pair_bytes"
        if work.pair_share and not work.pair_bytes
        else "log_share and fixed_share are one at most, and need log_bytes and fixed_places"
        if work.log_share / (1 - work.pair_share or 1) + work.fixed_share > 1
        or (work.log_share and not 0 < work.log_bytes <= work.span_bytes // work.streams)
        or (work.fixed_share and not 0 < work.fixed_places <= work.slots)
        else "unused_for needs more than twice as many slots"
        if work.unused_for * 2 > work.slots
        else None
    )
    if wrong:
        raise UsageError(f"{work.name}: {wrong}")


def generate(
    work: str | Workload,
    *,
    seed: int = 0,
    requests: int | None = None,
    block_requests: int = BLOCK_REQUESTS,
) -> Iterator[Block]:
    """Yield *requests* requests with the statistics of *work* (default: as many as the trace has).

    The same arguments give the same requests on every machine. Raises UsageError.
    """
    work = variant(work) if isinstance(work, str) else work
    return _Generator(work, seed).blocks(requests or work.requests, block_requests)


class _Generator:
    """The state of one generated load between blocks."""

    def __init__(self, work: Workload, seed: int) -> None:
        self.work = work
        # One generator for each property: another share of reads does not change the addresses.
        drawing = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(7))
        self._arrivals, self._ops, self._sizes, self._places, scatter, *more = drawing
        self._kinds, self._groups = more
        apart = work.pair_bytes or ((0, 1.0),)
        self._beside = _draw(apart, self._groups.random(work.streams))
        self._device_bytes = -(-work.span_bytes // work.streams)
        self._log_end = 0
        self._time_s = 0.0
        self._last_is_write = bool(self._ops.random() >= work.read_share)
        self._ends = np.zeros(work.streams, dtype=np.int64)
        self._stride = max(1, work.span_bytes // work.slots // work.align_bytes)
        self._order = scatter.permutation(work.slots).astype(np.int64)
        self._cumulative: Floats | None = None  # Zipf's distribution over the ranks
        if work.zipf:
            weights = np.arange(1, work.slots + 1, dtype=np.float64) ** -work.zipf
            self._cumulative = np.cumsum(weights)
            self._cumulative /= self._cumulative[-1]
        self._last_used = np.full(work.slots if work.unused_for else 0, -(1 << 60), dtype=np.int64)
        self._done = 0

    def blocks(self, requests: int, block_requests: int) -> Iterator[Block]:
        work = self.work
        while requests > 0:
            count = min(requests, block_requests)
            requests -= count
            which = self._whose(count)  # below: columns of what is single or the first of a pair
            second = np.diff(which, prepend=-1) == 0
            paired = np.bincount(which) > 1
            is_write = self._directions(len(paired))
            chance = self._sizes.random(len(is_write))
            read, written = _draw(work.read_sizes, chance), _draw(work.write_sizes, chance)
            length = np.where(is_write, written, read)
            logged, fixed = self._kinds_of(is_write, paired)
            length[logged] = work.log_bytes
            places = np.flatnonzero(is_write & ~logged)
            source = self._rewritten(places, fixed)
            free = ~(logged | fixed)
            free[places[source != places]] = False
            offset = self._offsets(is_write, length, free)
            if work.log_share or work.fixed_share:
                self._apart(offset, length, logged, fixed)
            offset[places], length[places] = offset[source], length[source]
            together = np.where(second, 1.0, self._together(is_write, logged)[which])
            offset, length = offset[which], length[which]
            if work.pair_share:
                offset[second] = self._second_places(offset[second], length[second])
            yield Block(self._times(together), is_write[which], offset, length)
            self._done += len(paired)

    def _whose(self, count: int) -> Ints:
        """Return for each request which it belongs to of the single requests and pairs."""
        half = self.work.pair_share / 2
        twice = self._groups.random(count) < half / (1 - half)
        return np.repeat(np.arange(count), 1 + twice)[:count]

    def _rewritten(self, places: Ints, fixed: Bools) -> Ints:
        """Return for the writes at *places* which of them each repeats: most repeat themselves."""
        count, share = len(places), self.work.rewrite_share
        source = np.arange(count)
        if share:
            again, back = self._groups.random((2, count))
            # The square prefers the newest, as the trace does.
            before = source - 1 - (RECENT * back**2).astype(np.int64)
            source = np.where((again < share) & ~fixed[places] & (before >= 0), before, source)
            while not np.array_equal(source, source[source]):  # what repeats a repetition
                source = source[source]
        return places[source]

    def _second_places(self, first: Ints, length: Ints) -> Ints:
        work, device_bytes = self.work, self._device_bytes
        device, at = np.divmod(first, device_bytes)
        at = (at + self._beside[device]) % device_bytes
        place: Ints = (device + 1) % work.streams * device_bytes + at
        place = place // work.align_bytes * work.align_bytes
        return np.minimum(place, work.span_bytes - length)

    def _together(self, is_write: Bools, logged: Bools) -> Floats:
        """Return the probability that a single request or a pair arrives with the one before."""
        work = self.work
        seconds = work.pair_share / 2
        writes = 1 - work.read_share
        after = writes + work.read_share * work.op_memory  # probability of a write after a write
        both = writes * after
        log = writes * work.log_share / (1 - seconds) if work.log_batch else 0.0
        wanted = (work.batch_share - seconds) / (1 - seconds) - log * work.log_batch
        mixed = work.batch_mixed
        weight = both + (1 - both) * mixed - log * (after + (1 - after) * mixed)
        # What begins a block counts as one after a read: once in many thousands.
        was_write, was_log = np.roll(is_write, 1), np.roll(logged, 1)
        was_write[0] = was_log[0] = False
        chance = wanted / weight * np.where(is_write & was_write, 1.0, mixed)
        if work.log_batch:
            chance[was_log] = work.log_batch
        return chance

    def _times(self, together: Floats) -> Floats:
        """Return arrival times. Gaps are zero (batches), with the probabilities *together*, or
        drawn from a balanced hyperexponential distribution that yields the workload's mean and cv.
        """
        work = self.work
        alone = 1 - work.batch_share
        mean_s = 1 / work.rate_s / alone
        square = max(1.0, (work.cv**2 + 1) * alone - 1)  # squared cv of the gaps that are not zero
        short = (1 + sqrt((square - 1) / (square + 1))) / 2
        chance = self._arrivals.random((3, len(together)))
        means = np.where(chance[0] < short, mean_s / (2 * short), mean_s / (2 * (1 - short) or 1))
        gaps = -np.log1p(-chance[1]) * means
        gaps[chance[2] < together] = 0.0
        times: Floats = self._time_s + np.cumsum(gaps)
        self._time_s = float(times[-1])
        return times

    def _directions(self, count: int) -> Bools:
        work = self.work
        chance = self._ops.random((2, count))
        fresh = chance[0] >= work.op_memory
        drawn = chance[1] >= work.read_share
        newest = np.maximum.accumulate(np.where(fresh, np.arange(count), -1))
        is_write: Bools = np.where(newest >= 0, drawn[newest], self._last_is_write)
        self._last_is_write = bool(is_write[-1])
        return is_write

    def _offsets(self, is_write: Bools, length: Ints, free: Bools) -> Ints:
        work = self.work
        slots = self._fresh_slots(len(length)) if work.unused_for else self._slots(len(length))
        offsets: Ints = slots * self._stride * work.align_bytes
        offsets = np.minimum(offsets, work.span_bytes - length)
        if work.sequential or work.write_sequential:
            of_writes = work.sequential if work.write_sequential is None else work.write_sequential
            share = np.where(is_write, of_writes, work.sequential)
            runs_on = self._places.random(len(length)) < share
            self._continue_runs(offsets, length, runs_on, free)
        return offsets

    def _slots(self, count: int) -> Ints:
        work = self.work
        chance = self._places.random(count)
        if self._cumulative is not None:
            ranks = np.searchsorted(self._cumulative, chance, side="right")
            return self._order[np.minimum(ranks, work.slots - 1)]
        if work.hot_share:
            hot = max(1, int(work.hot_slots * work.slots))
            cold = max(1, work.slots - hot)
            is_hot = self._places.random(count) < work.hot_share
            ranks = np.where(is_hot, chance * hot, np.minimum(hot + chance * cold, work.slots - 1))
            return self._order[ranks.astype(np.int64)]
        return np.minimum((chance * work.slots).astype(np.int64), work.slots - 1)

    def _fresh_slots(self, count: int) -> Ints:
        """Return uniform random slots, none of them used in the last *unused_for* requests."""
        slots = np.empty(count, dtype=np.int64)
        step = max(1, min(4096, self.work.unused_for))
        for start in range(0, count, step):
            part = slots[start : start + step]
            numbers = self._done + start + np.arange(len(part))
            open_places = np.arange(len(part))
            while len(open_places):
                part[open_places] = self._places.integers(0, self.work.slots, len(open_places))
                again = np.ones(len(part), dtype=np.bool_)
                again[np.unique(part, return_index=True)[1]] = False
                again |= numbers - self._last_used[part] <= self.work.unused_for
                open_places = np.flatnonzero(again)
            self._last_used[part] = numbers
        return slots

    def _continue_runs(self, offsets: Ints, length: Ints, runs_on: Bools, free: Bools) -> None:
        """Move the requests selected by *runs_on* to the end of the last one on their device.

        Only those that are *free* count: a run goes on beside a log.
        """
        work, device_bytes = self.work, self._device_bytes
        device = offsets // device_bytes
        for number in np.unique(device).tolist():
            mine = np.flatnonzero((device == number) & free)
            if not len(mine):
                continue
            size, on = length[mine], runs_on[mine]
            # A run begins at a request that is not sequential, or at the end of the last block.
            head = np.maximum.accumulate(np.where(on, -1, np.arange(len(mine))))
            before = np.cumsum(size) - size
            begun = head >= 0
            start = np.where(begun, offsets[mine][head], self._ends[number])
            at = start + before - np.where(begun, before[head], 0)
            first, last = number * device_bytes, min((number + 1) * device_bytes, work.span_bytes)
            over = at + size > last  # wraps to the device's beginning
            at[over] = first + (at[over] - first) % max(1, last - first - int(size.max()))
            at = np.clip(at, 0, work.span_bytes - size)
            offsets[mine] = at
            self._ends[number] = at[-1] + size[-1]

    def _kinds_of(self, is_write: Bools, paired: Bools) -> tuple[Bools, Bools]:
        """Return which requests append to the log, and which write one of the fixed places."""
        work = self.work
        chance = np.where(is_write, self._kinds.random(len(is_write)), 1.0)
        # No append is one of a pair: among single writes the log's share is larger.
        log = np.where(paired, 0.0, work.log_share / (1 - work.pair_share))
        logged = chance < log
        return logged, ~logged & (chance < log + work.fixed_share)

    def _apart(self, offset: Ints, length: Ints, logged: Bools, fixed: Bools) -> None:
        """Move the requests that are *logged* to the log's end, *fixed* ones to fixed places."""
        work = self.work
        appended = self._log_end + work.log_bytes * np.arange(int(logged.sum()), dtype=np.int64)
        room = work.span_bytes // work.streams // max(1, work.log_bytes) * work.log_bytes
        offset[logged] = appended % room if len(appended) else appended
        self._log_end += work.log_bytes * len(appended)
        if fixed.any():
            # The last ranks: the first ones are Zipf's own hot places.
            drawn = self._kinds.integers(0, work.fixed_places, int(fixed.sum()))
            places = self._order[work.slots - 1 - drawn]
            at = places * self._stride * work.align_bytes
            offset[fixed] = np.minimum(at, work.span_bytes - length[fixed])


def _draw(sizes: Sizes, chance: Floats) -> Ints:
    values = np.array([size for size, _ in sizes], dtype=np.int64)
    weights = np.cumsum([weight for _, weight in sizes])
    index = np.searchsorted(weights / weights[-1], chance, side="right")
    drawn: Ints = values[np.minimum(index, len(values) - 1)]
    return drawn


ABSTRACT = ("uniform", "zipf", "hotspot")  # they have no span of their own: they use the image's


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A load by name.

    - *name*: a generated load, or the path of a trace.
    - *requests*, *seconds*: use only the first ones; seconds count in the load's own time.
    - *skip*: of a trace, leave out so many requests before them.
    - *speed*: the load runs so many times as fast; or *rate_s*: so many requests a second on
      average, of those that are used.
    - *factor*: addresses are multiplied by it, before they are fitted; sizes stay.
    - *fit*: how addresses are mapped onto the image (`fit`).
    - *asus*: of a trace, see traces.py.
    - *seed*, *numbers* (fields of `Workload`): for generated loads only.
    """

    name: str
    requests: int | None = None
    seconds: float | None = None
    skip: int = 0
    rate_s: float | None = None
    speed: float = 1.0
    factor: int = 1
    asus: str = JOINED
    fit: str = "fold"
    seed: int = 0
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_generated(self) -> bool:
        return self.name in WORKLOADS

    def check(self) -> None:
        """Raise UsageError if a field is impossible, before anything is built."""
        if self.fit not in FITS:
            raise UsageError(f"no way to fit addresses {self.fit!r}: {', '.join(FITS)}")
        if not self.speed > 0 or not (self.rate_s is None or self.rate_s > 0):
            raise UsageError("speed and rate are above 0")
        if not 1 <= self.factor <= 1 << 20:
            raise UsageError(f"the factor of addresses is a whole number from 1, not {self.factor}")
        if self.requests is not None and self.requests < 1:
            raise UsageError(f"a load has at least one request, not {self.requests}")
        if self.skip < 0:
            raise UsageError(f"a load cannot leave out {self.skip} requests")
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise UsageError(f"a load takes more than 0 seconds, not {self.seconds}")
        check_asus(self.asus)
        if self.is_generated and self.asus != JOINED:
            raise UsageError(f"{self.name} is generated: it has no ASUs to choose from")
        if self.is_generated and self.skip:
            raise UsageError(f"{self.name} is generated: it has a seed, and nothing to skip")
        if self.is_generated:
            variant(self.name, **self.numbers)
        elif self.numbers:
            raise UsageError(f"{self.name} is a trace: its numbers cannot be chosen")
        elif Path(self.name).exists():
            Trace(self.name, asus=self.asus)
        else:
            raise UsageError(
                f"{self.name!r} is neither a file nor a generated load",
                action=f"generated are {', '.join(WORKLOADS)}",
            )

    def load(self, size_bytes: int) -> Iterator[Block]:
        """Return the load for an image of *size_bytes*. Raises UsageError, also while iterating."""
        self.check()
        speed = self.speed
        if self.is_generated:
            work = variant(self.name)
            if self.name in ABSTRACT and "span_bytes" not in self.numbers:
                work = variant(work, span_bytes=size_bytes)
            work = variant(work, **self.numbers)
            if self.rate_s is not None:
                work = replace(work, rate_s=self.rate_s / speed)
            # With a duration, more requests may be needed than the published trace has.
            count = 1 << 62 if self.seconds is not None else work.requests
            count = self.requests if self.requests is not None else count
            load = first(generate(work, seed=self.seed, requests=count), None, self.seconds)
            span_bytes = work.span_bytes
        else:
            trace = Trace(self.name, asus=self.asus)

            def used() -> Iterator[Block]:
                return first(after(trace, self.skip), self.requests, self.seconds)

            if self.skip and next(used(), None) is None:
                raise UsageError(
                    f"{self.name}: nothing is left behind the first {self.skip} requests",
                    action="repeat less often, or use fewer requests each time",
                )
            if self.rate_s is not None and (own_rate_s := mean_rate_s(used())):
                speed = self.rate_s / own_rate_s
            span_bytes = trace.span_bytes if self.fit == "scale" else 0
            load = used()
        load = faster(load, speed)
        if self.factor > 1:
            load = times(load, self.factor)
        return fit(load, size_bytes, self.fit, span_bytes * self.factor)
