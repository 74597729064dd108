"""The prototype of the Dswap paper (section 6.2) in virtual time: pool, monitor, planner and moves.

Four arrays of four disks, chunks of 16 KiB, up to 14 volumes on each. Every volume has N clients;
each thinks, exponentially with mean IA, and then asks for 16 KiB at a random chunk. A check every
100 s finds hotspots in the ten observations of 10 s before it; a threshold of 50 %, more than 70 %
of the observations.

Sizes are 1/64 of the paper's: what it calls 4 GB has 64 MiB here. So a seek takes as long as there,
copying a volume a 64th of the time.

The text gives neither RAID level nor whether requests read or write. With reads, or without copies,
array 0 would be 37 % busy under the loads given (its disks need 7.8 ms for a request, by their data
sheet) and no hotspot. With writes to mirrored pairs it is one, so that is what runs here.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from statistics import fmean
from typing import NamedTuple

import numpy as np
import trio
from paper_common import log_bytes, marked

from raidx_fuse.errors import RaidxError
from raidx_fuse.lab.experiments.modelled import Hardware, modelled_array
from raidx_fuse.layouts.numbers import chunk_range
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.balance.utilisation import DiskTimes
from raidx_fuse.pool.hotspots.balancer import Balancer, JobMover
from raidx_fuse.pool.move import open_pool
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume

MIB = 1 << 20
UNIT = 64 * MIB  # the paper's 4 GB
CHUNK = 16 << 10
SLOTS = 14
MEMBER_BYTES = SLOTS * UNIT // 2 + 24 * MIB
# Fujitsu MAN3184MC, by its data sheet
DISK = "sas10k,seek_ms=4.5,write_settle_ms=0.5,rpm=10025,read_mb_s=62,write_mb_s=62"
SETTINGS = {
    **{"hot.interval": "10s", "hot.window": "10", "hot.tau": "50%", "hot.share": "70%"},
}
DRIVE = DiskTimes(8.05e-3, 0.0, 1 / 62e6)
"""Of a write, as the paper's monitor has it: constants of the drive, not measured times."""
CHECK_S = 100.0
OBSERVED_S = 10.0


class Array(NamedTuple):
    """An array: *sizes* of its volumes in `UNIT`, mean think time, clients of a volume.

    *later*: clients of each of the first *raised* volumes from 100 s on.
    """

    sizes: tuple[int, ...]
    think_s: float
    clients: int = 2
    raised: int = 0
    later: int = 0


class Scene(NamedTuple):
    """One run: its arrays, and for how many seconds; *balanced*: hotspots are dissolved."""

    arrays: tuple[Array, ...]
    seconds: float = 400.0
    balanced: bool = True
    monitored: bool = True
    seed: int = 1


class Seen(NamedTuple):
    """What a run gave.

    *estimated*, *busy*: of each array, one number for each interval; *iops*: requests a second of
    its volumes. *steps*: what was done. *found_s*, *gone_s*: when a hotspot was found, and when the
    last move had ended. *copied*: bytes of volumes moved. *response_ms*: mean response before
    100 s, from then until it was found, while volumes moved, and afterwards.
    """

    estimated: tuple[tuple[float, ...], ...]
    busy: tuple[tuple[float, ...], ...]
    iops: tuple[tuple[float, ...], ...]
    steps: tuple[str, ...]
    found_s: float
    gone_s: float
    copied: int
    response_ms: tuple[float, ...]


FULL = (1,) * SLOTS
SCRATCH = Array((), 1.0)  # the paper's fifth array: empty, for swaps
FIG_6A = Scene(
    (Array(FULL, 0.4, 2, 7, 9), Array(FULL, 1.0), Array(FULL, 1.0), Array(FULL[:7], 0.5))
)
FIG_6B = Scene((*FIG_6A.arrays[:3], Array(FULL, 0.5), SCRATCH), 600.0)
UNLIKE = (1, 1, 2, 2, 4, 4)
FIG_7 = Scene(
    (
        Array(UNLIKE, 0.3, 2, 6, 7),
        Array(UNLIKE, 1.0, 2, 6, 3),
        *(Array(FULL, 1.0), Array(FULL, 0.5), SCRATCH),
    )
)


def saturated(volumes: int, *, monitored: bool) -> Scene:
    """Return the scene of Fig. 8: so many *volumes* on each array, clients that do not think."""
    arrays = (Array((1,) * volumes, 0.0),) * 4
    return Scene(arrays, 20.0, balanced=False, monitored=monitored)


def shown(scene: Scene) -> Seen:
    """Run *scene*."""
    found: Seen = run(_play, scene, seed=scene.seed)
    return found


async def _play(scene: Scene) -> Seen:
    async with AsyncExitStack() as stack:
        parts = []
        for number, array in enumerate(scene.arrays):
            part = await _open(stack, scene, number)
            for place, size in enumerate(array.sizes):
                await part.create(f"v{number}.{place}", size * UNIT)
            chunks = sum(array.sizes) * UNIT // CHUNK
            part.array.context.written.set_bits(chunk_range(0, chunks))
            await marked(part.array)
            parts.append(part)
        pool = await stack.enter_async_context(open_pool(parts))
        return await _Run(scene, pool).play()


