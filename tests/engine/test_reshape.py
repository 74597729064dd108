"""raidx arrays whose members come, leave and are lost, under load: predictions, places, content."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from raidx_fuse import reshape_cost
from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.format.create import create_array, shape
from raidx_fuse.format.table import chunks_that_fit
from raidx_fuse.layouts.bundle import maximum
from raidx_fuse.layouts.raidx import BundleLayout
from raidx_fuse.members.faulty import FaultMember
from raidx_fuse.members.model import model_member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.testing.arrays import UNLIKE_OVERHEAD_BYTES, Rig
from raidx_fuse.testing.virtual import run

CHUNK = 4096
RIGS: list[UnlikeRig] = []


def play(scenario: Callable[[], Awaitable[None]], seed: int = 0) -> None:
    """Run *scenario* in virtual time; close its rigs however it ends."""

    async def whole() -> None:
        try:
            await scenario()
        finally:
            while RIGS:
                await RIGS.pop().close()

    run(whole, seed=seed)


class UnlikeRig(Rig):
    """A rig of unlike members whose image leaves *room*, a share of the chunks, free."""

    def __init__(
        self, name: str, length: int, chunks: tuple[int, ...], *, room: float = 0.0, **options: Any
    ) -> None:
        super().__init__(
            name, len(chunks), member_chunks=chunks, params={"length": length}, **options
        )
        self.room = room
        RIGS.append(self)

    async def create(self) -> Any:
        """Make members and array."""
        self.members = [self.new_member(role) for role in range(self.width)]
        sizes = [member.size_bytes for member in self.members]
        _, made = shape(self.layout, sizes, CHUNK, self.params)
        image = int(made.size_bytes * (1 - self.room)) // CHUNK * CHUNK if self.room else None
        await create_array(
            self.members,
            self.layout,
            chunk_bytes=CHUNK,
            name="rig",
            now_s=0,
            overwrite_signature=not self.reads_zero,
            params=self.params,
            size_bytes=image,
        )
        array = await self.open()
        self.model = bytearray(array.size_bytes)
        return array

    async def open(self) -> Any:
        """Start the array; who leaves is no member any more."""
        array = await super().open()
        array.grower.on_release.append(self._forget)
        return array

    def _forget(self, member: Any) -> None:
        self.members = [kept for kept in self.members if kept is not member]

    @property
    def bundles(self) -> BundleLayout:
        """The table."""
        assert self.array is not None
        layout = self.array.core.layout
        assert isinstance(layout, BundleLayout)
        return layout

    def disk(self, chunks: int) -> FaultMember:
        """Return a newcomer with room for about *chunks* chunks."""
        ram = RamMember(UNLIKE_OVERHEAD_BYTES + chunks * CHUNK, name=f"new{self._made}")
        inner = model_member(ram, "ssd", seed=self._made) if self.slow else ram
        self._made += 1
        return FaultMember(inner)

    async def fill(self, share: float, seed: int = 1) -> None:
        """Write *share* of the image, here and there."""
        assert self.array is not None
        rng = random.Random(seed)
        for at in range(0, len(self.model), CHUNK):
            if rng.random() < share:
                data = rng.randbytes(min(CHUNK, len(self.model) - at))
                await self.array.write(at, data)
                self.model[at : at + len(data)] = data

    async def settle(self) -> list[dict[str, Any]]:
        """Wait for every job; return what they said at the end."""
        assert self.array is not None
        ended = []
        while running := self.array.jobs.running():
            await running[0].finished.wait()
            ended.append(running[0].status())
            await trio.sleep(0.01)  # another one may follow from it
        return ended

    async def check(self) -> None:
        """Check places, content and parity; the image may have grown."""
        assert self.array is not None
        self.model += bytes(self.array.size_bytes - len(self.model))
        layout = self.bundles
        assert layout.problem(range(layout.cells)) is None
        await self.compare()
        await self._step_scrub()

    async def remount(self) -> None:
        """End cleanly and begin again."""
        await self.close()
        await self.open()
        await self.check()


def usable(rig: UnlikeRig) -> int:
    """Return the most that the members can give, by the bound of DESIGN.md."""
    assert rig.array is not None
    counts = [
        chunks_that_fit(queue.member.size_bytes, rig.array.store.data_offset, CHUNK) - 1
        for queue in rig.array.store.queues
        if queue is not None
    ]
    data = rig.bundles.code.data_count
    return maximum(counts, rig.bundles.length) * data * CHUNK


@pytest.mark.parametrize("seed", range(14))
def test_what_a_dry_run_says_is_what_happens(seed: int) -> None:
    """Members of random sizes, 3 to 10: usable space to the byte, written chunks to the chunk."""

    async def scenario() -> None:
        rng = random.Random(seed)
        width, added = rng.randint(3, 7), rng.randint(1, 3)
        name, length = rng.choice(
            [("raidx-zero", 1), ("raidx-copy", 2), ("raidx-copy", 3), ("raidx-parity", 3)]
        )
        chunks = tuple(rng.randint(4, 60) for _ in range(width))
        rig = UnlikeRig(name, length, chunks, reads_zero=bool(seed % 2))
        array = await rig.create()
        assert array.size_bytes == usable(rig)
        await rig.fill(0.7, seed)
        new = [rig.disk(rng.randint(2, 120)) for _ in range(added)]
        said = reshape_cost.of_adding(array, [disk.size_bytes for disk in new])
        result = await array.grow(new)
        rig.members += new
        (job,) = await rig.settle()
        assert job["state"] == "done"
        assert said["chunks_to_move"] == result["chunks_to_move"] == job["chunks_moved"]
        assert said["places_to_change"] == job["places_changed"]
        assert said["bytes_written"] == job["done"] == job["chunks_moved"] * CHUNK
        assert said["size_after"] == result["size_after"] == array.size_bytes == usable(rig)
        await rig.check()
        await rig.fill(0.5, seed + 1)
        await rig.remount()
        assert rig.array is not None
        assert rig.array.size_bytes == said["size_after"]

    play(scenario, seed)


SEEDS = int(os.environ.get("RAIDX_RESHAPE_SEEDS", "2"))  # of longer runs
STEPS = ("add", "remove", "fail", "larger", "write")


async def _load(rig: UnlikeRig, seed: int) -> None:
    """Write and read as long as jobs run, and a little longer."""
    assert rig.array is not None
    rng = random.Random(seed)
    for _ in range(60):
        await rig._step_write(rng.random(), rng.random(), rng.randrange(1 << 30))
        await rig._step_read(rng.random(), rng.random())
        await trio.sleep(rng.random() * 0.01)


async def _turn(rig: UnlikeRig, step: str, rng: random.Random) -> None:
    assert rig.array is not None
    array = rig.array
    roles = array.store.config.roles()
    with contextlib.suppress(BusyError, UsageError):
        if step == "add":
            new = [rig.disk(rng.randint(3, 60)) for _ in range(rng.randint(1, 2))]
            await array.grow(new)
            rig.members += new
        elif step == "remove":
            with contextlib.suppress(RaidxError):
                await array.remove_disk(rng.choice(roles))
        elif step == "fail" and array.core.code.tolerance and not array.store.lost:
            await array.fail_disk(rng.choice(roles))
            await trio.sleep(rng.choice((0.0, 61.5)))
            if rng.random() < 0.4 and (lost := sorted(array.store.lost)):
                with contextlib.suppress(RaidxError):  # no room
                    await array.remove_disk(lost[0])
        elif step == "larger" and array.core.code.tolerance and not array.store.watermarks:
            role = rng.choice(sorted(array.store.lost) or roles)
            disk = rig.disk(100)
            await array.replace_disk(role, disk)
            rig.members.append(disk)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(
    ("name", "length", "chunks"),
    [
        ("raidx-zero", 1, (40, 18, 25)),
        ("raidx-copy", 2, (40, 18, 25, 20)),
        ("raidx-copy", 3, (30, 24, 40, 22)),
        ("raidx-parity", 3, (44, 30, 36, 22, 21)),
    ],
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_image_equals_the_model_whoever_comes_or_leaves(
    name: str, length: int, chunks: tuple[int, ...], slow: bool, seed: int
) -> None:
    """Every change under load; stopped in the middle by a remount, it goes on."""

    async def scenario() -> None:
        rng = random.Random(seed)
        rig = UnlikeRig(
            name, length, chunks, room=rng.choice((0.0, 0.4)), slow=slow, reads_zero=seed == 0
        )
        await rig.create()
        await rig.fill(0.5, seed)
        for _ in range(7):
            step = rng.choice(STEPS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_load, rig, rng.randrange(1 << 30))
                await _turn(rig, step, rng)
            if rng.random() < 0.3:
                await rig.close()  # in the middle of it, perhaps
                await rig.open()
            for job in await rig.settle():
                assert job["state"] in ("done", "failed"), job
            assert rig.array is not None
            if lost := rig.array.store.lost:
                await rig.array.replace_disk(min(lost), disk := rig.disk(110))
                rig.members.append(disk)
                await rig.settle()
                await rig.settle()
            await rig.check()
        await rig.remount()

    play(scenario, seed)


def test_a_member_leaves_only_if_the_others_have_room() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26))
        array = await rig.create()
        await rig.fill(0.3)
        used = rig.bundles.used_chunks()
        with pytest.raises(RaidxError, match=rf"holds {used[1]} chunks, and the other .* free"):
            await array.remove_disk(1)
        with pytest.raises(RaidxError, match="find no place"):
            reshape_cost.of_removing(array, array.store.config.record(1))
        assert "reshape" not in array.store.config.jobs
        await array.grow([disk := rig.disk(60)])
        rig.members.append(disk)
        await rig.settle()
        assert array.size_bytes == usable(rig)
        with pytest.raises(RaidxError, match="find no place"):  # the image uses it all
            await array.remove_disk(1)
        await rig.check()

    play(scenario)


def test_who_left_is_no_member_and_may_come_back_as_a_new_one() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-copy", 2, (30, 24, 28, 26), room=0.5)
        array = await rig.create()
        await rig.fill(0.6)
        said = reshape_cost.of_removing(array, array.store.config.record(1))
        released: list[Any] = []
        array.grower.on_release.append(released.append)
        member = rig.members[1]
        result = await array.remove_disk(1)
        (job,) = await rig.settle()
        assert said["chunks_to_move"] == result["chunks_to_move"] == job["chunks_moved"] > 0
        assert released == [member]
        assert array.status()["state"] == "clean"
        assert [m["role"] for m in array.status()["members"]] == [0, 2, 3]
        await array.grow([member])
        await rig.settle()
        assert [m["role"] for m in array.status()["members"]] == [0, 1, 2, 3]
        await rig.check()
        await rig.remount()

    play(scenario)


def test_redundancy_comes_back_by_itself_after_a_while_unless_it_shall_not() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-parity", 3, (40, 34, 38, 36, 40), room=0.7)
        array = await rig.create()
        await rig.fill(0.8)
        await array.set("restore.after", "off")
        await array.fail_disk(0)
        await trio.sleep(600)
        assert array.store.lost == {0}
        assert array.status()["state"] == "degraded"
        await array.set("restore.after", "30s")
        await trio.sleep(2)
        await rig.settle()
        assert not array.store.lost
        assert array.status()["redundancy_left"] == 1
        await rig.check()
        await array.fail_disk(2)  # as redundant as before: another one may go
        await rig.compare()
        await trio.sleep(20)
        assert array.store.lost == {2}
        await trio.sleep(15)
        await rig.settle()
        assert len(array.store.config.roles()) == 3
        await rig.check()
        await rig.remount()

    play(scenario)


def test_without_room_for_all_written_chunks_are_restored_first() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-copy", 2, (40, 12, 14), room=0.0)
        array = await rig.create()
        await rig.fill(0.2)
        lost = rig.bundles.used_chunks()[2]
        free = sum(rig.bundles.counts) - sum(rig.bundles.used_chunks())
        await array.fail_disk(2)
        await trio.sleep(63)
        await rig.settle()
        assert array.store.lost == {2}  # there is no room for all
        left = rig.bundles.used_chunks()[2]
        assert 0 < left < lost
        assert lost - left <= free
        await rig.compare()
        member = rig.disk(60)
        await array.replace_disk(2, member)
        rig.members.append(member)
        await rig.settle()
        assert not array.store.lost
        await rig.check()
        await rig.remount()

    play(scenario)


def test_a_new_disk_goes_before_a_restoration_and_a_small_spare_does_not() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-parity", 3, (40, 34, 38, 36, 30), room=0.5, slow=True)
        array = await rig.create()
        await rig.fill(0.8)
        await array.set("speed_max", "8KiB")
        await array.set("restore.after", "0")
        await array.fail_disk(0)
        await trio.sleep(3)
        assert array.status()["state"] == "restoring"
        moved = array.jobs.running()[0].status()["chunks_moved"]
        assert moved
        await array.set("speed_max", "0")
        await array.replace_disk(0, disk := rig.disk(40))
        rig.members.append(disk)
        await rig.settle()
        assert array.store.config.record(0).state == "active"
        assert rig.bundles.used_chunks()[0] > 0
        await rig.check()
        await rig.remount()

    play(scenario)


def test_a_larger_disk_is_used_to_its_end() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26))
        array = await rig.create()
        await rig.fill(0.7)
        before = array.size_bytes
        sizes: list[int] = []
        array.grower.on_size.append(lambda: sizes.append(array.size_bytes))
        for role in (1, 2, 3):
            await array.replace_disk(role, disk := rig.disk(60))
            rig.members.append(disk)
            await rig.settle()
            await rig.check()
        assert array.size_bytes == usable(rig) > before
        assert sizes[-1] == array.size_bytes
        await rig.remount()

    play(scenario)


def test_a_growth_waits_for_a_lost_member_and_goes_on() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26), slow=True)
        array = await rig.create()
        await rig.fill(0.9)
        await array.set("speed_max", "8KiB")
        await array.grow([disk := rig.disk(90)])
        rig.members.append(disk)
        await trio.sleep(1)
        await array.fail_disk(1)
        await trio.sleep(30)
        (job,) = array.jobs.running()
        assert job.status()["waits_for_role"] == 1
        await array.set("speed_max", "0")
        await array.replace_disk(1, other := rig.disk(24))
        rig.members.append(other)
        await rig.settle()
        await rig.settle()
        assert array.size_bytes == usable(rig)
        await rig.check()

    play(scenario)


def test_a_degraded_array_without_room_takes_a_small_disk_for_what_it_lost() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-parity", 3, (30, 24, 28, 26, 22))
        array = await rig.create()
        await rig.fill(0.7)
        size = array.size_bytes
        await array.fail_disk(1)
        await trio.sleep(63)
        await rig.settle()
        await trio.sleep(63)
        status = array.status()
        assert status["state"] == "degraded"
        assert status["restore"]["chunks_without_place"] > 0
        new = [rig.disk(18), rig.disk(19)]  # each smaller than what was lost
        said = reshape_cost.of_adding(array, [disk.size_bytes for disk in new])
        await array.grow(new)
        rig.members += new
        assert array.jobs.running()[0].status()["kind"] == "grow"
        await trio.sleep(125)
        await rig.settle()
        status = array.status()
        assert (status["state"], status["redundancy_left"]) == ("clean", 1)
        assert status["restore"] is None
        assert array.size_bytes == said["size_after"] >= size
        await rig.check()
        await rig.remount()

    play(scenario)


def test_a_restoration_that_a_user_cancels_does_not_begin_again() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-parity", 3, (40, 34, 38, 36, 40), room=0.5, slow=True)
        array = await rig.create()
        await rig.fill(0.9)
        await array.set("speed_max", "8KiB")
        await array.set("restore.after", "0")
        await array.fail_disk(0)
        await trio.sleep(3)
        (job,) = array.jobs.running()
        array.jobs.cancel(job.job_id)
        await job.finished.wait()
        assert job.state == "cancelled"
        await array.set("speed_max", "0")
        await trio.sleep(300)
        assert array.store.lost == {0}
        assert not array.jobs.running()
        await array.remove_disk(0)  # the user's word
        await rig.settle()
        assert not array.store.lost
        await rig.check()

    play(scenario)


def test_the_tuner_forgets_who_left() -> None:
    async def scenario() -> None:
        rig = UnlikeRig("raidx-copy", 2, (40, 34, 38, 36), room=0.6, slow=True)
        array = await rig.create()
        await rig.fill(0.9)
        tuner = array.tuner
        assert tuner is not None
        for _ in range(3):  # hot chunks on role 0, which is far slower than role 2, it is said
            for at in range(0, len(rig.model), CHUNK):
                await array.read(at, CHUNK)
        assert array.core.access is not None
        array.core.access.speeds[:] = [(1.0, 1.0), (1.0, 1.0), (1e-4, 1e-4), (1.0, 1.0)]
        assert tuner.plan().steps
        await array.remove_disk(2)
        await rig.settle()
        assert 2 not in {load.role for load in tuner.loads()}
        assert all(step.target != 2 for step in tuner.plan().steps)
        await trio.sleep(30)
        await rig.check()

    play(scenario)
