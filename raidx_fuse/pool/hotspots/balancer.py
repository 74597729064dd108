"""Watches a running pool, and carries plans out: by command, or by itself (`balance.auto`).

    every interval:  sample the counters -> keep the histories -> hotspot and balance.auto: plan
    a plan:          its actions one after the other, each a job of the mover; then a new window

What a hotspot is: pool/monitor.py; what is proposed against it: proposal.py.

A plan is carried out only if it is complete (paper, 3.2.1). If an action fails or is cancelled, the
rest is dropped: volumes lie where the actions so far have brought them, which is a valid state. An
unmount or a crash drops it as well: the next mount resumes the moves that had begun, and what is
then still needed is planned anew.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import trio

from raidx_fuse.errors import JobRunningError, RaidxError, Reason, UsageError
from raidx_fuse.loop.tasks import TICK_S, rest
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.balance.actions import batches
from raidx_fuse.pool.hotspots.sampler import Sampler
from raidx_fuse.pool.hotspots.settings import PoolSettings
from raidx_fuse.pool.monitor import Monitor
from raidx_fuse.pool.move import plan_exchange, start, start_move
from raidx_fuse.pool.pool import Pool

if TYPE_CHECKING:
    from raidx_fuse.documents import Balance
    from raidx_fuse.pool.hotspots.proposal import Planning, Proposal

log = logging.getLogger(__name__)

Moves = list[tuple[str, str]]  # that go together: UUIDs of a volume and of the array it goes to
LOOK_S = 1.0
IDLE, RUNNING, DONE, FAILED, CANCELLED = "idle", "running", "done", "failed", "cancelled"


class JobMover:
    """Moves volumes of a running pool: each move is a job of the array that the volume leaves."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def move(self, volume: str, array: str) -> None:
        """Return when *volume* lies on *array*. Raises RaidxError if the move fails."""
        source, found = self._pool.find(volume)
        target = self._pool.array(array)
        if target.free_bytes() < found.size_bytes:
            await target.wiped()  # a volume that has just left the array frees its places then
        await _ended(source, await start_move(self._pool, volume, array), f"volume {volume}")

    async def exchange(self, moves: Sequence[tuple[str, str]]) -> None:
        """Return when volumes lie on arrays, *moves*, between which they have changed places.

        Raises RaidxError as `move`.
        """
        for _, array in moves:
            await self._pool.array(array).wiped()
        planned = plan_exchange(self._pool, moves)
        names = ", ".join(volume for volume, _ in moves)
        await _ended(planned.legs[0].source, await start(self._pool, planned), f"volumes {names}")


async def _ended(source: ArrayVolumes, job: int, what: str) -> None:
    result = await source.array.jobs.wait(job)
    if result["state"] != "done":
        error = result.get("error")
        why = f": {error}" if error else ""
        raise RaidxError(f"the move of {what} (job {job}) {result['state']}{why}")


class Balancer:
    """The monitor and balancer of *pool*; call `run` in a task of its own.

    *on_sample* is called after each interval, for instance to keep the histories.
    """

    def __init__(
        self, pool: Sequence[ArrayVolumes], mover: JobMover, monitor: Monitor | None = None
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
        self._scope: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None

    @cached_property
    def planning(self) -> Planning:
        """What proposes plans; loaded when the first one is asked for: most mounts never plan."""
        from raidx_fuse.pool.hotspots.proposal import Planning

        return Planning(self.sampler)

    @property
    def running(self) -> bool:
        return self._state == RUNNING

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sample and, if it is switched on, balance, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
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

    def start(self, proposal: Proposal, *, solved: bool = True) -> None:
        """Begin to carry *proposal* out, if *solved* only one that leaves no array overloaded.

        Raises UsageError or BusyError.
        """
        if self.running:
            raise JobRunningError(
                "volumes are being moved by a plan", action="see raidx balance --status"
            )
        if solved and not proposal.plan.solved:
            raise UsageError(
                f"{proposal.plan.strategy} found no plan that removes the hotspot",
                action="try --planner exact, or see --dry-run",
            )
        assert self._nursery is not None, "the balancer runs"
        system = proposal.plan.system
        arrays = {part.array.name: part.array.uuid for part in self.pool}
        volumes = {volume.name: volume.uuid for part in self.pool for volume in part.volumes}
        moves = [
            [(volumes[system.volumes[a.volume]], arrays[system.arrays[a.target]]) for a in batch]
            for batch in batches(proposal.actions)
        ]
        self._state, self._steps, self._done, self._error = RUNNING, proposal.lines(), 0, None
        self._scope = trio.CancelScope()
        self.finished = trio.Event()
        self._nursery.start_soon(self._run, moves, self._scope)

    async def cancel(self) -> None:
        """Drop the plan under way; a volume on its way arrives all the same.

        Raises UsageError if there is none.
        """
        if self._scope is None:
            raise UsageError("no plan is being carried out", reason=Reason.NO_SUCH_JOB)
        self._scope.cancel()
        await self.finished.wait()

    async def _run(self, moves: Sequence[Moves], scope: trio.CancelScope) -> None:
        state = FAILED
        try:
            with scope:
                await self._carry_out(moves)
                state = DONE
            if scope.cancelled_caught:
                state = CANCELLED
        except RaidxError as error:
            self._error = str(error)
            log.error("balance ended: %s", error)
        finally:
            self._state, self._scope = state, None
            self.monitor.begin_window()
            self.finished.set()

    async def _carry_out(self, moves: Sequence[Moves]) -> None:
        for together in moves:
            for line in self._steps[self._done : self._done + len(together)]:
                log.info("balance: %s", line)
            named = [(self._volume_name(volume), self._array_name(to)) for volume, to in together]
            if len(named) > 1:
                await self._mover.exchange(named)
            else:
                await self._mover.move(*named[0])
            self._done += len(together)

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

    def status(self) -> Balance:
        """Return what `status` shows of the plan under way or the last one."""
        return {
            "auto": self.settings.value("balance.auto"),
            "state": self._state,
            "steps": list(self._steps),
            "steps_done": self._done,
            "error": self._error,
            "note": self._auto_note,
        }


@asynccontextmanager
async def watched(
    pool: Sequence[ArrayVolumes], mover: JobMover, monitor: Monitor | None = None
) -> AsyncIterator[Balancer]:
    """Yield the balancer of *pool*, which runs until the block ends."""
    balancer = Balancer(pool, mover, monitor)
    async with trio.open_nursery() as nursery:
        await nursery.start(balancer.run)
        yield balancer
        nursery.cancel_scope.cancel()
