"""A new kind of job takes a module, and a row of words: here one that compares copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from raidx_fuse.cli.status_text import brief
from raidx_fuse.daemon.events.event import Event
from raidx_fuse.daemon.events.sources import Watch
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.errors import ArrayFailedError, MemberError, NoSpaceError, RaidxError
from raidx_fuse.job_words import WORDS, JobWords
from raidx_fuse.jobs.job import CHECKPOINT_S, Job, Position, stripes_of_window
from raidx_fuse.jobs.scrub import Scrub
from raidx_fuse.jobs.strips import Strips, read_all
from raidx_fuse.layouts.numbers import Stripe
from tests.support.arrays import job_ended
from tests.support.closing import close_at_end
from tests.support.growing import SmallRig
from tests.support.load import CHUNK


class Verify(Job):
    """Compares the copies of all written stripes; *differing* counts those that are unlike."""

    kind = "verify"

    def __init__(self, context: ArrayContext, job_id: int) -> None:
        super().__init__(context, job_id)
        self.window = stripes_of_window(context)
        self.differing = 0
        self._next = 0

    async def prepare(self) -> None:
        """Count the written stripes."""
        written, layout = self.context.written, self.context.layout
        self.total_bytes = written.count_live(layout, 0, layout.stripes) * self.context.chunk_bytes

    def next_window(self) -> list[Stripe] | None:
        """Return the next written stripes."""
        found = self.context.written.written_stripes(self.context.layout, self._next, self.window)
        return found or None

    async def work(self, stripes: list[Stripe]) -> int:
        """Compare the copies of *stripes*."""
        for stripe in stripes:
            strips = Strips(self.context, stripe, 1)
            places = [(role, 0) for role in self.context.layout.roles(stripe)]
            await read_all(self.context, [(strips, places)])
            first, *others = (bytes(strips.array(place)) for place in places)
            self.differing += any(other != first for other in others)
            strips.release()
        self._next = stripes[-1] + 1
        return len(stripes) * self.context.chunk_bytes

    async def finish(self, completed: bool) -> None:
        """Nothing is left to do."""


async def test_a_kind_of_job_that_the_project_does_not_know_has_all_that_jobs_have() -> None:
    rig = SmallRig("raid1", 3)
    close_at_end(rig.close)
    await rig.create(0.8)
    events: list[Event] = []
    Watch(events.append, "/mnt", lambda: 0).begin(rig.array)
    job = rig.array.jobs.start(Verify)
    assert isinstance(job, Verify)
    job.limit(0, 20 * CHUNK)
    job.set_window(2)
    await trio.sleep(0.5)
    assert 0 < job.done_bytes < job.total_bytes
    job.pause()
    (shown,) = rig.array.status()["jobs"]
    assert (shown["kind"], shown["state"], shown["paused"]) == ("verify", "paused", True)
    assert " verify = " in brief(rig.array.status())
    job.resume()
    job.limit(0, 0)
    await job_ended(job)
    assert job.differing == 0
    assert job.done_bytes == job.total_bytes > 0
    said = [(event.event, event.message) for event in events]
    assert ("JobStarted", "a verify has begun") in said
    assert ("JobFinished", "the verify is done") in said


def test_a_row_gives_it_words() -> None:
    assert WORDS["evacuate"] == JobWords("evacuation", "reshape", "evacuating", moves_chunks=True)


class Turned(Verify):
    """Turns round, if it can."""

    turns = pauses = True
    refused: RaidxError | None = None
    unready: RaidxError | None = None
    saves = 0

    async def make_ready(self) -> None:
        """Fail as long as it is *unready*."""
        if self.unready is not None:
            raise self.unready

    async def turn_back(self) -> None:
        """Fail as long as it is *refused*."""
        if self.refused is not None:
            raise self.refused

    def positions(self) -> list[Position]:
        """The job itself."""
        return [self]

    @property
    def saved(self) -> int:
        """Nothing."""
        return 0

    async def save(self) -> None:
        """Fail as long as it is *refused*."""
        self.saves += 1
        if self.refused is not None:
            raise self.refused


async def turned() -> Turned:
    """Start such a job on an array that is closed when the test ends."""
    rig = SmallRig("raid1", 3)
    close_at_end(rig.close)
    await rig.create(0.8)
    job = rig.array.jobs.start(Turned)
    assert isinstance(job, Turned)
    return job


async def test_what_a_window_needs_before_it_lets_a_job_pause() -> None:
    job = await turned()
    job.unready = ArrayFailedError("no superblock could be written")
    await trio.sleep(60)
    assert (job.state, job.done_bytes) == ("paused", 0)
    job.unready = NoSpaceError("the host is full")
    job.resume()
    await trio.sleep(60)
    assert (job.state, job.error) == ("running", "the host is full")
    job.unready = None
    await job_ended(job)


async def test_a_position_that_cannot_be_saved_stops_no_job() -> None:
    job = await turned()
    job.limit(0, 4 * CHUNK)
    job.set_window(1)
    job.refused = ArrayFailedError("no superblock could be written")
    await trio.sleep(CHECKPOINT_S + 1)
    assert job.state == "paused"
    assert job.error is not None
    assert job.error.startswith("no superblock")
    job.refused = None
    job.resume()
    job.limit(0, 0)
    await job_ended(job)


async def test_a_job_turns_round_when_that_is_durable_and_not_before() -> None:
    job = await turned()
    job.limit(0, 4 * CHUNK)
    job.set_window(1)
    job.refused = MemberError("disk1", "write", 0, 5, "I/O error")
    job.cancel()
    await trio.sleep(60)
    assert (job.state, job.back) == ("running", False)
    job.refused = ArrayFailedError("no superblock could be written")
    await trio.sleep(60)
    assert (job.state, job.turning) == ("paused", True)
    job.refused = None
    job.resume()
    job.limit(0, 0)
    await job_ended(job, "cancelled")
    assert job.back


@pytest.mark.parametrize(
    "begin", [Verify, lambda context, number: Scrub(context, number, repair=False)]
)
async def test_a_window_before_which_the_log_fails_is_done_when_it_is_mended(
    begin: Callable[[ArrayContext, int], Job],
) -> None:
    """A scrub left it out, and a resync called its stripes consistent."""
    rig = SmallRig("raid1", 3)
    close_at_end(rig.close)
    await rig.create(0.8)
    journal = rig.array.context.journal
    await rig.array.context.locks.acquire(Stripe(0))
    job = rig.array.jobs.start(begin)
    job.set_window(2)
    await trio.sleep(1)  # it waits for the lock
    journal.torn = MemberError("disk1", "write", 0, 5, "I/O error")
    rig.array.context.locks.release(Stripe(0))
    await trio.sleep(0.1)
    assert job.done_bytes == 0
    journal.torn = None
    await job_ended(job)
    assert job.done_bytes == job.total_bytes > 0
