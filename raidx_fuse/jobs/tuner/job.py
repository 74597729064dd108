"""`raidx tune --now`: tuning as a job, which can be paused, throttled and awaited."""

from __future__ import annotations

from typing import Any

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.jobs.job import Job
from raidx_fuse.jobs.tuner.plan import Step
from raidx_fuse.jobs.tuner.tuner import Tuner
from raidx_fuse.layouts.numbers import Stripe

ROUNDS_MAX = 256  # bounds the job when measured speeds fluctuate


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

    def detail(self) -> dict[str, Any]:
        """Return how many chunks moved."""
        return {"chunks_moved": self.moved}

    async def prepare(self) -> None:
        """Measure the members and plan the first round."""
        await self.tuner.measure(patiently=True)
        self._plan()
        self.total_bytes = sum(len(step.moves) for step in self._steps) << self.context.shift

    def _plan(self) -> None:
        self._steps = self.tuner.plan().steps[::-1]
        self._rounds += 1
        self._tried = self.moved

    def next_window(self) -> list[Stripe] | None:
        """Return the bundles of the next step."""
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
