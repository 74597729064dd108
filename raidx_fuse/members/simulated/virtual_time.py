"""Virtual time: trio runs whose clock jumps to the next deadline (discrete-event simulation).

An hour of modelled disk work takes seconds, and every delay is exact: while any task can run, time
stands still; when none can, the clock is set to the next deadline. There is no threshold (trio's
MockClock waits in real time before it jumps) and no rounding. When no task can run:

* There is a deadline (of trio or of a `sleep_until`): the clock jumps to it.
* A thread does real I/O (it holds the clock): the run waits in real time. So real I/O takes no
  virtual time, and results do not depend on the machine.
* Neither: no task can ever wake. After *stall_s* real seconds this is a `DeadlockError`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple, Unpack, final

import trio
from trio import lowlevel

from raidx_fuse.errors import RaidxError
from raidx_fuse.members.threads import ThreadPolicy

_trio_run: Any  # no public way to seed the scheduler, see `run`
try:
    from trio._core import _run as _trio_run
except ImportError:  # then `run` refuses; the members need nothing of it in real time
    _trio_run = None

# The parts of trio's scheduler that have no public name, and the versions whose source was read.
_PRIVATE_NAMES = ("GLOBAL_RUN_CONTEXT", "_ALLOW_DETERMINISTIC_SCHEDULING", "_r")
_TRIO_KNOWN = ">=0.25,<0.36"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_POLLED_EACH = 64  # turns of the event loop for which threads and Ctrl-C may have to wait
_TURNS_MAX = 500_000  # turns of the event loop at one time: more are a loop without end
_TASKS_OF_A_RUN = 3  # the first one, and two of trio's
_REAL_WAIT_S = 3600.0  # "until something happens"; trio itself wakes once a day


class DeadlockError(RuntimeError):
    """Every task waits for another one, or some run without end: a bug, so no RaidxError."""


_Sleeper = list[lowlevel.Task]
"""The task of one `sleep_until`; empty after it was woken or cancelled: the entry is skipped."""


@final
class VirtualClock(trio.abc.Clock, ThreadPolicy):
    """A clock for ``trio.run(..., clock=VirtualClock())``.

    *on_deadlock*, if set, is called after *stall_s* real seconds without any event, and when tasks
    run without end at one time; without it the run waits or works forever, as any trio program
    would.

    Time stands still while a task waits for a thread of a member. Calls to the host use no thread:
    no seed decides when a thread ends, so a run could not be repeated.
    """

    inline = True

    def __init__(self, stall_s: float = 5.0) -> None:
        self.on_deadlock: Callable[[], None] | None = None
        self._now_s = 0.0
        self._stall_s = stall_s
        self._sleepers: list[tuple[float, int, _Sleeper]] = []
        self._sequence = 0
        self._held = 0
        self._idle_since_s: float | None = None
        self._idle_s = 0.0

    def start_clock(self) -> None:
        """Do nothing: time advances only in `deadline_to_sleep_time`."""

    def stop(self, seconds: float) -> None:
        """Let *seconds* pass in which no task runs, as while the process is stopped."""
        self._now_s += seconds

    def current_time(self) -> float:
        # The event loop calls this right after its wait for I/O, before any task runs. Only here
        # an idle wait can be distinguished from the time that a task spends computing.
        if self._idle_since_s is not None:
            self._idle_s = time.monotonic() - self._idle_since_s
            self._idle_since_s = None
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump to the next deadline; trio calls this only when no task can run."""
        # A task in trio.testing.wait_all_tasks_blocked is about to run: time must not advance yet.
        runner = getattr(_trio_run.GLOBAL_RUN_CONTEXT, "runner", None)
        if self._held or getattr(runner, "waiting_for_idle", False):
            return _REAL_WAIT_S
        sleepers = self._sleepers
        while sleepers and not sleepers[0][2]:
            heappop(sleepers)
        if sleepers and sleepers[0][0] <= deadline:
            due_s = sleepers[0][0]
            self._now_s = max(self._now_s, due_s)
            while sleepers and sleepers[0][0] <= due_s:
                sleeper = heappop(sleepers)[2]
                if sleeper:
                    lowlevel.reschedule(sleeper.pop())
            return 0
        if deadline != math.inf:
            self._now_s = max(self._now_s, deadline)
            return 0
        return self._idle()

    def _idle(self) -> float:
        if self._idle_s >= self._stall_s and self.on_deadlock is not None:
            self._idle_s = 0.0
            self.on_deadlock()
            return 0
        self._idle_s = 0.0
        self._idle_since_s = time.monotonic()
        return self._stall_s

    def hold(self) -> None:
        """Keep time from jumping while real work runs in a thread; pair with `release`."""
        self._held += 1

    def release(self) -> None:
        """End one `hold`. The caller wakes a task, or time advances at the next idle moment."""
        self._held -= 1

    async def _sleep_until(self, deadline_s: float) -> None:
        sleeper = [lowlevel.current_task()]
        self._sequence += 1
        heappush(self._sleepers, (deadline_s, self._sequence, sleeper))

        def abort(_: object) -> lowlevel.Abort:
            sleeper.clear()
            return lowlevel.Abort.SUCCEEDED

        await lowlevel.wait_task_rescheduled(abort)


