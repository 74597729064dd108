"""Every kind of job that moves content, on small arrays: how it begins, and what it promises.

`RELOCATIONS` is the table; tests/jobs/test_relocation_contract.py holds each row to it. A `Scene`
is a relocation that is under way, slow and in small windows, with the model of all content.
"""

from __future__ import annotations

import enum
import errno
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.check import check_members
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import MemberError
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.jobs.job import Job
from raidx_fuse.jobs.restripe.job import Restripe
from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.pool.array_volumes import open_volumes
from raidx_fuse.pool.move import open_pool, start_move
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume
from tests.support.arrays import Rig
from tests.support.growing import SmallRig, ram_of
from tests.support.load import CHUNK, enlarge, scrubbed
from tests.support.restriping import SmallRig as RestripeRig
from tests.support.two_arrays import Arrays, content, is_tidy, make, move_of
from tests.support.unlike import UnlikeRig

OWN = "declustered"  # the placement of examples/own-code, which must be installed
SLOW_BYTES = 60 * CHUNK  # a second: jobs of about 200 chunks last for some seconds


class Promise(enum.Flag):
    """What a kind of relocation promises, where kinds differ."""

    TURNS = enum.auto()  # a cancel moves the content back; else the job stops where it is
    WAITS_FOR_RESYNC = enum.auto()  # after a crash; else everything is logged, or finished first
    WAITS_FOR_LOST = enum.auto()  # while a target is lost; else the job fails, or passes it
    WAITS_FOR_SPACE = enum.auto()  # on the host of a target; else the target fails


TURNS, RESYNC, LOST, SPACE = Promise


@dataclass(frozen=True)
class Relocation:
    """What the job *kind*, begun by *begin* on the arrays of *rig*, promises.

    Members are given by their number in the rig: content moves to the *targets*, and any one of the
    members *lost* may be lost on the way.
    """

    name: str
    kind: str
    rig: Callable[[], Rig] | None
    begin: Callable[[Any], Awaitable[None]] | None
    targets: Sequence[int]
    lost: Sequence[int]
    promises: Promise

    def __str__(self) -> str:
        return self.name


