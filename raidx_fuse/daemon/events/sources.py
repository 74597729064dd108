"""Turns what happens to one array into events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from raidx_fuse.array import advice
from raidx_fuse.array.array import Array
from raidx_fuse.daemon.drives import Drives
from raidx_fuse.daemon.events.event import (
    COMMAND,
    DIGEST_EVENT,
    ERROR,
    INFO,
    TEXT_CHARS_MAX,
    WARNING,
    Event,
)
from raidx_fuse.format.regions import LOG_BYTES_LIMIT
from raidx_fuse.job_words import has_begun, words_of
from raidx_fuse.jobs.job import Job
from raidx_fuse.jobs.rebuild import Rebuild
from raidx_fuse.jobs.scrub import Scrub
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.loop.tasks import rest
from raidx_fuse.settings import LOG_SIZE

if TYPE_CHECKING:
    from raidx_fuse.documents import Load

LOOK_S = 10.0  # between two looks for what no hook tells


class Watch:
    """Emits the events of one array, mounted on *mountpoint*; *unix_s* is the wall clock.

    *drives*: those below its members.
    *beside_others*: the mount has several arrays, so that commands name this one.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        mountpoint: str,
        unix_s: Callable[[], int],
        drives: Drives | None = None,
        *,
        beside_others: bool = False,
    ) -> None:
        self._beside_others = beside_others
        self._emit = emit
        self._mountpoint = mountpoint
        self._unix_s = unix_s
        self._drives = Drives() if drives is None else drives
        self._drive_problems: set[str] = set()  # that were told
        self._array: Array  # since `begin`
        self._has_begun = False
        self._waiting: dict[int, str] = {}  # by id of the job: what it waits for
        self._lost = self._unreadable = 0
        self._laws = 0  # broken so far
        self._paths: frozenset[str] = frozenset()  # that do not lead to their members
        self._misfitting: frozenset[str] = frozenset()  # members of which too many pages misfit
        self._mended: Counter[tuple[Role, bool]] = Counter()  # by role, and whether it was rot
        self._waits = 0  # for room in the log, at the last look
        self._log_was_full = False
        self._hot = False
        self._told: Counter[str] = Counter()  # by severity, since the last digest
        self._full: list[str] = []  # members whose hosts are full

    def begin(self, array: Array) -> None:
        self._array, self._has_begun = array, True
        array.member_set.on_fail.append(self._failed)
        array.jobs.on_start.append(self._job_started)
        array.jobs.on_end.append(self._job_ended)
        array.mender.on_mended.append(self._note_mended)
        self._tell("NewArray", INFO, f"{array.name} has started", "")
        if not array.was_clean and array.replayed is not None:
            records, regions = array.replayed.records, array.context.dirty_bitmap.pending_regions()
            redone = f"log records redone: {records}, regions to resync: {regions}"
            text = f"it had not been closed; {redone}"
            self._tell("Recovered", WARNING, text, "")
        if array.member_set.lost:
            self._degraded(frozenset(array.member_set.lost))
        for job in array.jobs.running():
            self._job_started(job)
        self._look()

    async def run(self) -> None:
        """Look for what no hook tells (a background task of the array)."""
        while True:
            await rest(LOOK_S)
            self._look()

    def ended(self) -> None:
        """Tell that the array was closed; nothing, if it never started."""
        if not self._has_begun:
            return
        if self._array.read_only or self._array.member_set.config.clean:
            self._tell("ArrayStopped", INFO, f"{self._array.name} was closed", "")
        else:
            message = f"{self._array.name} could not be closed cleanly"
            self._tell("ArrayStopped", ERROR, message, "", "see its log, then mount it again")

    def note_load(self, load: Load) -> None:
        """Tell when the array becomes a hotspot, and when it no longer is one."""
        if load["hotspot"] == self._hot:
            return
        self._hot = load["hotspot"]
        text = f"its utilisation is {load['utilisation']:.0%}, threshold {load['tau']:.0%}"
        if self._hot:
            where = self._mountpoint or "MOUNT"
            action = f"see what would help: raidx balance {where} --dry-run"
            self._tell("Hotspot", WARNING, f"it is a hotspot: {text}", "", action)
        else:
            self._tell("HotspotGone", INFO, f"it is no hotspot any more: {text}", "")

    def note_command(self, name: str, arguments: Mapping[str, object]) -> None:
        """Tell that a command has changed the array, as `zpool history` does."""
        if self._has_begun:
            given = ", ".join(
                key.replace("_", " ") if value is True else f"{key}={_word(value)}"
                for key, value in arguments.items()
                if value not in (None, False)
            )
            self._tell(COMMAND, INFO, f"{name}: {given}" if given else name, name)

    def event(
        self, kind: str, severity: str, message: str, subject: str, action: str | None = None
    ) -> Event:
        """Return an event of this array that happens now."""
        return Event(
            at_s=self._unix_s(),
            event=kind,
            severity=severity,
            array=self._array.name,
            uuid=self._array.uuid,
            mountpoint=self._mountpoint,
            subject=subject[:TEXT_CHARS_MAX],
            message=message[:TEXT_CHARS_MAX],
            action=None if action is None else action[:TEXT_CHARS_MAX],
        )

    def _tell(
        self, kind: str, severity: str, message: str, subject: str, action: str | None = None
    ) -> None:
        self._told[severity] += 1
        self._emit(self.event(kind, severity, message, subject, action))

    @property
    def uuid(self) -> str:
        return self._array.uuid

    def digest(self) -> Event:
        """Return an event that says how the array is, and what was told since the last digest."""
        status = self._array.status()
        told, self._told = self._told, Counter()
        share = status["written"] / max(1, status["size"])
        words = [
            f"{status['state']}, {status['redundancy_left']} more members may be lost",
            f"{share:.0%} of the image written",
            f"since the last digest: {told[ERROR]} errors, {told[WARNING]} warnings",
            *status["warnings"],
            *self._drives.problems(),
        ]
        return self.event(DIGEST_EVENT, INFO, "; ".join(words), "", self._advice())

    def _advice(self) -> str | None:
        return advice.action(self._array.status() | {"mountpoint": self._place()})

    def _place(self) -> str:
        """Return what names the array on a command line."""
        mine = f":{self._array.name}" if self._beside_others else ""
        return f"{self._mountpoint}{mine}" if self._mountpoint else ""

    def _failed(self, role: Role) -> None:
        member_set = self._array.member_set
        path = self._path(role)
        self._tell("Fail", ERROR, f"member {path} in role {role} has failed", path)
        self._degraded(member_set.lost | {role})

    def _degraded(self, lost: frozenset[Role]) -> None:
        left = max(0, self._array.context.code.tolerance - len(lost))
        roles = ", ".join(str(role) for role in sorted(lost))
        where = self._place() or "ARRAY"
        self._tell(
            "DegradedArray",
            ERROR,
            f"role {roles} is lost; more that may be lost: {left}",
            "",
            f"replace member {min(lost)}: raidx replace-disk {where} {min(lost)} NEW_MEMBER",
        )

    def _job_started(self, job: Job) -> None:
        text = has_begun(job.kind)
        if isinstance(job, Rebuild) and job.was_away:
            text += ": its member was away and is caught up by what changed"
        self._tell(f"{words_of(job.kind).event}Started", INFO, text, job.kind)

    def _job_ended(self, job: Job) -> None:
        self._waiting.pop(job.job_id, None)
        if job.state == "failed":
            self._tell("JobFailed", ERROR, f"the {job.name} failed: {job.error}", job.kind)
            return
        found = job.detail()
        text = f"the {job.name} is {job.state}"
        if isinstance(job, Rebuild) and job.was_away:
            text += f": caught up by {job.done_bytes} bytes"
        self._tell(f"{words_of(job.kind).event}Finished", INFO, text, job.kind)
        if isinstance(job, Rebuild) and job.state == "done":
            self._active_again(job)
        if job.kind == Scrub.kind and found.get("mismatches"):  # a resync expects them
            left = found["uncorrected"]
            text = f"mismatches found by the {job.kind}: {found['mismatches']}, left: {left}"
            self._tell("MismatchFound", ERROR if left else WARNING, text, job.kind, self._advice())

    def _active_again(self, job: Rebuild) -> None:
        for role in job.roles:
            queue = self._array.member_set.readable[role]
            if queue is not None:
                path = queue.member.path
                self._tell("SpareActive", INFO, f"member {path} in role {role} is whole", path)

    def _look_at_log(self) -> None:
        """Tell once when writers begin to wait for room in the log; again after a look without."""
        waits = self._array.context.journal.waits_for_room
        is_full = waits > self._waits
        if is_full and not self._log_was_full:
            text = f"writes wait for room in the log: {waits - self._waits} in {LOOK_S:.0f} s"
            length = self._array.member_set.config.regions.log.length
            twice = min(-(-2 * length >> 20), LOG_BYTES_LIMIT >> 20)
            action = "if it lasts, use faster members: the log is as large as it can be"
            if twice << 20 > length:
                action = f"if it lasts, make it larger: raidx set ARRAY {LOG_SIZE}={twice}MiB"
            self._tell("LogFull", INFO, text, "log", action)
        self._waits, self._log_was_full = waits, is_full

    def _look_at_hosts(self) -> None:
        """Tell once when a file system with members is full, and once when it is not any more."""
        full = self._array.member_set.hosts.full_paths()
        if full and not self._full:
            text = f"no space on the file system of {', '.join(full)}: new writes fail"
            self._tell("HostFull", ERROR, text, full[0], "free space there")
        elif self._full and not full:
            text = f"there is space again on the file system of {', '.join(self._full)}"
            self._tell("HostHasSpace", INFO, text, self._full[0])
        self._full = full

    def _note_mended(self, role: Role, misfitted: bool) -> None:
        self._mended[role, misfitted] += 1

    def _path(self, role: Role) -> str:
        queue = self._array.member_set.queues[role]
        return "" if queue is None else queue.member.path

    def _look(self) -> None:
        for job in self._array.jobs.running():
            if job.error and self._waiting.get(job.job_id) != job.error:
                self._waiting[job.job_id] = job.error
                self._tell("JobStalled", ERROR, f"the {job.name} waits: {job.error}", job.kind)
        self._look_at_log()
        self._look_at_hosts()
        problems = self._array.presence.problems
        for path in sorted(problems.keys() - self._paths):
            action = "look at the disk or folder; move what is needed before an unmount"
            self._tell("MemberPath", WARNING, f"{path}: {problems[path]}", path, action)
        self._paths = frozenset(problems)
        misfitting = dict(self._array.misfit_limit.texts())
        for path in sorted(misfitting.keys() - self._misfitting):
            action = "look at cable, controller and memory; else replace it: raidx replace-disk"
            self._tell("ManyMisfits", WARNING, f"{path}: {misfitting[path]}", path, action)
        self._misfitting = frozenset(misfitting)
        laws = self._array.member_set.laws.said
        for law in laws[self._laws :]:
            refused = f"a request was refused because of a {law}"
            self._tell("LawBroken", ERROR, refused, "", "report it, with the log of the mount")
        self._laws = len(laws)
        lost = self._array.context.bad_chunks.count()
        if lost > self._lost:
            text = f"chunks lost, whole or in part, whose reads fail: {lost}"
            self._tell("LostChunks", ERROR, text, "", self._advice())
        self._lost = lost
        for (role, misfitted), pages in self._mended.items():
            path = self._path(role)
            kind, was = "ReadErrorMended", "could not be read and were mended in place"
            if misfitted:
                kind, was = "RotHealed", "did not fit their checksums and were healed in place"
            self._tell(kind, WARNING, f"pages of {path} that {was}: {pages}", path)
        self._mended.clear()
        pages = self._array.member_set.unreadable.count()
        if pages > self._unreadable and (advice := self._advice()):  # else they are mended soon
            text = f"pages that cannot be read, and that nothing gives back: {pages}"
            self._tell("UnreadablePages", ERROR, text, "", advice)
        self._unreadable = pages
        self._look_at_drives()

    def _look_at_drives(self) -> None:
        """Tell once of each drive what it says of itself, if that is no good."""
        problems = set(self._drives.problems())
        for problem in sorted(problems - self._drive_problems):
            action = "see smartctl --all, and replace the member in time: raidx replace-disk"
            self._tell("DriveProblem", WARNING, problem, "", action)
        self._drive_problems = problems


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
