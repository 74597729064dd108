"""What a cut of a pair has left: mounted, and compared with what was promised.

Every volume is there, with a size that it may have, and every sector of it is old or new, flushed
ones intact. When all that the mount goes on with has ended, that is the same and parity is right;
and it is the same without as many members as the layout tolerates, and when they are back.

Where members are lost, what a write past the log may have torn is excepted (`Events.torn`): the
sectors of a stripe that was written whole, and, without a log, of every stripe that was written.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import trio

from raidx_fuse.errors import ungrouped
from raidx_fuse.lab.crash.disks import POISON, SectorDisk
from raidx_fuse.lab.crash.history import ZEROS
from raidx_fuse.lab.crash.mounting import mounted
from raidx_fuse.lab.crash.pairs.play import (
    LIMIT_S,
    PairRecording,
    check_parity,
    returns,
    wait_for_jobs,
)
from raidx_fuse.lab.crash.pairs.scene import read_volume, since
from raidx_fuse.lab.crash.state import Cut, ViolationError, as_violations
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.simulated.powercut import CutRecord, Image
from raidx_fuse.members.simulated.virtual_time import begin_anew
from raidx_fuse.pool.pool import Pool

LOSE_SHARE = 0.25  # of the states: as many members as can be spared are lost after the mount

Found = dict[str, list[bytes | None]]


@dataclass
class PairLeft:
    """What a cut of *recording* at *moment* left: *images* by disk number.

    *lost*: how many disks of each array are not there.
    """

    recording: PairRecording
    moment: int
    images: Mapping[int, Image]
    lost: tuple[int, ...]

    async def judge(self, generator: random.Random, record: CutRecord | None = None) -> None:
        """Check the promises. Raises ViolationError.

        With *record* the disks record their writes, in the order of their numbers.
        """
        look = _Judge(self, generator, record)
        with as_violations("the jobs that the mount started never end"), ungrouped():
            await begin_anew(look.look, seed=generator.getrandbits(32))

    def again(self, images: Mapping[int, Image], cut: Cut) -> PairLeft:
        """Return what *cut* of the recovery left: *images*."""
        more = self.recording.by_array(cut.lost)
        lost = tuple(one + other for one, other in zip(self.lost, more, strict=True))
        return replace(self, images=images, lost=lost)


class _Judge:
    def __init__(self, left: PairLeft, generator: random.Random, record: CutRecord | None) -> None:
        self.left = left
        self.recording = left.recording
        self.rng = generator
        self.record = record
        self.lacking = [
            lost + left.recording.events.lacking(array, left.moment)
            for array, lost in enumerate(left.lost)
        ]
        self.exempt: dict[str, set[int]] = {}
        self.unreadable: dict[str, set[int]] = {}

    async def look(self) -> None:
        """Mount the members and run all checks. Raises ViolationError."""
        arrays: list[list[Member]] = [[] for _ in range(self.recording.arrays)]
        disks: dict[str, Member] = {}
        for number, image in sorted(self.left.images.items()):
            disk = SectorDisk(
                image,
                self.rng,
                name=f"disk{number}",
                record=self.record,
                reads_zero=True,
                under=self.recording.under(number),
            )
            disks[disk.path] = disk
            arrays[self.recording.events.array_of[number]].append(disk)
        async with mounted(arrays, start_degraded=True) as pool:
            if self.record is not None:
                self.record.note("mounted")
            self._check_members(pool)
            found = await self._volumes(pool)
            self._check(found)
            if self.record is None and any(pool.transfers):
                await self._write_lost(pool, found)  # what a second cut leaves is judged without it
            with trio.fail_after(LIMIT_S):
                await wait_for_jobs(pool)
            self._check_same(found, await self._volumes(pool), "after the mount's own work")
            await check_parity(pool, given_up=any(self.exempt.values()))
            if self.record is None and not self.recording.burdened:
                await self._take_back(pool, found, disks)
            lose = self.record is None and self.rng.random() < LOSE_SHARE
            if lose and not self.recording.burdened and not self._is_unread():
                await self._lose(pool, found, disks)

    async def _write_lost(self, pool: Pool, found: Found) -> None:
        """Write over what cannot be read: a move of it that is paused goes on then."""
        for uuid, content in found.items():
            sector = 0
            for lost, run in groupby(content, lambda what: what is None):
                count = len(list(run))
                if lost:  # at once: a part of a lost chunk gives the rest no content
                    await pool.find(uuid)[1].write(sector * SECTOR_BYTES, ZEROS * count)
                sector += count

    def _is_unread(self) -> bool:
        """Return whether a disk still has sectors that cannot be read."""
        images = self.left.images.values() if self.recording.has_poison else ()
        return any(POISON in bytes(image) for image in images)

    def _check_members(self, pool: Pool) -> None:
        for array, volumes in enumerate(pool.arrays):
            if len(volumes.array.member_set.lost) > self.lacking[array]:
                raise ViolationError(
                    f"roles {sorted(volumes.array.member_set.lost)} were left out: "
                    f"{'; '.join(volumes.array.warnings)}"
                )

    async def _volumes(self, pool: Pool) -> Found:
        """Return the sectors of each volume that is shown, by UUID."""
        shown = [volume for volumes in pool.arrays for volume in volumes.volumes]  # some may move
        return {one.uuid: await read_volume(one) for one in shown if one.name != "filler"}

    def _check(self, found: Found) -> None:
        recording, moment = self.recording, self.left.moment
        known = set(recording.uuids.values())
        creating = [h for h in recording.volumes if h.volume not in recording.uuids]
        strange = found.keys() - known
        if len(strange) > len(creating):
            raise ViolationError(f"{len(strange)} volumes are there that should not be")
        expected = {history.number: history.at(moment) for history in recording.volumes}
        torn: dict[int, set[int]] = {}
        mode = recording.events.weakest_mode(moment)
        if any(self.lacking) and mode != "full":
            for one in expected.values():
                for token in one.in_flight if mode == "none" else one.full_in_flight:
                    for number, sectors in recording.events.torn[token].items():
                        torn.setdefault(number, set()).update(sectors)
        wrong = []
        for history in recording.volumes:
            uuid = recording.uuids.get(history.volume)
            if uuid is None:
                continue
            content = found.get(uuid)
            one = expected[history.number]
            unsure = since(recording.events.unsure, history.number, moment)
            unreadable = since(recording.events.unreadable, history.number, moment)
            self.unreadable[uuid] = unreadable
            exempt = self.exempt[uuid] = torn.get(history.number, set()) | unsure
            size = 0 if content is None else len(content) * len(ZEROS)
            if size not in one.sizes:
                raise ViolationError(
                    f"volume {history.volume} has {size} bytes, allowed: {one.sizes}"
                )
            if content is None or content == one.plainest[: len(content)]:
                continue
            for sector, what in enumerate(content):
                if what in one.allowed[sector] or sector in exempt:
                    continue
                if what is None:
                    if sector in unreadable:
                        continue
                    wrong.append(f"volume {history.volume}, sector {sector} cannot be read")
                else:
                    wrong.append(history.describe(sector, what, one.allowed[sector]))
        if wrong:
            more = f" (and {len(wrong) - 2} more)" if len(wrong) > 2 else ""
            raise ViolationError("; ".join(wrong[:2]) + more)

    def _check_same(self, before: Found, after: Found, when: str) -> None:
        if before == after:
            return
        if before.keys() != after.keys():
            raise ViolationError(f"volumes {sorted(before)} became {sorted(after)} {when}")
        name = self.recording.volumes[0].name
        names = {uuid: volume for volume, uuid in self.recording.uuids.items()}
        for uuid, content in before.items():
            exempt = self.exempt.get(uuid, set())
            for sector, (old, new) in enumerate(zip(content, after[uuid], strict=True)):
                gone = (old is None or new is None) and sector in self.unreadable.get(uuid, ())
                if old != new and sector not in exempt and not gone:
                    was, now = (name(c) if c is not None else "EIO" for c in (old, new))
                    raise ViolationError(
                        f"volume {names.get(uuid)}, sector {sector} changed from {was} to {now} "
                        f"{when}"
                    )

    async def _take_back(self, pool: Pool, found: Found, disks: Mapping[str, Member]) -> None:
        """Take back the members that were out before the cut: they are caught up."""
        if not any(volumes.array.member_set.lost for volumes in pool.arrays):
            return
        for volumes in pool.arrays:
            array = volumes.array
            member_set = array.member_set
            for path in sorted(
                member_set.config.record(role).path_hint for role in member_set.lost
            ):
                if (disk := disks.get(path)) is None:
                    continue
                with trio.fail_after(LIMIT_S):
                    await returns(array, disk)
                    await wait_for_jobs(pool)
        self._check_same(found, await self._volumes(pool), "after the return of members")
        await check_parity(pool, given_up=any(self.exempt.values()))

    async def _lose(self, pool: Pool, found: Found, disks: Mapping[str, Member]) -> None:
        """Lose as many members as the array under test can spare; then take them back."""
        array = pool.arrays[0].array
        member_set = array.member_set
        spare = array.context.code.tolerance - len(member_set.lost)
        roles = [role for role, queue in enumerate(member_set.queues) if queue is not None]
        gone = []
        for role in self.rng.sample(roles, max(0, spare)):
            queue = member_set.queues[role]
            assert queue is not None
            gone.append(disks[queue.member.path])
            await array.fail_disk(role)
        self._check_same(found, await self._volumes(pool), "without members")
        for disk in gone:
            with trio.fail_after(LIMIT_S):
                await returns(array, disk)
                await wait_for_jobs(pool)
        self._check_same(found, await self._volumes(pool), "after the return of members")
        await check_parity(pool, given_up=any(self.exempt.values()))
