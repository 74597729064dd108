"""The verdict on one state: mount what the cut left, read everything, compare with the promise.

Every state is mounted and read immediately, and read again when the array's own work (recovery,
resync, rebuild) has ended; then the parity is checked. On a share of the states the array is also

- mounted read-only first: no byte of a member may change;
- given a replacement for a lost member, and rebuilt;
- written while degraded;
- mounted once more without one of its healthy members, written, and mounted with it again;
- mounted at first without one of its members, written, and then mounted with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.table_page import bytes_needed
from raidx_fuse.lab.crash.disks import POISON, SectorDisk
from raidx_fuse.lab.crash.history import Expectation
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.requests.image_parts import Parts
from raidx_fuse.lab.crash.requests.reading import read_sectors
from raidx_fuse.lab.crash.requests.touched import stripes_uncovered
from raidx_fuse.lab.crash.state import Cut, ViolationError, as_violations
from raidx_fuse.layouts.numbers import Role, Stripe, cell_range
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.sparse import Image
from raidx_fuse.members.simulated.virtual_time import begin_anew, run, sleep

# What each journal mode promises after a cut, and where it promises less.
#
# Without a lost member every mode promises: flushed bytes are intact, every other sector is old or
# new, parity is consistent when the array's own work has ended. With up to *tolerance* members lost
# (*uncovered*: no flush has covered the write):
#
# full     the same, always: no write hole.
# partial  the same, except for the sectors on lost members in stripes with an uncovered full-stripe
#          write. Consecutive writes of whole chunks that fill a stripe from its front count as one
#          full-stripe write when the last of them has begun; in such a stripe only the uncovered
#          sectors are excepted.
# none     the same, except for the sectors on lost members in stripes with any uncovered write: the
#          write hole, as in md without a journal.


def exempt_sectors(
    journal: str,
    layout: Layout,
    parts: Parts,
    expected: Expectation,
    lost_at: Callable[[Stripe], frozenset[Role]],
) -> frozenset[int]:
    """Return the sectors of *parts* that may have any content, or be unreadable.

    *lost_at* returns the roles that cannot be read in a stripe.
    """
    if journal == "full":
        return frozenset()
    stripes = expected.full_in_flight
    if journal == "none":
        stripes = expected.in_flight | stripes_uncovered(layout, parts, expected.allowed)
    per_chunk = layout.chunk_bytes // SECTOR_BYTES
    exempt = set(expected.given_up)
    for stripe in map(Stripe, stripes):
        if not (lost := lost_at(stripe)):
            continue
        for cell in cell_range(0, layout.code.data_count):
            if layout.place(stripe, cell)[0] in lost:
                first = layout.logical(stripe, cell) * per_chunk
                exempt.update(parts.sectors_of(first, per_chunk))
    if journal == "partial" and layout.contiguous:
        for sector in expected.loose:
            stripe, cell = layout.locate(parts.in_image(sector) // per_chunk)
            if layout.place(stripe, cell)[0] in lost_at(stripe):
                exempt.add(sector)
    return frozenset(exempt)


def lost_matters(journal: str) -> bool:
    """Return whether a degraded, unclean array needs `start_degraded` to mount."""
    return journal == "none"


MOUNT_LIMIT_S = 3600.0  # of virtual time: a mount that takes longer counts as hanging
POLL_S = 0.25

READ_BYTES = (1 << 20, 4096, 16384)


@dataclass
class Left:
    """What a cut of *recording* at *moment* left: *images* by disk number.

    *away*: the roles that may be without a complete member. Every sector must be as *expected*,
    except for *exempt*: sectors that an earlier mount after the same cut could not recover. The log
    of the disks *unread* cannot be read while these are mounted.
    """

    recording: Recording
    moment: int
    images: Mapping[int, Image]
    away: frozenset[int]
    expected: Expectation
    exempt: frozenset[int] = frozenset()
    unread: tuple[int, ...] = ()

    async def judge(self, generator: random.Random, record: CutRecord | None = None) -> None:
        """Check the promises: `judge` below. Raises ViolationError.

        With *record*, sectors that this recovery could not recover are exempt from now on.
        """
        exempt = await judge_inside(self, generator, record)
        if record is not None:
            self.exempt = exempt

    def again(self, images: Mapping[int, Image], cut: Cut) -> Left:
        """Return what *cut* of the recovery left: *images*."""
        roles = self.recording.roles_of(cut.lost, self.moment)
        away = self.away | self.recording.away(self.moment, roles)
        return replace(self, images=images, away=away, unread=cut.unread)


def judge(left: Left, generator: random.Random, record: CutRecord | None = None) -> frozenset[int]:
    """Check what a cut left; return the sectors for which nothing is promised.

    Raises ViolationError if the array breaks a promise. *generator* draws the additional checks.
    With *record* the disks record their writes (in the order of their numbers), so that the
    recovery itself can be cut; the additional checks are left out then.
    """
    return run(judge_inside, left, generator, record)


async def judge_inside(
    left: Left, generator: random.Random, record: CutRecord | None = None
) -> frozenset[int]:
    """`judge` as a coroutine: one trio run checks many states, one after the other."""
    look = _Oracle(left, generator, record)
    with as_violations("the jobs that the mount started never end"):
        await begin_anew(look.look, seed=generator.getrandbits(32))
    return look.exempt


class _Oracle:
    def __init__(self, left: Left, generator: random.Random, record: CutRecord | None) -> None:
        self.left = left
        self.recording = left.recording
        self.rng = generator
        self.record = record
        self.parts = left.recording.parts
        self.read_bytes = generator.choice(READ_BYTES)
        self.degraded_ok = lost_matters(left.recording.cell.journal)
        self.damaged = left.recording.is_damaged(left.moment)
        self.exempt = left.exempt

    async def look(self) -> None:
        """Mount the members and run all checks. Raises ViolationError."""
        members = self._members()
        draw = self.rng.random()
        if self.record is None and draw < 0.06:
            await self._look_only(members)
        absent = self._hold_back(members) if self.record is None and 0.3 < draw < 0.4 else None
        async with open_array(members, start_degraded=self.degraded_ok) as array:
            for shaper in (array.grow_operation, array.restripe_operation):
                shaper.on_release.append(members.remove)  # a growth was undone: the disk is free
            if self.record is not None:
                self.record.note("mounted")
            first = await self._check_mounted(array)
            await self._wait_for_jobs(array)
            await self._check_parity(array)
            self._check_same(first, await self._read_all(array), "after the mount's own work")
            whole = not array.member_set.lost
            if self.record is None and 0.06 <= draw < 0.14 and not whole:
                await self._replace_lost(array)
                self._check_same(first, await self._read_all(array), "after a rebuild")
            elif self.record is None and draw > 0.9 and not whole:
                await self._check_degraded_writes(array)
            if absent is not None:
                await self._check_degraded_writes(array)
        if absent is not None:
            await self._check_return(members, absent)
        may_lose = self.recording.tolerance(self.left.moment) and not self.damaged
        if self.record is None and 0.14 <= draw < 0.22 and whole and may_lose:
            absent = members.pop(self.rng.randrange(len(members)))
            async with open_array(members) as array:
                again = await self._read_all(array)
                self._check_same(first, again, "without a member, after a clean end")
                await self._check_degraded_writes(array)
            await self._check_return(members, absent)

    def _hold_back(self, members: list[Member]) -> Member | None:
        """Take one member that is whole from *members*, if the array can do without it."""
        left, recording = self.left, self.recording
        spared = len(left.away) + len(left.unread) < recording.tolerance(left.moment)
        if not spared or self.damaged:
            return None
        paths = {member.path: member for member in members}
        roles = [role for role in recording.roles(left.moment) if role not in left.away]
        role = self.rng.choice(roles)
        absent = paths.get(f"disk{recording.holder(role, left.moment)}")
        if absent is not None:
            members.remove(absent)
            away = left.away | recording.away(left.moment, frozenset({role}))
            self.left = replace(left, away=away)
        return absent

    async def _check_return(self, members: list[Member], absent: Member) -> None:
        """Mount *members*, which were written without *absent*, with it: it is caught up."""
        async with open_array(members, start_degraded=True) as array:
            before = await self._read_all(array)
        async with open_array([*members, absent]) as array:
            await self._wait_for_jobs(array)
            await self._check_parity(array)
            self._check_same(before, await self._read_all(array), "after a member came back")

    def _members(self) -> list[Member]:
        reads_zero = self.recording.zeroed
        members: list[Member] = []
        lend = (
            self.record is None
            and not self.left.unread
            and self.rng.random() < 0.5
            and not self.recording.has_poison
        )
        for number, image in sorted(self.left.images.items()):
            if lend and isinstance(image, bytearray):
                ram = self.recording.lent.get(number)
                if ram is None:
                    ram = RamMember(len(image), name=f"disk{number}", reads_zero=reads_zero)
                    self.recording.lent[number] = ram
                ram.memory[:] = image
                members.append(ram)
                continue
            disk = SectorDisk(
                image,
                self.rng,
                name=f"disk{number}",
                record=self.record,
                reads_zero=reads_zero,
                under=self.recording.under(number, self.left.moment),
            )
            if number in self.left.unread:
                disk.lose_log(self.recording.regions.log)
            members.append(disk)
        return members

    # -- checks --------------------------------------------------------------------------------

    async def _look_only(self, members: list[Member]) -> None:
        """Mount read-only: the content is as promised, and no byte of a member changes."""
        before = [_content(member) for member in members]
        async with open_array(members, read_only=True, start_degraded=self.degraded_ok) as array:
            await self._check_mounted(array)
        if before != [_content(member) for member in members]:
            raise ViolationError("a read-only mount wrote to a member")

    async def _check_mounted(self, array: Array) -> list[bytes | None]:
        """Check the roles in use and every sector; return the sectors (None: EIO)."""
        member_set = array.member_set
        unexpected = member_set.lost - self.left.away
        if unexpected:
            raise ViolationError(
                f"roles {sorted(unexpected)} were left out though nothing happened to them: "
                f"{'; '.join(array.warnings)}"
            )
        expected = self.left.expected
        bad = self._bad_roles()
        self.exempt |= exempt_sectors(
            self.recording.cell.journal,
            member_set.layout,  # the present layout: chunks of bundles may have moved
            self.parts,
            expected,
            lambda stripe: member_set.lost_at(stripe) | bad,
        )
        found = await self._read_all(array)
        if found == expected.plainest:
            return found
        wrong = []
        for sector, (content, allowed) in enumerate(zip(found, expected.allowed, strict=True)):
            if content in allowed or sector in self.exempt:
                continue
            if content is None:
                wrong.append(f"sector {sector} cannot be read")
            else:
                wrong.append(self.recording.history.describe(sector, content, allowed))
        if wrong:
            more = f" (and {len(wrong) - 3} more sectors)" if len(wrong) > 3 else ""
            raise ViolationError("; ".join(wrong[:3]) + more)
        return found

    def _bad_roles(self) -> frozenset[Role]:
        """Return the roles whose disks have sectors that cannot be read."""
        if not self.recording.has_poison:
            return frozenset()
        numbers = [n for n, image in self.left.images.items() if POISON in bytes(image)]
        return frozenset(map(Role, self.recording.roles_of(tuple(numbers), self.left.moment)))

    async def _read_all(self, array: Array) -> list[bytes | None]:
        """Return every sector; None where a read fails."""
        sectors: list[bytes | None] = []
        for at, length in self.parts.ranges(self.read_bytes):
            sectors += await read_sectors(array, at, length)
        return sectors

    def _check_same(self, before: list[bytes | None], after: list[bytes | None], when: str) -> None:
        if before == after:
            return
        history = self.recording.history
        for sector, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new and sector not in self.exempt:
                was, now = (history.name(c) if c is not None else "EIO" for c in (old, new))
                raise ViolationError(f"sector {sector} changed from {was} to {now} {when}")

    async def _wait_for_jobs(self, array: Array) -> None:
        with trio.fail_after(MOUNT_LIMIT_S):
            await sleep(POLL_S)  # a hot spare takes its role in another task
            while running := [job for job in array.jobs.running() if not _waits(job.status())]:
                with trio.move_on_after(POLL_S):  # the job may begin to wait for a member
                    await running[0].finished.wait()
                await sleep(POLL_S)  # the end of this job may start the next one
        for job in array.jobs.list():
            cancelled = job.get("going_back") and not job.get("removes_members")
            ending = "cancelled" if cancelled else "done"
            if job["state"] != ending and not _waits(job):
                raise ViolationError(f"{job['kind']} ended as {job['state']}: {job['error']}")

    async def _check_parity(self, array: Array) -> None:
        if array.member_set.lost or self.damaged:
            return
        with trio.fail_after(MOUNT_LIMIT_S):
            result = await array.jobs.wait(await array.start_scrub(repair=False))
        if result["state"] != "done":
            raise ViolationError(f"scrub ended as {result['state']}: {result['error']}")
        layout = array.context.layout if array.context.layout.contiguous else self.recording.layout
        stripe_bytes = layout.code.data_count * layout.chunk_bytes
        exempt = (self.parts.in_image(sector) * SECTOR_BYTES for sector in self.exempt)
        given_up = {at // stripe_bytes for at in exempt}
        wrong = [found for found in result["findings"] if found["stripe"] not in given_up]
        if wrong:
            raise ViolationError(f"parity is not consistent: {wrong[:2]}")

    async def _replace_lost(self, array: Array) -> None:
        """Give every lost role a new member, rebuild it, and check the parity."""
        size = max(len(image) for image in self.left.images.values())
        with trio.fail_after(MOUNT_LIMIT_S):
            for role in sorted(array.member_set.lost):
                # The lost member may have been the largest.
                needed = bytes_needed(array.member_set.config, role)
                member: Member = RamMember(max(size, needed), name=f"new{role}")
                path = array.member_set.config.record(role).path_hint
                old = [stale for stale, _ in array.stale if stale.path == path]
                # The member itself, unless it cannot be read, or the role needs more than it holds.
                usable = old and not self.left.unread
                if usable and self.rng.random() < 0.7 and old[0].size_bytes >= needed:
                    member = old[0]
                job = (await array.replace_disk(role, member))["job"]
                result = await array.jobs.wait(job)
                if result["state"] != "done":
                    raise ViolationError(f"rebuild ended as {result['state']}: {result['error']}")
        if array.member_set.lost:
            lost = sorted(array.member_set.lost)
            raise ViolationError(f"roles {lost} are lost after their rebuild")
        await self._check_parity(array)

    async def _check_degraded_writes(self, array: Array) -> None:
        """Write all parts while degraded, flush, and read them back (degraded reads)."""
        content = self.rng.randbytes(self.parts.sectors * SECTOR_BYTES)
        written = 0
        for at, length in self.parts.ranges(len(content)):
            await array.write(at, content[written : written + length])
            written += length
        await array.flush()
        context = array.context
        for number, sector in enumerate(await self._read_all(array)):
            wanted = content[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES]
            at = self.parts.in_image(number) * SECTOR_BYTES
            # A lost chunk that the parts do not cover whole stays lost.
            if sector != wanted and (sector or at >> context.shift not in context.bad_chunks):
                raise ViolationError("a write after the recovery reads back wrong")


def _waits(job: dict[str, Any]) -> bool:
    """Return whether *job*, a growth, waits for a lost member."""
    return job.get("waits_for_role") is not None


def _content(member: Member) -> Image:
    if isinstance(member, SectorDisk):
        return member.cut.state.image.copy()
    assert isinstance(member, RamMember)
    return bytearray(member.memory)
