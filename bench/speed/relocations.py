"""How long does each job that moves content take, and what do users feel meanwhile?

    python bench/speed/relocations.py                        a table
    python bench/speed/relocations.py --json > before.json   to be compared later, or elsewhere:
    python bench/speed/relocations.py --against before.json  exit status 1 if a job takes 2 % longer

Virtual time on modelled disks: the figures are the same on every machine, so that any difference
is one of the code. Each job runs on an idle array, and while two users write 4 KiB at random
places. *superblocks* and *flushes* count those of all members during the job, so that rounds that
were added or saved are seen. bench/speed/relocations.json has the figures of 8e675ec0, before jobs
that move content had one driver.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import ReadBuffer, WrapperMember
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.service import make_model
from raidx_fuse.members.simulated.virtual_time import run as run_virtually
from raidx_fuse.pool.array_volumes import open_volumes
from raidx_fuse.pool.move import open_pool, start_move

KIB, MIB = 1 << 10, 1 << 20
CHUNK_BYTES = 64 * KIB
FILLED = 0.7  # of the image
USERS = 2
PAUSE_S = 0.005  # between two writes of a user
LONGER = 1.02
MODELS = ("hdd", "ssd", "nvme")

Io = Callable[[int, bytes], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one job cost, in virtual time; times of writes are those of users, in ms."""

    seconds: float
    moved_bytes: int
    writes: int
    write_p99_ms: float
    write_most_ms: float
    superblocks: int
    flushes: int


class Counting(WrapperMember):
    """Counts the flushes that reach *inner*, and the writes below *superblock_end*, in bytes."""

    superblocks = flushes = superblock_end = 0

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        self.superblocks += offset_bytes < self.superblock_end
        await self.inner.writev(offset_bytes, buffers)

    async def flush(self) -> None:
        self.flushes += 1
        await self.inner.flush()


