"""What one workload did: the record of its disks, its histories, which roles were lost when.

From the event on at which a configuration is durable on all of its members, the array counts on
what it says, whatever is lost: it names a member whole, so any other one may go. What the running
array has in memory promises nothing yet.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from raidx_fuse.errors import FormatError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.regions import PAGE_BYTES, SUPERBLOCK_SLOT_BYTES, Regions
from raidx_fuse.format.superblock import Superblock, decode_superblock
from raidx_fuse.lab.crash.disks import SLOTS_BYTES
from raidx_fuse.lab.crash.hardware import Parts
from raidx_fuse.lab.crash.history import History, Timeline
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.powercut import CutRecord, Image

PROMISED = 4  # weight of a moment at which a flush has just returned; other moments have 1
MOVING = 4  # of a moment at which a volume moves
CHANGED = 12  # weight of the moments right after members or the layout have changed
TEMPTING = 40  # weight of the moments that a theme has made for a cut
AFTER_CHANGE = 6  # so many moments
NO_DISK = -1
"""The disk number of a role that was given up."""


class _Slots:
    """The superblocks of one disk: those that are durable, and the writes that are not yet."""

    def __init__(self) -> None:
        self._durable: dict[int, Superblock | None] = {}
        self._open: deque[tuple[int, bytes] | None] = deque()

    def write(self, offset_bytes: int, data: bytes) -> None:
        """Note a write, to a slot or elsewhere."""
        self._open.append((offset_bytes, data) if offset_bytes < SLOTS_BYTES else None)

    def flush(self, covered: int) -> bool:
        """Make the first *covered* writes durable; return whether a superblock is among them."""
        is_changed = False
        for _ in range(covered):
            if (written := self._open.popleft()) is not None:
                slot = written[0] // SUPERBLOCK_SLOT_BYTES
                try:
                    self._durable[slot] = decode_superblock(written[1], slot)
                except FormatError:
                    self._durable[slot] = None
                is_changed = True
        return is_changed

    def newest(self) -> Superblock | None:
        found = [superblock for superblock in self._durable.values() if superblock is not None]
        return max(found, key=lambda superblock: superblock.sequence, default=None)


def settled(record: CutRecord, begin: int = 0) -> Iterator[tuple[int, ArrayConfig]]:
    """Yield (event, config): from *event*, which is at least *begin*, all members have *config*.

    All members that it calls active, durably. Superblocks that the disks had before the record
    do not count.
    """
    disks = [_Slots() for _ in record.starts]
    for index, event in enumerate(record.events):
        if event.operation == "write":
            disks[event.member].write(event.offset_bytes, event.data)
        elif event.operation == "flush" and disks[event.member].flush(event.covered):
            held = {s.member_uuid: s for disk in disks if (s := disk.newest()) is not None}
            config = max((s.config for s in held.values()), key=lambda c: c.events)
            active = (r.member_uuid for r in config.members if r.role >= 0 and r.state == "active")
            if index + 1 >= begin and all(
                uuid in held and held[uuid].events == config.events for uuid in active
            ):
                yield index + 1, config


def changes(record: CutRecord) -> Iterator[int]:
    """Yield the events at which other members, or another layout, became durable everywhere."""
    before = None
    for event, config in settled(record):
        members = [(m.role, m.state, m.member_uuid) for m in config.members]
        now = config.layout, config.width, config.params, members
        if before not in (None, now):
            yield event
        before = now


def durable_since(record: CutRecord, begin: int, holds: Callable[[ArrayConfig], bool]) -> int:
    """Return the first event from *begin* on at which a configuration that *holds* is durable.

    Returns the number of events if there is none: the next one, at the earliest.
    """
    found = (event for event, config in settled(record, begin) if holds(config))
    return next(found, len(record.events))


@dataclass
class Roles:
    """Which disk holds which role of one array when, and which roles may be without one.

    - *layout*, *regions*: those at the beginning;
    - *holders*: (event, role, disk), for each change of a role's disk;
    - *out*: (role, from event, to event) in which a role may be without a member;
    - *damaged*: (from event, to event) in which parity is wrong on purpose;
    - *successors*: (from event, to event, role, other role that its disk may hold by then);
    - *limits*: (event, most), ascending: from this event on, so many members may be lost, at most.
    """

    layout: Layout
    regions: Regions
    holders: list[tuple[int, int, int]] = field(default_factory=list)
    out: list[tuple[int, int, float]] = field(default_factory=list)
    damaged: list[tuple[int, float]] = field(default_factory=list)
    successors: list[tuple[int, float, int, int]] = field(default_factory=list)
    limits: list[tuple[int, int]] = field(default_factory=list)

    # -- what the workload notes ---------------------------------------------------------------

    def take_out(self, role: int, event: int) -> int:
        """Note that *role* may be without a member from *event* on; return the number of that."""
        self.out.append((role, event, math.inf))
        return len(self.out) - 1

    def take_in(self, out: int, event: int, disk: int | None = None) -> None:
        """Note that the role of `out[out]` is whole from *event* on, with another *disk* or not."""
        role, begin, _ = self.out[out]
        self.out[out] = (role, begin, event)
        if disk is not None:
            self.holders.append((event, role, disk))

    def repair(self, event: int) -> None:
        """Note that parity is right again from *event* on."""
        self.damaged[-1] = (self.damaged[-1][0], event)

    # -- what a cut may meet -------------------------------------------------------------------

    def tolerance(self, moment: int) -> int:
        """Return how many members may be lost at *moment*."""
        limits = [most for event, most in self.limits if event <= moment]
        return limits[-1] if limits else self.layout.code.tolerance

    def out_at(self, moment: int) -> frozenset[int]:
        """Return the roles that the workload itself may have left without a whole member."""
        return frozenset(role for role, begin, end in self.out if begin < moment < end)

    def present(self, moment: int) -> list[int]:
        """Return the roles that a disk held at *moment*, in rising order."""
        latest = {role: disk for event, role, disk in self.holders if event <= moment}
        return sorted(role for role, disk in latest.items() if disk != NO_DISK)

    def holder(self, role: int, moment: int) -> int:
        return [disk for event, r, disk in self.holders if r == role and event <= moment][-1]

    def is_damaged(self, moment: int) -> bool:
        """Return whether parity is wrong on purpose at *moment*: no member may be lost then."""
        return any(begin < moment < end for begin, end in self.damaged)

    def of(self, disks: tuple[int, ...] | frozenset[int], moment: int) -> frozenset[int]:
        """Return the roles that lose their member if *disks* are lost at *moment*."""
        return frozenset(r for r in self.present(moment) if self.holder(r, moment) in disks)

    def away(self, lost: frozenset[int], moment: int) -> frozenset[int]:
        """Return the roles that may be without a whole member when the disks *lost* are lost."""
        roles = self.out_at(moment) | self.of(lost, moment)
        return roles | {
            other
            for begin, end, role, other in self.successors
            if begin <= moment < end and role in roles
        }

    def unexpected(
        self, roles: frozenset[Role], lost: Iterable[int], moment: int
    ) -> frozenset[Role]:
        """Return those of *roles* that should have a member at *moment*: the array's disks *lost*
        are not theirs."""
        return roles - self.away(frozenset(lost), moment)

    def losses(
        self, moment: int, generator: random.Random, least: int, disks: Iterable[int]
    ) -> frozenset[int]:
        """Draw at least *least* of the array's *disks* to lose, if the code tolerates it."""
        if self.is_damaged(moment) or not self.tolerance(moment):
            return frozenset()
        out = self.out_at(moment)
        whole = [r for r in self.present(moment) if r not in out]
        most = max(0, min(self.tolerance(moment) - len(out), len(whole)))
        chosen = generator.sample(whole, generator.randint(min(least, most), most))
        lost = {self.holder(role, moment) for role in chosen}
        if out:  # the old and the new disk of such a role may be present or not
            free = set(disks) - {self.holder(role, moment) for role in whole}
            lost.update(disk for disk in sorted(free) if generator.random() < 0.4)
        return frozenset(lost)