class Scene(ABC):
    """A relocation that is under way. *model* is the content that readers must find."""

    model: bytearray

    def __init__(self, relocation: Relocation) -> None:
        self.relocation = relocation

    @property
    def job(self) -> Job:
        """The running job."""
        (job,) = (
            job
            for array in self.arrays
            for job in array.jobs.running()
            if job.kind == self.relocation.kind
        )
        return job

    @property
    @abstractmethod
    def arrays(self) -> Sequence[Array]:
        """The arrays that are open."""

    @property
    @abstractmethod
    def members(self) -> list[FaultMember]:
        """All members, of which relocations name some by number."""

    @abstractmethod
    async def read(self, offset: int, length: int) -> bytes: ...

    @abstractmethod
    async def store(self, offset: int, data: bytes) -> None: ...

    @abstractmethod
    async def remount(self) -> None:
        """Unmount cleanly, find the members sound at rest, and mount again."""

    @abstractmethod
    def further(self) -> Sequence[Callable[[], Awaitable[object]]]:
        """Return changes that must not begin while this one is under way."""

    @abstractmethod
    def disk(self) -> FaultMember:
        """Return a new disk that is large enough for any role."""

    @abstractmethod
    async def tidy(self) -> None:
        """Assert that nothing of an ended relocation is left."""

    @abstractmethod
    def restarted(self, without: int = -1) -> Any:
        """Start from what the members hold now, as after a kill, *without* one of them.

        An async context manager: its value are the arrays, and a function that reads everything.
        """

    async def write(self, offset: int, data: bytes) -> None:
        """Write to the array and to the model."""
        await self.store(offset, data)
        self.model[offset : offset + len(data)] = data

    async def compare(self) -> None:
        """Assert that all content is right."""
        assert await self.read(0, len(self.model)) == self.model

    async def reach(self, job: Job, share: float) -> bool:
        """Wait until *job* has done *share* of what it has to do; return whether it still runs."""
        while not job.finished.is_set():
            if job.total_bytes and job.done_bytes >= share * job.total_bytes:
                return True
            await trio.sleep(0.01)
        return False

    def slow_down(self) -> None:
        """Let the job have small windows and little speed; after a remount, too."""
        job = self.job
        job.limit(SLOW_BYTES, SLOW_BYTES)
        job.window = {Grow: 4, Restripe: 6 * CHUNK}.get(type(job), 2)

    @property
    def data_offset(self) -> int:
        """Where the data of members begins, in bytes."""
        return max(array.member_set.data_offset for array in self.arrays)

    def let_run(self) -> None:
        """Let all jobs run as fast as they can."""
        for array in self.arrays:
            array.jobs.limit_all(0, 0)

    async def replace_lost(self) -> None:
        """Give a new disk to each role that is lost."""
        for array in self.arrays:
            for role in sorted(array.member_set.lost):
                await array.replace_disk(role, self.disk())

    async def ended(self) -> Job:
        """Let the job run to its end; return it. All its successors have ended, too."""
        job = self.job
        self.let_run()
        with trio.fail_after(3600):
            await job.finished.wait()
            await idle(self.arrays)
        return job

    async def use(self, task: int, tasks: int, over: trio.Event) -> None:
        """Write and read at random in every *tasks*-th part of the content."""
        rng = random.Random(task)
        part = len(self.model) // tasks
        while not over.is_set():
            length = rng.choice((1, 512, CHUNK, CHUNK + 7, 3 * CHUNK))
            start = task * part + rng.randrange(part - length)
            if rng.random() < 0.6:
                await self.write(start, rng.randbytes(length))
            else:
                got = await self.read(start, length)
                assert got == self.model[start : start + length], f"{length} bytes at {start}"
            await trio.sleep(0.02)

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        """Write and read while the block of the `async with` runs."""
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            for task in range(3):
                nursery.start_soon(self.use, task, 3, over)
            yield
            over.set()


async def idle(arrays: Sequence[Array]) -> None:
    """Wait until no job runs: one may follow from another."""
    while running := [job for array in arrays for job in array.jobs.running()]:
        running[0].limit(0, 0)
        await running[0].finished.wait()
        await trio.sleep(0.01)


def fill_host(member: FaultMember) -> Callable[[], None]:
    """Let the host of *member* have no space from now on; return what ends that."""

    def full(*_: int) -> None:
        raise MemberError(member.path, "reserve", 0, errno.ENOSPC, "no space")

    shadowed: Any = member
    shadowed.reserve = full
    return lambda: delattr(shadowed, "reserve")


async def sound(members: Sequence[FaultMember]) -> None:
    """Assert that `raidx check` finds nothing wrong at rest but what a rebuild has still to do."""
    report = await check_members([one for one in members if is_member(bytes(ram_of(one).memory))])
    assert {problem["what"] for problem in report["problems"]} <= {"the array is degraded"}


def copy_of(member: FaultMember) -> RamMember:
    """Return a member with the content that *member* has now."""
    ram = ram_of(member)
    copy = RamMember(len(ram.memory), name=ram.path)
    copy.memory[:] = ram.memory
    return copy


