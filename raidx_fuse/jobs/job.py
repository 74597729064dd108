"""The driver of every background job: lock a window, work, record progress, unlock, throttle.

A kind of job says what is to be done, by the methods under "what a kind of job defines". The driver
decides when, and is the same for all: it waits while `blocked`, enters the gate of the layout
(engine/gate.py) for the window, holds the locks, repeats a window during which a member was lost,
waits or pauses at errors, measures the rate, throttles, saves the position, turns round at a
cancel, and obeys pause and resume. A job that names no stripes, because the arrays lock their own,
is not inside the gate.

Speed limits work as in md: the job runs at *speed_min* while users access the array, and at up to
*speed_max* (0: no limit) while the array is idle. A window is small (about 1 MiB per member), so
that a user's write never waits long for it.

What a user's cancel does to a job, and what the next mount does with one that the unmount stopped:

    kind                    cancel                                       next mount
    grow, restripe          turns round: the array returns to its        continues at its position
                            old shape, unless it is ending already
    move (of volumes)       turns round: the volume on its way returns;  continues at its position
                            volumes that have arrived stay there
    rebuild                 ends; the role stays unfinished              continues at its position
    replace                 ends; the new member stays as a spare        continues at its position
    grow (of bundles)       ends; moved chunks stay, the new capacity    plans the rest anew
                            is what fits
    evacuate, restore       ends; moved chunks stay, the member stays    plans the rest anew
    resync                  ends; its regions stay dirty                 begins with what is dirty
    scrub, tuning           ends; what was repaired or moved stays       is forgotten

Jobs that move written blocks skip nothing. They wait until the cause of an error is removed
(*pauses*): while a host file system is full, the job tries again every few seconds; if content
cannot be read, the job pauses until the user resumes it. In a raidx array jobs that move chunks
wait instead, and try again; only a restoration gives up what nothing gives back.
A pause lasts until a user resumes the job, or until the next mount.

Positions are kept where the change is: of a growth in the superblocks (engine/growth_position.py),
of a restripe in the head page of the log (journal/journal.py), of a rebuild and a replacement in
the configuration (format/configuration/saved_jobs.py); `Array.start` (array/array.py) begins these
jobs again. Of a move they are in the tables of both arrays (pool/array_volumes.py), and pool.py
begins it again. ARCHITECTURE.md, "The walk of any job", says why.

A new kind of job is a subclass of `Job` and a row in job_words.py; if it continues after a mount,
also a `Position`, its keys in saved_jobs.py, and a call in `Array.start`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, final

import trio

from raidx_fuse.documents import JobDetail
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import (
    BusyError,
    MemberError,
    NoSpaceError,
    RaidxError,
    UnrecoverableError,
)
from raidx_fuse.format.configuration.config import NO_ROLE
from raidx_fuse.job_words import words_of
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.store.io_tuples import PAGE_BYTES, MemberLostError

if TYPE_CHECKING:
    from raidx_fuse.documents import Job as JobStatus

log = logging.getLogger(__name__)

WINDOW_BYTES = 1 << 20  # per member
FRUITLESS_MAX = 3  # times that nothing more is listed as lost, and the window is tried again
BUSY_S = 0.1  # a foreground request within this time means that the array is in use
LOG_POLL_S = 0.25  # while the log cannot be written
CHECKPOINT_S = 10.0  # longest time between two saved positions
RATE_WINDOW_S = 10.0
TRY_AGAIN_S = 1.0  # until the next attempt of `insist`
NO_SPACE_S = 5.0  # until the next attempt after a host file system was full
POLL_S = 0.25  # while the next window is blocked
WAITED_OUT = (BusyError, MemberError, NoSpaceError)  # by `insist`, unless it is told otherwise


def is_idle(context: ArrayContext, least_s: float) -> bool:
    """Return whether no request has come for *least_s* and none is under way."""
    queues = context.member_set.queues
    waits = any(queue is not None and queue.queue_length() for queue in queues)
    return context.traffic.idle_s() >= least_s and not waits


class Position(Protocol):
    """How far a change is. ARCHITECTURE.md says where each one is kept, and why there.

    *saved* is what the next start finds whatever happens: all before it is durable.
    """

    @property
    def saved(self) -> int: ...

    async def save(self) -> None:
        """Make the position of this moment durable, after what it stands for. Raises RaidxError."""


class Job(ABC):
    """One background job over stripes in rising order.

    *kind* names the sort of job. *done_bytes* of *total_bytes* are done. *state* is "running",
    "paused", "done", "cancelled" or "failed"; *error* gives the reason of a failure, or what the
    job waits for. *waits_for* is a lost role that it waits for. *back*: it has turned round.
    *window*: how much a window does at most, in the unit of the kind; 0: as the load permits.
    """

    kind = "job"
    turns = False  # a cancel turns it round; else it ends
    needs_resync = False  # it waits while a resync is pending
    pauses = False  # errors let it wait or pause; else they end it
    retries: tuple[type[RaidxError], ...] = (BusyError, NoSpaceError)  # after which it tries again

    def __init__(self, context: ArrayContext, job_id: int) -> None:
        self.context = context
        self.job_id = job_id
        self._fruitless = 0
        self.state = "running"
        self.error: str | None = None
        self.done_bytes = 0
        self.total_bytes = 0
        self.window = 0
        self.back = False
        self.was_cancelled = False  # by its user
        self.waits_for: Role | None = None
        self.speed_min_bytes = 8 << 20
        self.speed_max_bytes = 0
        self.finished = trio.Event()
        self.started_s = context.member_set.clock()
        self._resumed = trio.Event()
        self._resumed.set()
        self._stopped = False
        self._turn = False
        self._ending = False
        self._met_error = False  # in the present window
        self._marks: list[tuple[float, int]] = []

    # -- what a kind of job defines ------------------------------------------------------------

    async def prepare(self) -> None:  # noqa: B027  # optional: its windows may count it
        """Set *done_bytes* and *total_bytes*, at the start and when the job has turned round."""

    def blocked(self) -> Role | None:
        """Return the lost role that the next window needs; NO_ROLE if it waits for other things."""
        return None

    async def make_ready(self) -> None:  # noqa: B027  # optional
        """Do what the next window needs before its locks. The loop holds none here."""

    @abstractmethod
    def next_window(self) -> list[Stripe] | None:
        """Return the next stripes to lock, in rising order, or None when the job has no more.

        The same ones again if their work was not done.
        """

    @abstractmethod
    async def work(self, stripes: list[Stripe]) -> int:
        """Do the work of one window, whose locks are held; return the progress in bytes.

        Raises MemberLostError if it is to be done again because a member was lost. Of a job that
        *pauses*, any RaidxError is met (`meet`).
        """

    def replan(self) -> None:  # noqa: B027  # optional
        """Forget plans: the job has waited, met an error, or a member was lost."""

    def where(self, stripes: Sequence[Stripe]) -> str:
        """Return in words where the window of *stripes* is."""
        return f"stripe {stripes[0]}"

    def may_turn(self) -> bool:
        """Return whether a cancel can still turn the job round, if it has not come to its end."""
        return True

    async def turn_back(self) -> None:  # noqa: B027  # only of jobs that turn round
        """Make it durable that the job goes back from now on. Raises RaidxError."""

    async def settle(self, stripes: list[Stripe]) -> None:
        """Make the chains of a window hold. Raises RaidxError."""
        await self.context.journal.settle(stripes)

    def positions(self) -> Sequence[Position]:
        """Return what says how far the job is, so that it continues from there after a remount."""
        return ()

    async def after_durable(self) -> None:  # noqa: B027  # optional
        """Do what is safe only behind the saved positions."""

    @abstractmethod
    async def finish(self, completed: bool) -> None:
        """Conclude the job after its last window (*completed*), or after a stop or a cancel."""

    async def undo(self) -> None:  # noqa: B027  # optional: most failed jobs leave nothing behind
        """Clean up after the job has failed; *state* and *error* are set."""

    def detail(self) -> JobDetail:
        """Return the keys that this kind of job adds to `status`."""
        return {}

    def busy(self) -> bool:
        """Return whether users access the array, so that the job runs at *speed_min*."""
        return self.context.traffic.idle_s() < BUSY_S

    def result(self, completed: bool) -> str:
        """Return the final state."""
        return "done" if completed and not self.back else "cancelled"

    # -- what it may ask -----------------------------------------------------------------------

    @property
    def slowed(self) -> bool:
        """Whether windows are to be small, for users or because of a speed limit."""
        return self.busy() or bool(self.speed_max_bytes)

    @property
    def turning(self) -> bool:
        """Whether the job is to turn round before its next window."""
        return self._turn and not self.back

    @property
    def stopped(self) -> bool:
        """Whether the job is to end before its next window."""
        return self._stopped

    @property
    def name(self) -> str:
        """Its name in sentences (job_words.py)."""
        return words_of(self.kind).noun

    def waits(self) -> JobDetail:
        """Return the keys of `detail` that say what the job waits for."""
        return {
            "waits_for_role": None if self.waits_for == NO_ROLE else self.waits_for,
            "waits_for_resync": bool(self.context.dirty_bitmap.pending_regions()),
        }

    # -- control by users and by the array -----------------------------------------------------

    @final
    def pause(self) -> None:
        """Pause the job before its next window; one that was stopped ends there."""
        if self.state == "running" and not self._stopped:
            self.state = "paused"
            self._resumed = trio.Event()

    @final
    def resume(self) -> None:
        """Continue a paused job; it tries again to read what it could not."""
        if self.state == "paused":
            self.state = "running"
            if self.pauses:
                self.error = None
            self._resumed.set()

    @final
    def cancel(self) -> None:
        """Cancel the job at its user's request: it turns round, or ends before its next window."""
        self.was_cancelled = True
        if not self.turns:
            self.stop()
            return
        if not self._ending and self.may_turn():
            self._turn = not self.back
        self.resume()

    @final
    def stop(self) -> None:
        """End the job before its next window, because the array is being closed."""
        self._stopped = True
        self._resumed.set()

    @final
    def set_window(self, most: int) -> None:
        """Let a window do *most* at most, in the unit of the kind."""
        self.window = most

    def limit(self, minimum_bytes: int | None, maximum_bytes: int | None) -> None:
        """Set the speed limits in bytes per second (None: unchanged; 0: no limit)."""
        if minimum_bytes is not None:
            self.speed_min_bytes = minimum_bytes
        if maximum_bytes is not None:
            self.speed_max_bytes = maximum_bytes

    def status(self) -> JobStatus:
        """Return the job as the control socket's `status` shows it."""
        rate = self.rate()
        rest = self.total_bytes - self.done_bytes
        return {
            "id": self.job_id,
            "kind": self.kind,
            "state": self.state,
            "done": self.done_bytes,
            "total": self.total_bytes,
            "unit": "bytes",
            "rate": round(rate),
            "eta_seconds": round(rest / rate, 1) if rate > 0 else None,
            "paused": self.state == "paused",
            "speed_min": self.speed_min_bytes,
            "speed_max": self.speed_max_bytes,
            "error": self.error,
            **self.detail(),
        }

    def rate(self) -> float:
        """Return the recent speed in bytes per second, 0.0 before the second window."""
        if len(self._marks) < 2:
            return 0.0
        (first_s, first_bytes), (last_s, last_bytes) = self._marks[0], self._marks[-1]
        return (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0

    # -- the loop ------------------------------------------------------------------------------

    @final
    async def run(self) -> None:
        """Run the job until it is done, cancelled or failed. A RaidxError ends up in *error*."""
        try:
            await self.prepare()
            completed = await self._loop()
            await self.finish(completed)
            self.state = self.result(completed)
        except RaidxError as error:
            log.error("%s %d failed: %s", self.kind, self.job_id, error)
            self.state, self.error = "failed", str(error)
            try:
                await self.undo()
            except RaidxError as after:
                log.error("after the failed %s %d: %s", self.kind, self.job_id, after)
        finally:
            self.finished.set()

    async def _loop(self) -> bool:
        clock = self.context.member_set.clock
        journal, gate = self.context.journal, self.context.gate
        saved_s = clock()
        self._marks = [(clock(), self.done_bytes)]
        while True:
            if not self._resumed.is_set():
                await self._resumed.wait()
                await self.context.member_set.try_unreadable()  # it may have been paused by them
                self._marks = [(clock(), self.done_bytes)]
            await self._until_ready()
            if self._stopped:
                return False
            if self.turning or not self._resumed.is_set():
                continue
            if journal.torn is not None:  # recovery may redo what no reader sees
                said = self.error
                self.error = said or f"waits until the log can be written: {journal.torn}"
                await trio.sleep(LOG_POLL_S)
                self.error = said
                continue
            if gate.is_closed:  # what it was ready for may change
                await gate.opened()
                continue
            stripes = self.next_window()
            if stripes is None:
                self._ending = True
                return True
            start_s = clock()
            inside = gate.enter_now() if stripes else None
            try:
                progress = await self._locked(stripes)
            finally:
                if inside is not None:
                    inside.leave()
            self.done_bytes += progress
            # Users write while the job runs: chunks that were first written ahead of it were not
            # counted.
            self.total_bytes = max(self.total_bytes, self.done_bytes)
            await self._pay(progress, start_s)
            now = clock()
            if self.done_bytes < self._marks[-1][1]:  # it has turned round and counts anew
                self._marks.clear()
            self._marks.append((now, self.done_bytes))
            while len(self._marks) > 2 and self._marks[1][0] < now - RATE_WINDOW_S:
                self._marks.pop(0)
            if now - saved_s >= CHECKPOINT_S:
                await self._save()
                saved_s = clock()

    @final
    async def checkpoint(self) -> None:
        """Save each of the positions. Raises the first error of them."""
        errors = []
        for position in self.positions():
            try:
                await position.save()
            except RaidxError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        await self.after_durable()

    async def _save(self) -> None:
        try:
            await self.checkpoint()
        except RaidxError as error:
            if not self.pauses:
                raise
            self.meet(error, "its position")

    async def _until_ready(self) -> None:
        """Turn round if asked to; return when the next window may begin, or the job is to end."""
        if self.turning and not self.may_turn():  # it has come to its end since the cancel
            self._turn = False
        if self.turning:
            await self._turn_round()
        clock, dirty = self.context.member_set.clock, self.context.dirty_bitmap
        again_s = clock() + (NO_SPACE_S if self.error else 0.0)
        while not self._stopped and not self.turning:
            self.waits_for = self.blocked()
            resync = self.needs_resync and dirty.pending_regions()
            if self.waits_for is None and not resync and clock() >= again_s:
                try:
                    return await self.make_ready()
                except RaidxError as error:
                    if not self.pauses or self._stopped:
                        raise
                    self.meet(error, "its position")
                if not self._resumed.is_set():
                    return
                again_s = clock() + NO_SPACE_S
            self.replan()
            await trio.sleep(POLL_S)

    async def _turn_round(self) -> None:
        try:
            await self.insist(self.turn_back)
        except RaidxError as error:
            if not self._stopped:
                self.meet(error, "its turn")
                await trio.sleep(TRY_AGAIN_S)
            return
        self.back = True
        await self.prepare()

    async def _locked(self, stripes: list[Stripe]) -> int:
        """Do the work of a window under the locks of *stripes*; return the progress in bytes."""
        locks = self.context.locks
        await locks.acquire_all(stripes)
        try:
            return await self._done(stripes)
        finally:
            locks.release_all(stripes)

    async def _done(self, stripes: list[Stripe]) -> int:
        """Do the work of a window, or meet its error; return the progress in bytes."""
        self._met_error = False
        try:
            if self.context.journal.torn is None:
                await self.settle(stripes)
            if self.context.journal.torn is not None or self.turning:  # since it was ready
                self.replan()
                return 0
            progress = await self._worked(stripes)
        except MemberLostError:
            self.replan()
            return 0
        except RaidxError as error:
            if not self.pauses:
                raise
            self.meet(error, self.where(stripes))
            return 0
        if not self._met_error:
            self.error = None
        return progress

    async def _worked(self, stripes: list[Stripe]) -> int:
        """Do as `work`; list pages that nothing gives back as lost, if the job `may_give_up`."""
        try:
            return await self.work(stripes)
        except UnrecoverableError:
            unreadable, size = self.context.member_set.unreadable, self.context.chunk_bytes
            if self._fruitless >= FRUITLESS_MAX or not self.may_give_up():
                raise
            before = self.context.bad_chunks.changes
            if not await unreadable.pass_over(stripes, size):
                raise
            # A page may stay unreadable though it is written again and again.
            listed = self.context.bad_chunks.changes != before
            self._fruitless = 0 if listed else self._fruitless + 1
            return 0

    def may_give_up(self) -> bool:
        """Return whether pages that nothing gives back now are lost, so that the job can go on."""
        return False

    def only_misfits(self) -> bool:
        """Return whether no member is absent, and those that are there can read all pages.

        Then nothing but a user can give back what misfits; else it may come back.
        """
        member_set = self.context.member_set
        sums = member_set.sums
        return not member_set.lost and all(
            sums is not None and sums.is_suspect(Role(role), page * PAGE_BYTES)
            for role, page in member_set.unreadable
        )

    @final
    def meet(self, error: RaidxError, where: str) -> None:
        """Wait after *error*, which came *where*, or pause until the user resumes the job."""
        self.replan()
        if isinstance(error, self.retries):
            self.note_wait(error)
            return
        self._met_error = True
        log.error("the %s is paused at %s: %s", self.name, where, error)
        self.error = f"{error}; then resume it with `raidx job ARRAY resume`, or cancel it"
        self.pause()

    @final
    def note_wait(self, error: RaidxError) -> None:
        """Record *error* as what the job waits for; log it only the first time.

        A job that an error has paused keeps its text, which says what the user has to do.
        """
        self._met_error = True
        if self.state == "paused" and self.error is not None:
            return
        if self.error is None:
            log.error("the %s waits: %s", self.name, error)
        self.error = str(error)

    @final
    async def insist(
        self,
        step: Callable[[], Awaitable[None]],
        through: tuple[type[RaidxError], ...] = WAITED_OUT,
    ) -> None:
        """Do *step*; repeat it after errors *through*, until the job is stopped.

        Raises what *step* raises otherwise.
        """
        while True:
            try:
                await step()
                break
            except through as error:
                if self._stopped:
                    raise
                self.note_wait(error)
            await trio.sleep(TRY_AGAIN_S)
        self.error = None

    async def _pay(self, progress: int, start_s: float) -> None:
        """Sleep until *progress* bytes since *start_s* fit the speed limits; always yield."""
        clock = self.context.member_set.clock
        await trio.lowlevel.checkpoint()
        while not self._stopped:
            now = clock()
            limits = [self.speed_max_bytes] if self.speed_max_bytes else []
            if self.speed_min_bytes and self.busy():
                limits.append(self.speed_min_bytes)
            if not limits:
                return
            rest_s = start_s + progress / min(limits) - now
            if rest_s <= 0:
                return
            await trio.sleep(min(rest_s, BUSY_S / 2))


def stripes_of_window(context: ArrayContext) -> int:
    """Return how many stripes have WINDOW_BYTES on each member that is in the middle of them.

    In a raidx layout only some of the bundles have a chunk on a member.
    """
    per_member = WINDOW_BYTES * context.layout.width // context.code.columns
    return max(1, per_member // (context.code.rows * context.chunk_bytes))
