"""raidx layouts in the engine: unlike members, moves under writes, failures, remounts, lost shares.

Scripts run against a bytearray in virtual time; every step is drawn from a seed.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from raidx_fuse.array.open import open_array
from raidx_fuse.engine.move_chunks import ChunkMover
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.numbers import MemberChunk, Role
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import Rig
from tests.support.load import opened
from tests.support.unlike import bundles_of

KINDS = [
    ("raidx-zero", 1, (90, 40, 20)),
    ("raidx-copy", 2, (60, 24, 40, 12)),
    ("raidx-copy", 3, (30, 24, 40, 12)),
    ("raidx-parity", 3, (44, 30, 36, 12, 21)),
    ("raidx-parity", 4, (30, 22, 30, 26, 18)),
]

STEPS = (
    *("write", "sectors", "read", "parallel", "flush", "moves", "moves_under_load"),
    *("fail", "replace", "spare", "settle", "scrub", "remount", "eio", "cache"),
)


class BundleRig(Rig):
    """A rig of unlike members, with steps that move chunks."""

    def __init__(self, kind: tuple[str, int, tuple[int, ...]], **options: Any) -> None:
        name, length, chunks = kind
        super().__init__(
            name, len(chunks), member_chunks=chunks, params={"length": length}, **options
        )

    @property
    def bundles(self) -> BundleLayout:
        """The table."""
        return bundles_of(self.array)

    async def _step_moves(self, count: int, seed: int) -> None:
        """Move chunks onto free ones, or let two change places, wherever that is allowed."""
        mover = ChunkMover(self.array.context, self.bundles)
        rng = random.Random(seed)
        for _ in range(count):
            layout = self.bundles
            cell = rng.randrange(layout.cells)
            role = rng.randrange(layout.width)
            if rng.random() < 0.5 and len(free := layout.free_chunks(role)):
                moves = [(cell, Role(role), MemberChunk(int(rng.choice(free.tolist()))))]
            else:
                moves = mover.exchange(cell, rng.randrange(layout.cells))
            if mover.problem(moves) is None:
                if not await mover.move(moves):
                    assert self.array.member_set.lost  # a member failed on the way
                    continue
                assert layout.place(*divmod(cell, layout.length)) == moves[0][1:]

    async def _step_moves_under_load(self, count: int, seed: int) -> None:
        """Move chunks while others write and read them."""
        rng = random.Random(seed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._step_moves, count, seed)
            for _ in range(6):
                unit = self.chunk_bytes
                at = rng.randrange(len(self.model) // unit) * unit
                size = rng.randint(1, min(3 * unit, len(self.model) - at))
                await self._step_read(rng.random(), rng.random())
                data = rng.randbytes(size)
                await self.array.write(at, data)
                self.model[at : at + size] = data
                await trio.sleep(rng.random() * 0.003)
        await self.compare()


def script(seed: int, steps: int) -> list[tuple[Any, ...]]:
    """Draw a script: mostly writes and moves, sometimes trouble."""
    rng = random.Random(seed)

    def step() -> tuple[Any, ...]:
        name = rng.choices(
            STEPS,
            (6, 2, 3, 3, 1, 5, 3, 1, 2, 1, 1, 1, 1, 0.5, 1),
        )[0]
        where, size, number = rng.random(), rng.random(), rng.randrange(1 << 30)
        arguments = {
            "write": (where, size, number),
            "sectors": (where, size, number),
            "parallel": (where, size, number),
            "read": (where, size),
            "moves": (number % 12, number),
            "moves_under_load": (number % 9, number),
            "fail": (number,),
            "eio": (number, True),
            "cache": ((0, 4096, 1 << 16, 1 << 20)[number % 4],),
            "remount": (True,),
        }
        return (name, *arguments.get(name, ()))

    return [step() for _ in range(steps)]


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda n: f"{KINDS[n][0]}-{KINDS[n][1]}")
@pytest.mark.parametrize("seed", range(2))
def test_the_image_equals_the_model_whatever_moves_or_fails(number: int, seed: int) -> None:
    slow = (number + seed) % 2 == 1
    rig = BundleRig(KINDS[number], slow=slow, reads_zero=bool(seed % 2))
    run(rig.play, script(seed, 40), seed=seed)


async def test_a_read_that_waits_while_its_chunk_moves_looks_again() -> None:
    """What it reads belongs to another chunk by then."""
    rig = await opened(BundleRig(("raidx-zero", 1, (20, 20)), slow=True))
    array = rig.array
    await rig._step_write(0.0, 1.0, 3)
    one, other = (int(rig.bundles.cells_of(role)[0]) for role in (0, 1))
    mover = ChunkMover(array.context, rig.bundles)
    read_members = array.member_set._read_members
    moved = False

    async def read_then_move(requests: Any, background: bool) -> None:
        nonlocal moved
        if not moved and not background:
            moved = True
            assert await mover.move(mover.exchange(one, other))
        await read_members(requests, background)

    array.member_set._read_members = read_then_move  # type: ignore[method-assign]
    start = one * rig.chunk_bytes
    assert await array.read(start, 4096) == rig.model[start : start + 4096]
    assert moved


async def test_of_two_movers_to_one_free_place_one_does_not_move() -> None:
    """A free place is under no lock, and free until the record of the first move is written."""
    rig = await opened(BundleRig(("raidx-zero", 1, (20, 20, 30)), slow=True))
    array = rig.array
    await rig._step_write(0.0, 1.0, 3)
    place = (2, int(rig.bundles.free_chunks(2)[0]))
    cells = [int(rig.bundles.cells_of(role)[0]) for role in (0, 1)]
    movers = [ChunkMover(array.context, rig.bundles) for _ in cells]
    moved: list[bool] = []

    async def move(mover: ChunkMover, cell: int) -> None:
        moved.append(await mover.move([(cell, *place)]))

    async with trio.open_nursery() as nursery:
        for mover, cell in zip(movers, cells, strict=True):
            nursery.start_soon(move, mover, cell)
    assert sorted(moved) == [False, True]
    assert not rig.bundles.promised
    assert rig.bundles.problem(range(rig.bundles.cells)) is None
    await rig.compare()


@pytest.mark.parametrize("layout", ["raidx-copy", "raid1"])
def test_copies_are_read_where_the_answer_comes_first(layout: str) -> None:
    """An SSD beside a disk: it serves nearly all, but when it is congested the disk helps."""

    async def scenario(readers: int) -> tuple[int, int]:
        rams = [RamMember(8 << 20, name=kind) for kind in ("hdd", "ssd")]
        members = [model_member(ram, ram.path, seed=1) for ram in rams]
        await create_array(members, layout, chunk_bytes=65536, name="pair", now_s=0)
        async with open_array(members) as array:
            data = random.Random(1).randbytes(2 << 20)
            await array.write(0, data)
            await array.flush()
            rng = random.Random(2)

            async def read_some() -> None:
                for _ in range(60):
                    at = rng.randrange(len(data) // 4096) * 4096
                    assert await array.read(at, 4096) == data[at : at + 4096]

            before = [queue.reads for queue in array.member_set.queues if queue]
            async with trio.open_nursery() as nursery:
                for _ in range(readers):
                    nursery.start_soon(read_some)
            after = [queue.reads for queue in array.member_set.queues if queue]
            return after[0] - before[0], after[1] - before[1]

    hdd, ssd = run(scenario, 1, seed=3)
    assert hdd <= 3
    assert ssd >= 57
    hdd, ssd = run(scenario, 64, seed=3)
    assert 0 < hdd < ssd / 5


@pytest.mark.parametrize("layout", ["raidx-parity", "raidx-copy"])
def test_bundles_are_rebuilt_and_scrubbed_side_by_side(layout: str) -> None:
    """About as fast as RAID-5, whose strips lie in order: bundles are not worked on one by one."""

    async def scenario(layout: str) -> tuple[float, float]:
        members = [
            model_member(RamMember(12 << 20, name=f"disk{number}"), "hdd", seed=number)
            for number in range(6)
        ]
        await create_array(members[:5], layout, chunk_bytes=1 << 16, name="rates", now_s=0)
        async with open_array(members[:5]) as array:
            for at in range(0, min(array.size_bytes, 16 << 20), 1 << 20):
                await array.write(at, random.Random(at).randbytes(1 << 20))
            await array.context.journal.drain()
            await array.flush()
            began_s = trio.current_time()
            job = await array.jobs.wait((await array.replace_disk(0, members[5]))["job"])
            rebuilt_s = trio.current_time() - began_s
            began_s = trio.current_time()
            scrub = await array.jobs.wait(await array.start_scrub(repair=False))
            assert (job["state"], scrub["mismatches"], scrub["unchecked_stripes"]) == ("done", 0, 0)
            return job["done"] / rebuilt_s, scrub["done"] / (trio.current_time() - began_s)

    for rate, theirs in zip(run(scenario, layout), run(scenario, "raid5"), strict=True):
        assert rate > 0.8 * theirs
