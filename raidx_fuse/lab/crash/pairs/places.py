"""Where the operations of a pair meet, and how many states of each meeting are crashed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from raidx_fuse.lab.crash.crashing import Counts, crash_recorded, recorded_or_failure
from raidx_fuse.lab.crash.pairs.play import Meeting, PairRecording
from raidx_fuse.lab.crash.state import KEPT, Cell, Cut, State

STATES_MAX = 5  # of one meeting
PLACES = 6  # of one pair, unless all are asked for


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
    at: int | None = meeting.at
    before = budget
    for place in _places(cell, meeting, seed, generator, every=every) if at is None else [at]:
        if budget <= 0 and not every:
            break
        met = replace(cell, theme=str(meeting._replace(at=place)))
        recorded = recorded_or_failure(met, seed)
        if isinstance(recorded, str):
            counts.count(State(met, seed, Cut(0, KEPT)), "running", recorded)
            budget -= 1
            continue
        assert isinstance(recorded, PairRecording)
        if recorded.void:
            break
        counts.count(State(met, seed, Cut(0, KEPT)), "running", None)
        states = min(budget - 1, STATES_MAX) if not every else STATES_MAX
        crash_recorded(recorded, states, generator, counts)
        budget -= 1 + states
    return before - budget


def _places(
    cell: Cell,
    meeting: Meeting,
    seed: int,
    generator: random.Random,
    *,
    every: bool,
) -> Iterator[int]:
    """Yield places at which the operations of *meeting* meet."""
    first = recorded_or_failure(replace(cell, theme=str(meeting._replace(at=1))), seed)
    yield 1
    if not isinstance(first, PairRecording) or first.void:
        return
    yield 0
    places = range(2, first.steps + 1)
    yield from places if every else generator.sample(places, min(PLACES, len(places)))
