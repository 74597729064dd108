"""The performance tuner: one task that moves hot chunks to the members that serve them sooner.

It follows the raidx paper, section V.A: wait until no request has come for a second; flush; read a
little of every member whose speed is not known; undo what made the last load slower (`Verdicts`);
plan (plan.py) and move (engine/move_chunks.py) in slices of 50 ms. A request ends the round, and
the next round begins a second after the last request. While a scrub runs, nothing moves.

`TuneJob` does the same on a user's command, as a job that can be paused, throttled and awaited.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import trio

from raidx_fuse.engine.access_stats import AccessStats
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.jobs.job import Job, is_idle
from raidx_fuse.jobs.scrub import RegularScrub
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.jobs.tuner.measure import Measurements
from raidx_fuse.jobs.tuner.plan import MARGIN_MAX, Plan, Planner, Step
from raidx_fuse.jobs.tuner.speeds import MemberLoad, costs_of, use_of
from raidx_fuse.layouts.numbers import Stripe, stripe_and_cell
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.loop.tasks import rest
from raidx_fuse.store.chunk_table import Move
from raidx_fuse.store.io_tuples import MemberLostError

if TYPE_CHECKING:
    from raidx_fuse.documents import JobDetail, TunerMove, TunerState, TuningPlan

REQUESTS_MIN = 100  # a mean of fewer says little
SLOWER = 1.02  # times the response time that the same load had
USED_SHARE = 0.5  # of the moved chunks: so many must be in use for a verdict
SIZE_RATIO = 1.25
SHARE_STEP = 0.1
LOADS_MAX = 8
UNDO_MAX = 8192  # moves
log = logging.getLogger(__name__)

STEPS_A_ROUND = 64  # planning them takes some 25 ms, which a request may have to wait
STEPS_SHOWN_MAX = 256
REST_S = 1.0
ROUNDING_S = 1e-3  # a shorter rest would not advance the clock, and would be asked for repeatedly
SLICE_S = 0.05  # the longest time that it works before it lets requests run
SHOWN_MAX = 20
ROUNDS_MAX = 256  # bounds the job when measured speeds fluctuate


@dataclass(frozen=True, slots=True)
class _Load:
    """A load in one period; *moves*: how many steps the tuner had done before."""

    size_bytes: float
    write_share: float
    order_share: float
    response_s: float
    moves: int

    def is_like(self, other: _Load) -> bool:
        larger = max(self.size_bytes, other.size_bytes)
        return (
            larger <= SIZE_RATIO * min(self.size_bytes, other.size_bytes)
            and abs(self.write_share - other.write_share) <= SHARE_STEP
            and abs(self.order_share - other.order_share) <= SHARE_STEP
        )


class Verdicts:
    """Judges the steps of the tuner of *context*; *access* are the array's access statistics.

    A *period* lasts from one idle time to the next; short ones are taken together. Loads are
    *alike* if requests have about the same size, the same fraction of writes and the same fraction
    in order. When a load comes again and is slower than last time, the moves since then are undone,
    if it used most of the moved chunks: a load at other places says nothing about them.
    """

    def __init__(self, context: ArrayContext, access: AccessStats) -> None:
        self._context = context
        self._access = access
        self._loads: list[_Load] = []  # the newest last
        self._back: deque[tuple[Move, ...]] = deque(maxlen=UNDO_MAX)  # how to undo each step
        self._steps = 0  # in all; the last of them are in *_back*
        self._began = self._latest = self._totals()
        self._began_ticks = self._latest_ticks = 0  # the table is not loaded yet

    def _totals(self) -> tuple[float, ...]:
        latency, counters = self._context.traffic.latency, self._context.traffic
        size = counters.read_bytes + counters.write_bytes
        access = self._access
        return (
            *(latency.count, latency.total_s, size, counters.reads + counters.writes),
            *(counters.writes, access.in_order, access.arrivals),
        )

    def note(self, back: tuple[Move, ...]) -> None:
        """Note a step that was done; *back* are the moves that undo it."""
        self._back.append(back)
        self._steps += 1

    def judge(self) -> list[tuple[Move, ...]]:
        """Judge the load that has ended; return the moves to be made, in order, to undo steps."""
        self._access.digest()
        totals = self._totals()
        if totals[3] - self._latest[3] >= REQUESTS_MIN:  # by itself, without what came before
            self._began, self._began_ticks = self._latest, self._latest_ticks
        self._latest, self._latest_ticks = totals, self._access.ticks()
        timed, total_s, size, requests, writes, in_order, accesses = (
            now - before for now, before in zip(totals, self._began, strict=True)
        )
        if min(timed, requests, accesses) < REQUESTS_MIN:
            return []
        since = self._began_ticks
        self._began, self._began_ticks = self._latest, self._latest_ticks
        load = _Load(
            size / requests, writes / requests, in_order / accesses, total_s / timed, self._steps
        )
        known = next((old for old in reversed(self._loads) if old.is_like(load)), None)
        undo: list[tuple[Move, ...]] = []
        if known is not None:
            done = min(self._steps - known.moves, len(self._back))
            last = [self._back[-1 - i] for i in range(done)]
            if load.response_s > SLOWER * known.response_s and self._are_used(last, since):
                undo = last
                for _ in range(done):
                    self._back.pop()
                self._steps -= done
                load = known
            self._loads.remove(known)
        self._loads = [*self._loads[1 - LOADS_MAX :], load]
        return undo

    def _are_used(self, steps: Sequence[tuple[Move, ...]], since_ticks: int) -> bool:
        """Return whether enough of the chunks that *steps* moved were used since then."""
        if not steps:
            return False
        cells = np.array([step[0][0] for step in steps])
        used = self._access.last_use(cells) > since_ticks
        return bool(used.mean() >= USED_SHARE)


class Tuner:
    """The tuner of one array with *layout*; *enabled* and *idle_s* are settings.

    *state* is one word, *why* its reason; *moved* counts the chunks since the start.
    """

    def __init__(
        self,
        array: ArrayServices,
        layout: BundleLayout,
        access: AccessStats,
        scrubs: RegularScrub,
    ) -> None:
        self.array = array
        self.context: ArrayContext = array.context
        self.layout = layout
        self.access = access
        self._scrubs = scrubs
        self.mover = ChunkMover(array.context, layout)
        self.planner = Planner(layout, access)
        self.measured = Measurements(array.context, layout, access, self._is_wanted)
        self.loads, self.measure = self.measured.loads, self.measured.measure
        self.verdicts = Verdicts(array.context, access)
        self._undo: list[tuple[Move, ...]] = []  # still to be done
        self._plan: Plan | None = None  # its steps are still to be done: half a run is worse
        self._plan_for: object = None  # members and bundles when it was made
        self.enabled = True
        self.idle_s = 1.0
        self.state, self.why = "waiting", "no request has come yet"
        self.moved = self.rounds = 0
        self.work_s = 0.0
        self._began_s = 0.0  # when the present round began
        self._basis: list[MemberLoad] = []
        self._basis_at: object = None  # arrivals and members when the basis was taken
        self._planned_at = -1  # arrivals when the last plan found nothing to do

    def configure(self, *, enabled: bool | None = None, idle_s: float | None = None) -> None:
        if enabled is not None:
            self.enabled = enabled
        if idle_s is not None:
            self.idle_s = idle_s

    def obstacle(self) -> str | None:
        """Return what prevents moves now, in words, or None."""
        member_set = self.context.member_set
        if member_set.read_only:
            return "the array is read-only"
        if member_set.lost or member_set.watermarks:
            return "a member is lost"
        if self.context.dirty_bitmap.pending_regions():
            return "a resync is due"
        for job in self.array.jobs.running():
            if job.kind != "scrub":
                return f"a {job.kind} is running"
        return None

    def plan(self, limit: int = STEPS_A_ROUND) -> Plan:
        """Return the plan of moves that pay now.

        It uses the speeds at the time of the last request, and moves a chunk only once until the
        next request: the tuner's own I/O says nothing about users' requests, and otherwise two
        equal disks would pass chunks to and fro.
        """
        means = self.access.queue_means
        basis_at = (self.access.arrivals, self.context.member_set.role_epoch, self.layout.counts)
        if self._basis_at != basis_at:
            self._basis_at, self._basis = basis_at, self.loads()
            self.planner.pinned.clear()
        known = {load.role for load in self._basis}
        self._basis += [load for load in self.loads() if load.role not in known]
        loads = [replace(load, queue=means[load.role]) for load in self._basis]
        return self.planner.plan(loads, self.access.write_share, limit)

    # -- the task ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Background task: tune in idle time, for ever."""
        while True:
            left_s = self.idle_s - self.context.traffic.idle_s()
            if left_s > 0:
                await trio.sleep(left_s + ROUNDING_S)
            else:
                await rest(REST_S)
            try:
                if outcome := await self._round():
                    self.state, self.why = outcome
            except (RaidxError, MemberLostError) as error:
                log.warning("the tuner stops for now: %s", error)
                self.state, self.why = "waiting", str(error)
                await rest(REST_S)

    def _is_wanted(self) -> bool:
        """Return whether a request has come since this slice of work began, or waits."""
        return self.context.traffic.last_s > self._began_s or not is_idle(self.context, 0.0)

    async def _round(self) -> tuple[str, str] | None:
        """Tune until a request comes; return the state then and its reason, None if unchanged."""
        if not self.enabled:
            return "off", "tuner.enabled is off"
        if not is_idle(self.context, self.idle_s):
            return "waiting", "requests come"
        self._began_s = self.context.member_set.clock()
        if any(queue is not None and queue.unflushed for queue in self.context.member_set.queues):
            self.state, self.why = "flushing", "recent writes are still in the members' caches"
            await self.context.member_set.flush()
        obstacle = self.obstacle()
        if obstacle is not None:
            return "waiting", obstacle
        if any(job.kind == "scrub" for job in self.array.jobs.running()):
            return "scrubbing", "a scrub runs"
        if self.access.arrivals == self._planned_at:
            return "balanced", "no move would gain anything"
        self.state, self.why = "measuring", "reads a little of members whose speed is unknown"
        await self.measure()
        if self._is_wanted():
            return "waiting", "a request came"
        if self._plan is not None and self._plan_for == self._shape():
            return await self._carry_out(self._plan)
        if not self._undo:
            self._undo = self.verdicts.judge()
            if self._undo:
                self.planner.margin = min(2 * self.planner.margin, MARGIN_MAX)
        if self._undo:
            await self._undo_steps()
            return None
        self.rounds += 1
        arrivals = self.access.arrivals
        plan = self.plan()
        if plan.steps:
            return await self._carry_out(plan)
        self._planned_at = arrivals
        return "balanced", "no move would gain anything"

    async def _carry_out(self, plan: Plan) -> tuple[str, str] | None:
        """Do the steps of *plan* until a request comes; the next round continues."""
        clock = self.context.member_set.clock
        gain = f"{plan.mean_s * 1e3:.3g} to {plan.after_s * 1e3:.3g} ms per request"
        self.state, self.why = "moving", f"{plan.chunks} chunks, {gain}"
        slice_end_s = clock() + SLICE_S
        self._plan, self._plan_for = plan, self._shape()
        while plan.steps and not self._is_wanted():
            await self.step(plan.steps.pop(0))
            if clock() >= slice_end_s:
                await trio.lowlevel.checkpoint()
                slice_end_s = clock() + SLICE_S
        self.work_s += clock() - self._began_s
        if plan.steps:
            return "waiting", "a request came"
        self._plan = None
        return None

    def _shape(self) -> object:
        layout = self.layout
        return self.context.member_set.role_epoch, tuple(layout.counts), layout.cells

    async def _undo_steps(self) -> None:
        """Undo what made the last load slower, until a request comes."""
        self.state, self.why = "undoing", "the last load was slower than before the moves"
        while self._undo and not self._is_wanted():
            moves = self._undo.pop(0)
            if await self.mover.move(moves):
                self.moved += len(moves)
                self.planner.pinned.update(cell for cell, _role, _chunk in moves)

    async def step(self, step: Step) -> int:
        """Do one step; return the bytes moved."""
        back = self.way_back(step)
        if not await self.mover.move(step.moves):
            return 0
        return self.note(step, back)

    def way_back(self, step: Step) -> tuple[Move, ...]:
        """Return the moves that will undo *step*, which is not done yet."""
        length = self.layout.length
        return tuple(
            (cell, *self.layout.place(*stripe_and_cell(cell, length)))
            for cell, _role, _chunk in step.moves
        )

    def note(self, step: Step, back: tuple[Move, ...]) -> int:
        """Account for a step that was done, which *back* undoes; return its bytes."""
        self.moved += len(step.moves)
        self.planner.pinned.update(cell for cell, _role, _chunk in step.moves)
        self.verdicts.note(back)
        return len(step.moves) * self.context.chunk_bytes

    # -- reports -------------------------------------------------------------------------------

    def status(self) -> TunerState:
        """Return what `status` shows."""
        loads = self.loads()
        use = use_of(loads, self.access.write_share, self.context.chunk_bytes)
        return {
            "state": self.state,
            "why": self.why,
            "chunks_moved": self.moved,
            "rounds": self.rounds,
            "seconds_since_scrub": round(self._scrubs.since_scrub_s),
            "members": [
                {
                    "role": load.role,
                    "read_ms": load.read.latency_s.value * 1e3,
                    "write_ms": (load.write.latency_s.value or load.read.latency_s.value) * 1e3,
                    "mb_s": load.read.run_mb_s,
                    "write_mb_s": load.write.run_mb_s,
                    "queue_on_arrival": load.queue,
                    "cost_ms": costs_of(load, use).latency_s * (1 + load.queue / load.depth) * 1e3,
                }
                for load in loads
            ],
        }

    async def dry_run(self) -> TuningPlan:
        """Return what tuning would move now, and the expected gain."""
        self.require()
        await self.measure(patiently=True)
        plan = self.plan(STEPS_SHOWN_MAX)
        chunk_bytes = self.context.chunk_bytes
        moved = plan.chunks * chunk_bytes
        return {
            "dry_run": True,
            "does": f"moves {plan.chunks} chunks",
            "bytes_moved": moved,
            "seconds": sum(
                len(step.moves) * (plan.costs_s[step.source] + plan.costs_s[step.target])
                for step in plan.steps
            ),
            "redundancy_reduced": False,
            "mean_ms": plan.mean_s * 1e3,
            "expected_ms": plan.after_s * 1e3,
            "speedup": plan.mean_s / plan.after_s if plan.after_s else 1.0,
            "groups": [list(group) for group in plan.groups],
            "members": self.status()["members"],
            "moves": [self._shown(step) for step in plan.steps[:SHOWN_MAX]],
        }

    def _shown(self, step: Step) -> TunerMove:
        layout = self.layout
        cell = step.moves[0][0]
        bundle, column = stripe_and_cell(cell, layout.length)
        is_data = column < layout.code.data_count
        offset = layout.logical(bundle, column) * self.context.chunk_bytes if is_data else None
        return {
            "bundle": bundle,
            "image_offset": offset,
            "from": step.source,
            "to": step.target,
            "swap": len(step.moves) > 1,
        }

    def require(self) -> None:
        """Raise UsageError if nothing can be moved now."""
        if obstacle := self.obstacle():
            raise UsageError(f"no chunk can be moved now: {obstacle}", reason=Reason.BUSY)


