"""Crashing one workload: boundaries x decisions x losses; some recoveries are crashed as well."""

from __future__ import annotations

import logging
import random
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.oracle import Left, judge_inside
from raidx_fuse.lab.crash.pool.walk import POOL, crash_pool, replay_pool
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import DROPPED, KEPT, Cell, Cut, State, Violation, ViolationError
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.members.simulated.powercut import CutRecord, DiskState, count_cuts
from raidx_fuse.members.simulated.sparse import Image
from raidx_fuse.members.simulated.virtual_time import run

ENUMERATED_MAX = 4  # up to so many combinations of whole writes, all are tried
DRAWN = 3  # random decisions where there are more combinations; one of them tears all writes
PROMISED = 4  # weight of a moment at which a flush has just returned; other moments have 1
AGAIN_SHARE = 0.03  # share of the states whose recovery is crashed as well
AGAIN_MOMENTS = 6
WORKLOAD_STATES = 80  # of one workload: new workloads find more than more states of one
FAULTS = ("cut", "cut, disk lost", "recovery cut", "recovery cut, disk lost")


@dataclass
class Tally:
    """Counts by (cell, verb, fault), and the broken promises."""

    states: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    workloads: int = 0

    @property
    def total(self) -> int:
        """How many states were run."""
        return sum(self.states.values())

    def count_workload(self) -> None:
        """Count one workload."""
        self.workloads += 1

    def count(self, state: State, verb: str, what: str | None) -> None:
        """Count *state*; *what* is the promise that it breaks, or None."""
        lost = bool(state.cut.lost or (state.again and state.again.lost))
        fault = FAULTS[2 * (state.again is not None) + lost]
        key = str(state.cell), verb, fault
        self.states[key] += 1
        if what is not None:
            self.failures[key] += 1
            self.violations.append(Violation(str(state), verb, fault, what))

    def report(self, most: int = 5) -> str:
        """Return the first violations as text."""
        return "\n".join(map(str, self.violations[:most]))

    def add(self, other: Tally) -> None:
        """Add the counts of another process."""
        self.states += other.states
        self.failures += other.failures
        self.violations += other.violations
        self.workloads += other.workloads


