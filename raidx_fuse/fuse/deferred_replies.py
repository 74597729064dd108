"""Deferred replies: session loops wait, so that their writes share one record (group commit).

A session loop of pyfuse3 receives a request, runs its handler and answers. A handler that is held
(journal/group_commit.py) suspends its loop without trio's knowledge, and another loop takes the
next request:

    worker's loop --- held --> held, while an idle loop (or a new one) looks for the next request
    queue empty, HELD_MAX held, a request that wrote nothing, trio to run --> the record is written;
    each held loop continues in turn: it answers, asks for a request, and becomes an idle loop

So here a `HeldHandlers` holds whole session loops.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Generator
from typing import Any

from raidx_fuse.journal.group_commit import Deferral, Handler, HeldHandlers


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


class DeferredReplies(HeldHandlers[None]):
    """The held loops and the *idle_loops* of one session.

    *finishing* is true while a loop runs only to answer. *finish* finishes a loop in its own task,
    *resumes* is called before one continues.
    """

    def __init__(
        self, finish: Callable[[Handler], None], resumes: Callable[[], None], deferral: Deferral
    ) -> None:
        super().__init__(lambda loop, _: finish(loop), deferral)
        self.idle_loops: list[Handler] = []
        self.finishing = False
        self._resumes = resumes

    def release_before(self, front: Handler) -> tuple[Handler, Any] | None:
        """Write the records and run each held loop until it is idle.

        If a loop suspends, return that loop with its trap, for trio; *front*, the caller's loop,
        becomes idle. Raises StopIteration when the session is over.
        """
        done = False
        self.finishing = True
        try:
            suspended = self.release()
            done = suspended is None
        finally:
            self.finishing = False
            if not done:
                self.idle_loops.append(front)
        return None if suspended is None else suspended[:2]

    def _step(self, handler: Handler) -> Any:
        self._resumes()
        trap = handler.send(None)
        if trap is not SPARE:
            return trap
        self.idle_loops.append(handler)
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
