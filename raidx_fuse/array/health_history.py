"""What a running array remembers of itself: the last scrub, errors and repairs, known misfits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from raidx_fuse.errors import RaidxError
from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord
from raidx_fuse.format.configuration.remembered import (
    KeptHealth,
    KeptScrub,
    ScrubbedMember,
    ScrubbedPlace,
    health_of,
    short_uuid,
    with_health,
)
from raidx_fuse.jobs.job import Job
from raidx_fuse.jobs.scrub import Scrub
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.loop.tasks import rest
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.queue import MemberQueue

log = logging.getLogger(__name__)

SAVE_EACH_S = 60.0


class Health:
    """Counts for one array, and saves the counts in its superblocks.

    *unix_s* returns the seconds since 1970, 0 where they are not known (virtual time).
    """

    def __init__(self, member_set: MemberSet, unix_s: Callable[[], int]) -> None:
        self.member_set = member_set
        self.unix_s = unix_s
        kept = health_of(member_set.config)
        self.scrub = kept.scrub
        self.misfits = kept.misfits  # as known_misfits.py has them
        # without those of present queues
        self._members = {uuid: list(pair) for uuid, pair in kept.members.items()}
        self._ended: MemberQueue | None = None  # its errors are counted in *_members*
        self._saved = self.present()

    def present(self) -> KeptHealth:
        """Return the present state."""
        members = {uuid: list(pair) for uuid, pair in self._members.items()}
        for record in self.member_set.config.members:
            queue = self.member_set.queues[record.role] if record.role >= 0 else None
            if queue is not None and queue is not self._ended and queue.errors:
                members.setdefault(short_uuid(record.member_uuid), [0, 0])[0] += queue.errors
        counts = {uuid: (pair[0], pair[1]) for uuid, pair in members.items()}
        return KeptHealth(counts, self.scrub, self.misfits)

    def keep(self, config: ArrayConfig) -> ArrayConfig:
        return with_health(config, self.present())

    def note_failed(self, role: Role) -> None:
        """Take over the errors of a member whose queue ends now."""
        queue = self.member_set.queues[role]
        if queue is not None and queue.errors:
            self._of(role)[0] += queue.errors
        self._ended = queue
        self.member_set.change(self.keep)

    def note_mended(self, role: Role, misfitted: bool) -> None:
        """Count a page of the member in *role* that is mended; unreadable, or it *misfitted*."""
        self._of(role)[1] += 1

    def note_ended(self, job: Job) -> None:
        """Remember what a scrub that has ended found, and what each member was repaired."""
        if not isinstance(job, Scrub) or job.kind != Scrub.kind:
            return  # what a resync corrects was torn by a crash: no member is to blame
        found = job.detail()
        for row in found["members"]:
            self._of(Role(row["role"]))[1] += row["repaired"]
        left = [each for each in found["findings"] if not each["repaired"]]
        self.scrub = KeptScrub(
            state=job.state,
            repair=job.repair,
            ended_s=self.unix_s(),
            seconds=round(job.context.member_set.clock() - job.started_s),
            mismatches=found["mismatches"],
            repaired=found["repaired"],
            left=found["uncorrected"],
            unchecked_stripes=found["unchecked_stripes"],
            members=tuple(
                ScrubbedMember(row["role"], row["wrong"], row["repaired"])
                for row in found["members"]
                if row["wrong"]
            ),
            places=tuple(
                ScrubbedPlace(
                    int(each["stripe"]),
                    min(each["image_offsets"], default=None),
                    tuple(int(member["role"]) for member in each["members"]),
                )
                for each in left
            ),
        )

    async def clear(self, records: Iterable[MemberRecord]) -> None:
        """Forget the errors and repairs of the members *records*; durable when this returns.

        Raises RaidxError.
        """
        for record in records:
            queue = self.member_set.queues[record.role] if record.role >= 0 else None
            counted = 0 if queue is None or queue is self._ended else queue.errors
            self._members[short_uuid(record.member_uuid)] = [-counted, 0]
        await self.member_set.update(self.keep, asked=True)
        self._saved = self.present()

    async def run(self) -> None:
        """Save what has changed, now and then (a background task)."""
        while True:
            await rest(SAVE_EACH_S)
            await self.save()

    async def save(self) -> None:
        """Write the state into the superblocks if it has changed; an error is only logged."""
        state = self.present()
        if state == self._saved or self.member_set.closed:
            return
        try:
            await self.member_set.update(self.keep)
            self._saved = state
        except RaidxError as error:
            log.warning("what the array remembers of itself was not saved: %s", error)

    def _of(self, role: Role) -> list[int]:
        uuid = self.member_set.config.record(role).member_uuid
        return self._members.setdefault(short_uuid(uuid), [0, 0])
