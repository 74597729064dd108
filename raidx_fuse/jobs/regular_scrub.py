"""A scrub of every array at regular intervals, for every layout that has something to compare.

It begins when no request has come for a second, nothing else is going on, and the last scrub is
*each_s* of running time ago; one that is due for as long again begins although requests come, at
the speed limits of all jobs. It reports and does not repair. The time since the last scrub is kept
in the superblocks when the array is closed, and now and then, for an array that crashes each week.
"""

from __future__ import annotations

import logging

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.jobs.job import Job
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.settings import SCRUB_EACH, SETTINGS
from raidx_fuse.tasks import rest

log = logging.getLogger(__name__)

IDLE_S = 1.0
LOOK_S = 10.0  # between two looks; the shortest interval is 60 s
SAVES = 8  # in an interval: no more of it is lost in a crash
JOB_KEY, SINCE_SCRUB = "tuner", "since_scrub_s"  # in the superblock's `jobs`, where it always was


class RegularScrub:
    """Starts the scrubs of one array that nobody asks for; *each_s* 0 means never."""

    def __init__(self, array: ArrayServices) -> None:
        self.each_s: float = SETTINGS[SCRUB_EACH].default
        self._array = array
        self._context: ArrayContext = array.context
        kept = self._context.member_set.config.jobs.get(JOB_KEY, {})
        self._unscrubbed_s = float(kept.get(SINCE_SCRUB, 0.0))  # before *_counted_from_s*
        self._counted_from_s = self._context.member_set.clock()
        self._saved_s = self._unscrubbed_s

    def set_interval(self, each_s: float) -> None:
        """Start a scrub each *each_s* from now on; 0: never."""
        self.each_s = each_s

    @property
    def compares(self) -> bool:
        """Whether the layout has redundancy, without which a scrub has nothing to compare."""
        return bool(self._context.code.parity_count)

    @property
    def since_scrub_s(self) -> float:
        """Return the running time in seconds since the last scrub, earlier mounts included."""
        return self._unscrubbed_s + self._context.member_set.clock() - self._counted_from_s

    def keep(self, config: ArrayConfig) -> ArrayConfig:
        """Return *config* with the time since the last scrub, for the next mount."""
        kept = {SINCE_SCRUB: round(self.since_scrub_s)}
        return config.with_job(JOB_KEY, kept)

    def note_ended(self, job: Job) -> None:
        """Count anew from the end of a scrub, also one that a user has started."""
        if job.kind == "scrub":
            self._unscrubbed_s = self._saved_s = 0.0
            self._counted_from_s = self._context.member_set.clock()

    async def run(self) -> None:
        """Start scrubs when they are due (a background task)."""
        while True:
            await rest(LOOK_S)
            if not self.each_s or not self.compares:
                continue
            try:
                if self._is_due():
                    await self._array.start_scrub(repair=False)
                elif self.since_scrub_s >= self._saved_s + self.each_s / SAVES:
                    self._saved_s = self.since_scrub_s
                    await self._context.member_set.update(self.keep)
            except RaidxError as error:
                log.warning("the regular scrub: %s", error)

    def _is_due(self) -> bool:
        late_s = self.since_scrub_s - self.each_s
        return late_s >= 0 and not self._obstacle() and (late_s >= self.each_s or self._is_idle())

    def _is_idle(self) -> bool:
        member_set = self._context.member_set
        queues = (queue for queue in member_set.queues if queue is not None)
        is_quiet = member_set.clock() - self._context.foreground_s >= IDLE_S
        return is_quiet and not any(queue.queue_length() for queue in queues)

    def _obstacle(self) -> bool:
        """Return whether a scrub now would report what is known, or slow down what matters more."""
        member_set = self._context.member_set
        return bool(
            member_set.lost
            or member_set.watermarks
            or self._context.dirty_bitmap.pending_regions()
            or self._array.jobs.running()
        )