class _SeldomPolled:
    """The I/O manager of *runner*, changed to poll the kernel less often while tasks can run.

    A run in virtual time seldom has I/O of its own, and polling at each turn of the event loop
    takes a fifth of its time. While the clock is held, or no task can run, it polls each time.
    """

    def __init__(self, runner: Any, clock: VirtualClock) -> None:
        self._manager = runner.io_manager
        self._runner = runner
        self._clock = clock
        self._turns = 0
        self._now_s = -1.0  # the time at the last poll, which is that since *_since* turns
        self._since = 0

    def get_events(self, timeout_s: float) -> Any:
        """Return the I/O events, waiting *timeout_s* at most."""
        if timeout_s == 0 and self._runner.runq and not self._clock._held:
            self._turns += 1
            if self._turns % _POLLED_EACH:
                return ()
            self._require_progress()
        return self._manager.get_events(timeout_s)

    def _require_progress(self) -> None:
        now_s = self._clock.current_time()
        if now_s != self._now_s:
            self._now_s, self._since = now_s, self._turns
        elif self._turns - self._since > _TURNS_MAX:
            self._since = self._turns
            if self._clock.on_deadlock is not None:
                self._clock.on_deadlock()

    def process_events(self, events: Any) -> None:
        if events:
            self._manager.process_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


async def sleep_until(deadline_s: float) -> None:
    """Like ``trio.sleep_until``, but a third of its cost in virtual time (no cancel scope)."""
    clock = lowlevel.current_clock()
    if type(clock) is VirtualClock and deadline_s != math.inf:
        await clock._sleep_until(deadline_s)
    else:
        await trio.sleep_until(deadline_s)


async def sleep(delay_s: float) -> None:
    """Like ``trio.sleep``; see `sleep_until`."""
    await sleep_until(trio.current_time() + delay_s)


def run(
    async_fn: Callable[[Unpack[Ts]], Awaitable[T]],
    *args: *Ts,
    seed: int = 0,
    stall_s: float = 5.0,
) -> T:
    """Return the result of *async_fn*, run in virtual time with a scheduler seeded by *seed*.

    The same seed gives the same interleaving and the same times on every machine; other seeds give
    other interleavings. Raises DeadlockError, which lists where every task waits, and RaidxError
    for a trio version that does not fit.
    """

    async def main() -> T:
        runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
        runner.io_manager = _SeldomPolled(runner, clock)  # trio has no public way
        return await _watched(clock, async_fn, args)

    _require_known_trio()
    clock = VirtualClock(stall_s)
    with _seeded_scheduler(seed):
        return trio.run(main, clock=clock)


async def begin_anew(
    async_fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, seed: int = 0
) -> T:
    """Run *async_fn* inside a `run` like a separate run, without the cost of a new event loop.

    The time is set back to zero and the scheduler to *seed*. No other task may exist meanwhile: the
    caller must be the first task of the run and must have started no others.
    """
    clock = lowlevel.current_clock()
    assert type(clock) is VirtualClock, "only in virtual time"
    runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
    assert len(runner.tasks) == _TASKS_OF_A_RUN, "other tasks of the run would see time go back"
    assert not any(sleeper for _, _, sleeper in clock._sleepers)
    clock._sleepers.clear()
    clock._now_s = 0.0
    chance = _trio_run._r
    chance.seed(seed)
    chance.shuffle([0, 1])  # as the first turn of an event loop does
    return await _watched(clock, async_fn, args)


async def _watched(
    clock: VirtualClock, async_fn: Callable[[Unpack[Ts]], Awaitable[T]], args: tuple[*Ts]
) -> T:
    """Return the result of *async_fn*; raises DeadlockError if time can never advance."""
    deadlocked: list[str] = []
    with trio.CancelScope() as scope:

        def on_deadlock() -> None:
            root = lowlevel.current_root_task()
            assert root is not None
            deadlocked.extend(waiting_places(root))
            scope.cancel()

        before, clock.on_deadlock = clock.on_deadlock, on_deadlock
        try:
            return await async_fn(*args)
        finally:
            clock.on_deadlock = before
    raise DeadlockError(
        "time cannot advance: every task waits and nothing is due, or tasks run without end:\n"
        + "\n".join(deadlocked)
    )


def _require_known_trio() -> None:
    """Raise RaidxError if the installed trio lacks a private name that virtual time needs."""
    for name in _PRIVATE_NAMES:
        if not hasattr(_trio_run, name):
            raise RaidxError(
                f"virtual time does not fit trio {trio.__version__}, which has no {name}",
                action=f"install another one: pip install 'trio{_TRIO_KNOWN}'",
            )


@contextmanager
def _seeded_scheduler(seed: int) -> Iterator[None]:
    # What trio's own hypothesis plugin does: sort each batch of runnable tasks, then shuffle it.
    module = vars(_trio_run)
    before = {name: module[name] for name in ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r")}
    module.update(_ALLOW_DETERMINISTIC_SCHEDULING=True, _r=random.Random(seed))
    try:
        yield
    finally:
        module.update(before)


def waiting_places(task: lowlevel.Task) -> list[str]:
    """Return "name: file:line in function" of the innermost frame of every blocked task."""
    frame: Any = None
    places: list[str] = []
    for frame, line in task.iter_await_frames():
        name = frame.f_code.co_filename
        if not places or ("/trio/" not in name and name != __file__):
            place = f"{name}:{line} in {frame.f_code.co_name}"
            places = [f"  {task.name}: {place}"]
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            places.extend(waiting_places(child))
    return places
