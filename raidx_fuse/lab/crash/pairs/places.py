"""Where the operations of a pair meet, and how many states of each meeting are crashed."""

from __future__ import annotations

import random
from collections import deque
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
