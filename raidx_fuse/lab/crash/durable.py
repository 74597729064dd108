"""Which configuration of the array is durable on all of its members, and from which event on.

From that event on the array counts on what the configuration says, whatever is lost: it names a
member whole, so any other one may go. What the running array has in memory promises nothing yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from raidx_fuse.errors import FormatError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES, SUPERBLOCK_SLOTS
from raidx_fuse.format.superblock import Superblock, decode_superblock
from raidx_fuse.members.simulated.powercut import CutRecord

SLOTS_BYTES = SUPERBLOCK_SLOT_BYTES * SUPERBLOCK_SLOTS


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
        """Return the newest durable superblock."""
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
