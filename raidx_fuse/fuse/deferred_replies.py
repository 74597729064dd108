"""Session loops that the door holds until their writes share one record (journal/group_commit.py).

A session loop of pyfuse3 receives a request, runs its handler and answers. One whose handler awaits
`gather.held` stands still without trio knowing, and another takes the next request:

    worker's loop --- held --> loops, while a spare loop (or a new one) looks for the next request
    queue empty, HELD_MAX held, a request that wrote nothing, trio to run --> the record is written;
    each held loop runs on in turn: it answers, comes back for work, and is a spare

All that passes in one step of the worker, so no other task sees a loop held. If a handler that goes
on suspends after all (its record is late), the worker stays with it, and those not yet run get
tasks of their own; so do all that are held when the loop in front suspends.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from raidx_fuse.journal.group_commit import DEFERRAL, CommitBatch

HELD_MAX = 8

Loop = Coroutine[Any, Any, None]


class _Step:
    """What a loop yields to its worker instead of to trio."""


SPARE = _Step()  # it has answered and nothing to do
RELEASE = _Step()  # what is held shall go on first


@types.coroutine
def idle() -> Generator[_Step, None, None]:
    """Return when the loop that awaits this is to take a request."""
    yield SPARE


@types.coroutine
def release() -> Generator[_Step, None, None]:
    """Return when no loop is held any more."""
    yield RELEASE


class DeferredReplies:
    """*loops* that are held, in order; *idle_loops*; *finishing* while a loop runs on only to
    answer.

    *finish* finishes a loop in a task of its own.
    """

    def __init__(self, finish: Callable[[Loop], None]) -> None:
        self.loops: list[Loop] = []
        self.idle_loops: list[Loop] = []
        self.finishing = False
        self._finish = finish
        self._gatherings: list[CommitBatch] = []

    def hold(self, loop: Loop, batch: CommitBatch) -> None:
        """Keep *loop*, whose handler's write is in *batch*."""
        self.loops.append(loop)
        if batch not in self._gatherings:
            self._gatherings.append(batch)

    def _write(self) -> list[Loop]:
        """Write the records. If that raises, their loops are dropped: they must not answer."""
        loops, self.loops = self.loops, []
        gatherings, self._gatherings = self._gatherings, []
        for batch in gatherings:
            if not batch.written:
                batch.write()
        return loops

    def let_go(self) -> None:
        """Write the records; every loop goes on in a task of its own."""
        for loop in self._write():
            self._finish(loop)

    def release(self, front: Loop, before: Callable[[], None]) -> tuple[Loop, Any] | None:
        """Write the records and run each loop until it is a spare, calling *before* each time.

        One that suspends ends this: it is returned with its trap, for trio, and *front*, which
        asked for this, is a spare. Raises StopIteration when the session is over.
        """
        loops = self._write()
        DEFERRAL.holds = False  # what a handler still does is its own
        self.finishing = True
        done = False
        try:
            while loops:
                loop = loops.pop(0)
                before()
                trap = loop.send(None)
                if trap is not SPARE:
                    return loop, trap
                self.idle_loops.append(loop)
            done = True
        finally:
            self.finishing = False
            if not done:
                self.idle_loops.append(front)
            for rest in loops:
                self._finish(rest)
        return None

    def close(self) -> None:
        """Run the spares to their end, which frees their buffers; the session must be over."""
        while self.idle_loops:
            with contextlib.suppress(StopIteration):
                self.idle_loops.pop().send(None)
