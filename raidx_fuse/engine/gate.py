"""The gate: where requests and changes of places meet. One per volume, one per layout of an array.

    request   [fast path: never suspends, never enters] or: volume's gate -> layout's gate -> work
    job       layout's gate -> stripe locks -> one window -> out again
    closing   (1) wait for all inside now, gate open        (2) drain the log, gate open
              (3) close, wait for those that are left       (4) change memory, publish, open

A request looks up where its bytes lie and then works there; a change of places (a volume's extents,
the shape of an array, the roles of its members, the mode of its log) must not come between the two.
A request that does not suspend is one step to every other task, so nothing can come between, and it
needs no entry. Laws:

 1. A request that suspends is inside the gate of its volume, then inside that of the array's
    layout, until it is answered. A request that is inside does not enter again: parts of one over
    several extents pass their volume's gate once. A long discard enters the layout's gate batch by
    batch, as image offsets survive a change of the layout; the volume's gate it holds to its end.
 2. A write that has to wait for the window or the watermark of a volume move (pool/transfer.py)
    waits before it enters, and looks again after each wait. A write across the watermark is two
    writes: no request is inside the layout's gates of two arrays, and nothing closes two gates of a
    kind.
 3. What the requests inside wait for never enters a layout's gate, and runs while it is closed:
    checkpoints, logging of parity, mending, the resync of a stripe on demand, flushes, superblocks,
    records that are late. Some of these hold stripe locks: closing a layout's gate waits for these
    locks too (`ArrayContext.closed`).
 4. A job is inside for one window, and never while it is paused, throttled, retrying or ending:
    the end of a job closes the gate itself.
 5. Memory changes in (4) without an await, so that readers find all of it old or all of it new.
    While a layout's gate is closed no fast path writes; fast reads continue.
 6. Hot spares and failures close nothing: their members have nothing that a request could miss
    (store/member_set.py, role_epoch). An unmount closes nothing: front ends and jobs stop, then the
    log is drained.

The order of waiting, outermost first: the holder of one of these may wait for those further down,
and never for those further up:

    pool.starting, Membership.attaching          (a command that changes places)
    the turn of a closer, the gate of a volume   (closers, requests)
    Transfer window, Transfer._saving            (the copy of a volume move; writes that wait for
                                                  them are not inside a gate)
    the table of volumes (ArrayVolumes._changes)
    the gate of a layout                         (requests, windows of jobs, closers)
    stripe locks, in rising order
    journal: room in the ring, Journal.drain
    checkpoint (placing, settling), flush rounds, rounds of superblocks
    a member's answer, at most `io.timeout_s`

So everything inside a gate ends by itself, after waits that are bounded. (1) may last as long as
the longest request, a discard of a whole volume say, but delays no request: the gate is open. (3)
can be as long only if such a request began meanwhile. It is bounded: after `io.timeout_s` the gate
opens again, the change fails with BusyError, and the requests that came meanwhile continue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from raidx_fuse.errors import BusyError
from raidx_fuse.laws import Law, LawError, Laws


class Generation(list[None]):
    """The entries between two calls of `Gate.passed`: one item for each that is still inside.

    A list, because to enter and to leave is then no call of a function. *awaited*: a closer waits
    until it is empty.
    """

    __slots__ = ("awaited", "empty")

    def __init__(self) -> None:
        super().__init__()
        self.awaited = False
        self.empty = trio.Event()  # set when all have left, if *awaited*

    def leave(self) -> None:
        self.pop()
        if self.awaited and not self:
            self.empty.set()

    async def over(self) -> None:
        """Return when all have left; none enters any more."""
        if self:
            self.awaited = True
            await self.empty.wait()


class Gate:
    """The gate of *what*; see the module. *is_closed*: requests wait in front of it.

    *laws* are those of its array. *latest* are the entries since the last `passed`.
    """

    def __init__(self, what: str, laws: Laws | None = None) -> None:
        self.what = what
        self._laws = laws or Laws()
        self.is_closed = False
        self._on_turn: Callable[[], None] | None = None
        self._opens = trio.Event()  # set when a closed gate opens
        self._turn = trio.Lock()  # held by the closer
        self.latest = Generation()
        self._older: list[Generation] = []

    def rename(self, what: str) -> None:
        self.what = what

    def on_turn(self, call: Callable[[], None]) -> None:
        """Have *call* called, which does not suspend, when the gate was closed or opened."""
        self._on_turn = call

    # -- requests and windows --------------------------------------------------------------------

    def enter_now(self) -> Generation:
        """Enter the open gate; `leave` what is returned at the end. Raises LawError if closed."""
        if self.is_closed:
            raise self.refused()
        generation = self.latest
        generation.append(None)
        return generation

    def refused(self) -> LawError:
        """Return the error of a request that does not wait in front of the closed gate."""
        return self._laws.broken(Law.GATE, f"a request entered the closed gate of {self.what}")

    async def enter(self) -> Generation:
        await self.opened()
        return self.enter_now()

    async def opened(self) -> None:
        """Return when the gate is open; then do not suspend before entering."""
        while self.is_closed:
            await self._opens.wait()

    # -- changes ---------------------------------------------------------------------------------

    @property
    def inside(self) -> int:
        return len(self.latest) + sum(map(len, self._older))

    def require_empty(self, change: str) -> None:
        """Raise LawError if a request or window is inside while *change* is made."""
        if self.inside:
            under = f"{change} under {self.inside} requests of {self.what}"
            raise self._laws.broken(Law.GATE, under)

    async def passed(self) -> None:
        """Return when all that are inside now have left. The gate stays as it is."""
        if self.latest:
            self._older.append(self.latest)
            self.latest = Generation()
        for generation in list(self._older):
            await generation.over()
        self._older = [generation for generation in self._older if generation]

    @asynccontextmanager
    async def closed(
        self,
        limit_s: float,
        *,
        drain: Callable[[], Awaitable[None]] | None = None,
        quiet: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncIterator[None]:
        """Run the block while the gate is closed and empty; one caller at a time.

        *drain* is awaited before the gate closes, *quiet* when it is closed and empty; *quiet* is
        the last to suspend. Raises BusyError, with the gate open, if that takes longer than
        *limit_s*, and what *drain* raises.
        """
        async with self._turn:
            await self.passed()
            if drain is not None:
                await drain()
            self._set(closed=True)
            try:
                with trio.move_on_after(limit_s) as wait:
                    await self.passed()
                    if quiet is not None:
                        await quiet()
                if wait.cancelled_caught:
                    raise BusyError(
                        f"requests of {self.what} did not end within {limit_s:g} s",
                        action="try again when less is under way",
                    )
                yield
            finally:
                self._set(closed=False)

    def _set(self, *, closed: bool) -> None:
        self.is_closed = closed
        if closed:
            self._opens = trio.Event()
        else:
            self._opens.set()
        if self._on_turn is not None:
            self._on_turn()


# A request that suspends is inside two gates. The volume's is open, because a volume whose gate is
# closed does not pass requests on; the layout's may be closed.

Passage = tuple[Generation | None, Generation]


def enter_now(volume: Gate | None, layout: Gate) -> Passage:
    """Enter the gate of *volume* (None: it is inside) and that of *layout*, which are open."""
    outer = None
    if volume is not None:
        if volume.is_closed:
            raise volume.refused()
        outer = volume.latest
    if layout.is_closed:
        raise layout.refused()
    if outer is not None:
        outer.append(None)
    inner = layout.latest
    inner.append(None)
    return outer, inner


async def enter(volume: Gate | None, layout: Gate) -> Passage:
    """Enter the gate of *volume*, then wait for that of *layout*; for requests that find it closed.

    Otherwise `enter_now` does the same.
    """
    outer = None if volume is None else volume.enter_now()
    try:
        return outer, await layout.enter()
    except BaseException:
        if outer is not None:
            outer.leave()
        raise


def leave(passage: Passage) -> None:
    """Leave the gates that were entered."""
    for generation in passage:
        if generation is not None:
            generation.pop()
            if generation.awaited and not generation:
                generation.empty.set()
