"""Deferred replies: session loops wait, so that their writes share one record (group commit).

A session loop of pyfuse3 receives a request, runs its handler and answers. A handler that awaits
`CommitBatch.held` (journal/group_commit.py) suspends its loop without trio's knowledge, and another
loop takes the next request:

    worker's loop --- held --> loops, while an idle loop (or a new one) looks for the next request
    queue empty, HELD_MAX held, a request that wrote nothing, trio to run --> the record is written;
    each held loop continues in turn: it answers, asks for a request, and becomes an idle loop

All of this happens in one step of the worker's task, so that no other task sees a held loop. If a
continued handler does suspend (its record completes asynchronously), the worker stays with it, and
the remaining held loops get tasks of their own. The same happens to all held loops when the loop in
front suspends.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from raidx_fuse.journal.group_commit import CommitBatch, Deferral

HELD_MAX = 8

Loop = Coroutine[Any, Any, None]


class _Step:
    """What a loop yields to its worker instead of to trio."""


SPARE = _Step()  # the loop has answered and is idle
RELEASE = _Step()  # the held loops must continue first


@types.coroutine
def idle() -> Generator[_Step, None, None]:
    """Suspend an idle loop; it returns when the loop must take a request."""
    yield SPARE


@types.coroutine
def release() -> Generator[_Step, None, None]:
    """Return when no loop is held any more."""
    yield RELEASE


class DeferredReplies:
    """The held *loops*, in order, and the *idle_loops* of one session.

    *finishing* is true while a loop runs only to answer. *finish* finishes a loop in its own task.
    *deferral* tells the journals.
    """

    def __init__(self, finish: Callable[[Loop], None], deferral: Deferral) -> None:
        self.loops: list[Loop] = []
        self.idle_loops: list[Loop] = []
        self.finishing = False
        self._finish = finish
        self.deferral = deferral
        self._batches: list[CommitBatch] = []

    def hold(self, loop: Loop, batch: CommitBatch) -> None:
        """Hold *loop*, whose handler's write is in *batch*."""
        self.loops.append(loop)
        if batch not in self._batches:
            self._batches.append(batch)

    def _write(self) -> list[Loop]:
        """Write the records; return the held loops. A write that raises drops them unanswered."""
        loops, self.loops = self.loops, []
        batches, self._batches = self._batches, []
        for batch in batches:
            if not batch.written:
                batch.write()
        return loops

    def let_go(self) -> None:
        """Write the records; each held loop continues in a task of its own."""
        for loop in self._write():
            self._finish(loop)

    def release(self, front: Loop, before: Callable[[], None]) -> tuple[Loop, Any] | None:
        """Write the records and run each held loop until it is idle, calling *before* each time.

        If a loop suspends, the run ends: return that loop with its trap, for trio; *front*, the
        caller's loop, becomes idle. Raises StopIteration when the session is over.
        """
        loops = self._write()
        self.deferral.allow(False)  # handlers that continue must not be held again
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

    def finish_step(self, step: Callable[[Any], Any], sent: Any) -> Any:
        """Return the trap of one *step* of a loop that runs only to answer."""
        self.finishing = True
        try:
            return step(sent)
        finally:
            self.finishing = False

    def close(self) -> None:
        """Run the idle loops to their end, which frees their buffers. The session must be over."""
        while self.idle_loops:
            with contextlib.suppress(StopIteration):
                self.idle_loops.pop().send(None)
