"""What one workload did: the record of its disks, its history, and which roles were lost when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from raidx_fuse.format.regions import Regions
from raidx_fuse.lab.crash.durable import changes
from raidx_fuse.lab.crash.history import History
from raidx_fuse.lab.crash.requests.image_parts import Parts
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.sparse import Image

PROMISED = 4  # weight of a moment at which a flush has just returned; other moments have 1
CHANGED = 12  # weight of the moments right after members or the layout have changed
TEMPTING = 40  # weight of the moments that a theme has made for a cut
AFTER_CHANGE = 6  # so many moments
NO_DISK = -1
"""The disk number of a role that was given up."""


@dataclass
class Recording:
    """One workload that was run: the *record* of its disks and its *history*.

    - *out*: (role, from event, to event) in which a role may be without a member;
    - *damaged*: (from event, to event) in which parity is wrong on purpose;
    - *holders*: (event, role, disk), for each change of a role's disk;
    - *successors*: (from event, to event, role, other role that its disk may hold by then);
    - *limits*: (event, most), ascending: from this event on, so many members may be lost, at most;
    - *has_poison*: disks may have sectors that cannot be read (disks.py);
    - *poisoned*: (event, disk, byte offset, content) of each sector that became unreadable;
    - *tempting*: moments that the theme has made for caches that store the last write first;
    - *memory*, *lent*: by disk number, the images and RAM members of the state that was checked
      last. The next state uses them again, because new memory costs more than filling it.
    """

    cell: Cell
    seed: int
    record: CutRecord
    history: History
    layout: Layout
    parts: Parts
    regions: Regions
    holders: list[tuple[int, int, int]] = field(default_factory=list)
    out: list[tuple[int, int, float]] = field(default_factory=list)
    damaged: list[tuple[int, float]] = field(default_factory=list)
    successors: list[tuple[int, float, int, int]] = field(default_factory=list)
    limits: list[tuple[int, int]] = field(default_factory=list)
    zeroed: bool = False
    has_poison: bool = False
    poisoned: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    tempting: list[int] = field(default_factory=list)
    memory: dict[int, Image] = field(default_factory=dict)
    is_one_array: bool = True
    lent: dict[int, RamMember] = field(default_factory=dict)

    def verb_at(self, moment: int) -> str:
        """Return the verb of what was done at *moment*."""
        return self.history.timeline.verb_at(moment)

    def weights(self) -> list[int]:
        """Return for each moment how much likelier than others it is to be tried."""
        promised = {span.end_event for span in self.history.flushes}
        moments = range(len(self.record.events) + 1)
        weights = [PROMISED if m in promised else 1 for m in moments]
        for event in changes(self.record):
            for moment in moments[event : event + AFTER_CHANGE]:
                weights[moment] = CHANGED
        for moment in self.tempting:
            weights[moment] = TEMPTING
        return weights

    def tolerance(self, moment: int) -> int:
        """Return how many members may be lost at *moment*."""
        limits = [most for event, most in self.limits if event <= moment]
        return limits[-1] if limits else self.layout.code.tolerance

    def roles_out(self, moment: int) -> frozenset[int]:
        """Return the roles that the workload itself may have left without a whole member."""
        return frozenset(role for role, begin, end in self.out if begin < moment < end)

    def roles(self, moment: int) -> list[int]:
        """Return the roles that a disk held at *moment*, in rising order."""
        latest = {role: disk for event, role, disk in self.holders if event <= moment}
        return sorted(role for role, disk in latest.items() if disk != NO_DISK)

    def holder(self, role: int, moment: int) -> int:
        """Return the number of the disk that holds *role* at *moment* if no member is lost."""
        return [disk for event, r, disk in self.holders if r == role and event <= moment][-1]

    def is_damaged(self, moment: int) -> bool:
        """Return whether parity is wrong on purpose at *moment*: no member may be lost then."""
        return any(begin < moment < end for begin, end in self.damaged)

    def roles_of(self, lost: tuple[int, ...], moment: int) -> frozenset[int]:
        """Return the roles that lose their member if the disks *lost* are lost at *moment*."""
        return frozenset(r for r in self.roles(moment) if self.holder(r, moment) in lost)

    def under(self, disk: int, moment: int) -> dict[int, bytes] | None:
        """Return what the unreadable sectors of *disk* held at *moment*, as `SectorDisk` wants."""
        if not self.has_poison:
            return None
        poisoned = [
            (at, content) for event, n, at, content in self.poisoned if n == disk and event < moment
        ]
        return dict(poisoned)

    def away(self, moment: int, roles: frozenset[int]) -> frozenset[int]:
        """Return *roles*, and the other roles that their disks may hold at *moment*."""
        others = {
            other
            for begin, end, role, other in self.successors
            if begin <= moment < end and role in roles
        }
        return roles | others

    def losses(self, moment: int, generator: random.Random) -> tuple[int, ...]:
        """Draw the disks to lose at *moment*: at most as many as the code tolerates."""
        if self.is_damaged(moment) or not self.tolerance(moment):
            return ()
        out = self.roles_out(moment)
        whole = [r for r in self.roles(moment) if r not in out]
        most = max(0, min(self.tolerance(moment) - len(out), len(whole)))
        chosen = generator.sample(whole, generator.randint(min(1, most), most))
        lost = {self.holder(role, moment) for role in chosen}
        if out:  # the old and the new disk of such a role may be present or not
            free = set(range(len(self.record.starts))) - {
                self.holder(role, moment) for role in whole
            }
            lost.update(disk for disk in sorted(free) if generator.random() < 0.4)
        return tuple(sorted(lost))