class ArrayScene(Scene):
    """A relocation inside one array."""

    def __init__(self, relocation: Relocation) -> None:
        super().__init__(relocation)
        assert relocation.rig is not None
        self.rig = relocation.rig()

    async def begin(self) -> None:
        """Make the array, fill it in part, and begin."""
        await self.rig.create(0.7)
        self.model = self.rig.model
        assert self.relocation.begin is not None
        await self.relocation.begin(self.rig)
        self.slow_down()

    async def close(self) -> None:
        await self.rig.close()

    @property
    def arrays(self) -> Sequence[Array]:
        return [self.rig.array]

    @property
    def members(self) -> list[FaultMember]:
        return self.rig.members

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(await self.rig.array.read(offset, length))

    async def store(self, offset: int, data: bytes) -> None:
        await self.rig.array.write(offset, data)

    async def remount(self) -> None:
        await self.rig.close()
        await sound(self.members)
        await self.rig.open()

    def further(self) -> Sequence[Callable[[], Awaitable[object]]]:
        array = self.rig.array
        changes: list[Callable[[], Awaitable[object]]] = []
        if self.rig.layout != OWN:  # which neither grows nor has one member fewer
            changes.append(lambda: array.grow([self.disk()]))
        if not isinstance(self.rig, UnlikeRig):  # raidx layouts are not restriped
            changes.append(lambda: array.restripe([self.disk()], "raid5", {}))
        if self.rig.layout not in ("rdp", OWN):  # which cannot have one member fewer
            changes.append(lambda: array.remove_disk(0))
        return changes

    def disk(self) -> FaultMember:
        return self.rig.disk(110) if isinstance(self.rig, UnlikeRig) else self.rig.new_member()

    async def tidy(self) -> None:
        array = self.rig.array
        assert array.context.growth is None
        assert "restripe" not in array.member_set.config.params
        begun = set(array.member_set.config.jobs) - {"health", "tuner"}
        assert not begun, begun
        if array.size_bytes > len(self.model):
            enlarge(self.rig)
        await self.rig.compare()
        if array.context.code.parity_count and not array.member_set.lost:
            await scrubbed(self.rig)

    @asynccontextmanager
    async def restarted(self, without: int = -1) -> AsyncIterator[tuple[Sequence[Array], Any]]:
        kept = [copy_of(one) for number, one in enumerate(self.members) if number != without]
        async with open_array(kept) as array:

            async def everything() -> bytes:
                return bytes(await array.read(0, len(self.model)))

            yield [array], everything


class PoolScene(Scene):
    """A volume that moves from one array to another."""

    async def begin(self) -> None:
        self.disks = Arrays()
        await self.disks.create()
        await self._mount()
        volume = await make(self.pool)
        self.uuid = volume.uuid
        self.model = bytearray(await content(volume))
        await start_move(self.pool, "mail", "slow")
        self.slow_down()

    async def _mount(self) -> None:
        self._stack = AsyncExitStack()
        self.pool = await self._stack.enter_async_context(self.disks.mounted())

    async def close(self) -> None:
        await self._stack.aclose()

    def slow_down(self) -> None:
        job = move_of(self.pool.array("fast"))
        job.limit(0, SLOW_BYTES)
        job.window = 1

    @property
    def volume(self) -> Volume:
        return self.pool.find(self.uuid)[1]

    @property
    def arrays(self) -> Sequence[Array]:
        return [volumes.array for volumes in self.pool.arrays]

    @property
    def members(self) -> list[FaultMember]:
        return [member for members in self.disks.shelf.values() for member in members]

    async def read(self, offset: int, length: int) -> bytes:
        return bytes(await self.volume.read(offset, length))

    async def store(self, offset: int, data: bytes) -> None:
        await self.volume.write(offset, data)

    async def remount(self) -> None:
        await self.close()
        for members in self.disks.shelf.values():
            await sound(members)
        await self._mount()

    def further(self) -> Sequence[Callable[[], Awaitable[object]]]:
        return [lambda: start_move(self.pool, self.uuid, "slow")]

    def disk(self) -> FaultMember:
        return FaultMember(RamMember(4 << 20, name="new"))

    async def tidy(self) -> None:
        await self.compare()
        await is_tidy(self.pool)

    @asynccontextmanager
    async def restarted(self, without: int = -1) -> AsyncIterator[tuple[Sequence[Array], Any]]:
        number = 0
        async with AsyncExitStack() as stack:
            arrays = []
            for members in self.disks.shelf.values():
                kept = []
                for member in members:
                    if number != without:
                        kept.append(copy_of(member))
                    number += 1
                array = await stack.enter_async_context(open_array(kept))
                arrays.append(await stack.enter_async_context(open_volumes(array)))
            pool: Pool = await stack.enter_async_context(open_pool(arrays))

            async def everything() -> bytes:
                return await content(pool.find(self.uuid)[1])

            yield [volumes.array for volumes in pool.arrays], everything


