"""What one workload on two arrays did: the record of its disks, and what it did to its volumes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from raidx_fuse.lab.crash.history import History, Timeline
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.sparse import Image

MOVING = 4  # weight of a moment at which a volume moves; other moments have 1


@dataclass
class PoolRecording:
    """One workload that was run: the *record* of its disks and what it did to its volumes.

    *array_of*: the array of each disk; *tolerances* by array; *filling*: (from event, to event) in
    which writes of whole stripes are under way, so that no member may be lost; *memory*: the images
    of the state that was checked last, used again.
    """

    cell: Cell
    seed: int
    record: CutRecord
    timeline: Timeline
    volumes: list[History]
    array_of: list[int]
    tolerances: list[int]
    filling: list[tuple[int, float]]
    memory: dict[int, Image] = field(default_factory=dict)
    is_one_array: bool = False

    def verb_at(self, moment: int) -> str:
        """Return the verb of the move at *moment*, else of the latest action."""
        return self.timeline.verb_at(moment)

    def weights(self) -> list[int]:
        """Return for each moment how much likelier than others it is to be tried."""
        moments = range(len(self.record.events) + 1)
        return [MOVING if self.verb_at(m) in ("move", "swap") else 1 for m in moments]

    def losses(self, moment: int, generator: random.Random) -> tuple[int, ...]:
        """Draw the disks to lose at *moment*: of each array at most what its code tolerates."""
        if any(begin < moment < end for begin, end in self.filling):
            return ()
        lost: list[int] = []
        for number, most in enumerate(self.tolerances):
            disks = [disk for disk, array in enumerate(self.array_of) if array == number]
            lost += generator.sample(disks, generator.randint(0, most))
        return tuple(sorted(lost))