class Scene:
    """Disks of one *model*; arrays are made of them, and one job runs."""

    def __init__(self, model: str, loaded: bool) -> None:
        self.model = model
        self.loaded = loaded
        self.disks: list[Counting] = []
        self.stack = AsyncExitStack()

    def disk(self, size_bytes: int = 16 * MIB) -> Counting:
        """Return a new disk."""
        number = len(self.disks)
        ram = RamMember(size_bytes, name=f"disk{number}")
        disk = Counting(ModelMember(ram, make_model(self.model), seed=number))
        self.disks.append(disk)
        return disk

    async def array(
        self, layout: str, sizes: Sequence[int], name: str = "bench", **options: Any
    ) -> Array:
        """Make an array on disks of *sizes* MiB, and open it."""
        members = [self.disk(size * MIB) for size in sizes]
        await create_array(members, layout, name=name, now_s=0, chunk_bytes=CHUNK_BYTES, **options)
        array = await self.stack.enter_async_context(open_array(members))
        for disk in self.disks:
            disk.superblock_end = array.member_set.config.regions.superblock.end
        return array

    async def filled(self, layout: str, sizes: Sequence[int], **options: Any) -> Array:
        """Make an array, and write the first part of its image."""
        array = await self.array(layout, sizes, **options)
        await fill(array.write, int(array.size_bytes * FILLED))
        await array.flush()
        return array

    async def measure(
        self, array: Array, begin: Callable[[], Awaitable[object]], write: Io, size_bytes: int
    ) -> Figures:
        """Begin a job on *array* and wait for its end while users *write* to the first bytes."""
        await trio.sleep(1)  # until the array takes its users to be gone
        latencies: list[float] = []
        before = [(disk.superblocks, disk.flushes) for disk in self.disks]
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            if self.loaded:
                for user in range(USERS):
                    nursery.start_soon(self._use, user, write, size_bytes, latencies)
            await begin()
            (job,) = (job for job in array.jobs.running())
            await job.finished.wait()
            nursery.cancel_scope.cancel()
        assert job.state == "done", job.status()
        seconds = trio.current_time() - start_s
        before += [(0, 0)] * (len(self.disks) - len(before))
        latencies.sort()
        return Figures(
            seconds=round(seconds, 6),
            moved_bytes=job.done_bytes,
            writes=len(latencies),
            write_p99_ms=round(1e3 * latencies[int(len(latencies) * 0.99)], 3) if latencies else 0,
            write_most_ms=round(1e3 * latencies[-1], 3) if latencies else 0,
            superblocks=sum(
                d.superblocks - b for d, (b, _) in zip(self.disks, before, strict=True)
            ),
            flushes=sum(d.flushes - b for d, (_, b) in zip(self.disks, before, strict=True)),
        )

    async def _use(self, user: int, write: Io, size_bytes: int, latencies: list[float]) -> None:
        rng = random.Random(user)
        while True:
            at = rng.randrange(size_bytes // 4096) * 4096
            start_s = trio.current_time()
            await write(at, rng.randbytes(4096))
            latencies.append(trio.current_time() - start_s)
            await trio.sleep(PAUSE_S)


async def fill(write: Io, size_bytes: int) -> None:
    """Write *size_bytes* of noise."""
    noise = random.Random(1).randbytes(MIB)
    for at in range(0, size_bytes, MIB):
        await write(at, noise[: size_bytes - at])


# -- the jobs --------------------------------------------------------------------------------------


async def growth(scene: Scene) -> Figures:
    array = await scene.filled("raid5", [16] * 4)
    return await _in(scene, array, lambda: array.grow([scene.disk()]))


async def growth_piggyback(scene: Scene) -> Figures:
    array = await scene.filled("raid4", [16] * 4)
    return await _in(scene, array, lambda: array.grow([scene.disk()], "piggyback"))


async def restripe(scene: Scene) -> Figures:
    array = await scene.filled("raid5", [16] * 4)
    return await _in(scene, array, lambda: array.restripe([scene.disk()], "raid5", {}))


async def restripe_to_rdp(scene: Scene) -> Figures:
    array = await scene.filled("raid5", [32] * 4, log_bytes=8 * MIB)
    new = [scene.disk(32 * MIB) for _ in range(2)]
    return await _in(scene, array, lambda: array.restripe(new, "rdp", {}))


async def removal(scene: Scene) -> Figures:
    array = await scene.filled("raid5", [16] * 5, size_bytes=32 * MIB)
    return await _in(scene, array, lambda: array.remove_disk(1))


async def growth_of_bundles(scene: Scene) -> Figures:
    array = await scene.filled("raidx-parity", [16, 12, 14, 13], params={"length": 3})
    return await _in(scene, array, lambda: array.grow([scene.disk(20 * MIB)]))


async def evacuation(scene: Scene) -> Figures:
    array = await scene.filled(
        "raidx-parity", [16, 12, 14, 13], params={"length": 3}, size_bytes=18 * MIB
    )
    return await _in(scene, array, lambda: array.remove_disk(1))


async def replacement(scene: Scene) -> Figures:
    array = await scene.filled("raid5", [16] * 4)
    return await _in(scene, array, lambda: array.replace_disk(1, scene.disk()))


async def rebuild(scene: Scene) -> Figures:
    array = await scene.filled("raid5", [16] * 4)
    await array.fail_disk(1)
    return await _in(scene, array, lambda: array.replace_disk(1, scene.disk()))


async def rebuild_rdp(scene: Scene) -> Figures:
    array = await scene.filled("rdp", [16] * 6)
    await array.fail_disk(1)
    return await _in(scene, array, lambda: array.replace_disk(1, scene.disk()))


async def scrub(scene: Scene) -> Figures:
    array = await scene.filled("rdp", [16] * 6)
    return await _in(scene, array, lambda: array.start_scrub(repair=False))


async def move(scene: Scene) -> Figures:
    """Move a volume from a mirror to an array of four disks."""
    pair = await scene.array("raid1", [24] * 2, "pair", with_volume=False)
    four = await scene.array("raid5", [16] * 4, "four", with_volume=False)
    volumes = [await scene.stack.enter_async_context(open_volumes(one)) for one in (pair, four)]
    pool = await scene.stack.enter_async_context(open_pool(volumes))
    volume = await pool.array("pair").create("mail", 16 * MIB)
    size = int(volume.size_bytes * FILLED)
    await fill(volume.write, size)
    await volume.flush()
    return await scene.measure(pair, lambda: start_move(pool, "mail", "four"), volume.write, size)


async def _in(scene: Scene, array: Array, begin: Callable[[], Awaitable[object]]) -> Figures:
    return await scene.measure(array, begin, array.write, int(array.size_bytes * FILLED))


JOBS = (
    *(growth, growth_piggyback, restripe, restripe_to_rdp, removal, growth_of_bundles, evacuation),
    *(replacement, rebuild, rebuild_rdp, scrub, move),
)


async def _measured(
    job: Callable[[Scene], Awaitable[Figures]], model: str, loaded: bool
) -> Figures:
    scene = Scene(model, loaded)
    async with scene.stack:
        return await job(scene)


def measure(models: Sequence[str], only: str = "") -> dict[str, Figures]:
    """Return the figures of every job whose name contains *only*, by "job, model, load"."""
    found = {}
    for job in JOBS:
        for model in models if only in job.__name__ else ():
            for loaded in (False, True):
                name = f"{job.__name__}, {model}, {'under load' if loaded else 'idle'}"
                found[name] = run_virtually(_measured, job, model, loaded, seed=1)
    return found


def main() -> int:
    """Measure, print, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", type=Path, help="figures of an earlier --json")
    parser.add_argument("--only", default="", help="a part of the name of the jobs")
    options = parser.parse_args()
    found = measure(MODELS, options.only)
    if options.json:
        print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
        return 0
    earlier = json.loads(options.against.read_text()) if options.against else {}
    print(f"{'job':<42}{'s':>10}{'before':>8}{'p99 ms':>9}{'most ms':>9}{'sb':>5}{'flushes':>8}")
    longer = 0
    for name, one in found.items():
        ratio = one.seconds / earlier[name]["seconds"] if name in earlier else 0.0
        longer += ratio > LONGER
        before = f"{ratio:.3f}" if ratio else ""
        print(
            f"{name:<42}{one.seconds:>10.3f}{before:>8}{one.write_p99_ms:>9.1f}"
            f"{one.write_most_ms:>9.1f}{one.superblocks:>5}{one.flushes:>8}"
        )
    return int(longer > 0)


if __name__ == "__main__":
    sys.exit(main())
