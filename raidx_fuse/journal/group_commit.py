"""Group commit: small writes that arrive together go to the log in one record (a commit batch).

A record for each write costs as much as the write itself: a system call for each log member, a
checksum, a header. If many requests wait in the queue, the session loop (fuse/session_loop.py) need
not answer each one before it takes the next:

    handler --> journal: adds the write to the batch; readers see it, nobody has an answer yet
       `--> awaits `held`: the session loop suspends this handler and runs the next one
    queue empty, or enough handlers deferred --> `CommitBatch.write`: one record
       `--> the deferred handlers go on and answer

No other task runs in between: the session loop writes the record before trio runs another task.
Only code that runs in a handler can therefore see a batch that is not written, and the journal
writes the batch before anything else that takes space in the ring.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.log_record import ENTRY_BYTES, RecordBody
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.store.member_io import MemberIO
from raidx_fuse.store.overlay import Overlay

CHANGE_BYTES_MAX = 40 << 10  # of one write in a batch: copying larger ones costs more
BATCH_BYTES_MAX = 320 << 10  # of a batch: one with as much takes no further write


class Deferral:
    """What those who step handlers tell the journals of these handlers; made for each process.

    *holds*: whether the reply of the running handler may be deferred. The session loop sets it only
    while it steps a handler, so that writes of other tasks never join a batch. *wrote*: a handler
    that writes sets it, which tells the session loop whether writes come together.
    """

    __slots__ = ("holds", "wrote")

    def __init__(self) -> None:
        self.holds = self.wrote = False

    def allow(self, holds: bool) -> None:
        """Let the reply of the handler that runs next be deferred, or not."""
        self.holds = holds

    def note_write(self) -> None:
        self.wrote = True

    def take_wrote(self) -> bool:
        """Return whether a handler has written since the last call."""
        wrote, self.wrote = self.wrote, False
        return wrote


class LocksOfStripes(Protocol):
    """The operations on the array's stripe locks that the log needs while a batch is late."""

    def take_free(self, stripes: Iterable[Stripe]) -> list[Stripe]:
        """Lock those of *stripes* that are free, without waiting; return the locked ones."""
        ...

    def release_all(self, stripes: Iterable[Stripe]) -> None:
        """Release the locks of *stripes*."""

    def require_held(self, stripes: Iterable[Stripe]) -> None:
        """Raise LawError unless the locks of *stripes* are held."""


class CommitBatch:
    """Changes of *stripes* that one record will hold: its *body*.

    *room_bytes*: what is free in the ring beside a full batch and what is kept there already. The
    parities that follow the changes of this batch must fit into it.

    *write* writes the record. If a log member does not take it synchronously, the batch is *late*:
    the requests *left* are still to be written, and *locked* are the stripes locked until then.
    The event *over* is set when they are written or have failed with *error*. None of the batch's
    changes may be checkpointed or acknowledged before.
    """

    __slots__ = (
        "body",
        "error",
        "left",
        "locked",
        "over",
        "room_bytes",
        "sequence",
        "stripes",
        "write",
        "written",
    )

    def __init__(self, write: Callable[[], None], sequence: int, room_bytes: int) -> None:
        self.write = write
        self.written = False
        self.body = RecordBody()
        self.room_bytes = room_bytes
        self.stripes: list[Stripe] = []
        self.sequence = sequence
        self.left: Sequence[MemberIO] = ()
        self.locked: Sequence[Stripe] = ()
        self.over: trio.Event | None = None
        self.error: RaidxError | None = None

    def add(
        self,
        stripe: Stripe,
        writes: Sequence[MemberIO],
        is_unsettled: bool,
        kept_bytes: int,
        overlay: Overlay,
    ) -> None:
        """Take *writes* of *stripe*, and show them in *overlay*.

        *is_unsettled*: their parity follows, for which *kept_bytes* of the ring are kept.
        """
        self.body.add_data(writes, stripe if is_unsettled else None)
        put = overlay.put
        for role, offset, (buffer,), _ in writes:
            put(role, offset, buffer)
        self.room_bytes -= kept_bytes
        self.stripes.append(stripe)

    @property
    def body_bytes(self) -> int:
        """The size of the record so far, without its header."""
        return self.body.data_bytes + ENTRY_BYTES * self.body.entries


@types.coroutine
def held(batch: CommitBatch) -> Generator[CommitBatch, None, None]:
    """Suspend the handler until *batch* is written; its requests *left* may still be missing."""
    yield batch
