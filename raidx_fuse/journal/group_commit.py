"""Group commit: small writes that arrive together go to the journal in one record.

A record for each costs as much as the write itself (a system call for each log member, a checksum,
a header). Where many requests wait in the queue, the door (fuse/session_loop.py) need not answer
each one before it takes the next:

    handler --> journal: gathers the write; readers see it at once, nobody was told that it is done
       `--> awaits `held`: the door keeps the handler and runs the next request's
    queue empty, or enough held --> `CommitBatch.write`: one record --> the handlers go on and
    answer

From the first to the last nothing else runs: the door writes the record before trio runs another
task. So only what runs in a handler can meet a gathering that is not written, and the journal
writes it before anything else that takes space in the ring.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Sequence
from typing import Any

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.store.member_set import MemberIO

CHANGE_BYTES_MAX = 40 << 10  # of a change that is gathered: copying larger ones costs more
DATA_BYTES_MAX = 320 << 10  # of one record; with its headers less than twice that


class Deferral:
    """*holds*: whether the handler that runs now may be held. Set by whoever can hold it.

    Only while that one steps the handler: what other tasks write is never gathered. *wrote*: set by
    a handler that writes, for the door to know whether writes come together.
    """

    __slots__ = ("holds", "wrote")

    def __init__(self) -> None:
        self.holds = self.wrote = False


DEFERRAL = Deferral()


class CommitBatch:
    """Changes of *stripes* that one record will hold: its *fields*, *parts* and *data_bytes*.

    *write* makes the record. If a log member does not take it at once, the gathering is late: it
    has an event *over* then, set when *left* is written too or has failed with *error*, and
    *locked* stripes until then. None of its changes may be placed or acknowledged before.
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
    """Return when *batch* is written; its *left* may not be."""
    yield batch
