"""Watches a running pool, and carries plans out: by command, or by itself (`balance.auto`).

    every interval:  sample the counters -> keep the histories -> hotspot and balance.auto: plan
    a plan:          its actions one after the other, each a job of the mover; then a new window

A plan is carried out only if it is complete (paper, 3.2.1). If an action fails or is cancelled, the
rest is dropped: volumes lie where the actions so far have brought them, which is a valid state. A
plan that an unmount or a crash has cut goes on after the next mount (kept_plan.py), once the moves
that were under way have ended; it is planned again if anything that it was made from has changed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES, fitted
from raidx_fuse.pool.balance.actions import batches
from raidx_fuse.pool.hotspots.kept_plan import (
    BALANCE,
    KEY,
    MOVING,
    Goal,
    KeptPlan,
    Step,
    assumed,
    plan_of,
    steps_done,
    with_plan,
)
from raidx_fuse.pool.hotspots.sampler import Sampler
from raidx_fuse.pool.hotspots.settings import PoolSettings
from raidx_fuse.pool.monitor import Monitor
from raidx_fuse.pool.volume_table import ArrayVolumes
from raidx_fuse.tasks import TICK_S, rest

if TYPE_CHECKING:
    from raidx_fuse.pool.hotspots.proposal import Planning, Proposal

log = logging.getLogger(__name__)

LOOK_S = 1.0
IDLE, RUNNING, DONE, FAILED, CANCELLED = "idle", "running", "done", "failed", "cancelled"


class Mover(Protocol):
    """Moves volumes between the arrays of a pool while they are used."""

    async def move(self, volume: str, array: str) -> None:
        """Return when *volume* lies on *array*. Raises RaidxError if it does not come to that."""

    async def exchange(self, moves: Sequence[tuple[str, str]]) -> None:
        """Return when each volume lies on its array; they change places. Raises as `move`."""


class Balancer:
    """The monitor and balancer of *pool*; call `run` in a task of its own.

    *on_sample* is called after each interval, for instance to keep the histories.
    """

    def __init__(
        self, pool: Sequence[ArrayVolumes], mover: Mover, monitor: Monitor | None = None
    ) -> None:
        self.pool = pool
        self.monitor = Monitor() if monitor is None else monitor
        self.settings = PoolSettings([part.array for part in pool])
        self.sampler = Sampler(pool, self.monitor, self.settings)
        self.on_sample: list[Callable[[], None]] = []
        self.finished = trio.Event()
        self._mover = mover
        self._state = IDLE
        self._steps: list[str] = []
        self._done = 0
        self._error: str | None = None
        self._auto_note: str | None = None
        self._plan_note: str | None = None
        self._scope: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None

    @cached_property
    def planning(self) -> Planning:
        """What proposes plans; loaded when the first one is asked for: most mounts never plan."""
        from raidx_fuse.pool.hotspots.proposal import Planning

        return Planning(self.pool, self.monitor, self.sampler, self.settings)

    @property
    def running(self) -> bool:
        """Whether a plan is being carried out."""
        return self._state == RUNNING

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Go on with a plan, sample and, if it is switched on, balance, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._take_up()
            self.sampler.sample(trio.current_time())
            begin_s = trio.current_time()
            task_status.started()
            while True:
                while True:  # the interval may be changed meanwhile
                    interval_s = self.settings.value("hot.interval")
                    rest_s = begin_s + interval_s - trio.current_time()
                    if rest_s < min(interval_s, TICK_S) / 2:
                        break
                    await rest(min(interval_s, LOOK_S))
                    self.sampler.count_noted()
                begin_s = trio.current_time()
                try:
                    await self._after_interval()
                except Exception as error:  # a bug here must not end the mount
                    log.critical("bug: the pool's monitor", exc_info=error)

    async def _after_interval(self) -> None:
        self.sampler.sample(trio.current_time())
        for call in self.on_sample:
            call()
        if self.settings.value("balance.auto") == "on" and not self.running:
            await self._balance_alone()

    def start(self, proposal: Proposal) -> None:
        """Begin to carry *proposal* out. Raises UsageError or BusyError."""
        if self.running:
            raise BusyError(
                "volumes are being moved by a plan", action="see raidx balance --status"
            )
        if not proposal.plan.solved:
            raise UsageError(
                f"{proposal.plan.strategy} found no plan that removes the hotspot",
                action="try --planner exact, or see --dry-run",
            )
        self.carry_out(proposal)

    def carry_out(self, proposal: Proposal, goal: Goal | None = None) -> None:
        """Begin with the actions of *proposal*, whether or not they remove a hotspot.

        *goal* is what it is for, if not to remove hotspots.
        """
        if self.running:
            raise BusyError(
                "volumes are being moved by a plan", action="see raidx balance --status"
            )
        self._plan_note = None
        kept = self._kept(proposal, goal or Goal(planner=proposal.plan.strategy))
        lines = proposal.lines()
        self._begin(partial(self._carry_out, kept, lines), lines)

    async def cancel(self) -> None:
        """Drop the plan under way, or one that waits; a volume on its way arrives all the same.

        Raises UsageError if there is none.
        """
        if self._scope is not None:
            self._scope.cancel()
            await self.finished.wait()
        elif any(KEY in part.array.member_set.config.jobs for part in self.pool):
            await self._keep(None)
            self._state, self._plan_note = CANCELLED, None
        else:
            raise UsageError("no plan is being carried out")

    # -- a plan from its begin to its end ----------------------------------------------------------

    def _begin(self, work: Callable[[], Awaitable[None]], lines: Sequence[str] = ()) -> None:
        """Let *work* carry a plan out in the background."""
        assert self._nursery is not None, "the balancer runs"
        self._state, self._steps, self._done, self._error = RUNNING, list(lines), 0, None
        self._scope = trio.CancelScope()
        self.finished = trio.Event()
        self._nursery.start_soon(self._run, work, self._scope)

    async def _run(self, work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        state = FAILED
        try:
            with scope:
                await work()
                state = DONE
            if scope.cancelled_caught:
                state = CANCELLED
            await self._keep(None)
        except RaidxError as error:
            self._error = str(error)
            log.error("balance ended: %s", error)
            await self._keep(None)
        finally:  # also if the mount ends: what is kept of the plan stays
            self._state, self._scope, self._plan_note = state, None, None
            self.monitor.begin_window()
            self.finished.set()

    async def _carry_out(self, kept: KeptPlan, lines: list[str], done: int = 0) -> None:
        """Do the steps of *kept* that *lines* say, from the step *done* on. Raises RaidxError."""
        self._steps, self._done = lines, done
        if done < len(kept.steps):
            await self._keep(kept)
        for steps in batches(kept.steps[done:]):
            for line in lines[self._done : self._done + len(steps)]:
                log.info("balance: %s", line)
            moves = [(self._volume_name(s.volume), self._array_name(s.target)) for s in steps]
            if len(moves) > 1:
                await self._mover.exchange(moves)
            else:
                await self._mover.move(*moves[0])
            self._done += len(steps)

    def _kept(self, proposal: Proposal, goal: Goal) -> KeptPlan:
        system = proposal.plan.system
        arrays = {part.array.name: part.array.uuid for part in self.pool}
        volumes = {volume.name: volume.uuid for part in self.pool for volume in part.volumes}
        steps = tuple(
            Step(
                volumes[system.volumes[action.volume]],
                arrays[system.arrays[action.source]],
                arrays[system.arrays[action.target]],
                action.together,
            )
            for action in proposal.actions
        )
        return KeptPlan(goal, assumed(self.pool, self.settings), steps)

    async def _keep(self, kept: KeptPlan | None) -> None:
        """Have the superblocks of the first array name *kept*, and those of no other array."""
        for number, part in enumerate(self.pool):
            member_set, mine = part.array.member_set, None if number else kept
            if mine is None and KEY not in member_set.config.jobs:
                continue
            try:
                fitted(with_plan(member_set.config, mine), RESERVE_BYTES)
                await member_set.update(partial(with_plan, plan=mine))
            except RaidxError as error:
                log.warning("balance: an unmount ends this plan, which cannot be kept: %s", error)

    # -- a plan that an unmount has cut ------------------------------------------------------------

    def _take_up(self) -> None:
        """Go on with the plan that the last mount has left, if there is one."""
        found = (plan_of(part.array.member_set.config) for part in self.pool)
        kept = next((plan for plan in found if plan is not None), None)
        if kept is None:
            return
        here = {part.array.uuid for part in self.pool}
        ends = {uuid for step in kept.steps for uuid in (step.source, step.target)}
        needed = {kept.goal.array, *ends} - {""}
        if any(part.array.read_only for part in self.pool):
            self._plan_note = "a plan was cut by an unmount: it goes on when mounted read-write"
        elif needed - here:
            self._plan_note = (
                "a plan was cut by an unmount: it goes on when all of its arrays are mounted; "
                "raidx balance MOUNT --cancel drops it"
            )
        else:
            self._begin(partial(self._go_on, kept))
            self._plan_note = "this plan was cut by an unmount and goes on"
        if self._plan_note:
            log.warning("balance: %s", self._plan_note)

    async def _go_on(self, kept: KeptPlan) -> None:
        """Wait until volumes may move, and do the rest of *kept*, or plan anew if it is stale."""
        await self._moves_under_way(kept)
        while True:
            try:
                self.planning.require_possible()
                break
            except BusyError:  # an array rebuilds, for instance
                await trio.sleep(LOOK_S)
        done = self._steps_done(kept)
        if done is not None and kept.assumed == assumed(self.pool, self.settings):
            await self._carry_out(kept, self._lines(kept.steps), done)
            return
        self._plan_note = "a plan was cut by an unmount, and planned again: it was out of date"
        log.warning("balance: %s", self._plan_note)
        proposal = await self._planned_again(kept.goal)
        await self._carry_out(self._kept(proposal, kept.goal), proposal.lines())

    def _steps_done(self, kept: KeptPlan) -> int | None:
        where = {volume.uuid: part.array.uuid for part in self.pool for volume in part.volumes}
        return steps_done(kept.steps, where)

    async def _moves_under_way(self, kept: KeptPlan) -> None:
        """Wait for the moves of before the mount. Raises RaidxError if one does not arrive.

        An exchange that was cut before all of its moves had begun goes back, to begin again.
        """
        due = batches(kept.steps[self._steps_done(kept) or 0 :])
        for part in self.pool:
            for job in part.array.jobs.running():
                if job.kind in MOVING:
                    begun = job.detail()["legs_left"]
                    result = await part.array.jobs.wait(job.job_id)
                    if result["state"] == "cancelled" and due and begun < len(due[0]):
                        continue
                    if result["state"] != "done":
                        raise RaidxError(f"the {job.kind} (job {job.job_id}) {result['state']}")

    async def _planned_again(self, goal: Goal) -> Proposal:
        if goal.kind != BALANCE:
            return await self.planning.evacuation(self._array_name(goal.array))
        rules = {part.array.uuid: self.settings.rule_of(part.array) for part in self.pool}
        while True:
            if self.monitor.seen(rules):
                break
            await trio.sleep(LOOK_S)
        proposal = await self.planning.balance(goal.planner or None)
        if not proposal.plan.solved:
            raise UsageError(f"{proposal.plan.strategy} found no plan that removes the hotspot")
        return proposal

    def _lines(self, steps: Sequence[Step]) -> list[str]:
        found = []
        for number, step in enumerate(steps):
            later = any(step.volume == other.volume for other in steps[number + 1 :])
            source, target = self._array_name(step.source), self._array_name(step.target)
            line = f"move {self._volume_name(step.volume)} from {source} to {target}"
            found.append(line + ", to go on later" * later + ", in pieces" * bool(step.together))
        return found

    def _volume_name(self, uuid: str) -> str:
        volumes = (volume for part in self.pool for volume in part.volumes)
        return next((volume.name for volume in volumes if volume.uuid == uuid), uuid)

    def _array_name(self, uuid: str) -> str:
        return next((p.array.name for p in self.pool if p.array.uuid == uuid), uuid)

    # -- by itself ---------------------------------------------------------------------------------

    async def _balance_alone(self) -> None:
        hot = self.planning.hotspots()
        if not hot:
            self._auto_note = None
            return
        try:
            self.start(await self.planning.balance())
            note = f"{', '.join(hot)}: moving volumes by a plan"
        except RaidxError as error:
            note = f"{', '.join(hot)}: {error}"
        if note != self._auto_note:
            log.warning("balance.auto: hotspot on %s", note)
        self._auto_note = note

    def status(self) -> dict[str, Any]:
        """Return what `status` shows of the plan under way or the last one."""
        return {
            "auto": self.settings.value("balance.auto"),
            "state": self._state,
            "steps": list(self._steps),
            "steps_done": self._done,
            "error": self._error,
            "note": self._plan_note or self._auto_note,
        }


@asynccontextmanager
async def watched(
    pool: Sequence[ArrayVolumes], mover: Mover, monitor: Monitor | None = None
) -> AsyncIterator[Balancer]:
    """Yield the balancer of *pool*, which runs until the block ends."""
    balancer = Balancer(pool, mover, monitor)
    async with trio.open_nursery() as nursery:
        await nursery.start(balancer.run)
        yield balancer
        nursery.cancel_scope.cancel()
