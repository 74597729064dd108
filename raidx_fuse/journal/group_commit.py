"""Group commit: small writes that arrive together go to the log in one record (a commit batch).

A record for each write costs as much as the write itself: a system call for each log member, a
checksum, a header. If many requests wait in the queue, a front end (fuse/session_loop.py,
nbd/connection.py) need not answer each one before it takes the next. It steps the handlers of
requests itself, in one step of its task, and keeps those that wait for a record (`HeldHandlers`):

    handler --> journal: adds the write to the batch; readers see it, nobody has an answer yet
       `--> awaits `held`: the front end holds this handler and runs the next one
    queue empty, or HELD_MAX held --> `CommitBatch.write`: one record
       `--> each held handler continues in turn, and answers

No other task runs in between: the front end writes the record before trio runs another task. Only
code that runs in a handler can therefore see a batch that is not written, and the journal writes
the batch before anything else that takes space in the ring.

A task can wait for only one trap of trio. So the task stays with a handler that suspends, be it a
new one or one that continues (its record completes asynchronously), and the handlers that are held
then continue in tasks of their own.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import trio

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.log_record import ENTRY_BYTES, RecordBody
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.store.io_tuples import MemberIO
from raidx_fuse.store.overlay import Overlay

CHANGE_BYTES_MAX = 40 << 10  # of one write in a batch: copying larger ones costs more
BATCH_BYTES_MAX = 320 << 10  # of a batch: one with as much takes no further write
HELD_MAX = 8

Handler = Coroutine[object, object, None]
T = TypeVar("T")


class Deferral:
    """What front ends tell the journals of the handlers that they step; made for each process.

    *holds*: whether the reply of the running handler may be deferred. A front end sets it only
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


@dataclass(slots=True, eq=False)
class CommitBatch:
    """Changes of *stripes* that one record will hold: its *body*.

    *room_bytes*: what is free in the ring beside a full batch and what is kept there already. The
    parities that follow the changes of this batch must fit into it.

    *write* writes the record. If a log member does not take it synchronously, the batch is *late*:
    the requests *left* are still to be written, and *locked* are the stripes locked until then.
    The event *over* is set when they are written or have failed with *error*. None of the batch's
    changes may be checkpointed or acknowledged before.
    """

    write: Callable[[], None]
    sequence: int
    room_bytes: int
    written: bool = False
    body: RecordBody = field(default_factory=RecordBody)
    stripes: list[Stripe] = field(default_factory=list)
    left: Sequence[MemberIO] = ()
    locked: Sequence[Stripe] = ()
    over: trio.Event | None = None
    error: RaidxError | None = None

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


class HeldHandlers(Generic[T]):
    """The handlers that a front end holds, in order, each with what it calls the request.

    *finish* lets one continue in a task of its own (`continue_held`).
    *deferral* tells the journals.
    """

    def __init__(self, finish: Callable[[Handler, T], None], deferral: Deferral) -> None:
        self.held: list[tuple[Handler, T]] = []
        self.deferral = deferral
        self._finish = finish
        self._batches: list[CommitBatch] = []

    def run(self, handler: Handler, request: T) -> tuple[Handler, object, T] | None:
        """Step *handler*, which is new; if it suspends, return it with its trap, for trio."""
        try:
            trap = handler.send(None)
        except StopIteration:
            return None
        if trap.__class__ is not CommitBatch:
            return handler, trap, request
        self.hold(handler, trap, request)
        return None

    def hold(self, handler: Handler, batch: CommitBatch, request: T) -> None:
        """Hold *handler*, whose write is in *batch*."""
        self.held.append((handler, request))
        if batch not in self._batches:
            self._batches.append(batch)

    def let_go(self) -> None:
        """Write the records; each held handler continues in a task of its own."""
        for handler, request in self._write():
            self._finish(handler, request)

    def release(self) -> tuple[Handler, object, T] | None:
        """Write the records and let each held handler answer.

        If one suspends, that ends: return it with its trap, for trio.
        """
        held = self._write()
        self.deferral.allow(False)  # handlers that continue must not be held again
        try:
            while held:
                handler, request = held.pop(0)
                trap = self._step(handler)
                if trap is not None:
                    return handler, trap, request
        finally:
            for handler, request in held:
                self._finish(handler, request)
        return None

    def _write(self) -> list[tuple[Handler, T]]:
        """Write the records; return the held handlers. A write that raises drops them."""
        held, self.held = self.held, []
        batches, self._batches = self._batches, []
        for batch in batches:
            if not batch.written:
                batch.write()
        return held

    def _step(self, handler: Handler) -> object:
        """Return the trap of one step of *handler*, None if it has answered.

        `DeferredReplies` has its own: what it holds are session loops, which do not end then.
        """
        try:
            return handler.send(None)
        except StopIteration:
            return None


def pass_on(
    handler: Handler, trap: object
) -> Generator[object, object, tuple[Callable[[Any], object], object]]:
    """Give *trap* of *handler* to trio; return the next step of it, and what trio sends or throws.

    For a driver of handlers: ``step, sent = yield from pass_on(handler, trap)``.
    """
    try:
        return handler.send, (yield trap)
    except BaseException as error:
        return handler.throw, error


@types.coroutine
def to_its_end(handler: Handler, trap: object) -> Generator[object, object, None]:
    """Run *handler*, which has suspended with *trap*, to its end in this task."""
    try:
        while True:
            step, sent = yield from pass_on(handler, trap)
            trap = step(sent)
    except StopIteration:
        pass


async def continue_held(handler: Handler) -> None:
    """Run *handler*, which was held and whose record was written, to its end in this task."""
    await _rest_of(handler)


@types.coroutine
def _rest_of(handler: Handler) -> Generator[object, object, None]:
    yield from handler