class TuneJob(Job):
    """Makes all moves that pay now, without waiting for idle time."""

    kind = "tuning"

    def __init__(self, context: ArrayContext, job_id: int, tuner: Tuner) -> None:
        super().__init__(context, job_id)
        self.tuner = tuner
        self.moved = 0
        self._steps: list[Step] = []
        self._rounds = 0
        self._tried = 0

    def detail(self) -> JobDetail:
        return {"chunks_moved": self.moved}

    async def prepare(self) -> None:
        """Measure the members and plan the first round."""
        await self.tuner.measure(patiently=True)
        self._plan()
        self.total_bytes = sum(len(step.moves) for step in self._steps) * self.context.chunk_bytes

    def _plan(self) -> None:
        self._steps = self.tuner.plan().steps[::-1]
        self._rounds += 1
        self._tried = self.moved

    def next_window(self) -> list[Stripe] | None:
        if not self._steps and self._rounds < ROUNDS_MAX and self.moved > self._tried:
            self._plan()
        if not self._steps:
            return None
        length = self.tuner.layout.length
        return sorted({Stripe(cell // length) for cell, _role, _chunk in self._steps[-1].moves})

    async def work(self, stripes: list[Stripe]) -> int:
        """Do one step, whose bundles are locked; return the bytes moved."""
        step = self._steps.pop()
        back = self.tuner.way_back(step)
        if not await self.tuner.mover.move_locked(stripes, step.moves):
            return 0
        self.moved += len(step.moves)
        return self.tuner.note(step, back)

    async def finish(self, completed: bool) -> None:
        """Make the moves durable."""
        if self.moved:
            await self.context.member_set.flush()