async def _open(stack: AsyncExitStack, scene: Scene, number: int) -> ArrayVolumes:
    hardware = Hardware(
        layout="raidx-copy",
        members=(DISK,) * 4,
        name=f"array {number}",
        member_bytes=MEMBER_BYTES,
        log_bytes=log_bytes(MEMBER_BYTES),
        chunk_bytes=CHUNK,
        size_bytes=SLOTS * UNIT,
        with_volume=False,
        seed=scene.seed * 1000 + 10 * number,
    )
    opened = modelled_array(hardware, random.Random(f"{scene.seed}/{number}"))
    array, _ = await stack.enter_async_context(opened)
    await array.set("tuner.enabled", "off")
    return await stack.enter_async_context(open_volumes(array))


class _Run:
    def __init__(self, scene: Scene, pool: Pool) -> None:
        self.scene = scene
        self.pool = pool
        self.balancer = Balancer(pool.arrays, JobMover(pool))
        self.balancer.sampler.times = lambda array: DRIVE  # type: ignore[method-assign]
        self.steps: list[str] = []
        self.found_s = self.gone_s = float("nan")
        self.copied = 0
        self.responses: tuple[list[float], ...] = ([], [], [], [])
        self.origin_s = trio.current_time()

    def now_s(self) -> float:
        return trio.current_time() - self.origin_s

    async def play(self) -> Seen:
        for key, value in SETTINGS.items():
            await self.balancer.settings.set(key, value)
        for part, array in zip(self.pool.arrays, self.scene.arrays, strict=True):
            if not array.sizes:
                await self.balancer.settings.set("balance.target", "off", part.array)
        self.origin_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            if self.scene.monitored:
                nursery.start_soon(self.balancer.run)
            for number, array in enumerate(self.scene.arrays):
                for place in range(len(array.sizes)):
                    _, volume = self.pool.find(f"v{number}.{place}")
                    for client in range(array.later if place < array.raised else array.clients):
                        begin_s = 0.0 if client < array.clients else CHECK_S
                        seed = f"{self.scene.seed}/{volume.name}/{client}"
                        nursery.start_soon(self.client, volume, array.think_s, begin_s, seed)
            if self.scene.balanced:
                nursery.start_soon(self.check)
            await trio.sleep(self.scene.seconds + 0.5)
            nursery.cancel_scope.cancel()
        return self.seen()

    async def client(self, volume: Volume, think_s: float, begin_s: float, seed: str) -> None:
        rng = random.Random(seed)
        data = bytes(CHUNK)
        await trio.sleep(begin_s)
        while True:
            await trio.sleep(rng.expovariate(1 / think_s) if think_s else 0)
            offset = rng.randrange(volume.size_bytes // CHUNK) * CHUNK
            start_s = self.now_s()
            volume.count_write(CHUNK)  # as a front end does
            await volume.write(offset, data)
            self.responses[self.phase(start_s)].append(self.now_s() - start_s)

    def phase(self, at_s: float) -> int:
        """Return 0 before the load rises, 1 until found, 2 while volumes move, 3 afterwards."""
        if at_s < CHECK_S:
            return 0
        if not at_s >= self.found_s:
            return 1
        return 3 if at_s >= self.gone_s else 2

    async def check(self) -> None:
        while True:
            await trio.sleep(CHECK_S)
            await trio.sleep(0.1)  # behind the observation of this moment
            if not self.balancer.planning.hotspots():
                continue
            proposal = await self.balancer.planning.balance()
            self.found_s = self.now_s()
            self.steps += proposal.lines()
            self.copied += proposal.plan.cost_bytes
            self.balancer.start(proposal)
            await self.balancer.finished.wait()
            if self.balancer.status()["state"] != "done":
                raise RaidxError(f"the plan failed: {self.balancer.status()['error']}")
            self.gone_s = self.now_s()

    def seen(self) -> Seen:
        monitor = self.balancer.monitor
        histories = [monitor.arrays.get(part.array.uuid) for part in self.pool.arrays]
        rows = [history.newest(1000) if history else None for history in histories]

        def column(number: int) -> tuple[tuple[float, ...], ...]:
            return tuple(() if r is None else tuple(r[:, number].tolist()) for r in rows)

        return Seen(
            column(1),
            column(2),
            self.iops(),
            tuple(self.steps),
            self.found_s,
            self.gone_s,
            self.copied,
            tuple(1e3 * fmean(r) if r else float("nan") for r in self.responses),
        )

    def iops(self) -> tuple[tuple[float, ...], ...]:
        """Return the requests of each array's volumes, by where the volumes were at first."""
        found: list[tuple[float, ...]] = []
        for number, array in enumerate(self.scene.arrays):
            volumes = [self.pool.find(f"v{number}.{i}")[1] for i in range(len(array.sizes))]
            if not volumes:
                found.append(())
            elif self.scene.balanced:
                rows = [self.balancer.monitor.volumes[one.uuid].newest(1000) for one in volumes]
                found.append(tuple(np.sum([row[:, 2] for row in rows], axis=0).tolist()))
            else:
                found.append((sum(one.writes for one in volumes) / self.now_s(),))
        return tuple(found)