@dataclass
class Rot:
    """From event *begin* to *end* pages of *stripe* are not what was written there.

    *sectors*: the workload's sectors in them, or that depend on them. *is_lost*: nothing gives them
    back, though the layout has redundancy.
    """

    begin: int
    end: float
    stripe: int
    sectors: frozenset[int]
    is_lost: bool = False

    def repair(self, event: int) -> None:
        """Note that all is what was written from *event* on."""
        self.end = min(self.end, event)


@dataclass(frozen=True, slots=True)
class RotWhileOff:
    """Pages rot while the power is off, if it goes at an event from *begin* to *end*.

    *places*: (stripe, disk, byte on the disk) of pages that nobody writes to by then. In each
    stripe those of at most *liars* disks rot.
    """

    begin: int
    end: int
    places: tuple[tuple[int, int, int], ...]
    liars: int

    def covers(self, moment: int) -> bool:
        """Return whether pages rot when the power goes at *moment*."""
        return self.begin <= moment <= self.end

    def strike(self, images: dict[int, Image], generator: random.Random) -> None:
        """Let pages of some stripes rot in *images*, by disk."""
        stripes = sorted({stripe for stripe, _, _ in self.places})
        for stripe in generator.sample(stripes, generator.randint(1, min(4, len(stripes)))):
            mine = [(disk, at) for one, disk, at in self.places if one == stripe]
            disks = sorted({disk for disk, _ in mine})
            liars = generator.sample(disks, generator.randint(1, self.liars))
            for disk, at in mine:
                if disk in liars and generator.random() < 0.7:
                    inside = at + generator.randrange(PAGE_BYTES)
                    (old,) = images[disk][inside : inside + 1]
                    images[disk][inside : inside + 1] = bytes([old ^ 1 << generator.randrange(8)])


