"""A running array from Python: `Client`.

    from raidx_fuse.client import Client, RaidxError

    array = Client("/mnt/disk")
    if array.status()["state"] == "degraded":
        job = array.replace_disk(2, "/srv/new.img", create=True)
        array.wait_job(job["job"])

This is what the `raidx` command itself does: one request on the control socket of the mount, as
the user who mounted or as root. The documents are those of ``--json`` (documents.py has their
types, `raidx schema` their schemas), and the same promise holds for them. An error is a
`RaidxError`; its *kind* says which one in a word, its *action* what to do. A program
with an event loop calls it in a thread, with `trio.to_thread.run_sync` for instance; the package
itself needs no trio.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, cast

from raidx_fuse.client.status_document import HEALTHY, document, is_in, late
from raidx_fuse.daemon import control_client
from raidx_fuse.daemon.events.store import EventStore, state_directory
from raidx_fuse.errors import RaidxError, TimedOutError
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        Advice,
        ArrayReport,
        Event,
        Failing,
        Heat,
        Job,
        Member,
        Plan,
        Started,
        Stats,
        Status,
        Volume,
    )

__all__ = [
    "Client",
    "Event",
    "Job",
    "Member",
    "Plan",
    "RaidxError",
    "Started",
    "Stats",
    "Status",
    "TimedOutError",
    "Volume",
]

POLL_S = 0.2
Ref = int | str  # a member: its role, or its path or UUID


class Client:
    """A running array: *array* is its mount point, MOUNT:ARRAY, or the socket of `raidx serve`.

    Each method is one request and returns when the array has answered; *timeout_s* limits that, by
    default only a daemon that hangs is given up. All raise RaidxError. A method that starts a job
    returns when it has started: see `wait_job`. With *dry_run* nothing is done, and the result says
    what would be (documents.Plan).
    """

    def __init__(self, array: str | os.PathLike[str], *, timeout_s: float | None = None) -> None:
        self.array = os.fspath(array)
        self.timeout_s = timeout_s

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send any command of the control socket; None stands for an argument left out."""
        given = {key: value for key, value in arguments.items() if value is not None}
        return control_client.call(self.array, command, timeout_s=self.timeout_s, **given)

    # -- look --

    def status(self) -> Status:
        """Return the status of the mount and of each of its arrays."""
        return document([cast("ArrayReport", self.call("status"))])

    def stats(self, interval_s: float | None = None) -> Stats:
        """Return the counters since the mount, or those of the next *interval_s* seconds."""
        return cast("Stats", self.call("stats", interval_s=interval_s))

    def heat(self) -> Heat:
        """Return the places of the image that are used most (`raidx stats --hot`)."""
        return cast("Heat", self.call("heat"))

    def advise(self) -> Advice:
        """Return what a raidx layout, or tuning, would gain for the load seen."""
        return cast("Advice", self.call("advise"))

    def jobs(self) -> list[Job]:
        """Return the jobs that run, and those that ended lately."""
        return cast("list[Job]", self.call("job-list")["jobs"])

    def settings(self) -> dict[str, str | float]:
        """Return every setting with its value."""
        return dict(self.call("get")["settings"])

    def events(self, *, since_s: float = 0.0) -> list[Event]:
        """Return what happened to the arrays of the mount, from *since_s* on (Unix time)."""
        uuids = {each["uuid"] for each in self.status()["arrays"]}
        kept = EventStore(state_directory()).read()
        return [each.as_dict() for each in kept if each.uuid in uuids and each.at_s >= since_s]

    # -- wait --

    def wait(self, *states: str, timeout_s: float | None = None) -> Status:
        """Wait until every array of the mount has one of *states*, by default "healthy".

        Raises TimedOutError after *timeout_s*.
        """
        begin_s, states = time.monotonic(), states or (HEALTHY,)
        while True:
            found = self.status()
            if all(is_in(each, states) for each in found["arrays"]):
                return found
            if timeout_s is not None and time.monotonic() - begin_s >= timeout_s:
                raise late(found["arrays"], states, timeout_s)
            time.sleep(POLL_S)

    def wait_job(self, job: int) -> Job:
        """Wait until a job has ended; return how: its *state* is done, cancelled or failed."""
        return cast("Job", self.call("job-wait", job=job))

    # -- change --

    def set(self, key: str, value: str | float) -> dict[str, str | float]:
        """Change a setting, as `raidx set` takes it; return the value in force."""
        return dict(self.call("set", key=key, value=str(value))["settings"])

    def fail_disk(self, member: Ref, *, lose_data: bool = False) -> Failing:
        """Take a member out as if it had failed."""
        answer = self.call("fail-disk", member=_named(member), lose_data=lose_data)
        return cast("Failing", answer)

    def replace_disk(
        self,
        old: Ref,
        new: str | os.PathLike[str],
        *,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: bool = False,
    ) -> Started | Plan:
        """Replace member *old* by *new*; the rebuild is a job."""
        paths = {"old": _named(old), "new": absolute(os.fspath(new))}
        options = {"create": create, "overwrite_signature": overwrite_signature}
        return cast("Started", self.call("replace-disk", **paths, **options, dry_run=dry_run))

    def add_disks(
        self,
        *members: str | os.PathLike[str],
        spare: bool = False,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: bool = False,
    ) -> Started | Plan:
        """Grow the array onto *members*, a job; or keep them as hot spares."""
        paths = [absolute(os.fspath(member)) for member in members]
        options = {"create": create, "overwrite_signature": overwrite_signature}
        role = "spare" if spare else None
        answer = self.call("add-disk", members=paths, role=role, **options, dry_run=dry_run)
        return cast("Started", answer)

    def remove_disk(self, member: Ref, *, dry_run: bool = False) -> Started | Plan:
        """Remove a spare, or a member whose content fits the others, which is a job."""
        return cast("Started", self.call("remove-disk", member=_named(member), dry_run=dry_run))

    def reshape(self, layout: str, *, dry_run: bool = False, **options: object) -> Started | Plan:
        """Move the array to another layout, a job; *options* as of `raidx reshape`."""
        return cast("Started", self.call("reshape", layout=layout, dry_run=dry_run, **options))

    def scrub(self, *, repair: bool = False) -> Started:
        """Read and compare everything, a job; with *repair* correct what is wrong."""
        return cast("Started", self.call("scrub", repair=repair))

    def pause(self, job: int) -> Job:
        """Pause a job."""
        return cast("Job", self.call("job-pause", job=job))

    def resume(self, job: int) -> Job:
        """Continue a paused job."""
        return cast("Job", self.call("job-resume", job=job))

    def cancel(self, job: int) -> Job:
        """Cancel a job; a growth then moves back what it has moved."""
        return cast("Job", self.call("job-cancel", job=job))

    def limit(self, job: int, *, minimum: int | None = None, maximum: int | None = None) -> Job:
        """Limit the speed of a job, in bytes per second; 0 is no limit."""
        return cast("Job", self.call("job-limit", job=job, minimum=minimum, maximum=maximum))


def _named(member: Ref) -> str:
    """Return *member* as the daemon takes it: a role as text, a path as absolute path."""
    text = str(member)
    return absolute(text) if "/" in text or os.path.exists(text) else text


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from raidx_fuse import documents  # late: some 10 ms, and most programs run without

    return getattr(documents, name)