# -- how each kind begins --------------------------------------------------------------------------


async def _grow(rig: Rig) -> None:
    new = [rig.new_member() for _ in range(2)]
    await rig.array.grow(new)
    rig.members += new


async def _restripe(rig: Rig) -> None:
    new = [rig.new_member()]
    await rig.array.restripe(new, "raid5", {})
    rig.members += new


async def _add_disk(rig: UnlikeRig) -> None:
    await rig.array.grow([disk := rig.disk(90)])
    rig.members.append(disk)


async def _remove(rig: Rig) -> None:
    await rig.array.remove_disk(1)


async def _replace(rig: Rig) -> None:
    await rig.array.replace_disk(1, disk := rig.new_member())
    rig.members.append(disk)


async def _rebuild(rig: Rig) -> None:
    await rig.array.fail_disk(1)
    await _replace(rig)
    rig.members.pop(1)


async def _to_own(rig: Rig) -> None:
    new = [rig.new_member() for _ in range(2)]
    await rig.array.restripe(new, OWN, {})
    rig.members += new


def _own(layout: str = OWN) -> Rig:
    rig = RestripeRig(layout, 5)
    rig.member_bytes = 1800 << 10  # for a log that a restripe between two patterns needs
    rig.image_bytes = 600 * CHUNK
    return rig


def _with_room() -> RestripeRig:
    rig = RestripeRig("raid5", 5)
    rig.image_bytes = 300 * CHUNK
    return rig


def _bundles(room: float) -> Callable[[], Rig]:
    return lambda: UnlikeRig("raidx-parity", 3, (60, 48, 56, 52), room=room)


def _raid5() -> Rig:
    return RestripeRig("raid5", 4)


def _rdp() -> Rig:
    return SmallRig("rdp", 4)


RELOCATIONS = (
    Relocation("growth", "grow", SmallRig, _grow, (4, 5), range(6), TURNS | RESYNC | LOST | SPACE),
    Relocation("restripe", "restripe", _raid5, _restripe, (4,), range(5), TURNS | SPACE),
    Relocation("removal", "restripe", _with_room, _remove, (0,), range(5), TURNS | SPACE),
    Relocation(
        "growth-of-bundles", "grow", _bundles(0), _add_disk, (4,), range(5), RESYNC | LOST | SPACE
    ),
    Relocation(
        "evacuation", "evacuate", _bundles(0.5), _remove, (0, 2, 3), range(4), RESYNC | SPACE
    ),
    Relocation("replacement", "replace", _raid5, _replace, (4,), range(5), Promise(0)),
    Relocation("rebuild", "rebuild", _rdp, _rebuild, (3,), range(4), Promise(0)),
    Relocation("own-to-raid5", "restripe", _own, _restripe, (5,), range(6), TURNS | SPACE),
    Relocation(
        "raid5-to-own", "restripe", lambda: _own("raid5"), _to_own, (5, 6), range(7), TURNS | SPACE
    ),
    Relocation("own-to-wider-own", "restripe", _own, _to_own, (5, 6), range(7), TURNS | SPACE),
    Relocation("replacement-in-own", "replace", _own, _replace, (5,), range(6), Promise(0)),
    Relocation("rebuild-of-own", "rebuild", _own, _rebuild, (4,), (4,), Promise(0)),
    Relocation("move", "move", None, None, (2, 3, 4, 5), range(6), TURNS | SPACE),
)


@asynccontextmanager
async def under_way(relocation: Relocation) -> AsyncIterator[Scene]:
    """Make the arrays and begin; close them in the end."""
    scene: ArrayScene | PoolScene
    scene = PoolScene(relocation) if relocation.rig is None else ArrayScene(relocation)
    await scene.begin()
    try:
        yield scene
    finally:
        await scene.close()