@dataclass
class Recording:
    """One workload that was run: the *record* of its disks, and the *volumes*.

    - *arrays*: the roles of each array; one array without a pool has one volume, of all its
      *parts*;
    - *array_of*: the array of each disk of a pool;
    - *filling*: (from event, to event) in which writes of whole stripes to volumes are under way,
      so that no member may be lost;
    - *has_poison*: disks may have sectors that cannot be read (disks.py);
    - *has_ends*: the disks have superblocks at both ends, and any front may be lost with the power;
    - *poisoned*: (event, disk, byte offset, content) of each sector that became unreadable;
    - *sums_begin*: some pages may have no checksum: they are switched on, or a write was refused;
    - *log_moves*: what the log of the beginning leaves others may take: it can be read always;
    - *rotten*: where disks lie about what they hold, though checksums know it;
    - *rot_while_off*: what rots when the power goes;
    - *tempting*: moments that the theme has made for caches that store the last write first;
    - *memory*, *lent*: by disk number, the images and RAM members of the state that was checked
      last. The next state uses them again, because new memory costs more than filling it.
    """

    cell: Cell
    seed: int
    record: CutRecord
    timeline: Timeline
    volumes: list[History]
    arrays: Sequence[Roles]
    parts: Parts = field(default_factory=lambda: Parts([(0, 0)]))
    array_of: list[int] = field(default_factory=list)
    filling: list[tuple[int, float]] = field(default_factory=list)
    zeroed: bool = False
    has_poison: bool = False
    has_ends: bool = False
    sums_begin: bool = False
    log_moves: bool = False
    poisoned: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    rotten: list[Rot] = field(default_factory=list)
    rot_while_off: RotWhileOff | None = None
    tempting: list[int] = field(default_factory=list)
    memory: dict[int, Image] = field(default_factory=dict)
    lent: dict[int, RamMember] = field(default_factory=dict)

    @property
    def is_pool(self) -> bool:
        return len(self.arrays) > 1

    @property
    def history(self) -> History:
        (history,) = self.volumes
        return history

    @property
    def roles(self) -> Roles:
        (roles,) = self.arrays
        return roles

    def verb_at(self, moment: int) -> str:
        return self.timeline.verb_at(moment)

    def rots_at(self, moment: int) -> bool:
        """Return whether pages rot when the power goes at *moment*."""
        return self.rot_while_off is not None and self.rot_while_off.covers(moment)

    def weights(self) -> list[int]:
        """Return for each moment how much likelier than others it is to be tried."""
        moments = range(len(self.record.events) + 1)
        if self.is_pool:
            return [MOVING if self.verb_at(m) in ("move", "swap") else 1 for m in moments]
        promised = {span.end_event for span in self.history.flushes}
        weights = [PROMISED if m in promised else 1 for m in moments]
        for event in changes(self.record):
            for moment in moments[event : event + AFTER_CHANGE]:
                weights[moment] = CHANGED
        for moment in self.tempting:
            weights[moment] = TEMPTING
        return weights

    def is_whole(self, out: int, disk: int, begin: int) -> None:
        """Note that *disk*, which joined at *begin*, is whole in the role of `roles.out[out]`.

        That is so as soon as the superblocks are durable: then any other member may be lost.
        """
        role = Role(self.roles.out[out][0])

        def is_whole(config: ArrayConfig) -> bool:
            if role >= config.width:
                return False
            member = config.record(role)
            return member.state == "active" and member.path_hint == f"disk{disk}"

        self.roles.take_in(out, durable_since(self.record, begin, is_whole), disk)

    def under(self, disk: int, moment: int) -> dict[int, bytes] | None:
        """Return what the unreadable sectors of *disk* held at *moment*, as `SectorDisk` wants."""
        if not self.has_poison:
            return None
        poisoned = [
            (at, content) for event, n, at, content in self.poisoned if n == disk and event < moment
        ]
        return dict(poisoned)

    def of_array(self, array: int, disks: Iterable[int]) -> list[int]:
        """Return those of *disks* that *array* has."""
        return [disk for disk in disks if not self.is_pool or self.array_of[disk] == array]

    def losses(self, moment: int, generator: random.Random) -> tuple[int, ...]:
        """Draw the disks to lose at *moment*: of each array at most as many as its code allows."""
        if any(begin < moment < end for begin, end in self.filling) or self.rots_at(moment):
            return ()
        disks = range(len(self.record.starts))
        lost = (
            roles.losses(moment, generator, not self.is_pool, self.of_array(number, disks))
            for number, roles in enumerate(self.arrays)
        )
        return tuple(sorted(frozenset[int]().union(*lost)))
