"""`raidx scrub` and `raidx job`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import SIZE, array_argument, wait_option
from raidx_fuse.cli.progress import exit_status, wait_for_jobs
from raidx_fuse.cli.status_text import job_line, pages_lines
from raidx_fuse.errors import AmbiguousError, Reason, UsageError

if TYPE_CHECKING:
    from raidx_fuse.documents import Job


@verb()
@array_argument
@click.option("--check", is_flag=True, help="Report only (default).")
@click.option("--repair", is_flag=True, help="Also correct mismatches.")
@wait_option
def scrub(out: Output, array: str, check: bool, repair: bool, wait: bool) -> int:
    """Read all written chunks, compare the parity, and report each mismatch.

    --repair fixes every mismatch that parity can attribute to one member. Where parity cannot show
    which chunk is wrong, it trusts the data, rewrites the parity, and reports the stripe. With
    --wait the exit status is 3 if a mismatch, or a page that does not fit its checksum, remains.

    In an array with checksums, every page is compared with its own, and counted by member. --check
    leaves a page that does not fit as it is: what next reads it heals it, a user, --repair, or the
    scrub that begins by itself (scrub_each_s). Pages without a checksum get one where all others
    confirm them. What cannot be read at all is written again by either, as by any other read. A
    page that nothing gives back is counted as lost: `raidx damage` lists what that is of the image.
    """
    if check and repair:
        raise UsageError("--check only reports, --repair corrects", action="leave one of them out")
    result = ask(out, array, "scrub", repair=repair)
    if not wait:
        out.emit(result, f"scrub started (job {result['job']}): raidx job {array} list")
        return 0
    (job,) = wait_for_jobs(array, [result["job"]], out)
    out.emit({**job, **result, "result": job}, scrub_text(job))
    return exit_status(job)


def scrub_text(job: Job) -> str:
    """Return the findings of a scrub: a line of counts, then a line for each mismatch."""
    lines = [
        f"{plural(job['mismatches'], 'mismatch')}, {job['repaired']} repaired, "
        f"{job['uncorrected']} left, {plural(job['unchecked_stripes'], 'stripe')} could not be "
        "checked"
    ]
    for found in job["findings"]:
        members = ", ".join(f"{each['role']} ({each['path']})" for each in found["members"])
        offsets = ", ".join(map(str, found["image_offsets"])) or "none (parity only)"
        blame = "wrong on member" if found["located"] else "one of members"
        done = "repaired" if found["repaired"] else "left as it is"
        if found["assumed_data_right"]:
            done = "parity rewritten, data taken for right"
        lines.append(
            f"stripe {found['stripe']}: {blame} {members}; image offset {offsets}; "
            f"{plural(found['bytes'], 'byte')} from byte {found['byte_in_chunk']} of the chunk; "
            f"{done}"
        )
    return "\n".join([*lines, *pages_lines(job.get("members", []))])


@verb()
@array_argument
@click.argument(
    "verb",
    type=click.Choice(["list", "pause", "resume", "cancel", "wait", "limit"]),
    default="list",
)
@click.argument("job_id", metavar="[JOB]", type=int, required=False)
@click.option("--min", "minimum", type=SIZE, help="For limit: bytes a second, even under load.")
@click.option("--max", "maximum", type=SIZE, help="For limit: most bytes a second; 0: no limit.")
def job(
    out: Output,
    array: str,
    verb: str,
    job_id: int | None,
    minimum: int | None,
    maximum: int | None,
) -> int:
    """List, pause, resume, cancel, limit or wait for background jobs.

    JOB may be left out if exactly one job runs; `wait` without JOB waits for all jobs.
    """
    jobs = ask(out, array, "job-list")["jobs"]
    running = [each["id"] for each in jobs if each["state"] in ("running", "paused")]
    if verb == "list":
        lines = Text("\n").join([job_line(each, out) for each in jobs])
        out.emit({"jobs": jobs}, lines if jobs else "no jobs")
        return 0
    if verb == "wait":
        ended = wait_for_jobs(array, running if job_id is None else [job_id], out)
        out.emit({"jobs": ended})
        return max((exit_status(each) for each in ended), default=0)
    if job_id is None and not running:
        raise UsageError("no job is running", reason=Reason.NO_SUCH_JOB)
    if job_id is None and len(running) > 1:
        ids = " or ".join(map(str, running))
        raise AmbiguousError(
            f"{len(running)} jobs are running",
            action=f"name one: raidx job {shlex.quote(array)} {verb} {ids}",
        )
    chosen = running[0] if job_id is None else job_id
    limits = {"minimum": minimum, "maximum": maximum}
    if verb == "limit" and minimum is maximum is None:
        raise UsageError("limit needs --min or --max")
    if verb != "limit" and (minimum, maximum) != (None, None):
        raise UsageError(f"--min and --max belong to limit, not to {verb}")
    result = ask(out, array, f"job-{verb}", job=chosen, **(limits if verb == "limit" else {}))
    out.emit({**result, "jobs": [result]}, job_line(result, out))
    return 0
