"""The laws that a running array holds itself to, and what happens when one is about to be broken.

A check stands where the harm would begin, before it:

    if position + size > self.end:
        raise laws.broken(Law.SIZE, f"{size} bytes at {position}")

The request or the job fails with `LawError`, an event says so (daemon/events/sources.py), and the
array continues. A check costs a comparison, and none stands in a healthy read or in a small write
that does not suspend. The modules that are named state the laws at length, with their reasons.
"""

from __future__ import annotations

import logging
from enum import Enum

from raidx_fuse.errors import RaidxError, Reason

SAID_MAX = 100  # by events

log = logging.getLogger(__name__)


class Law(Enum):
    """What holds, for each law; tests/pool/test_laws.py breaks every one."""

    # requests and volumes: engine/gate.py, pool/array_volumes.py, pool/transfer.py
    GATE = "no request is inside while extents, shape, roles or the mode of the log change"
    PUBLISHED = "nothing is acknowledged before all superblocks have the configuration"
    DISCARD = "a discard stays inside the places that the table has for its volume"
    RANGES = "no range is in two volumes, nor to be wiped and in a volume"
    WINDOW = "a volume move copies nothing outside its window"
    WATERMARK = "a volume move passes no byte that has no place on one of the arrays"
    # members: store/member_set.py, store/queue.py, store/sums.py, store/sum_memory.py,
    # format/superblock.py
    SIZE = "nothing is written beyond the end of a member"
    READ_ONLY = "nothing is written to an array that was started read-only"
    ONCE = "an operation of a member ends once"
    REACHED = "a round of superblocks reaches no member that is excluded"
    EVENTS = "no superblock is replaced by an older configuration"
    WHOLE = "a page of an array with checksums is written whole"
    LOADED = "a checksum is asked for, or set, while its table is in memory"
    # stripes: engine/changed_regions.py, store/stripe_locks.py, store/dirty_bitmap.py
    NOTED = "no home place changes in a stripe that is not noted while a member is absent"
    LOCKED = "no stripe changes but under its lock"
    ORDER = "stripe locks are taken in rising order"
    MARKED = "no mark of a region is cleared under a write"
    UNMARKED = "no region is marked when the dirty bitmap takes another layout"
    # the log: journal/journal.py, journal/unsettled.py, engine/write/route.py
    BYPASS = "no write goes past the log to a stripe whose records may be redone"
    SETTLED = "no parity is logged for a stripe whose data waits for its own"
    ROLES = "no role is taken while a record that was planned for its member is being written"
    ROOM = "no record takes space of the log that recovery needs"
    TAIL = "the tail of the log moves forward, to a record or to the end"
    FROZEN = "one checkpoint at a time freezes the layers"
    PARITY = "no home place is written before the parity of its stripe is logged"
    KEPT = "the space that is kept for parities is never negative"
    EMPTY = "the log changes its members, or its place, while it is empty"
    # jobs: jobs/rebuild.py, engine/growth_position.py, engine/move_chunks.py
    REBUILT = "a rebuild passes no stripe whose lock another task holds"
    SAVED = "no old copy of a growth becomes stale before the position is saved"
    PLACE = "a chunk moves to a free place, or to that of a chunk that moves too"


class LawError(RaidxError):
    """A bug: a law that content depends on was about to be broken. Only the request has failed."""

    reason = Reason.BUG

    def __init__(self, law: Law, what: str) -> None:
        super().__init__(f"bug: {what}: {law.value}", action="report it, with the log of the mount")
        self.law = law


class Laws:
    """The laws of one array; *said* are those that were about to be broken, each once."""

    __slots__ = ("said",)

    def __init__(self) -> None:
        self.said: list[str] = []

    def broken(self, law: Law, what: str) -> LawError:
        """Return the error for *what* was about to break *law*; an event says so."""
        return self.note(LawError(law, what))

    def note(self, error: LawError) -> LawError:
        """Have an event say *error*, of code that knows no array; return it."""
        log.critical("%s", error)
        if error.message not in self.said and len(self.said) < SAID_MAX:
            self.said.append(error.message)
        return error
