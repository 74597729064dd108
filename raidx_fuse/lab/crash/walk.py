"""Crashing many workloads or the meetings of a pair, counting states, and replaying one of them."""

from __future__ import annotations

import gc
import logging
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from raidx_fuse.lab.crash.crashing import (
    Counts,
    crash_one,
    crash_recorded,
    recorded_or_failure,
    replay_one,
)
from raidx_fuse.lab.crash.pairs.play import Meeting, is_pair
from raidx_fuse.lab.crash.pairs.scene import PairRecording
from raidx_fuse.lab.crash.state import KEPT, Cell, Cut, State, Violation

STATES_MAX = 5  # of one meeting
PLACES = 6  # of one pair, unless all are asked for
WORKLOAD_STATES = 80  # of one workload: new workloads find more than more states of one
GARBAGE_OBJECTS = 10_000  # new ones, until the garbage collector looks at them
FAULTS = ("cut", "cut, disk lost", "recovery cut", "recovery cut, disk lost")


def crash_pair(
    cell: Cell,
    seed: int,
    budget: int,
    generator: random.Random,
    counts: Counts,
    *,
    every: bool = False,
) -> int:
    """Let the pair of *seed* meet at some places, or at *every* one, and crash each meeting.

    A meeting counts as a state, too: its content is compared before any cut. Returns how many
    states there were, about *budget* at most unless *every* place is asked for.
    """
    meeting = Meeting.of(cell, seed)
    before = budget
    places = deque([1, 0] if meeting.at is None else [meeting.at])
    while places and (budget > 0 or every):
        met = replace(cell, theme=str(meeting._replace(at=places[0])))
        recorded = recorded_or_failure(met, seed)
        if isinstance(recorded, str):
            counts.count(State(met, seed, Cut(0, KEPT)), "running", recorded)
            budget -= 1
        else:
            assert isinstance(recorded, PairRecording)
            if recorded.void:
                break
            counts.count(State(met, seed, Cut(0, KEPT)), "running", None)
            states = STATES_MAX if every else min(budget - 1, STATES_MAX)
            crash_recorded(recorded, states, generator, counts)
            budget -= 1 + states
            if meeting.at is None and places[0] == 1:  # how many places there are
                further = range(2, recorded.steps + 1)
                drawn = generator.sample(further, min(PLACES, len(further)))
                places.extend(further if every else drawn)
        places.popleft()
    return before - budget


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

    def count(self, state: State, verb: str, what: str | None) -> None:
        """Count *state*; *what* is the promise that it breaks, or None."""
        lost = any(cut.lost or cut.unread for cut in (state.cut, *state.again))
        fault = FAULTS[2 * bool(state.again) + lost]
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
    focus: str = "",
    each: int = WORKLOAD_STATES,
    every_place: bool = False,
) -> Tally:
    """Crash the workloads of *seeds* in turn; return the counts.

    Ends after *states* states, *each* at most of one workload, or *stop_after* violations. If the
    seeds are too few, they are used again with newly drawn states. With *focus* only moments of
    that verb are crashed, and each seed is used once: not every workload has such moments. The
    operations of a pair meet at *every_place*, else at some.
    """
    tally = Tally()
    with _quiet():
        for turn, seed in enumerate(_round(seeds)):
            if tally.total >= states or len(tally.violations) >= stop_after:
                return tally
            if (focus or is_pair(cell)) and turn == len(seeds):
                return tally
            budget = min(states - tally.total, each)
            tally.workloads += 1
            generator = random.Random(f"{cell} {seed} {turn // len(seeds)} cuts{focus}")
            if is_pair(cell):
                crash_pair(cell, seed, budget, generator, tally, every=every_place)
            else:
                crash_one(cell, seed, budget, generator, tally, focus)
    return tally


def replay(state: State) -> tuple[str, str | None]:
    """Run exactly *state* again; return its verb and the broken promise, None if there is none."""
    with _quiet():
        return replay_one(state)


def _round(seeds: Sequence[int]) -> Iterator[int]:
    while True:
        yield from seeds


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages of the engine: thousands of arrays lose members here.

    The garbage collector also looks less often, and not at what was there before: each array leaves
    cycles, and to look for them takes a twelfth of the time at Python's own thresholds. What it has
    not found in the end is collected then: once it counts as old, it is hardly ever looked for.
    """
    before, thresholds = logging.root.manager.disable, gc.get_threshold()
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
        gc.unfreeze()
        logging.disable(before)
