"""Waiting: for a job, with a progress bar and an ETA on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rich.progress import Progress, TextColumn

from raidx_fuse.cli.output import Output, console, percent, show, warn
from raidx_fuse.cli.status_text import BAR_COLUMNS, bar, job_amount
from raidx_fuse.daemon.control_client import Connection
from raidx_fuse.errors import Reason, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from raidx_fuse.documents import Balance, Job

POLL_FIRST_S = 0.05
POLL_S = 0.5
LINE_PERCENT = 10.0  # without a terminal: one line for so much progress
ENDED = ("done", "cancelled", "failed")

Seen = TypeVar("Seen")
Ending = TypeVar("Ending", "Job", "Balance")


def wait_for_jobs(array: str, job_ids: list[int], out: Output) -> list[Job]:
    """Wait until all of *job_ids* have ended, showing their progress; return the last statuses.

    Raises ControlError, UsageError for an unknown job.
    """
    with Connection(array) as connection:

        def look(job_id: int) -> Job:
            jobs: list[Job] = out.fit(connection.call("job-list"))["jobs"]
            for job in jobs:
                if job["id"] == job_id:
                    return job
            raise UsageError(
                f"there is no job {job_id}",
                action=f"see raidx job {array} list",
                reason=Reason.NO_SUCH_JOB,
            )

        watch = _bar if redraws(console(stderr=True)) else _lines
        ended: list[Job] = []
        for job_id in job_ids:
            try:
                ended.append(watch(partial(look, job_id), out))
            except KeyboardInterrupt:
                warn(
                    f"job {job_id} goes on: raidx job {array} wait {job_id} waits for it, "
                    f"raidx job {array} cancel {job_id} ends it"
                )
                raise
        return ended


def redraws(screen: Console) -> bool:
    """Return whether a line of *screen* can be drawn again in place: not in a file or a log."""
    return screen.is_terminal and not screen.is_dumb_terminal


def begun(
    out: Output,
    array: str,
    result: Mapping[str, Any],
    line: str,
    *,
    wait: bool,
    ended: Callable[[Job], str] | None = None,
) -> int:
    """Print *result* and the *line* of a command that has begun a job; with *wait* wait for it.

    *ended* says what the job has done. Returns the exit status.
    """
    if not wait or result.get("job") is None:
        out.emit(result, line)
        return 0
    out.note(line)
    (job,) = wait_for_jobs(array, [result["job"]], out)
    out.emit({**result, "result": job}, ended and ended(job))
    return exit_status(job)


def exit_status(job: Job) -> int:
    """Return the exit status: 0 done, 1 failed or cancelled, 3 if a scrub left something wrong."""
    if job["state"] == "failed":
        warn(f"{job['kind']} failed: {job['error']}")
    if job["state"] != "done":
        return 1
    rows = job.get("members", [])
    misfits = sum(row.get("misfits", 0) - row.get("healed", 0) for row in rows)
    return 3 if job.get("uncorrected") or misfits else 0


def looks(look: Callable[[], Ending]) -> Iterator[Ending]:
    """Yield the job's status, often at first and then twice a second, until it has ended."""
    pause_s = POLL_FIRST_S
    while True:
        job = look()
        yield job
        if job["state"] in ENDED:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S)


def looks_until(
    look: Callable[[], Seen],
    is_enough: Callable[[Seen], bool],
    limit_s: float | None,
    before_waiting: Callable[[Seen], None],
) -> Seen:
    """Look twice a second until *is_enough*, or for *limit_s*; return what was seen last."""
    begin_s = time.monotonic()
    while True:
        seen = look()
        late = limit_s is not None and time.monotonic() - begin_s >= limit_s
        if late or is_enough(seen):
            return seen
        before_waiting(seen)
        time.sleep(POLL_S)


def _bar(look: Callable[[], Job], out: Output) -> Job:
    columns = (TextColumn("{task.description} {task.fields[bar]} {task.fields[amount]}"),)
    job = look()
    with Progress(*columns, console=console(stderr=True, live=True)) as progress:
        task = progress.add_task(job["kind"], total=100.0, bar="", amount="")
        for job in looks(look):  # the last status is returned
            share = percent(job["done"], job["total"])
            drawn = bar(share, BAR_COLUMNS).plain
            amount = f"{share:5.1f} %  {job_amount(job, out)}"
            progress.update(task, completed=share, bar=drawn, amount=amount)
    return job


def _lines(look: Callable[[], Job], out: Output) -> Job:
    said = -LINE_PERCENT
    for job in looks(look):
        share = percent(job["done"], job["total"])
        if share - said >= LINE_PERCENT or job["state"] in ENDED:
            said = share
            line = f"{job['kind']} {job['state']} {share:5.1f} %  {job_amount(job, out)}"
            show(line, stderr=True)
    return job