def crash_workloads(
    cell: Cell,
    seeds: Sequence[int],
    states: int,
    *,
    stop_after: int = 20,
) -> Tally:
    """Crash the workloads of *seeds* in turn; return the counts.

    Ends after *states* states or *stop_after* violations. If the seeds are too few, they are used
    again with newly drawn states.
    """
    tally = Tally()
    with _quiet():
        for turn, seed in enumerate(_round(seeds)):
            if tally.total >= states or len(tally.violations) >= stop_after:
                return tally
            budget = min(states - tally.total, WORKLOAD_STATES)
            _crash_one(cell, seed, budget, turn // len(seeds), tally)
    return tally


def replay(state: State) -> tuple[str, str | None]:
    """Run exactly *state* again; return its verb and the broken promise, None if there is none."""
    with _quiet():
        if state.cell.theme == POOL:
            return replay_pool(state)
        recording = _recorded(state.cell, state.seed)
        if isinstance(recording, str):
            return "running", recording
        verb = recording.history.verb_at(state.cut.moment)
        for index, disks, _event in recording.record.moments():
            if index == state.cut.moment:
                return verb, run(_what_breaks, recording, disks, state)
    return verb, f"the workload has no moment {state.cut.moment}: the code has changed"


def _round(seeds: Sequence[int]) -> Iterator[int]:
    while True:
        yield from seeds


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages of the engine: thousands of arrays lose members here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _recorded(cell: Cell, seed: int) -> Recording | str:
    """Return the workload of *seed*, or how it fails without a power cut: a violation, too."""
    try:
        return record_workload(cell, seed)
    except Exception as error:
        return f"the workload fails while running: {error!r}\n{traceback.format_exc()}"


def _crash_one(
    cell: Cell,
    seed: int,
    budget: int,
    turn: int,
    tally: Tally,
) -> None:
    tally.count_workload()
    if cell.theme == POOL:
        generator = random.Random(f"{cell} {seed} {turn} cuts")
        crash_pool(cell, seed, budget, generator, tally, _decisions)
        return
    recording = _recorded(cell, seed)
    if isinstance(recording, str):
        tally.count(State(cell, seed, Cut(0, KEPT)), "running", recording)
        return
    generator = random.Random(f"{cell} {seed} {turn} cuts")
    run(_crash_at_moments, recording, budget, generator, tally)


async def _crash_at_moments(
    recording: Recording, budget: int, generator: random.Random, tally: Tally
) -> None:
    """Crash *recording* about *budget* times and check what is left, all in one run of trio."""
    cell, seed = recording.cell, recording.seed
    promised = {span.end_event for span in recording.history.flushes}
    weights = [PROMISED if m in promised else 1 for m in range(len(recording.record.events) + 1)]
    left = sum(weights)
    for index, disks, _event in recording.record.moments():
        if budget <= 0:
            return
        # There are more moments than states: visit a random share of them.
        here = weights[index]
        visit = generator.random() * left * (DRAWN + 2) <= here * (budget + DRAWN + 2)
        left -= here
        if not visit:
            continue
        for decision in _decisions(disks, generator):
            lost = recording.losses(index, generator) if generator.random() < 0.55 else ()
            state = State(cell, seed, Cut(index, decision, lost))
            verb = recording.history.verb_at(index)
            tally.count(state, verb, await _what_breaks(recording, disks, state))
            budget -= 1
            if generator.random() < AGAIN_SHARE:
                budget -= await _crash_recovery(recording, disks, state, verb, generator, tally)


def _decisions(disks: Sequence[DiskState], generator: random.Random) -> list[str]:
    """Return the decisions to try at one moment: all combinations if they are few."""
    count = count_cuts(disks, torn=False)
    torn = f"t{generator.getrandbits(24)}"
    if count == 1:
        return [KEPT]
    if count <= ENUMERATED_MAX:
        return [*(f"e{number}" for number in range(count)), torn]
    drawn = [f"s{generator.getrandbits(24)}" for _ in range(DRAWN - 1)]
    return [generator.choice((DROPPED, KEPT)), *drawn, torn]


def _images(
    recording: Recording, disks: Sequence[DiskState], cut: Cut, numbers: Sequence[int]
) -> dict[int, Image]:
    """Return what *cut* leaves of *disks*, by number; lost disks and non-members are left out.

    The images use the memory of the images that the last call for *recording* returned.
    """
    images = {}
    memory = recording.memory
    for number, disk, decisions in zip(numbers, disks, cut.decisions(disks), strict=True):
        if number not in cut.lost:
            image = memory[number] = disk.crash(decisions, into=memory.get(number))
            if is_member(image):
                images[number] = image
    return images


def _left(recording: Recording, disks: Sequence[DiskState], cut: Cut) -> Left:
    moment = cut.moment
    images = _images(recording, disks, cut, range(len(disks)))
    out = recording.roles_out(moment) | recording.roles_of(cut.lost, moment)
    away = recording.away(moment, out)
    return Left(recording, moment, images, away, recording.history.at(moment))


async def _what_breaks(
    recording: Recording, disks: Sequence[DiskState], state: State
) -> str | None:
    """Return the promise that *state* breaks, or None."""
    left = _left(recording, disks, state.cut)
    try:
        if state.again is None:
            await judge_inside(left, state.generator("look"))
            return None
        record = await _record_recovery(left, state)
        for index, again, _event in record.moments():
            if index == state.again.moment:
                await _judge_again(left, again, state)
                return None
        return f"the recovery has no moment {state.again.moment}: the code has changed"
    except ViolationError as error:
        return str(error)


async def _record_recovery(left: Left, state: State) -> CutRecord:
    """Recover from *left*; return the record, and note the unpromised sectors in *left*."""
    record = CutRecord()
    first = replace(state, again=None)
    left.exempt_from_now(await judge_inside(left, first.generator("recovery"), record))
    return record


async def _judge_again(left: Left, disks: Sequence[DiskState], state: State) -> None:
    """Check what the cut of a recovery left of *disks*, the disks of *left*."""
    recording = left.recording
    assert state.again is not None
    images = _images(recording, disks, state.again, sorted(left.images))
    lost = recording.roles_of(state.again.lost, left.moment)
    away = left.away | recording.away(left.moment, lost)
    await judge_inside(replace(left, images=images, away=away), state.generator("look"))


async def _crash_recovery(
    recording: Recording,
    disks: Sequence[DiskState],
    state: State,
    verb: str,
    generator: random.Random,
    tally: Tally,
) -> int:
    """Crash the recovery from *state* at some of its boundaries; return the number of states."""
    left = _left(recording, disks, state.cut)
    try:
        record = await _record_recovery(left, state)
    except ViolationError as error:
        tally.count(state, verb, f"the recovery fails: {error}")
        return 1
    moments = len(record.events) + 1
    chosen = set(generator.sample(range(moments), min(AGAIN_MOMENTS, moments)))
    for index, again, _event in record.moments():
        if index not in chosen:
            continue
        decision = generator.choice(_decisions(again, generator))
        lost: tuple[int, ...] = ()
        if not state.cut.lost and generator.random() < 0.5:
            lost = recording.losses(state.cut.moment, generator)
        crashed = replace(state, again=Cut(index, decision, lost))
        what: str | None = None
        try:
            await _judge_again(left, again, crashed)
        except ViolationError as error:
            what = str(error)
        tally.count(crashed, verb, what)
    return len(chosen)
