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
from collections.abc import Callable, Generator, Sequence
from typing import Any

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.store.member_io import MemberIO

CHANGE_BYTES_MAX = 40 << 10  # of one write in a batch: copying larger ones costs more
DATA_BYTES_MAX = 320 << 10  # of a batch; its record, headers included, has less than twice that


class Deferral:
    """Flags that the session loop and the handler that it runs exchange.

    *holds*: whether the reply of the running handler may be deferred. The session loop sets it only
    while it steps a handler, so that writes of other tasks never join a batch. *wrote*: a handler
    that writes sets it, which tells the session loop whether writes come together.
    """

    __slots__ = ("holds", "wrote")

    def __init__(self) -> None:
        self.holds = self.wrote = False


DEFERRAL = Deferral()


class CommitBatch:
    """Changes of *stripes* that one record will hold: its *fields*, *parts* and *data_bytes*.

    *write* writes the record. If a log member does not take it synchronously, the batch is *late*:
    the requests *left* are still to be written, and *locked* are the stripes locked until then.
    The event *over* is set when they are written or have failed with *error*. None of the batch's
    changes may be checkpointed or acknowledged before.
    """

    __slots__ = (
        "data_bytes",
        "error",
        "fields",
        "left",
        "locked",
        "over",
        "parts",
        "sequence",
        "stripes",
        "write",
        "written",
    )

    def __init__(self, write: Callable[[], None], sequence: int) -> None:
        self.write = write
        self.written = False
        self.fields: list[int] = []
        self.parts: list[Any] = []
        self.data_bytes = 0
        self.stripes: list[int] = []
        self.sequence = sequence
        self.left: Sequence[MemberIO] = ()
        self.locked: Sequence[int] = ()
        self.over: trio.Event | None = None
        self.error: RaidxError | None = None


@types.coroutine
def held(batch: CommitBatch) -> Generator[CommitBatch, None, None]:
    """Suspend the handler until *batch* is written; its requests *left* may still be missing."""
    yield batch
