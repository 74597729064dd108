"""What one workload did: the record of its disks, its history, and who was out when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from raidx_fuse.format.regions import Regions
from raidx_fuse.lab.crash.history import History
from raidx_fuse.lab.crash.requests.image_parts import Parts
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.sparse import Image

NO_DISK = -1
"""Who holds a role that was given up."""


@dataclass
class Recording:
    """One workload that was run: the *record* of its disks and its *history*.

    *out*: (role, from event, to event) while a role may be without a member; *damaged*: events
    between which parity is wrong on purpose; *holders*: (event, role, disk) when a role's disk
    changed; *heirs*: (from event, to event, role, role that its disk may hold instead by then);
    *limits*: (event, most) from which on no more than so many may be lost.

    *memory* of the images and members *lent* to the last state that was judged, by disk number: the
    next one has them, as fresh memory costs more than its content.
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
    heirs: list[tuple[int, float, int, int]] = field(default_factory=list)
    limits: list[tuple[int, int]] = field(default_factory=list)
    zeroed: bool = False
    memory: dict[int, Image] = field(default_factory=dict)
    lent: dict[int, RamMember] = field(default_factory=dict)

    def tolerance(self, moment: int) -> int:
        """Return how many members may be lost at *moment*."""
        limits = [most for event, most in self.limits if event <= moment]
        return min([self.layout.code.tolerance, *limits])

    def roles_out(self, moment: int) -> frozenset[int]:
        """Return the roles that the workload itself may have left without a whole member."""
        return frozenset(role for role, begin, end in self.out if begin < moment < end)

    def roles(self, moment: int) -> list[int]:
        """Return the roles that somebody held by then, one after the other."""
        latest = {role: disk for event, role, disk in self.holders if event <= moment}
        return sorted(role for role, disk in latest.items() if disk != NO_DISK)

    def holder(self, role: int, moment: int) -> int:
        """Return the disk that holds *role* when nothing is out."""
        return [disk for event, r, disk in self.holders if r == role and event <= moment][-1]

    def is_damaged(self, moment: int) -> bool:
        """Say whether parity is wrong on purpose at *moment*: nothing may be lost then."""
        return any(begin < moment < end for begin, end in self.damaged)

    def roles_of(self, lost: tuple[int, ...], moment: int) -> frozenset[int]:
        """Return the roles that loses its member when the disks *lost* go."""
        return frozenset(r for r in self.roles(moment) if self.holder(r, moment) in lost)

    def away(self, moment: int, roles: frozenset[int]) -> frozenset[int]:
        """Return *roles*, and those that whoever is away with them may hold instead."""
        heirs = {h for begin, end, role, h in self.heirs if begin <= moment < end and role in roles}
        return roles | heirs

    def losses(self, moment: int, generator: random.Random) -> tuple[int, ...]:
        """Draw disks to lose at *moment*, within what the code tolerates; often one fewer."""
        if self.is_damaged(moment) or not self.tolerance(moment):
            return ()
        out = self.roles_out(moment)
        whole = [r for r in self.roles(moment) if r not in out]
        most = max(0, min(self.tolerance(moment) - len(out), len(whole)))
        chosen = generator.sample(whole, generator.randint(min(1, most), most))
        lost = {self.holder(role, moment) for role in chosen}
        if out:  # whatever was or is to be in that role may come or not
            free = set(range(len(self.record.starts))) - {
                self.holder(role, moment) for role in whole
            }
            lost.update(disk for disk in sorted(free) if generator.random() < 0.4)
        return tuple(sorted(lost))
