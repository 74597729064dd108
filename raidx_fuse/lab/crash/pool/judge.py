"""What a cut of a workload on two arrays has left: mounted, and compared with what was promised.

The promises: every volume is there, once, with a size that it may have, and every sector of it is
old or new, flushed ones intact; every free byte reads as zero; no array alone shows a volume that
is on its way, and none is shown by both. When the moves and the wiping that the mount goes on with
have ended, or were cancelled, all that is the same, no table names a move, and parity is right.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import trio

from raidx_fuse.errors import ungrouped
from raidx_fuse.lab.crash.disks import SectorDisk
from raidx_fuse.lab.crash.pool.player import SLOW_BYTES, mounted, moves_of
from raidx_fuse.lab.crash.pool.recording import PoolRecording
from raidx_fuse.lab.crash.state import Cut, ViolationError, as_violations
from raidx_fuse.members.base import SECTOR_BYTES, Member
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.members.simulated.sparse import Image
from raidx_fuse.members.simulated.virtual_time import begin_anew
from raidx_fuse.pool.allocate import free_ranges
from raidx_fuse.pool.pool import Pool

LIMIT_S = 3600.0  # of virtual time: jobs that take longer never end
ALONE_SHARE = 0.25  # of the states: each array is mounted alone before both are together
CANCEL_SHARE = 0.25
USED_SHARE = 0.3  # users write while the moves go on


@dataclass
class PoolLeft:
    """What a cut of *recording* at *moment* left: *images* by disk number."""

    recording: PoolRecording
    moment: int
    images: Mapping[int, Image]

    async def judge(self, generator: random.Random, record: CutRecord | None = None) -> None:
        """Check the promises: `judge` below. Raises ViolationError."""
        await judge(self, generator, record)

    def again(self, images: Mapping[int, Image], _cut: Cut) -> PoolLeft:
        """Return what a cut of the recovery left: *images*."""
        return replace(self, images=images)


async def judge(left: PoolLeft, generator: random.Random, record: CutRecord | None = None) -> None:
    """Check what a cut left. Raises ViolationError if a promise is broken.

    With *record* the disks record their writes, in the order of their numbers, so that the recovery
    itself can be cut; the additional checks are left out then.
    """
    look = _Judge(left, generator, record)
    with as_violations("a move or the wiping never ends"), ungrouped():
        await begin_anew(look.look, seed=generator.getrandbits(32))


class _Judge:
    def __init__(self, left: PoolLeft, generator: random.Random, record: CutRecord | None) -> None:
        self.left = left
        self.recording = left.recording
        self.rng = generator
        self.record = record

    async def look(self) -> None:
        """Mount the members and run all checks. Raises ViolationError."""
        arrays = self._members()
        if self.record is None and self.rng.random() < ALONE_SHARE:
            await self._each_alone(arrays)
        async with mounted(arrays, self.recording.cell) as pool:
            slow = self.record is None and self.rng.random() < USED_SHARE
            for job in moves_of(pool):
                job.limit(0, self.rng.choice(SLOW_BYTES) if slow else 0)
            content = await self._contents(pool)
            self._check_all_there(content)
            await self._check_free(pool)
            if self.rng.random() < CANCEL_SHARE:
                for job in moves_of(pool):
                    job.cancel()
            if slow:
                await self._use(pool, content)
            await self._let_end(pool)
            self._check_same(content, await self._contents(pool))
            await self._check_tidy(pool)
        async with mounted(arrays, self.recording.cell) as pool:
            self._check_same(content, await self._contents(pool))

    def _members(self) -> list[list[Member]]:
        arrays: list[list[Member]] = [[], []]
        for number, image in sorted(self.left.images.items()):
            disk = SectorDisk(image, self.rng, name=f"disk{number}", record=self.record)
            arrays[self.recording.array_of[number]].append(disk)
        return arrays

    async def _each_alone(self, arrays: list[list[Member]]) -> None:
        """Mount each array without the other one."""
        seen: dict[str, bytes] = {}
        for number in self.rng.sample((0, 1), 2):
            async with mounted([arrays[number]], self.recording.cell) as pool:
                found = await self._contents(pool)
                both = seen.keys() & found.keys()
                if both:
                    raise ViolationError(f"each array alone shows {', '.join(both)}")
                seen |= found
                await self._check_free(pool)

    # -- checks --------------------------------------------------------------------------------

    async def _contents(self, pool: Pool) -> dict[str, bytes]:
        """Return the content of each volume that is shown, by name."""
        found: dict[str, bytes] = {}
        for volumes in pool.arrays:
            for volume in volumes.volumes:
                if volume.name in found:
                    raise ViolationError(f"volume {volume.name} is shown twice")
                found[volume.name] = bytes(await volume.read(0, volume.size_bytes))
        moment = self.left.moment
        known = {history.volume: history for history in self.recording.volumes}
        for name in found:
            if name not in known or not any(known[name].at(moment).sizes):
                raise ViolationError(f"volume {name} is there, though it should not be")
        return found

    def _check_all_there(self, found: dict[str, bytes]) -> None:
        moment = self.left.moment
        for history in self.recording.volumes:
            content = found.get(history.volume)
            expected = history.at(moment)
            if content is None:
                if 0 not in expected.sizes:
                    raise ViolationError(f"volume {history.volume} is lost")
                continue
            if len(content) not in expected.sizes:
                raise ViolationError(
                    f"volume {history.volume} has {len(content)} bytes, allowed: {expected.sizes}"
                )
            for sector in range(len(content) // SECTOR_BYTES):
                part = content[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]
                if part not in expected.allowed[sector]:
                    raise ViolationError(history.describe(sector, part, expected.allowed[sector]))

    def _check_same(self, before: dict[str, bytes], after: dict[str, bytes]) -> None:
        if before.keys() != after.keys():
            raise ViolationError(f"volumes {sorted(before)} became {sorted(after)}")
        for name, content in before.items():
            if content != after[name]:
                wrong = [
                    at // SECTOR_BYTES
                    for at in range(0, len(content), SECTOR_BYTES)
                    if content[at : at + SECTOR_BYTES] != after[name][at : at + SECTOR_BYTES]
                ]
                raise ViolationError(f"volume {name} changed after the mount, in sectors {wrong}")

    async def _check_free(self, pool: Pool) -> None:
        for volumes in pool.arrays:
            array = volumes.array
            for extent in free_ranges(volumes.table().taken(), array.size_bytes):
                if any(await array.read(extent.offset, extent.length)):
                    raise ViolationError(f"array {array.name}: a free byte is not zero")

    async def _use(self, pool: Pool, content: dict[str, bytes]) -> None:
        """Write some sectors while the moves go on; *content* has them then."""
        for _ in range(self.rng.randint(1, 8)):
            shown = [volume for volumes in pool.arrays for volume in volumes.volumes]
            if not shown:
                return
            volume = self.rng.choice(shown)
            at = self.rng.randrange(volume.size_bytes // SECTOR_BYTES) * SECTOR_BYTES
            data = self.rng.randbytes(SECTOR_BYTES)
            await volume.write(at, data)
            before = content[volume.name]
            content[volume.name] = before[:at] + data + before[at + SECTOR_BYTES :]
            await trio.sleep(self.rng.choice((0.0, 0.1, 1.0)))

    async def _let_end(self, pool: Pool) -> None:
        for job in moves_of(pool):
            job.limit(0, 0)
        with trio.fail_after(LIMIT_S):
            for volumes in pool.arrays:
                for running in volumes.array.jobs.running():
                    await running.finished.wait()
            for volumes in pool.arrays:
                await volumes.wiped()
        for volumes in pool.arrays:
            for status in volumes.array.jobs.list():
                if status["state"] not in ("done", "cancelled"):
                    raise ViolationError(f"{status['kind']} ended as {status['state']}: {status}")

    async def _check_tidy(self, pool: Pool) -> None:
        await self._check_free(pool)
        for volumes in pool.arrays:
            table = volumes.table()
            if table.arrived or any(record.move is not None for record in table.volumes):
                raise ViolationError(f"array {volumes.array.name} still names a move: {table}")
            if pool.unshown:
                raise ViolationError(pool.unshown[0].text)
            if volumes.array.member_set.lost or self.record is not None:
                continue
            with trio.fail_after(LIMIT_S):
                jobs = volumes.array.jobs
                result = await jobs.wait(await volumes.array.start_scrub(repair=False))
            if result["state"] != "done" or result["findings"]:
                raise ViolationError(f"parity is not consistent: {result['findings'][:2]}")
