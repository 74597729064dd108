"""A running array from Python: `Client`.

    from raidx_fuse import Client

    Client.create(["a.img", "b.img", "c.img"], "raid5", size="32MiB")
    array = Client.mount(["a.img", "b.img", "c.img"], "mnt")
    array.fail_disk(2)
    if array.status()["state"] == "degraded":
        plan = array.replace_disk(2, "d.img", create=True, dry_run=True)
        print(plan["does"])
        array.replace_disk(2, "d.img", create=True)
        print(array.wait(timeout_s=60)["state"])
    array.unmount()

This is what the `raidx` command itself does: one request on the control socket of the mount, as
the user who mounted or as root. The documents are those of ``--json`` (documents.py has their
types, `raidx schema` their schemas), and the same promise holds for them. An error is a
`RaidxError`; its *kind* says which one in a word, its *action* what to do. A program
with an event loop calls it in a thread, with `trio.to_thread.run_sync` for instance; the package
itself needs no trio.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast, overload

from raidx_fuse.client.returning import returning
from raidx_fuse.client.status_document import HEALTHY, Standstill, document, is_in, late
from raidx_fuse.daemon import control_client
from raidx_fuse.daemon.events.store import EventStore, state_directory
from raidx_fuse.errors import RaidxError, TimedOutError, reason_named
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.answers import Explanation, Peeked, StripeState
    from raidx_fuse.documents import (
        Advice,
        ArrayReport,
        Cleared,
        CreationPlan,
        Damage,
        Deleted,
        Event,
        Failing,
        Heat,
        Job,
        LosingPlan,
        Member,
        MovePlan,
        Moving,
        Plan,
        PoolArrays,
        PoolChange,
        PoolPlan,
        Started,
        Stats,
        Status,
        TunerState,
        TuningPlan,
        Volume,
        VolumeDetails,
        Volumes,
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
STUCK_LOOKS = 25  # in 5 s, as `raidx wait`
Ref = int | str  # a member: its role, or its path or UUID
Path = str | os.PathLike[str]
Option = str | int | bool
PROGRAM = (sys.executable, "-m", "raidx_fuse.cli.main")  # a daemon is never a fork of the caller


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

    # -- begin and end --

    @overload
    @staticmethod
    def create(
        members: Sequence[Path], layout: str, *, dry_run: Literal[False] = False, **options: Option
    ) -> Status: ...
    @overload
    @staticmethod
    def create(
        members: Sequence[Path], layout: str, *, dry_run: Literal[True], **options: Option
    ) -> CreationPlan: ...
    @staticmethod
    def create(
        members: Sequence[Path], layout: str, *, dry_run: bool = False, **options: Option
    ) -> Status | CreationPlan:
        """Create an array; *options* as those of `raidx create`: ``size="1GiB", sums="on"``."""
        words = _options({"layout": layout, "dry_run": dry_run, **options})
        return cast("Status", _run("create", *words, "--", *_paths(members)))

    @classmethod
    def mount(cls, members: Sequence[Path], mountpoint: Path, **options: Option) -> Self:
        """Mount the arrays of *members*, which a daemon serves until `unmount`; return its client.

        *options* as those of `raidx mount`: ``read_only=True``. With ``name="disk"`` instead of
        members they are found by their superblocks.
        """
        _run("mount", *_options(options), "--", *_paths([*members, mountpoint]))
        return cls(mountpoint)

    def unmount(self) -> None:
        """Make everything durable, and end the daemon; the members are not in use afterwards."""
        _run("umount", *_options({"timeout": self.timeout_s or False}), self.array)

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

    def volumes(self) -> Volumes:
        """Return the volumes of the mount, and those that cannot be shown now."""
        return cast("Volumes", self.call("volume-list"))

    def arrays(self) -> PoolArrays:
        """Return the arrays of the mount with their free space, and those that are absent."""
        return cast("PoolArrays", self.call("array-list"))

    def explain(self, offset: int, length: int = 4096, *, write: bool = False) -> Explanation:
        """Return which members a request would read and write, where, and why."""
        plan = self.call("explain", offset=offset, length=length, write=write)
        return cast("Explanation", plan)

    def explain_stripe(self, stripe: int) -> StripeState:
        """Return the state of a stripe, cell by cell."""
        return cast("StripeState", self.call("explain", stripe=stripe))

    def peek(self, stripe: int, begin: int = 0, length: int = 16) -> Peeked:
        """Return the bytes of each cell of a stripe from *begin* on, as they lie there."""
        return cast("Peeked", self.call("peek", stripe=stripe, begin=begin, length=length))

    def damage(self) -> Damage:
        """Return the ranges of the image that answer with an error."""
        return cast("Damage", self.call("damage"))

    def tuner(self) -> TunerState:
        """Return what the tuner of a raidx array does, and why."""
        return cast("TunerState", self.call("tune"))

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

        Raises TimedOutError after *timeout_s*; without one, after 5 s in which nothing leads there:
        a member is lost, and no job runs. Its *action* says what would.
        """
        begin_s, states = time.monotonic(), states or (HEALTHY,)
        standstill = Standstill(states, STUCK_LOOKS)
        while True:
            found = self.status()
            if all(is_in(each, states) for each in found["arrays"]):
                return found
            if timeout_s is not None and time.monotonic() - begin_s >= timeout_s:
                raise late(found["arrays"], states, timeout_s)
            stays = standstill.look(found["arrays"])
            if timeout_s is None and stays is not None and stays[1]:
                raise stays[0]
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

    @overload
    def replace_disk(
        self,
        old: Ref,
        new: Path,
        *,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: Literal[False] = False,
    ) -> Started: ...
    @overload
    def replace_disk(
        self,
        old: Ref,
        new: Path,
        *,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: Literal[True],
    ) -> Plan: ...
    def replace_disk(
        self,
        old: Ref,
        new: Path,
        *,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: bool = False,
    ) -> Started | Plan:
        """Replace member *old* by *new*; the rebuild is a job."""
        paths = {"old": _named(old), "new": absolute(os.fspath(new))}
        options = {"create": create, "overwrite_signature": overwrite_signature}
        return cast("Started", self.call("replace-disk", **paths, **options, dry_run=dry_run))

    @overload
    def online(self, member: Ref, *, dry_run: Literal[False] = False) -> Started: ...
    @overload
    def online(self, member: Ref, *, dry_run: Literal[True]) -> Plan: ...
    def online(self, member: Ref, *, dry_run: bool = False) -> Started | Plan:
        """Take back a member that had failed or was absent, and is there again.

        It gets what changed meanwhile, a job, or all of its content. One that is in use is left as
        it is: then there is no job.
        """
        members = cast("Sequence[Member]", self.call("status").get("members", ()))
        found, path, is_out = returning(members, _named(member), self.array)
        if not is_out:
            return {"job": None}
        answer = self.call("replace-disk", old=str(found["role"]), new=path, dry_run=dry_run)
        return cast("Started", answer)

    def clear(self, member: Ref | None = None) -> Cleared:
        """Forget the errors and repairs counted of *member*, or of all; return what they were."""
        return cast(
            "Cleared", self.call("clear", member=None if member is None else _named(member))
        )

    @overload
    def add_disks(
        self,
        *members: Path,
        spare: bool = False,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: Literal[False] = False,
    ) -> Started: ...
    @overload
    def add_disks(
        self,
        *members: Path,
        spare: bool = False,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: Literal[True],
    ) -> Plan: ...
    def add_disks(
        self,
        *members: Path,
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

    @overload
    def remove_disk(self, member: Ref, *, dry_run: Literal[False] = False) -> Started: ...
    @overload
    def remove_disk(self, member: Ref, *, dry_run: Literal[True]) -> Plan: ...
    def remove_disk(self, member: Ref, *, dry_run: bool = False) -> Started | Plan:
        """Remove a spare, or a member whose content fits the others, which is a job."""
        return cast("Started", self.call("remove-disk", member=_named(member), dry_run=dry_run))

    @overload
    def reshape(
        self, layout: str, *, dry_run: Literal[False] = False, **options: object
    ) -> Started: ...
    @overload
    def reshape(self, layout: str, *, dry_run: Literal[True], **options: object) -> Plan: ...
    def reshape(self, layout: str, *, dry_run: bool = False, **options: object) -> Started | Plan:
        """Move the array to another layout, a job; *options* as of `raidx reshape`."""
        return cast("Started", self.call("reshape", layout=layout, dry_run=dry_run, **options))

    def scrub(self, *, repair: bool = False) -> Started:
        """Read and compare everything, a job; with *repair* correct what is wrong."""
        return cast("Started", self.call("scrub", repair=repair))

    @overload
    def tune(self, *, dry_run: Literal[False] = False) -> Started: ...
    @overload
    def tune(self, *, dry_run: Literal[True]) -> TuningPlan: ...
    def tune(self, *, dry_run: bool = False) -> Started | TuningPlan:
        """Move hot chunks of a raidx array to members that serve them sooner, a job."""
        return cast("Started", self.call("tune", now=not dry_run, dry_run=dry_run))

    @overload
    def balance(
        self, *, planner: str | None = None, dry_run: Literal[False] = False
    ) -> PoolChange: ...
    @overload
    def balance(self, *, planner: str | None = None, dry_run: Literal[True]) -> PoolPlan: ...
    def balance(self, *, planner: str | None = None, dry_run: bool = False) -> PoolPlan:
        """Move volumes off the hotspots of the mount; `wait_balance` waits for the end."""
        return cast("PoolChange", self.call("balance", planner=planner, dry_run=dry_run))

    def wait_balance(self) -> str:
        """Wait until no plan of `balance` runs any more; return how the last one ended."""
        while (state := self.call("balance-status")["balance"]["state"]) == "running":
            time.sleep(POLL_S)
        return str(state)

    # -- volumes --

    def create_volume(self, name: str, size: int, *, on: str | None = None) -> VolumeDetails:
        """Create a volume of *size* bytes, of the array *on* or the one with most space."""
        return cast("VolumeDetails", self.call("volume-create", name=name, size=size, on=on))

    def resize_volume(self, name: str, size: int, *, lose_data: bool = False) -> VolumeDetails:
        """Make a volume larger; or smaller, where *lose_data* gives up what was written there."""
        answer = self.call("volume-resize", volume=name, size=size, lose_data=lose_data)
        return cast("VolumeDetails", answer)

    def rename_volume(self, name: str, new: str) -> VolumeDetails:
        """Give a volume another name."""
        return cast("VolumeDetails", self.call("volume-rename", volume=name, name=new))

    @overload
    def delete_volume(
        self, name: str, *, lose_data: bool = False, dry_run: Literal[False] = False
    ) -> Deleted: ...
    @overload
    def delete_volume(
        self, name: str, *, lose_data: bool = False, dry_run: Literal[True]
    ) -> LosingPlan: ...
    def delete_volume(
        self, name: str, *, lose_data: bool = False, dry_run: bool = False
    ) -> Deleted | LosingPlan:
        """Delete a volume; *lose_data* if something was written to it."""
        options = {"lose_data": lose_data, "dry_run": dry_run}
        return cast("Deleted", self.call("volume-delete", volume=name, **options))

    @overload
    def move_volume(self, name: str, to: str, *, dry_run: Literal[False] = False) -> Moving: ...
    @overload
    def move_volume(self, name: str, to: str, *, dry_run: Literal[True]) -> MovePlan: ...
    def move_volume(self, name: str, to: str, *, dry_run: bool = False) -> Moving | MovePlan:
        """Move a volume to the array *to* of the mount while it is used, a job."""
        return cast("Moving", self.call("volume-move", volume=name, to=to, dry_run=dry_run))

    # -- jobs --

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


def _paths(members: Sequence[Path]) -> list[str]:
    return [os.fspath(member) for member in members]


def _options(options: Mapping[str, Option | float]) -> list[str]:
    """Return *options* as words of a command: ``start_degraded=True`` is ``--start-degraded``."""
    words = []
    for key, value in options.items():
        name = f"--{key.replace('_', '-')}"
        words += [] if value is False else [name] if value is True else [name, str(value)]
    return words


def _run(*words: str) -> dict[str, Any]:
    """Run a command of `raidx` that starts or ends a daemon; return its document."""
    done = subprocess.run(
        [*PROGRAM, words[0], "--json", *words[1:]], capture_output=True, text=True
    )
    try:
        answer = dict(json.loads(done.stdout))
    except ValueError:
        raise RaidxError(f"raidx {words[0]} failed: {done.stderr.strip()}") from None
    if "error" in answer:
        error = answer["error"]
        raise control_client.ControlError(**error | {"reason": reason_named(error["reason"])})
    return answer


def _named(member: Ref) -> str:
    """Return *member* as the daemon takes it: a role as text, a path as absolute path."""
    text = str(member)
    return absolute(text) if "/" in text or os.path.exists(text) else text


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from raidx_fuse import documents  # late: some 10 ms, and most programs run without

    return getattr(documents, name)
