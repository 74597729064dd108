"""The verdict on one state: mount what the cut left, read everything, compare with the promise.

Every state is mounted and read immediately, and read again when the arrays' own work (recovery,
resync, rebuild, moves, wiping) has ended; then the parity is checked. On a share of the states an
array is also

- mounted read-only first: no byte of a member may change;
- given a replacement for a lost member, and rebuilt;
- written while degraded;
- mounted once more without one of its healthy members, written, and mounted with it again;
- mounted at first without one of its members, written, and then mounted with it.

Of a pool, every volume is there, once, with a size that it may have; every free byte reads as zero;
in the end no table names a move. On a share of the states

- each array is mounted alone first: it shows no volume that is on its way, both show none twice;
- the moves that go on are cancelled, or volumes are written meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import ungrouped
from raidx_fuse.format.configuration.sums import sums_of
from raidx_fuse.format.table_page import bytes_needed
from raidx_fuse.lab.crash.disks import POISON, SectorDisk, lose_front, records_of
from raidx_fuse.lab.crash.hardware import Parts, read_all, read_volume, sectors_on_lost
from raidx_fuse.lab.crash.history import Expectation, History
from raidx_fuse.lab.crash.mounting import (
    POLL_S,
    check_parity,
    mounted,
    moves_of,
    take_back,
    wait_for_jobs,
    waits,
)
from raidx_fuse.lab.crash.pairs import LIMIT_S, PairRecording, since
from raidx_fuse.lab.crash.pairs import READ_BYTES as PAIR_READ_BYTES
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import ViolationError, as_violations
from raidx_fuse.lab.crash.sums import check_calm, check_copies, check_whole, live_pages
from raidx_fuse.layouts.numbers import Chunk, Role, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.powercut import CutRecord, Image
from raidx_fuse.members.simulated.virtual_time import begin_anew, sleep
from raidx_fuse.pool.allocate import free_ranges
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume

Sectors = list[bytes | None]  # None: it cannot be read
Found = dict[str, Sectors]  # by the name of the volume

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
    stripes, per_chunk = expected.full_in_flight, layout.chunk_bytes // SECTOR_BYTES
    if journal == "none":
        # A write that waited while a restripe ended was asked for in stripes of the other shape.
        several = (sector for sector, found in enumerate(expected.allowed) if len(found) > 1)
        chunks = {parts.in_image(sector) // per_chunk for sector in several}
        stripes = expected.in_flight | {layout.locate(Chunk(chunk))[0] for chunk in chunks}
    exempt = expected.given_up | sectors_on_lost(layout, parts, stripes, lost_at)
    if journal == "partial" and layout.contiguous:
        for sector in expected.loose:
            stripe, cell = layout.locate(parts.in_image(sector) // per_chunk)
            if layout.place(stripe, cell)[0] in lost_at(stripe):
                exempt |= {sector}
    return exempt


MOUNT_LIMIT_S = 3600.0  # of virtual time: a mount that takes longer counts as hanging

FRONTS_LOST = (0.0, 0.4, 1.0)  # of the disks with superblocks at both ends, in a state
READ_BYTES = (1 << 20, 4096, 16384)
LOSE_SHARE = 0.25  # of the pairs: as many members as can be spared are lost after the mount
ALONE_SHARE = 0.25  # of the states: each array of a pool is mounted alone before both are together
CANCEL_SHARE = 0.25
USED_SHARE = 0.3  # volumes are written while the moves go on
SLOW_BYTES = (8192, 32768, 131072)  # a second: of those moves


@dataclass
class Left:
    """What a cut of *recording* at *moment* left: *images* by disk number.

    The disks *lost* may be missing. Nothing is promised for the sectors *exempt*, which an earlier
    mount after the same cut could not recover. The log of the disks *unread* cannot be read while
    these are mounted.
    """

    recording: Recording
    moment: int
    images: Mapping[int, Image]
    lost: frozenset[int] = frozenset()
    unread: tuple[int, ...] = ()
    exempt: frozenset[int] = frozenset()

    async def judge(self, generator: random.Random, record: CutRecord | None = None) -> None:
        """Check the promises; *generator* draws the additional checks. Raises ViolationError.

        With *record* the disks record their writes (in the order of their numbers), so that the
        recovery itself can be cut; the additional checks are left out then, and sectors that this
        recovery could not recover are exempt from now on.
        """
        kind: type[_Oracle] = _PoolOracle if self.recording.is_pool else _ArrayOracle
        if isinstance(self.recording, PairRecording):
            kind = _PairOracle
        look = kind(self, generator, record)
        with as_violations("the jobs that the mount started never end"), ungrouped():
            await begin_anew(look.look, seed=generator.getrandbits(32))
        if record is not None:
            self.exempt = look.exempt


class _Oracle:
    """What all looks have in common: the disks, the comparison of sectors, waiting, parity."""

    def __init__(self, left: Left, generator: random.Random, record: CutRecord | None) -> None:
        self.left = left
        self.recording = left.recording
        self.rng = generator
        self.record = record
        self.rots = self.recording.rots_at(left.moment)
        is_wrong = any(one.is_damaged(left.moment) for one in self.recording.arrays)
        self.damaged = is_wrong or self.rots
        self.exempt = left.exempt
        self.rotten = [rot for rot in left.recording.rotten if rot.begin < left.moment < rot.end]

    async def look(self) -> None:
        raise NotImplementedError

    def _members(self) -> list[list[Member]]:
        recording = self.recording
        arrays: list[list[Member]] = [[] for _ in recording.arrays]
        lend = (
            self.record is None
            and not recording.is_pool
            and not self.left.unread
            and self.rng.random() < 0.5
            and not recording.has_poison
        )
        lost_fronts = self.rng.choice(FRONTS_LOST) if recording.has_ends else 0.0
        for number, image in sorted(self.left.images.items()):
            if self.rng.random() < lost_fronts:
                lose_front(image, self.rng)
            members = arrays[recording.array_of[number] if recording.is_pool else 0]
            if lend and isinstance(image, bytearray):
                ram = recording.lent.get(number)
                if ram is None:
                    zeroed = recording.zeroed
                    ram = RamMember(len(image), name=f"disk{number}", reads_zero=zeroed)
                    recording.lent[number] = ram
                ram.memory[:] = image
                members.append(ram)
                continue
            disk = SectorDisk(
                image,
                self.rng,
                name=f"disk{number}",
                record=self.record,
                reads_zero=recording.zeroed,
                under=recording.under(number, self.left.moment),
            )
            if number in self.left.unread:
                disk.unread = records_of(recording.roles.regions.log)
            members.append(disk)
        return arrays

    # -- checks --------------------------------------------------------------------------------

    def _check_calm(self, arrays: Iterable[Array], when: str) -> None:
        """Check that the checksums of *arrays* have found nothing, if nothing is damaged."""
        if not self.damaged and self.recording.cell.sums:
            check_calm(arrays, when)

    def _is_excused(self, history: History, sector: int, content: bytes | None) -> bool:
        if sector in self.exempt:
            return True
        has_redundancy = self.recording.roles.layout.code.tolerance > 0
        return content is None and any(
            sector in rot.sectors and (rot.is_lost or not has_redundancy) for rot in self.rotten
        )

    def _excuses_parity(self, layout: Layout) -> Callable[[int], bool]:
        return lambda stripe: False

    def _check_members(self, arrays: Iterable[Array]) -> None:
        for number, (array, roles) in enumerate(zip(arrays, self.recording.arrays, strict=True)):
            lost = self.recording.of_array(number, self.left.lost)
            unexpected = roles.unexpected(array.member_set.lost, lost, self.left.moment)
            if unexpected:
                raise ViolationError(
                    f"roles {sorted(unexpected)} were left out though nothing happened to them: "
                    f"{'; '.join(array.warnings)}"
                )

    def _poisoned(self) -> list[int]:
        if not self.recording.has_poison:
            return []
        return [n for n, image in self.left.images.items() if POISON in image]

    def _check_sectors(self, found: Sectors, history: History) -> None:
        expected = history.at(self.left.moment)
        if found == expected.plainest[: len(found)]:
            return
        wrong = []
        for sector, content in enumerate(found):
            allowed = expected.allowed[sector]
            if content in allowed or self._is_excused(history, sector, content):
                continue
            wrong.append(history.describe(sector, content, allowed))
        if wrong:
            more = f" (and {len(wrong) - 3} more sectors)" if len(wrong) > 3 else ""
            raise ViolationError("; ".join(wrong[:3]) + more)

    def _check_same(self, before: Found, after: Found, when: str) -> None:
        if before == after:
            return
        if before.keys() != after.keys():
            raise ViolationError(f"volumes {sorted(before)} became {sorted(after)} {when}")
        for history in self.recording.volumes:
            found = before.get(history.volume, []), after.get(history.volume, [])
            for sector, (old, new) in enumerate(zip(*found, strict=True)):
                read = None if old is None or new is None else new
                if old != new and not self._is_excused(history, sector, read):
                    was, now = (history.describe(sector, one) for one in (old, new))
                    raise ViolationError(f"{was}, then {now}, {when}")

    async def _wait_for_jobs(self, array: Array) -> None:
        with trio.fail_after(MOUNT_LIMIT_S):
            await sleep(POLL_S)  # a hot spare takes its role in another task
            while running := [job for job in array.jobs.running() if not waits(job.status())]:
                with trio.move_on_after(POLL_S):  # the job may begin to wait for a member
                    await running[0].finished.wait()
                await sleep(POLL_S)  # the end of this job may start the next one
        for job in array.jobs.list():
            cancelled = job.get("going_back") and not job.get("removes_members")
            endings = ["cancelled" if cancelled else "done"]
            if self.recording.is_pool:  # a move that is cancelled is seen by its effects
                endings.append("cancelled")
            if job["state"] not in endings and not waits(job):
                raise ViolationError(f"{job['kind']} ended as {job['state']}: {job['error']}")

    async def _check_parity(self, array: Array) -> None:
        if self.damaged and not self.rots:  # what has rotted is healed by now
            return
        if self.record is None and not self.rots:  # it changes what lies at home
            await self._check_sums(array)  # before a scrub gives sums to pages that have none
        with trio.fail_after(MOUNT_LIMIT_S):
            await check_parity(array, self._excuses_parity(array.context.layout))
        self._check_calm([array], "in a scrub")
        if self.record is None and self.rots:
            await self._check_sums(array)

    async def _check_sums(self, array: Array) -> None:
        """Check that each live page has a sum that fits, if nothing excuses that it has none."""
        sums = sums_of(array.member_set.config)
        # Where there is no room, a layout that tolerates more has no more copies, and those on
        # members that are leaving, or are still to be rebuilt, do not count.
        roles = () if sums is None else array.member_set.config.roles()
        lost = len(self.left.lost)
        few = sums is not None and any(len(sums.tables[r].slots) <= lost for r in roles)
        kept = array.member_set.sums
        few |= kept is not None and bool(kept.tables.lost_of)
        # What awaited its resync while members are lost may have none that anything proves, nor
        # have the copies that a growth makes of it.
        few |= bool(array.member_set.lost)
        await check_whole(array, complete=not (self.recording.sums_begin or few))


class _ArrayOracle(_Oracle):
    """Looks at one array without volumes: it is the only volume, without a name."""

    def __init__(self, left: Left, generator: random.Random, record: CutRecord | None) -> None:
        super().__init__(left, generator, record)
        self.parts = self.recording.parts
        self.read_bytes = generator.choice(READ_BYTES)
        # Without a log an array that is degraded and unclean does not mount else.
        self.degraded_ok = self.recording.cell.journal == "none"

    async def look(self) -> None:
        (members,) = self._members()
        roles = self.recording.roles
        if self.rotten:
            await self._excuse_unverified(members)
        draw = self.rng.random()
        if self.record is None and draw < 0.06 and not self.rots:  # a resync finds what rots
            before = [_content(member) for member in members]
            async with open_array(
                members, read_only=True, start_degraded=self.degraded_ok
            ) as array:
                await self._check_mounted(array)
            if before != [_content(member) for member in members]:
                raise ViolationError("a read-only mount wrote to a member")
        absent = self._hold_back(members) if self.record is None and 0.3 < draw < 0.4 else None
        async with open_array(members, start_degraded=self.degraded_ok) as array:
            array.on_release.append(members.remove)  # a growth was undone: the disk is free
            if self.record is not None:
                self.record.note("mounted")
            first = await self._check_mounted(array)
            await self._wait_for_jobs(array)
            await self._check_parity(array)
            self._check_same(first, await self._read(array), "after the mount's own work")
            whole = not array.member_set.lost
            if self.record is None and 0.06 <= draw < 0.14 and not whole:
                await self._replace_lost(array)
                self._check_same(first, await self._read(array), "after a rebuild")
            elif self.record is None and draw > 0.9 and not whole:
                await self._check_degraded_writes(array)
            if absent is not None:
                await self._check_degraded_writes(array)
            live = await live_pages(array)
        if not self.damaged and self.record is None:
            await check_copies(array, live, members)
        if absent is not None:
            await self._check_return(members, absent)
        may_lose = roles.tolerance(self.left.moment) and not self.damaged
        if self.record is None and 0.14 <= draw < 0.22 and whole and may_lose:
            absent = members.pop(self.rng.randrange(len(members)))
            async with open_array(members) as array:
                again = await self._read(array)
                self._check_same(first, again, "without a member, after a clean end")
                await self._check_degraded_writes(array)
            await self._check_return(members, absent)

    async def _excuse_unverified(self, members: Sequence[Member]) -> None:
        """Except what is rotten where a crash came in: there its bytes are taken as they are."""
        async with open_array(members, read_only=True, start_degraded=self.degraded_ok) as array:
            for stripes in array.context.dirty_bitmap.stripes_to_resync():
                for rot in self.rotten:
                    if rot.stripe in stripes:
                        self.exempt |= rot.sectors

    def _hold_back(self, members: list[Member]) -> Member | None:
        """Take one member that is whole from *members*, if the array can do without it."""
        left, roles = self.left, self.recording.roles
        away = roles.away(left.lost, left.moment)
        if self.damaged or len(away) + len(left.unread) >= roles.tolerance(left.moment):
            return None
        paths = {member.path: member for member in members}
        role = self.rng.choice([role for role in roles.present(left.moment) if role not in away])
        disk = roles.holder(role, left.moment)
        absent = paths.get(f"disk{disk}")
        if absent is not None:
            members.remove(absent)
            self.left = replace(left, lost=left.lost | {disk})
        return absent

    async def _check_return(self, members: list[Member], absent: Member) -> None:
        """Mount *members*, which were written without *absent*, with it: it is caught up."""
        async with open_array(members, start_degraded=True) as array:
            before = await self._read(array)
        async with open_array([*members, absent]) as array:
            await self._wait_for_jobs(array)
            await self._check_parity(array)
            self._check_same(before, await self._read(array), "after a member came back")

    async def _check_mounted(self, array: Array) -> Found:
        self._check_members([array])
        member_set = array.member_set
        poisoned = self.recording.roles.of(tuple(self._poisoned()), self.left.moment)
        bad = frozenset(map(Role, poisoned))
        self.exempt |= exempt_sectors(
            self.recording.cell.journal,
            member_set.layout,  # the present layout: chunks of bundles may have moved
            self.parts,
            self.recording.history.at(self.left.moment),
            lambda stripe: member_set.lost_at(stripe) | bad,
        )
        found = await self._read(array)
        self._check_sectors(found[""], self.recording.history)
        return found

    async def _read(self, array: Array) -> Found:
        found = {"": await read_all(array, self.parts.ranges(self.read_bytes))}
        self._check_calm([array], "in a read")
        return found

    def _excuses_parity(self, layout: Layout) -> Callable[[int], bool]:
        if not layout.contiguous:
            layout = self.recording.roles.layout
        stripe_bytes = layout.code.data_count * layout.chunk_bytes
        exempt = (self.parts.in_image(sector) * SECTOR_BYTES for sector in self.exempt)
        return {at // stripe_bytes for at in exempt}.__contains__

    async def _replace_lost(self, array: Array) -> None:
        """Give every lost role a new member, rebuild it, and check the parity."""
        size = max(len(image) for image in self.left.images.values())
        with trio.fail_after(MOUNT_LIMIT_S):
            for role in sorted(array.member_set.lost):
                # The lost member may have been the largest.
                config = array.member_set.config
                needed = config.member_bytes_for(bytes_needed(config, role))
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
        for number, sector in enumerate((await self._read(array))[""]):
            wanted = content[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES]
            at = self.parts.in_image(number) * SECTOR_BYTES
            # A lost page that the parts do not cover whole stays lost.
            if sector != wanted and (sector or context.refused(at, SECTOR_BYTES) is None):
                raise ViolationError("a write after the recovery reads back wrong")


class _PoolOracle(_Oracle):
    """Looks at the volumes of several arrays."""

    read_bytes = READ_BYTES[0]

    async def look(self) -> None:
        arrays = self._members()
        if self.record is None and self.rng.random() < ALONE_SHARE:
            await self._each_alone(arrays)
        async with mounted(arrays) as pool:
            slow = self.record is None and self.rng.random() < USED_SHARE
            for job in moves_of(pool):
                job.limit(0, self.rng.choice(SLOW_BYTES) if slow else 0)
            first = await self._check_volumes(pool)
            if self.rng.random() < CANCEL_SHARE:
                for job in moves_of(pool):
                    job.cancel()
            if slow:
                await self._use(pool, first)
            for job in moves_of(pool):
                job.limit(0, 0)
            for volumes in pool.arrays:
                await self._wait_for_jobs(volumes.array)
            with trio.fail_after(MOUNT_LIMIT_S):
                for volumes in pool.arrays:
                    await volumes.wiped()
            self._check_same(first, await self._read_pool(pool), "after the mount's own work")
            await self._check_free(pool)
            for volumes in pool.arrays:
                table = volumes.table()
                if table.arrived or any(record.move is not None for record in table.volumes):
                    raise ViolationError(f"array {volumes.array.name} still names a move: {table}")
            if pool.unshown:
                raise ViolationError(pool.unshown[0].text)
            if self.record is None:
                for volumes in pool.arrays:
                    await self._check_parity(volumes.array)
        async with mounted(arrays) as pool:
            self._check_same(first, await self._read_pool(pool), "after a clean end")

    async def _each_alone(self, arrays: list[list[Member]]) -> None:
        """Mount each array of a pool without the other one."""
        seen: set[str] = set()
        for number in self.rng.sample((0, 1), 2):
            async with mounted([arrays[number]]) as pool:
                found = (await self._read_pool(pool)).keys()
                if both := seen & found:
                    raise ViolationError(f"each array alone shows {', '.join(both)}")
                seen |= found
                await self._check_free(pool)

    def _shown(self, pool: Pool) -> list[Volume]:
        """Return the volumes that are to be checked; some may move while they are."""
        return [volume for volumes in pool.arrays for volume in volumes.volumes]

    def _histories(self) -> list[History]:
        return self.recording.volumes

    def _check_known(self, found: Found) -> None:
        known = {history.volume: history for history in self._histories()}
        for name in found:
            if name not in known or not any(known[name].at(self.left.moment).sizes):
                raise ViolationError(f"volume {name} is there, though it should not be")

    async def _read_pool(self, pool: Pool) -> Found:
        found: Found = {}
        for volume in self._shown(pool):
            if volume.name in found:
                raise ViolationError(f"volume {volume.name} is shown twice")
            found[volume.name] = await read_volume(volume, self.read_bytes)
        self._check_calm([volumes.array for volumes in pool.arrays], "in a read")
        self._check_known(found)
        return found

    async def _check_volumes(self, pool: Pool) -> Found:
        self._check_members(volumes.array for volumes in pool.arrays)
        found = await self._read_pool(pool)
        for history in self._histories():
            content, expected = found.get(history.volume), history.at(self.left.moment)
            size = 0 if content is None else len(content) * SECTOR_BYTES
            if size not in expected.sizes:
                has = f"has {size} bytes" if size else "is lost"
                allowed = f"allowed: {sorted(set(expected.sizes))}"
                raise ViolationError(f"volume {history.volume} {has}, {allowed}")
            if content is not None:
                self._check_sectors(content, history)
        await self._check_free(pool)
        return found

    async def _check_free(self, pool: Pool) -> None:
        for volumes in pool.arrays:
            array = volumes.array
            for extent in free_ranges(volumes.table().taken(), array.size_bytes):
                if any(await array.read(extent.offset, extent.length)):
                    raise ViolationError(f"array {array.name}: a free byte is not zero")

    async def _use(self, pool: Pool, content: Found) -> None:
        for _ in range(self.rng.randint(1, 8)):
            shown = [volume for volumes in pool.arrays for volume in volumes.volumes]
            if not shown:
                return
            volume = self.rng.choice(shown)
            sector = self.rng.randrange(volume.size_bytes // SECTOR_BYTES)
            data = self.rng.randbytes(SECTOR_BYTES)
            await volume.write(sector * SECTOR_BYTES, data)
            content[volume.name][sector] = data
            await trio.sleep(self.rng.choice((0.0, 0.1, 1.0)))


class _PairOracle(_PoolOracle):
    """Looks at the volumes of a pair: without as many members as can be spared, and with them.

    Where members are lost, what a write past the log may have torn is excepted: the sectors of a
    stripe that was written whole, and, without a log, of every stripe that was written.
    """

    recording: PairRecording
    read_bytes = PAIR_READ_BYTES

    def __init__(self, left: Left, generator: random.Random, record: CutRecord | None) -> None:
        super().__init__(left, generator, record)
        assert isinstance(left.recording, PairRecording)
        self.recording, moment = left.recording, left.moment
        self.torn: dict[int, set[int]] = {}  # by the number of the volume
        self.unreadable: dict[int, set[int]] = {}
        mode = self.recording.weakest_mode(moment)
        lacking = left.lost or any(one.lacking(moment) for one in self.recording.arrays)
        for history in self._histories():
            number = history.number
            self.torn.setdefault(number, set()).update(since(self.recording.unsure, number, moment))
            self.unreadable[number] = since(self.recording.unreadable, number, moment)
        for history in self.recording.volumes if lacking and mode != "full" else ():
            expected = history.at(moment)
            for token in expected.in_flight if mode == "none" else expected.full_in_flight:
                for number, sectors in self.recording.torn[token].items():
                    self.torn.setdefault(number, set()).update(sectors)

    async def look(self) -> None:
        arrays = self._members()
        disks = {disk.path: disk for members in arrays for disk in members}
        async with mounted(arrays, start_degraded=True) as pool:
            if self.record is not None:
                self.record.note("mounted")
            found = await self._check_volumes(pool)
            if self.record is None and any(pool.transfers):
                await self._write_lost(pool, found)  # what a second cut leaves is judged without it
            with trio.fail_after(LIMIT_S):
                await wait_for_jobs(pool)
            await self._check_again(pool, found, "after the mount's own work")
            if self.record is not None or self.recording.burdened:
                return
            await self._take_back(pool, found, disks)
            if self.rng.random() < LOSE_SHARE and not self._poisoned():
                await self._lose(pool, found, disks)

    def _shown(self, pool: Pool) -> list[Volume]:
        return [volume for volume in super()._shown(pool) if volume.name != "filler"]

    def _histories(self) -> list[History]:
        return [one for one in self.recording.volumes if one.volume in self.recording.uuids]

    def _check_known(self, found: Found) -> None:
        strange = found.keys() - self.recording.uuids.keys()
        if len(strange) > len(self.recording.volumes) - len(self._histories()):  # being created
            raise ViolationError(f"volumes {sorted(strange)} are there, though they should not be")

    async def _check_free(self, pool: Pool) -> None:
        """Check nothing: that free bytes are zeros is looked at in the theme "pool"."""

    def _is_excused(self, history: History, sector: int, content: bytes | None) -> bool:
        unreadable = content is None and sector in self.unreadable.get(history.number, ())
        return unreadable or sector in self.torn.get(history.number, ())

    def _excuses_parity(self, layout: Layout) -> Callable[[int], bool]:
        is_torn = any(self.torn[history.number] for history in self._histories())
        return lambda stripe: is_torn

    async def _check_again(self, pool: Pool, found: Found, when: str) -> None:
        self._check_same(found, await self._read_pool(pool), when)
        for volumes in pool.arrays:
            await self._check_parity(volumes.array)

    async def _write_lost(self, pool: Pool, found: Found) -> None:
        """Write over what cannot be read: a move of it that is paused goes on then."""
        uuids = {volume.name: volume.uuid for volume in self._shown(pool)}
        for name, content in found.items():
            sector = 0
            for lost, several in groupby(content, lambda what: what is None):
                count = len(list(several))
                if lost:  # at once: a part of a lost chunk gives the rest no content
                    _, volume = pool.find(uuids[name])
                    await volume.write(sector * SECTOR_BYTES, bytes(SECTOR_BYTES * count))
                sector += count

    async def _take_back(self, pool: Pool, found: Found, disks: Mapping[str, Member]) -> None:
        """Take back the members that were out before the cut: they are caught up."""
        if not any(volumes.array.member_set.lost for volumes in pool.arrays):
            return
        for volumes in pool.arrays:
            member_set = volumes.array.member_set
            record = member_set.config.record
            paths = sorted(record(role).path_hint for role in member_set.lost)
            for disk in [disks[path] for path in paths if path in disks]:
                with trio.fail_after(LIMIT_S):
                    await take_back(volumes.array, disk)
                    await wait_for_jobs(pool)
        await self._check_again(pool, found, "after the return of members")

    async def _lose(self, pool: Pool, found: Found, disks: Mapping[str, Member]) -> None:
        """Lose as many members as the array under test can spare; then take them back."""
        array = pool.arrays[0].array
        queues = array.member_set.queues
        spare = array.context.code.tolerance - len(array.member_set.lost)
        paths = {role: queue.member.path for role, queue in enumerate(queues) if queue is not None}
        gone = self.rng.sample(list(paths), max(0, spare))
        for role in gone:
            await array.fail_disk(role)
        self._check_same(found, await self._read_pool(pool), "without members")
        for role in gone:
            with trio.fail_after(LIMIT_S):
                await take_back(array, disks[paths[role]])
                await wait_for_jobs(pool)
        await self._check_again(pool, found, "after the return of members")


def _content(member: Member) -> Image:
    if isinstance(member, SectorDisk):
        return member.cut.state.image.copy()
    assert isinstance(member, RamMember)
    return bytearray(member.memory)
